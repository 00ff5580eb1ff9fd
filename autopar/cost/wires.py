"""Wires: seconds of one collective, of one step of a reshard, of a whole reshard.

In: a `CostModel`, an axis of a mesh laid over the cluster, bytes. Out: seconds, and of these what hides behind compute.

    measured    `cost.measured`: on a `cpu` that was profiled, its rows of all of these
    collective  `cost.collectives`: measured by size and group where it was, by formula else; along one mesh axis
    cut         a local piece is read and written
    copies      beside a collective whose split is not outermost, the tensor is read and written once more
    joint       of states and gradients, and of numbers, collectives of one kind along several axes are one of all their ranks, as programs run them (`graph.overlap`)
    bucket      where a device's runtime sends states and gradients in buckets, a small one pays the share of a bucket that it fills
    hidden      of a collective that may run beside compute (`graph.transfer`), all but `exposed_share` of its seconds; what hides in a
                phase never exceeds the compute of that phase (`cost.estimate` and the solver's judge see to that)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..constraints import TENSOR, axis_role
from ..graph.mesh import Mesh, axis_sizes
from ..graph.reshard import COLLECTIVES, JOINED, Step, StepKind, after_step, join_steps, lies_outermost, reshard_steps
from ..graph.reshard_pairs import PairStep, reshard_pairs
from ..graph.sharding import Sharding
from ..graph.tensor import DTYPE_BYTES, Value, num_elements
from ..graph.transfer import Transfer, find_hiding, transfer_of
from .collectives import Way, collective_way, way_seconds
from .lookup import Reach
from .measured import MeasuredRows, copy_seconds, meeting_seconds, wire_reach, wire_seconds
from .meshes import worst_spread
from .model import CostModel
from .ops import Shape, tensor_bytes

_KINDS = {
    StepKind.ALL_GATHER: "all_gather", StepKind.REDUCE_SCATTER: "reduce_scatter", StepKind.ALL_REDUCE: "all_reduce", StepKind.ALL_TO_ALL: "all_to_all",
}  # fmt: skip
_REDUCES = (StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE)

# Of a state's or gradient's reshard, every step after the first: what goes along other axes than the rest of its block is a message that nobody shares, or nearly nobody, which the price
# of one value cannot know. So little that it decides between ways that cost the same.
STEP_S = 1e-7


@dataclass(frozen=True, slots=True)
class AxisLink:
    """The way along one mesh axis.

    Args:
        ranks, per_host: in all, and of them on one host: of the group that lies worst (`meshes.worst_spread`), for the slowest is waited for.
        stride: neighbours are so many ranks apart.
        fewest: of the group on the host that has the fewest of it, whose ports carry as much as those of the others; 0: `per_host`.
    """

    ranks: int
    per_host: int
    stride: int = 1
    fewest: int = 0


def axis_link(model: CostModel, mesh: Mesh, axis: int) -> AxisLink:
    """The way along one axis of a mesh laid over the cluster host by host, last axis fastest."""
    here = mesh.axes[axis]
    stride = prod(a.size for a in mesh.axes[axis + 1 :])
    return AxisLink(here.size, here.size, stride) if here.link == "inside" else _group_link(model, mesh, (axis,), stride)


def joint_link(model: CostModel, mesh: Mesh, axes: Sequence[int]) -> AxisLink:
    """The way of one collective of the ranks of several axes, or of one."""
    if len(axes) == 1:
        return axis_link(model, mesh, axes[0])
    return _group_link(model, mesh, tuple(axes), prod(a.size for a in mesh.axes[max(axes) + 1 :]))


def _group_link(model: CostModel, mesh: Mesh, axes: tuple[int, ...], stride: int) -> AxisLink:
    sizes = axis_sizes(mesh)
    spread = worst_spread(sizes, axes, model.cluster.devices_per_host)
    return AxisLink(prod(sizes[axis] for axis in axes), spread.per_host, stride, spread.fewest if spread.fewest < spread.per_host else 0)


def estimate_comm_s(
    model: CostModel,
    kind: StepKind,
    link: AxisLink,
    bytes_in: int,
    bytes_out: int,
    copied_bytes: int = 0,
    transfer: Transfer = Transfer.BLOCKING,
    most: float = 0.0,
) -> float:
    """Seconds of one collective or local cut.

    Args:
        link: along the axis (`axis_link`), or the axes (`joint_link`).
        bytes_in, bytes_out: of one rank's tensor before and after.
        copied_bytes: that are read and written once more because the split is not outermost (`step_copied_bytes`).
        transfer: states and gradients travel in buckets where the runtime has any.
        most: so many such tensors may travel together (`most_together`); 0: not known.
    """
    return float(estimate_comms_s(model, kind, link, _arrays(bytes_in, bytes_out), np.array([copied_bytes]), transfer, most)[0][0])


def estimate_hidden_s(
    model: CostModel, kind: StepKind, link: AxisLink, bytes_in: int, bytes_out: int, transfer: Transfer, most: float = 0.0
) -> float:
    """Of `estimate_comm_s`, the seconds that do not lengthen the step where the collective may run beside compute; of a local cut none."""
    return float(estimate_comms_s(model, kind, link, _arrays(bytes_in, bytes_out), np.zeros(1, np.int64), transfer, most)[1][0])


def _arrays(bytes_in: int, bytes_out: int) -> Sides:
    return np.array([bytes_in]), np.array([bytes_out])


Sides = tuple[np.ndarray, np.ndarray]  # bytes of one rank's tensor before and after; the larger of them fills a bucket


def comm_reach(model: CostModel, kind: StepKind, link: AxisLink, bytes_in: int, bytes_out: int) -> Reach:
    """How far a collective lies outside of the profile's rows that price it; 1.0 where none do. Arguments as of `estimate_comm_s`."""
    if model.measured is None or kind not in _KINDS or link.per_host < link.ranks:
        return 1.0, ""
    return wire_reach(model.measured, _KINDS[kind], (link.ranks, link.stride), max(bytes_in, bytes_out))


