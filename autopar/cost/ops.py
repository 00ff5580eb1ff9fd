"""Ops: seconds of one op on one device.

In: a `CostModel`, a node with its shapes, how it is split. Out: seconds. The solver asks for many strategies of a node, the estimate for one node of a
program: both come to `_seconds`, so they agree without talking.

    matmul     `cost.matmul`: tiles in waves over the multiprocessors of a GPU, at the level that its kernel tables show
    attention  `cost.attention`: what its kernel reaches by sequence and head dim
    convolution  `cost.convolution`: its implicit matmuls, by rows and channels, and the copies to channels last
    measured   `cost.measured`: on a `cpu` that was profiled, what its rows know
    the rest   max(flops / level, bytes / (memory bandwidth x reached share))
    fused      of a group that runs as one kernel (`graph.fusion`) each node pays what it still reads and writes; the first pays the start
    start      of every kernel, as long as the host is not ahead: `CostModel.launch_s`

A view costs nothing. Where no kernel table speaks for a device (`cpu`, devices of the user's own) a matmul or a convolution is one of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from ..graph.liveness import is_view
from ..graph.node import Node, get_arg, input_names, packet_of
from ..graph.rule import Signature, Site, count_flops, is_contraction
from ..graph.sharding import local_elements
from ..graph.strategy import Strategy, split_share
from ..graph.tensor import DTYPE_BYTES, Value, num_elements
from ..graph.turns import RECEIVE, SEND
from ..graph.work import moved_bytes
from .attention import MASKED, attention_seconds, list_attention_kernels, visible_pairs
from .collectives import collective_way, way_seconds
from .convolution import CONVOLUTIONS, Sizes, Windows, convolution_seconds, find_windows, least_convolution_seconds, local_sizes
from .lookup import Reach
from .matmul import MatmulRates, matmul_seconds
from .measured import copy_reach, copy_seconds, node_least_s, node_reach, node_seconds, traffic_least_s, write_least_s, write_seconds
from .model import CostModel, matmul_flops_per_s
from .row_sums import reread_bytes

Shape = tuple[int, ...]
Tensor = tuple[Shape, str]  # local shape, dtype

_PRODUCTS = {  # which inputs are multiplied
    "aten.mm": (0, 1), "aten.bmm": (0, 1), "aten.addmm": (1, 2), "aten.baddbmm": (1, 2),
    "autopar.linear": (0, 1), "autopar.linear_weight_grad": (0, 1), "autopar.linear_input_grad": (0, 1),
}  # fmt: skip
_BATCHED = ("aten.bmm", "aten.baddbmm")
_ATTENTION = {"autopar.attention": (0, False), "autopar.attention_backward": (1, True)}  # place of the queries; backward
_HALF = ("bfloat16", "float16")
_MAX_HEAD_DIM = 256  # of the fused attention kernels


def tensor_bytes(tensor: Tensor) -> int:
    """Dense bytes."""
    return num_elements(tensor[0]) * DTYPE_BYTES[tensor[1]]


def site_dtypes(node: Node, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Dtype of each input, then of each output that somebody sees: the `dtypes` that `estimate_node_s` asks for."""
    return tuple(values[name].dtype for name in (*node.inputs, *(o for o in node.outputs if o)))


def compute_dtype(dtypes: Sequence[str]) -> str:
    """The dtype in which an op computes: that of its first floating tensor."""
    return next((d for d in dtypes if "float" in d), "float32")


def node_flops(signature: Signature, site: Site) -> float:
    """FLOPs of the whole node that count against the matmul peak; 0 where it is no contraction.

    Args:
        site: with whole shapes.
    """
    return count_flops(signature, site) if is_contraction(signature) else 0.0


def estimate_op_s(
    model: CostModel, op: str, flops: float, local_inputs: Sequence[Tensor], local_outputs: Sequence[Tensor], site: Site | None = None
) -> float:
    """Seconds of one op on one device.

    Args:
        flops: of this device's share, contractions only; 0 for everything else.
        local_inputs, local_outputs: what it reads and writes here.
        site: of the node in the whole graph, where it is one.
    """
    elements = np.array([[num_elements(t[0])] for t in (*local_inputs, *local_outputs)], dtype=np.int64).reshape(-1, 1)
    dtypes = tuple(t[1] for t in (*local_inputs, *local_outputs))
    return float(_seconds(model, op, site, dtypes, elements, len(local_inputs), np.array([flops]))[0])


