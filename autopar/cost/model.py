"""The cost model: what one op and one collective cost on one device of a cluster, predicted.

In: a `Cluster`, and the rows that `autopar profile` measured where there are any. Out: seconds. Pure and torch-free; the solver that
chooses and the estimate that reports call the same two primitives, `estimate_op_s` and `estimate_comm_s`, so they agree without talking.

    op          max(flops / (peak x reached share), bytes / (memory bandwidth x reached share)) + launch; a view costs nothing
    collective  launch + hops x latency + bytes sent / bandwidth, along one mesh axis; plus a local copy where the split is not outermost
    bucket      where the device's runtime sends states and gradients in buckets, launch and latency count by their share of a bucket
    hidden      of a collective that may run beside compute (`graph.transfer`), all but `exposed_share` of its seconds; what hides in a
                phase never exceeds the compute of that phase (`cost.estimate` and the solver's judge see to that)

Every term is linear in time; nothing here is fitted to a step time. `docs/design/cost.md` says what is assumed.

Sources. Ring and pairwise formulas: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH",
sections 3-4. Tree all-reduce and hops inside and across hosts: NCCL, `src/graph/tuning.cc`. A group of g ranks per host drives g network
ports at once: stas00/ml-engineering, hierarchical all-reduce ("NIC 2 (k-1)/k P/g"); measured: 386 of 8 x 50 GB/s (CoreWeave nccl-tests).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log2, prod

import numpy as np

from ..cluster import Cluster, Device, num_devices
from ..graph.liveness import is_view
from ..graph.mesh import Mesh, MeshAxis
from ..graph.node import Node
from ..graph.reshard import COLLECTIVES, Step, StepKind, reshard_steps
from ..graph.reshard_pairs import reshard_pairs
from ..graph.rule import Signature, Site, count_flops, is_contraction
from ..graph.sharding import Sharding, num_shards
from ..graph.strategy import Strategy, split_share
from ..graph.tensor import DTYPE_BYTES, Value, num_elements
from ..graph.transfer import Transfer, transfer_of
from ..graph.turns import RECEIVE, SEND
from ..graph.work import moved_bytes
from .rows import ProfileRows, measured_device, measured_link

Shape = tuple[int, ...]
Tensor = tuple[Shape, str]  # local shape, dtype

# Share of the peak that the largest matmuls reach: measured_max_matmul_bf16 over the data sheet (stas00/ml-engineering,
# "maximum achievable matmul FLOPS"). Others: the H100's (and the H200's, the same chip).
_OTHER_MATMUL_SHARE = 794.5 / 989
_MATMUL_SHARE = {"A100": 271.2 / 312, "B200": 1745 / 2250, "B300": 1769 / 2250, "MI300X": 668.4 / 1307}
# The bytes term that fitted best out of sample against 506 published rows is bytes / (0.9 x bandwidth).
_MEMORY_SHARE = 0.9
# Share of a link's nominal bandwidth that large ring collectives reach: NVLink 370 / 450 on H100 (NCCL maintainer),
# 235 / 300 on A100, 122 / 150 on V100; PCIe 24 / 31 and 48 / 63; xGMI 313 / 448; InfiniBand 48 / 50 and 24 / 25 (NVIDIA GTC25 slide).
_LINK_SHARE = {"nvlink": 0.80, "pcie": 0.76, "xgmi": 0.70, "ib": 0.96, "ethernet": 0.90}
# Bytes that a device cannot give to tensors: CUDA context, cuBLAS and NCCL buffers, allocator rounding (assumption; 0.5-1.5 GiB are seen).
_RESERVE_BYTES = {"cpu": 0, "cuda": 2**30}
# What one bucket of small gradients or parameters holds: torch's `DistributedDataParallel(bucket_cap_mb=25)`; FSDP's flat parameter of a
# transformer block is larger. 0: each is sent alone, as the emitted program does on `cpu`.
_BUCKET_BYTES = {"cpu": 0, "cuda": 25 * 2**20}
_BUCKETED = frozenset({StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE})
# Share of a collective that lengthens the step although it runs beside compute: it takes multiprocessors and memory bandwidth from the
# kernels. Of 506 published rows, those with FSDP fit best where about half of the hidden communication still costs; a perfect
# max(compute, comm) is wrong. Processes on the cores of one machine compute and send with the same cores: nothing hides.
_EXPOSED_SHARE = {"cpu": 1.0, "cuda": 0.5}


@dataclass(frozen=True, slots=True)
class AxisLink:
    """The way along one mesh axis: `ranks` in all, `per_host` of them on one host."""

    ranks: int
    per_host: int
    inside_latency_s: float
    inside_bytes_per_s: float
    across_latency_s: float
    across_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """The figures that predictions use, with the shares already taken.

    Args:
        cluster: with measured figures in place of presets where there are any.
        flops_per_s: (dtype, reached matmul rate).
        memory_bytes_per_s: reached.
        launch_s: of one op.
        inside_bytes_per_s, across_bytes_per_s: reached, per device and direction.
        reserve_bytes: that tensors cannot have.
        source: one line for people.
        bucket_bytes: of states or gradients that travel together; 0: each travels alone.
        exposed_share: of the seconds of a collective beside compute that lengthen the step all the same; 1: nothing hides.
        stage_latency_s, stage_bytes_per_s: from a pipeline stage to another, per device (`staged_model`).
    """

    cluster: Cluster
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes_per_s: float
    launch_s: float
    inside_bytes_per_s: float
    across_bytes_per_s: float
    reserve_bytes: int
    source: str
    bucket_bytes: int
    exposed_share: float
    stage_latency_s: float = 0.0
    stage_bytes_per_s: float = inf


def build_cost_model(cluster: Cluster, rows: ProfileRows | None = None) -> CostModel:
    """The model of a cluster.

    Args:
        rows: measured on this machine; used for `cpu` devices only, at this cluster's number of ranks per host.
    """
    device, inside, across = cluster.device, cluster.inside, cluster.across
    measured = rows is not None and device.kind == "cpu" and device.name == "cpu"
    if rows is not None and measured:
        ranks = cluster.devices_per_host
        device = measured_device(rows, device, ranks)
        if inside.name == "loopback":
            inside = measured_link(rows, inside, ranks)
        cluster = Cluster(cluster.spec, cluster.num_hosts, cluster.devices_per_host, device, inside, across)
    nominal = device.kind == "cuda"
    matmul = _matmul_share(device) if nominal else 1.0
    return CostModel(
        cluster,
        tuple((dtype, rate * matmul) for dtype, rate in device.flops_per_s),
        device.memory_bytes_per_s * (_MEMORY_SHARE if nominal else 1.0),
        device.launch_s,
        inside.bandwidth_bytes_per_s * _link_share(inside.name),
        across.bandwidth_bytes_per_s * _link_share(across.name),
        _RESERVE_BYTES[device.kind],
        f"{device.source}; inside: {inside.source}" + (f"; across: {across.source}" if cluster.num_hosts > 1 else ""),
        _BUCKET_BYTES[device.kind],
        _EXPOSED_SHARE[device.kind],
    )


def staged_model(model: CostModel, num_stages: int, num_ranks: int) -> CostModel:
    """The model of a cluster whose devices are divided among pipeline stages, in order: what is received comes from the same place of another stage.

    Args:
        num_ranks: of the cluster. A stage boundary crosses hosts unless all stages are on one.
    """
    cluster = model.cluster
    if num_stages == 1:
        return model
    inside = num_ranks <= cluster.devices_per_host
    latency = (cluster.inside if inside else cluster.across).latency_s
    return replace(model, stage_latency_s=latency, stage_bytes_per_s=model.inside_bytes_per_s if inside else model.across_bytes_per_s)


def _matmul_share(device: Device) -> float:
    return next((share for name, share in _MATMUL_SHARE.items() if device.name.startswith(name)), _OTHER_MATMUL_SHARE)


def _link_share(name: str) -> float:
    """1 for what was measured and for the user's own figures: those say what is reached."""
    return next((share for family, share in _LINK_SHARE.items() if name.startswith(family)), 1.0)