def estimate_comms_s(
    model: CostModel, kind: StepKind, link: AxisLink, sides: Sides, copied_bytes: np.ndarray, transfer: Transfer, most: float
) -> tuple[np.ndarray, np.ndarray]:
    """(`estimate_comm_s`, `estimate_hidden_s`) of many steps of one kind along the same axes, of one value."""
    wire = _wire_s(model, kind, link, sides, transfer, most)
    hides = kind in COLLECTIVES
    whole = wire + _copies_s(model, copied_bytes)
    return whole, (1 - model.exposed_share) * wire if hides else np.zeros_like(wire)


def _copies_s(model: CostModel, copied_bytes: np.ndarray) -> np.ndarray:
    """Of tensors that are read and written once more."""
    if model.measured is not None and (found := copy_seconds(model.measured, 2 * copied_bytes)) is not None:
        return found
    return 2 / model.memory_bytes_per_s * copied_bytes + model.launch_s * (copied_bytes > 0)


def _measured_wire_s(
    measured: MeasuredRows, kind: StepKind, link: AxisLink, bytes_in: np.ndarray, bytes_out: np.ndarray, times: np.ndarray | float, meets: bool
) -> np.ndarray | None:
    """As the runtime does it (`runtime.comm`); `meets`: ranks come to it from compute and wait for each other. An all_reduce works on a copy (but of a large gradient that nobody else reads, where the copy is priced all the same). `times`: how many such tensors travel together."""
    if kind is StepKind.SLICE:
        return copy_seconds(measured, 2 * bytes_out)
    if kind is StepKind.KEEP:
        return copy_seconds(measured, bytes_in + bytes_out)
    if link.per_host < link.ranks:
        return None
    sizes = np.maximum(bytes_in, bytes_out)
    found = wire_seconds(measured, _KINDS[kind], (link.ranks, link.stride), times * sizes)
    copied = copy_seconds(measured, 2 * bytes_in) if kind is StepKind.ALL_REDUCE else 0.0
    met = meeting_seconds(measured, (link.ranks, link.stride)) if meets else 0.0
    return None if found is None or copied is None else (found + met) / times + copied