def op_reach(model: CostModel, op: str, flops: float, local_inputs: Sequence[Tensor], local_outputs: Sequence[Tensor], site: Site | None = None) -> Reach:
    """How far the shapes of an op lie outside of the profile's rows that price it; 1.0 where none do. Arguments as of `estimate_op_s`."""
    if model.measured is None or is_view(op) or op in (SEND, RECEIVE):
        return 1.0, ""
    elements = np.array([[num_elements(t[0])] for t in (*local_inputs, *local_outputs)], dtype=np.int64).reshape(-1, 1)
    dtypes = tuple(t[1] for t in (*local_inputs, *local_outputs))
    moved = _moved(op, as_run(model, site), dtypes, elements, len(local_inputs))
    if _by_library(model, site):
        return copy_reach(model.measured, float(moved[0]))
    share = _excess(model, site, elements) if packet_of(op) in _ATTENTION and site is not None else 1.0
    return node_reach(model.measured, op, site, compute_dtype(dtypes), elements, len(local_inputs), share * np.array([flops]), moved)


def estimate_write_s(model: CostModel, local_bytes: int) -> float:
    """Seconds to put a state's new version into the state's own storage (`state.write`): read once, written once. Not asked for where the update's kernel
    writes it there itself (`fusion.rewritten_states`)."""
    if model.measured is not None and (found := write_seconds(model.measured, local_bytes)) is not None:
        return found
    return 0.0 if model.fuses else 2 * local_bytes / model.memory_bytes_per_s + model.launch_s


def least_write_s(model: CostModel, num_bytes: int) -> float:
    """Of `estimate_write_s`, as `least_node_s` of a node."""
    if model.measured is not None and (found := write_least_s(model.measured, num_bytes)) is not None:
        return found
    return 0.0 if model.fuses else 2 * num_bytes / model.memory_bytes_per_s


def receive_seconds(model: CostModel, num_bytes: float) -> float:
    """Seconds until so many bytes of another pipeline stage are here."""
    if not model.stage_per_host:
        return 0.0
    way = collective_way(model.links, "send_recv", 2, model.stage_per_host)
    return float(way_seconds(way, num_bytes, model.launch_s))


def estimate_node_s(
    model: CostModel, signature: Signature, site: Site, dtypes: tuple[str, ...], strategy: Strategy, sizes: tuple[int, ...]
) -> float:
    """Seconds of one node on one device, under one strategy.

    Args:
        site: with whole shapes.
        dtypes: of inputs and seen outputs (`site_dtypes`).
        sizes: of the mesh axes.
    """
    return estimate_strategies_s(model, signature, site, dtypes, (strategy,), sizes)[0]


def estimate_strategies_s(
    model: CostModel, signature: Signature, site: Site, dtypes: tuple[str, ...], strategies: Iterable[Strategy], sizes: tuple[int, ...]
) -> tuple[float, ...]:
    """`estimate_node_s` of many strategies of one node: what depends on the node alone is done once."""
    rows = tuple(strategies)
    if is_view(site.node.op):
        return tuple(0.0 for _ in rows)
    shapes = (*site.inputs, *site.outputs)
    local = np.array([[local_elements(shape, s, sizes) for shape, s in zip(shapes, (*row.inputs, *row.outputs))] for row in rows], dtype=np.int64).T.reshape(len(shapes), len(rows))
    flops = node_flops(signature, site)
    share = np.array([flops / split_share(row, signature.rule, sizes) if flops else 0.0 for row in rows])
    return tuple(map(float, _seconds(model, site.node.op, site, dtypes, local, len(site.inputs), share)))


def least_node_s(model: CostModel, signature: Signature, site: Site, dtypes: tuple[str, ...]) -> float:
    """Seconds of a node's work on one device of unlimited memory, its start aside: no division of it among n devices takes less than the n-th part.

    The level of the best tile, and no waves; of a convolution also what its copies take, for all devices together copy no less.
    """
    if is_view(site.node.op) or site.node.op in (SEND, RECEIVE):
        return 0.0
    elements = np.array([[num_elements(s)] for s in (*site.inputs, *site.outputs)], dtype=np.int64).reshape(-1, 1)
    moved = float(_moved(site.node.op, as_run(model, site), dtypes, elements, len(site.inputs))[0])
    flops = node_flops(signature, site)
    if model.measured is not None:
        if _by_library(model, site) and (least := traffic_least_s(model.measured, moved)) is not None:
            return least
        case = np.array([flops]), np.array([moved])
        found = node_least_s(model.measured, site.node.op, site, compute_dtype(dtypes), elements, len(site.inputs), *case)
        if found is not None:
            return float(found[0])
    if flops and packet_of(site.node.op) in _ATTENTION:
        return float(_seconds(model, site.node.op, site, dtypes, elements, len(site.inputs), np.array([flops]))[0]) - model.launch_s
    if flops and model.rates is not None and packet_of(site.node.op) in CONVOLUTIONS:
        windows = find_windows(site)
        least_s = least_convolution_seconds(model.rates, windows, local_sizes(site, windows, elements), _known_dtype(model.rates, compute_dtype(dtypes)))
        return max(float(least_s[0]), moved / model.memory_bytes_per_s)
    best = max(tile[2] for tile in model.rates.tiles) if model.rates is not None else 1.0
    return max(flops / (best * matmul_flops_per_s(model, compute_dtype(dtypes))), moved / model.memory_bytes_per_s)