def matmul_flops_per_s(model: CostModel, dtype: str) -> float:
    """Reached matmul rate; a dtype without a figure runs as float32, and float32 without one at the slowest."""
    rates = dict(model.flops_per_s)
    return rates.get(dtype) or rates.get("float32") or min(rates.values())


# --- ops --------------------------------------------------------------------------------------------------------------------------


def tensor_bytes(tensor: Tensor) -> int:
    """Dense bytes."""
    return num_elements(tensor[0]) * DTYPE_BYTES[tensor[1]]


def site_dtypes(node: Node, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Dtype of each input, then of each output that somebody sees: the `dtypes` that `estimate_node_s` asks for."""
    return tuple(values[name].dtype for name in (*node.inputs, *(o for o in node.outputs if o)))


def estimate_op_s(model: CostModel, op: str, flops: float, local_inputs: Sequence[Tensor], local_outputs: Sequence[Tensor]) -> float:
    """Seconds of one op on one device.

    Args:
        flops: of this device's share, contractions only; 0 for everything else.
        local_inputs, local_outputs: what it reads and writes here.
    """
    dtype = compute_dtype([t[1] for t in (*local_inputs, *local_outputs)])
    moved = moved_bytes(op, [tensor_bytes(t) for t in local_inputs], [tensor_bytes(t) for t in local_outputs])
    return _roofline(model, op, flops, matmul_flops_per_s(model, dtype), moved)


def _roofline(model: CostModel, op: str, flops: float, rate: float, moved_bytes: int) -> float:
    if is_view(op) or op == SEND:
        return 0.0
    if op == RECEIVE:
        return model.stage_latency_s + moved_bytes / model.stage_bytes_per_s
    return max(flops / rate, moved_bytes / model.memory_bytes_per_s) + model.launch_s


def compute_dtype(dtypes: Sequence[str]) -> str:
    """The dtype in which an op computes: that of its first floating tensor."""
    return next((d for d in dtypes if "float" in d), "float32")


def node_flops(signature: Signature, site: Site) -> float:
    """FLOPs of the whole node that count against the matmul peak; 0 where it is no contraction.

    Args:
        site: with whole shapes.
    """
    return count_flops(signature, site) if is_contraction(signature) else 0.0


def estimate_write_s(model: CostModel, local_bytes: int) -> float:
    """Seconds to put a state's new version into the state's own storage (`state.write`): read once, written once."""
    return 2 * local_bytes / model.memory_bytes_per_s + model.launch_s


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
    op, num_inputs = site.node.op, len(site.inputs)
    if is_view(op):
        return tuple(0.0 for _ in strategies)
    whole = [num_elements(s) * DTYPE_BYTES[d] for s, d in zip((*site.inputs, *site.outputs), dtypes)]
    flops, rate = node_flops(signature, site), matmul_flops_per_s(model, compute_dtype(dtypes))
    seconds = []
    for strategy in strategies:
        local = [size // num_shards(sharding, sizes) for size, sharding in zip(whole, (*strategy.inputs, *strategy.outputs))]
        moved = moved_bytes(op, local[:num_inputs], local[num_inputs:])
        share = flops / split_share(strategy, signature.rule, sizes) if flops else 0.0
        seconds.append(_roofline(model, op, share, rate, moved))
    return tuple(seconds)


# --- communication ----------------------------------------------------------------------------------------------------------------


def axis_link(model: CostModel, mesh: Mesh, axis: int) -> AxisLink:
    """The way along one axis of a mesh laid over the cluster host by host, last axis fastest."""
    here = mesh.axes[axis]
    cluster = model.cluster
    per_host = here.size
    if here.link == "across":
        stride = prod(a.size for a in mesh.axes[axis + 1 :])
        per_host = max(1, min(here.size, cluster.devices_per_host // stride))
    return AxisLink(
        here.size, per_host, cluster.inside.latency_s, model.inside_bytes_per_s, cluster.across.latency_s, model.across_bytes_per_s
    )


def estimate_comm_s(
    model: CostModel,
    kind: StepKind,
    link: AxisLink,
    bytes_in: int,
    bytes_out: int,
    copied_bytes: int = 0,
    transfer: Transfer = Transfer.BLOCKING,
) -> float:
    """Seconds of one collective or local cut.

    Args:
        link: along the axis (`axis_link`).
        bytes_in, bytes_out: of one rank's tensor before and after.
        copied_bytes: that are read and written once more because the split is not outermost (`step_copied_bytes`).
        transfer: states and gradients travel in buckets where the runtime has any.
    """
    wire_s = _wire_s(model, kind, link, bytes_in, bytes_out, transfer)
    return wire_s + 2 / model.memory_bytes_per_s * copied_bytes + (model.launch_s if copied_bytes else 0.0)


def estimate_hidden_s(model: CostModel, kind: StepKind, link: AxisLink, bytes_in: int, bytes_out: int, transfer: Transfer) -> float:
    """Of `estimate_comm_s`, the seconds that do not lengthen the step where the collective may run beside compute; of a local cut none."""
    if kind not in COLLECTIVES or transfer is Transfer.BLOCKING or model.exposed_share == 1.0:
        return 0.0
    return (1 - model.exposed_share) * _wire_s(model, kind, link, bytes_in, bytes_out, transfer)


def _wire_s(model: CostModel, kind: StepKind, link: AxisLink, bytes_in: int, bytes_out: int, transfer: Transfer) -> float:
    """Without the copies. A bucket of many tensors pays its latency once: each pays the part of the bucket that it fills."""
    rate = 1 / model.memory_bytes_per_s
    share = 1.0
    if model.bucket_bytes and kind in _BUCKETED and transfer is not Transfer.BLOCKING:
        share = min(1.0, max(bytes_in, bytes_out) / model.bucket_bytes)
    return share * model.launch_s + min(
        share * fixed + per_in * bytes_in + per_out * bytes_out for fixed, per_in, per_out in _comm_lines(kind, link, rate)
    )


def estimate_comms_s(
    model: CostModel,
    kind: StepKind,
    link: AxisLink,
    bytes_in: np.ndarray,
    bytes_out: np.ndarray,
    copied_bytes: np.ndarray,
    transfer: Transfer,
) -> tuple[np.ndarray, np.ndarray]:
    """(`estimate_comm_s`, `estimate_hidden_s`) of many steps of one kind along one axis."""
    rate = 1 / model.memory_bytes_per_s
    share: np.ndarray | float = 1.0
    if model.bucket_bytes and kind in _BUCKETED and transfer is not Transfer.BLOCKING:
        share = np.minimum(1.0, np.maximum(bytes_in, bytes_out) / model.bucket_bytes)
    lines = [share * fixed + per_in * bytes_in + per_out * bytes_out for fixed, per_in, per_out in _comm_lines(kind, link, rate)]
    wire = share * model.launch_s + np.minimum.reduce(lines)
    hides = kind in COLLECTIVES and transfer is not Transfer.BLOCKING
    whole = wire + 2 * rate * copied_bytes + model.launch_s * (copied_bytes > 0)
    return whole, (1 - model.exposed_share) * wire if hides else np.zeros_like(wire)


def _comm_lines(kind: StepKind, link: AxisLink, memory_s_per_byte: float) -> tuple[tuple[float, float, float], ...]:
    """(seconds, seconds per byte in, seconds per byte out) of each way to do a step; the fastest is taken."""
    if kind is StepKind.SLICE:
        return ((0.0, 0.0, 2 * memory_s_per_byte),)  # reads only what it keeps
    if kind is StepKind.KEEP:
        return ((0.0, memory_s_per_byte, memory_s_per_byte),)
    n, g = link.ranks, link.per_host
    hosts = ceil(n / g)
    # a ring enters and leaves each host once per port: g ranks of one host drive g ports (NCCL's channels)
    bandwidth = link.inside_bytes_per_s
    if hosts > 1:
        bandwidth = link.across_bytes_per_s if g == 1 else min(bandwidth, g * link.across_bytes_per_s)
    ring_s = (n - hosts) * link.inside_latency_s + (hosts - 1) * link.across_latency_s
    share = (n - 1) / n
    if kind is StepKind.ALL_GATHER:
        return ((ring_s, 0.0, share / bandwidth),)
    if kind is StepKind.REDUCE_SCATTER:
        return ((ring_s, share / bandwidth, 0.0),)
    if kind is StepKind.ALL_REDUCE:
        tree_s = ceil(log2(g)) * link.inside_latency_s + ceil(log2(hosts)) * link.across_latency_s
        return (2 * ring_s, 2 * share / bandwidth, 0.0), (2 * tree_s, 2 / bandwidth, 0.0)
    # all_to_all, pairwise: each rank's own port carries what leaves the host, both ways run at once
    away = (n - g) / n / link.across_bytes_per_s if hosts > 1 else 0.0
    return ((ring_s, max((g - 1) / n / link.inside_bytes_per_s, away), 0.0),)


Ends = tuple[tuple[int, int], tuple[int, int]]  # (from_dim, from_stride), (to_dim, to_stride) of a step; -1 where there is none


def step_copied_bytes(kind: StepKind, local_in: Shape, local_out: Shape, dtype: str, size: int, ends: Ends) -> int:
    """Bytes that a collective must rearrange locally: it sends contiguous pieces, so a split that is not outermost is packed or unpacked.

    Args:
        size: of the axis.
        ends: the splits that the step takes away and makes.
    """
    (from_dim, from_stride), (to_dim, to_stride) = ends
    copied = 0
    if kind in (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL) and not _is_outermost(local_out, from_dim, from_stride, size):
        copied += tensor_bytes((local_out, dtype))
    if kind in (StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL) and not _is_outermost(local_in, to_dim, to_stride, size):
        copied += tensor_bytes((local_in, dtype))
    return copied


def _is_outermost(shape: Shape, dim: int, stride: int, size: int) -> bool:
    """True where the digit cuts the tensor, whole along the axis, into contiguous chunks."""
    return prod(shape[:dim]) * (shape[dim] // (stride * size)) == 1


def estimate_step_s(model: CostModel, step: Step, mesh: Mesh, dtype: str, transfer: Transfer = Transfer.BLOCKING) -> float:
    """Seconds of one step of a reshard along its mesh axis."""
    ends = (step.from_dim, step.from_stride), (step.to_dim, step.to_stride)
    copied = step_copied_bytes(step.kind, step.local_in, step.local_out, dtype, mesh.axes[step.axis].size, ends)
    return estimate_comm_s(model, step.kind, axis_link(model, mesh, step.axis), *_step_bytes(step, dtype), copied, transfer)


def _step_bytes(step: Step, dtype: str) -> tuple[int, int]:
    return tensor_bytes((step.local_in, dtype)), tensor_bytes((step.local_out, dtype))


def estimate_reshard_s(model: CostModel, value: Value, source: Sharding, target: Sharding, mesh: Mesh) -> tuple[float, float]:
    """Seconds to bring a (whole) value from one sharding to another, its steps one after the other; and, of these, the seconds that hide
    behind compute where they may (`transfer.may_hide`)."""
    if source == target:
        return 0.0, 0.0
    steps = reshard_steps(value.shape, source, target, tuple(a.size for a in mesh.axes))
    moved = transfer_of(value)
    hidden = (
        estimate_hidden_s(model, s.kind, axis_link(model, mesh, s.axis), *_step_bytes(s, value.dtype), moved) for s in steps
    )
    return sum(estimate_step_s(model, step, mesh, value.dtype, moved) for step in steps), sum(hidden)


def estimate_reshards_s(
    model: CostModel, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding], mesh: Mesh
) -> tuple[np.ndarray, np.ndarray]:
    """`estimate_reshard_s` of every source to every target; infinity (of which nothing hides) where there is no way."""
    paths = reshard_pairs(value.shape, sources, targets, tuple(a.size for a in mesh.axes))
    seconds = np.where(paths.reachable, 0.0, np.inf)
    hidden = np.zeros(seconds.shape)
    flat, width, moved = seconds.reshape(-1), DTYPE_BYTES[value.dtype], transfer_of(value)
    links = [axis_link(model, mesh, axis) for axis in range(len(mesh.axes))]
    for step in paths.steps:
        sides = (width * step.elements_in, width * step.elements_out, width * step.packed_elements)
        whole, beside = estimate_comms_s(model, step.kind, links[step.axis], *sides, moved)
        flat[step.pairs] += whole
        hidden.reshape(-1)[step.pairs] += beside
    return seconds, hidden


# --- meshes -----------------------------------------------------------------------------------------------------------------------


def list_meshes(cluster: Cluster, max_axes: int = 3) -> tuple[Mesh, ...]:
    """Every way to lay the devices out on up to `max_axes` axes, fewest axes first.

    Two orders of the same sizes count once where each size crosses the same link and shares hosts in the same way; the order that is kept
    has the larger axes outside.
    """
    found: dict[tuple[tuple[int, str, int], ...], Mesh] = {}
    for count in range(1, max_axes + 1):
        for sizes in sorted(_factorizations(num_devices(cluster), count), reverse=True):
            axes = []
            kinds = []
            stride = 1
            for size in reversed(sizes):
                span = stride * size
                inside = cluster.num_hosts == 1 or cluster.devices_per_host % span == 0
                axes.append((size, "inside" if inside else "across"))
                kinds.append((size, axes[-1][1], size if inside else max(1, cluster.devices_per_host // stride)))
                stride = span
            mesh = Mesh(tuple(MeshAxis(name, size, link) for name, (size, link) in zip("abcdefgh", reversed(axes))))
            found.setdefault(tuple(sorted(kinds)), mesh)
    return tuple(found.values()) or (Mesh(()),)


def _factorizations(number: int, count: int) -> list[tuple[int, ...]]:
    """Ordered factorizations into `count` factors of at least 2."""
    if count == 1:
        return [(number,)] if number > 1 else []
    return [
        (first, *rest)
        for first in range(2, number // 2 + 1)
        if number % first == 0
        for rest in _factorizations(number // first, count - 1)
    ]