def _wire_s(model: CostModel, kind: StepKind, link: AxisLink, sides: Sides, transfer: Transfer, most: float) -> np.ndarray:
    """Without the copies of a split that is not outermost."""
    bytes_in, bytes_out = sides
    bucket = {Transfer.GRAD: model.bucket_bytes, Transfer.STATE: model.state_bucket_bytes}.get(transfer, 0)
    times: np.ndarray | float = 1.0
    if kind in JOINED and bucket:
        times = np.clip(bucket / np.maximum(1, np.maximum(bytes_in, bytes_out)), 1.0, max(1.0, most) if most else None)
    meets = transfer is Transfer.BLOCKING or (kind is StepKind.ALL_GATHER and transfer is Transfer.STATE and bucket > 0)
    if model.measured is not None and (found := _measured_wire_s(model.measured, kind, link, bytes_in, bytes_out, times, meets)) is not None:
        return found
    if kind is StepKind.SLICE:
        return 2 * bytes_out / model.memory_bytes_per_s + model.launch_s  # reads only what it keeps
    if kind is StepKind.KEEP:
        return (bytes_in + bytes_out) / model.memory_bytes_per_s + model.launch_s
    sizes = bytes_out if kind is StepKind.ALL_GATHER else bytes_in
    way = collective_way(model.links, _KINDS[kind], link.ranks, link.per_host, model.nics or link.fewest * model.links.ports)
    if model.grad_width > 1 and transfer is Transfer.GRAD and kind in _REDUCES:
        return _way_s(model, way, model.grad_width * times * sizes) / times + (1 + model.grad_width) * bytes_in / model.memory_bytes_per_s
    return _way_s(model, way, times * sizes) / times


def _way_s(model: CostModel, way: Way, sizes: np.ndarray) -> np.ndarray:
    """A measured curve has the start of its kernel in it."""
    return way_seconds(way, sizes, model.launch_s)


Ends = tuple[tuple[int, int], tuple[int, int]]  # (from_dim, from_stride), (to_dim, to_stride) of a step; -1 where there is none


def step_copied_bytes(kind: StepKind, local_in: Shape, local_out: Shape, dtype: str, size: int, ends: Ends) -> int:
    """Bytes that a collective must rearrange locally: it sends contiguous pieces, so a split that is not outermost is packed or unpacked.

    Args:
        size: of the axis.
        ends: the splits that the step takes away and makes.
    """
    return sum(_packed_bytes(kind, local_in, local_out, dtype, size, ends))


def step_held_bytes(kind: StepKind, local_in: Shape, local_out: Shape, dtype: str, size: int, ends: Ends) -> int:
    """Bytes that a collective holds for that, beside its input and output: what was packed has gone when what has come is unpacked."""
    return max(_packed_bytes(kind, local_in, local_out, dtype, size, ends))


def _packed_bytes(kind: StepKind, local_in: Shape, local_out: Shape, dtype: str, size: int, ends: Ends) -> tuple[int, int]:
    """What is packed before, and what is unpacked after."""
    (from_dim, from_stride), (to_dim, to_stride) = ends
    packs = kind in (StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL) and not _is_outermost(local_in, to_dim, to_stride, size)
    unpacks = kind in (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL) and not _is_outermost(local_out, from_dim, from_stride, size)
    return tensor_bytes((local_in, dtype)) if packs else 0, tensor_bytes((local_out, dtype)) if unpacks else 0