def _seconds(
    model: CostModel, op: str, site: Site | None, dtypes: Sequence[str], elements: np.ndarray, num_inputs: int, flops: np.ndarray
) -> np.ndarray:
    """Seconds per column of `elements` (operand, case): local sizes of inputs and seen outputs."""
    if is_view(op) or op == SEND:
        return np.zeros(elements.shape[1])
    whole, site = site, as_run(model, site)  # op by op no group has less traffic; shapes are those of the node all the same
    moved = _moved(op, site, dtypes, elements, num_inputs)
    if model.sums_end_kernels:
        moved = moved + reread_bytes(packet_of(op), [row * DTYPE_BYTES[d] for row, d in zip(elements[:num_inputs], dtypes)])
    if model.measured is not None and _by_library(model, whole) and (found := copy_seconds(model.measured, moved)) is not None:
        return found
    if op == RECEIVE:
        return np.array([receive_seconds(model, float(b)) for b in moved])
    packet, dtype = packet_of(op), compute_dtype(dtypes)
    if packet in _ATTENTION and whole is not None:
        flops = flops * _excess(model, whole, elements)
    if model.measured is not None and (found := node_seconds(model.measured, op, whole, dtype, elements, num_inputs, flops, moved)) is not None:
        return found
    start = model.launch_s * has_start(site)
    if model.rates is not None and flops.any():
        known = _known_dtype(model.rates, dtype)
        if packet in _PRODUCTS:
            return _product_seconds(model.rates, packet, whole, elements, num_inputs, known, moved / model.memory_bytes_per_s) + start
        if packet in _ATTENTION and whole is not None:
            return _attention_seconds(model, model.rates, packet, whole, elements, known) + start
        if packet in CONVOLUTIONS and whole is not None:
            return np.maximum(_convolution_seconds(model.rates, whole, elements, known), moved / model.memory_bytes_per_s) + start
    return np.maximum(flops / matmul_flops_per_s(model, dtype), moved / model.memory_bytes_per_s) + start


def _known_dtype(rates: MatmulRates, dtype: str) -> str:
    """A dtype without a figure runs as float32."""
    return dtype if any(name == dtype for name, _ in rates.flops_per_s) else "float32"


def has_start(site: Site | None) -> bool:
    """False of an op that runs in the group of another.

    Args:
        site: as the device runs it (`as_run`).
    """
    return site is None or site.traffic is None or site.traffic.starts


def as_run(model: CostModel, site: Site | None) -> Site | None:
    """The site, if the device runs its group as one."""
    return site if model.fuses or _by_library(model, site) else None


def _by_library(model: CostModel, site: Site | None) -> bool:
    return not model.fuses and site is not None and site.traffic is not None and site.traffic.one_pass


def _moved(op: str, site: Site | None, dtypes: Sequence[str], elements: np.ndarray, num_inputs: int) -> np.ndarray:
    """Bytes read and written."""
    local = elements * np.array([DTYPE_BYTES[d] for d in dtypes], dtype=np.int64).reshape(-1, 1)
    if site is not None and site.traffic is not None:
        counted = np.array((*site.traffic.inputs, *site.traffic.outputs), dtype=float)
        return counted @ local
    rows = local.T.tolist()
    return np.array([moved_bytes(op, row[:num_inputs], row[num_inputs:]) for row in rows], dtype=float)


def _product_seconds(
    rates: MatmulRates, packet: str, site: Site | None, elements: np.ndarray, num_inputs: int, dtype: str, moved_s: np.ndarray
) -> np.ndarray:
    """Of `[b, m, k] x [b, k, n]`, told from the sizes of its three operands."""
    left, right = (elements[i].astype(float) for i in _PRODUCTS[packet])
    out = elements[num_inputs].astype(float)
    shape = site.outputs[0] if site is not None and site.outputs else ()
    batch = np.ones(elements.shape[1])
    if packet in _BATCHED and len(shape) == 3 and site is not None:
        # whole b, m, n, k; a case may split any of them: what is left of the batch is what the products of sizes say
        b, m, n = (float(s) for s in shape)
        k = float(site.inputs[_PRODUCTS[packet][0]][2])
        batch = _local_batch(left, right, out, b, m, n, k)
    found = [
        _cached_product(rates, float(b), float(np.sqrt(a * c / (r * b))), float(np.sqrt(r * c / (a * b))), float(np.sqrt(a * r / (c * b))), dtype)
        for b, a, r, c in zip(batch, left, right, out)
    ]
    return np.maximum(np.array(found), moved_s if num_inputs > 2 else 0.0)