def _is_outermost(shape: Shape, dim: int, stride: int, size: int) -> bool:
    """True where the digit cuts the tensor, whole along the axis, into contiguous chunks."""
    return prod(shape[:dim]) * (shape[dim] // (stride * size)) == 1


def joint_copied_bytes(kind: StepKind, shape: Shape, split: Sharding, axes: Sequence[int], mesh: Mesh, bytes_in: int, bytes_out: int) -> int:
    """`step_copied_bytes` of one collective along several axes, which sends what ranks have in the order of the ranks.

    Args:
        shape: of the whole value.
        split: the sharding before a gather, or after a reduction.
        axes: in the order of the mesh.
    """
    if kind is StepKind.ALL_REDUCE or lies_outermost(shape, split, axes, axis_sizes(mesh)):
        return 0
    return bytes_out if kind is StepKind.ALL_GATHER else bytes_in


def most_together(model: CostModel, value: Value, mesh: Mesh, axes: Sequence[int]) -> float:
    """How many tensors as large as this state or gradient travel together at most, by what a block has of them; 0: not known. Gradients along tensor-parallel ranks are those of vectors (norms, where
    each rank has a part of the sequence), for matrices are split among them."""
    transfer = transfer_of(value)
    among = transfer is Transfer.GRAD and len(value.shape) < 2 and any(axis_role(mesh.axes[axis].name) == TENSOR for axis in axes)
    block = model.block_elements[transfer is Transfer.GRAD]
    return max(1.0, (model.vector_elements if among else block) / max(1, num_elements(value.shape))) if block else 0.0


def joins_steps(value: Value) -> bool:
    """True where programs run collectives of one kind along several axes as one: of states and gradients, and of numbers that a rank waits for."""
    return transfer_of(value) is not Transfer.BLOCKING or value.shape == ()


def estimate_reshard_s(model: CostModel, value: Value, source: Sharding, target: Sharding, mesh: Mesh) -> tuple[float, float]:
    """Seconds to bring a (whole) value from one sharding to another, its steps one after the other; and, of these, the seconds that hide
    behind compute where they may (`transfer.may_hide`)."""
    if source == target:
        return 0.0, 0.0
    steps, moved = reshard_steps(value.shape, source, target, axis_sizes(mesh)), transfer_of(value)
    joins, here = joins_steps(value), source
    seconds, hidden = STEP_S * (len(steps) - 1) * joins, 0.0
    runs = join_steps(steps) if joins else [(step,) for step in steps]
    for run, hides in zip(runs, find_hiding(moved, [run[0].kind for run in runs])):
        before = here
        for step in run:
            here = after_step(here, step, target)
        whole, beside = _estimate_run_s(model, value, run, before if run[0].kind is StepKind.ALL_GATHER else here, mesh)
        seconds, hidden = seconds + whole, hidden + beside * hides
    return seconds, hidden


def _estimate_run_s(model: CostModel, value: Value, run: Sequence[Step], split: Sharding, mesh: Mesh) -> tuple[float, float]:
    """Of steps of one kind that are one collective."""
    kind, moved, axes = run[0].kind, transfer_of(value), sorted(step.axis for step in run)
    bytes_in, bytes_out = tensor_bytes((run[0].local_in, value.dtype)), tensor_bytes((run[-1].local_out, value.dtype))
    link, most = joint_link(model, mesh, axes), most_together(model, value, mesh, axes)
    if len(run) > 1:
        copied = joint_copied_bytes(kind, value.shape, split, axes, mesh, bytes_in, bytes_out)
    else:
        ends = (run[0].from_dim, run[0].from_stride), (run[0].to_dim, run[0].to_stride)
        copied = step_copied_bytes(kind, run[0].local_in, run[0].local_out, value.dtype, mesh.axes[axes[0]].size, ends)
    seconds = estimate_comm_s(model, kind, link, bytes_in, bytes_out, copied, moved, most)
    return seconds, estimate_hidden_s(model, kind, link, bytes_in, bytes_out, moved, most)


def estimate_reshards_s(
    model: CostModel, value: Value, sources: Sequence[Sharding], targets: Sequence[Sharding], mesh: Mesh
) -> tuple[np.ndarray, np.ndarray]:
    """`estimate_reshard_s` of every source to every target; infinity (of which nothing hides) where there is no way."""
    moved, joins = transfer_of(value), joins_steps(value)
    paths = reshard_pairs(value.shape, sources, targets, axis_sizes(mesh), joins)
    seconds = np.where(paths.reachable, 0.0, np.inf)
    hidden = np.zeros(seconds.shape)
    flat, width = seconds.reshape(-1), DTYPE_BYTES[value.dtype]
    besides: list[np.ndarray] = []
    for step in paths.steps:
        sides = width * step.elements_in, width * step.elements_out
        link, most = joint_link(model, mesh, step.axes), most_together(model, value, mesh, step.axes)
        whole, beside = estimate_comms_s(model, step.kind, link, sides, width * step.packed_elements, moved, most)
        flat[step.pairs] += whole + STEP_S * (len(step.axes) - step.first) * joins
        besides.append(beside)
    _add_hiding(hidden.reshape(-1), moved, paths.steps, besides)
    return seconds, hidden


def _add_hiding(hidden: np.ndarray, moved: Transfer, steps: Sequence[PairStep], besides: Sequence[np.ndarray]) -> None:
    """Add to each pair what of its steps hides, as `find_hiding` says.

    Args:
        besides: of each step, what would hide, per pair.
    """
    if moved is Transfer.BLOCKING:
        for step, beside in zip(steps, besides):
            if step.first and step.kind is StepKind.ALL_GATHER:
                hidden[step.pairs] += beside
        return
    over = np.zeros(hidden.shape, bool)  # pairs of which no further step hides
    ordered = list(zip(steps, besides))  # the last ones first
    for step, beside in reversed(ordered) if moved is Transfer.STATE else ordered:
        if moved is Transfer.STATE:
            hides, ends = step.kind is StepKind.ALL_GATHER, step.kind not in (StepKind.SLICE, StepKind.KEEP)
        else:
            hides = step.kind in (StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE)
            ends = not hides
        if hides:
            hidden[step.pairs] += np.where(over[step.pairs], 0.0, beside)
        if ends:
            over[step.pairs] = True