def _local_batch(left: np.ndarray, right: np.ndarray, out: np.ndarray, b: float, m: float, n: float, k: float) -> np.ndarray:
    """Local batch of each case: the ways it was divided are those by which all three operands shrank.

    With d_x the divisor of x: left shrank by d_b d_m d_k, right by d_b d_k d_n, out by d_b d_m d_n. A batch is divided before anything else is, so the
    largest d_b that the three allow.
    """
    shrunk = [b * m * k / left, b * k * n / right, b * m * n / out]
    return np.maximum(1.0, b / np.minimum.reduce(shrunk))


@lru_cache(maxsize=1 << 16)
def _cached_product(rates: MatmulRates, batch: float, m: float, n: float, k: float, dtype: str) -> float:
    return float(matmul_seconds(rates, batch, m, n, k, dtype)) - rates.kernel_s  # the start is counted once, for every op alike


def _convolution_seconds(rates: MatmulRates, site: Site, elements: np.ndarray, dtype: str) -> np.ndarray:
    windows = find_windows(site)
    sizes = local_sizes(site, windows, elements)
    columns = (sizes.long_rows, sizes.short_rows, sizes.long_channels, sizes.short_channels, sizes.groups)
    return np.array(_cached_convolution(rates, windows, tuple(tuple(np.asarray(column).tolist()) for column in columns), dtype))


@lru_cache(maxsize=1 << 12)
def _cached_convolution(rates: MatmulRates, windows: Windows, columns: tuple[tuple[float, ...], ...], dtype: str) -> tuple[float, ...]:
    """The start is counted once, for every op alike."""
    return tuple((convolution_seconds(rates, windows, Sizes(*map(np.array, columns)), dtype) - rates.kernel_s).tolist())


def _attention_seconds(model: CostModel, rates: MatmulRates, packet: str, site: Site, elements: np.ndarray, dtype: str) -> np.ndarray:
    place, backward = _ATTENTION[packet]
    query, keys = site.inputs[place], site.inputs[place + 1]
    dim = query[3]
    kernel = model.attention
    if "attn_mask" in input_names(site.node):
        kernel = MASKED.get(kernel, "efficient")
    if dtype not in _HALF or dim > _MAX_HEAD_DIM or kernel not in list_attention_kernels(rates):
        kernel = "unfused"
    local, first = _local_rows(model, site, elements)
    heads = elements[place] / (local * dim)
    causal = bool(get_arg(site.node, "is_causal", False))
    cases = zip(heads.tolist(), local.tolist(), first.tolist())
    return np.array([_cached_attention(rates, h, q, keys[2], dim, dtype, causal, kernel, backward, f) for h, q, f in cases])


def _local_rows(model: CostModel, site: Site, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows of queries, the first one's number) of each case on the rank that has the most to do; without row numbers all rows, whoever splits them."""
    rows, names = site.inputs[_ATTENTION[packet_of(site.node.op)][0]][2], input_names(site.node)
    local = elements[names.index("rows")].astype(float) if "rows" in names else np.full(elements.shape[1], float(rows))
    return local, (rows - local) / (2 if model.balances_rows else 1)


def _excess(model: CostModel, site: Site, elements: np.ndarray) -> np.ndarray | float:
    """By how much the rank with the most to do has more of causal attention than the mean of all ranks."""
    if not get_arg(site.node, "is_causal", False):
        return 1.0
    place = _ATTENTION[packet_of(site.node.op)][0]
    rows, keys = float(site.inputs[place][2]), np.array(float(site.inputs[place + 1][2]))
    local, first = _local_rows(model, site, elements)
    return visible_pairs(local, keys, first) * rows / (visible_pairs(np.array(rows), keys) * local)


@lru_cache(maxsize=1 << 14)
def _cached_attention(
    rates: MatmulRates, heads: float, query: float, keys: int, dim: int, dtype: str, causal: bool, kernel: str, backward: bool, first: float
) -> float:
    return float(attention_seconds(rates, 1.0, heads, query, keys, dim, dtype, causal=causal, kernel=kernel, backward=backward, first=first))
