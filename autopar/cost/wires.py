"""Wires: seconds of one collective, of one step of a reshard, of a whole reshard.

In: a `CostModel`, an axis of a mesh laid over the cluster, bytes. Out: seconds, and of these what hides behind compute.

    measured    `cost.measured`: on a `cpu` that was profiled, its rows of all of these
    collective  `cost.collectives`: measured by size and group where it was, by formula else; along one mesh axis
    cut         a local piece is read and written
    copies      beside a collective whose split is not outermost, the tensor is read and written once more
    bucket      where a device's runtime sends states and gradients in buckets, a small one pays the share of a bucket that it fills
    hidden      of a collective that may run beside compute (`graph.transfer`), all but `exposed_share` of its seconds; what hides in a
                phase never exceeds the compute of that phase (`cost.estimate` and the solver's judge see to that)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..graph.mesh import Mesh
from ..graph.reshard import COLLECTIVES, Step, StepKind, reshard_steps
from ..graph.reshard_pairs import reshard_pairs
from ..graph.sharding import Sharding
from ..graph.tensor import DTYPE_BYTES, Value
from ..graph.transfer import Transfer, transfer_of
from .collectives import Way, collective_way, way_seconds
from .measured import MeasuredRows, copy_seconds, meeting_seconds, wire_seconds
from .model import CostModel
from .ops import Shape, tensor_bytes

_KINDS = {
    StepKind.ALL_GATHER: "all_gather", StepKind.REDUCE_SCATTER: "reduce_scatter", StepKind.ALL_REDUCE: "all_reduce", StepKind.ALL_TO_ALL: "all_to_all",
}  # fmt: skip
_BUCKETED = frozenset({StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE})


@dataclass(frozen=True, slots=True)
class AxisLink:
    """The way along one mesh axis: `ranks` in all, `per_host` of them on one host, neighbours `stride` ranks apart."""

    ranks: int
    per_host: int
    stride: int = 1


def axis_link(model: CostModel, mesh: Mesh, axis: int) -> AxisLink:
    """The way along one axis of a mesh laid over the cluster host by host, last axis fastest."""
    here = mesh.axes[axis]
    per_host, stride = here.size, prod(a.size for a in mesh.axes[axis + 1 :])
    if here.link == "across":
        per_host = max(1, min(here.size, model.cluster.devices_per_host // stride))
    return AxisLink(here.size, per_host, stride)


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
    wire_s = float(_wire_s(model, kind, link, np.array([bytes_in]), np.array([bytes_out]), transfer)[0])
    return wire_s + float(_copies_s(model, np.array([copied_bytes]))[0])


def estimate_hidden_s(model: CostModel, kind: StepKind, link: AxisLink, bytes_in: int, bytes_out: int, transfer: Transfer) -> float:
    """Of `estimate_comm_s`, the seconds that do not lengthen the step where the collective may run beside compute; of a local cut none."""
    if kind not in COLLECTIVES or transfer is Transfer.BLOCKING or model.exposed_share == 1.0:
        return 0.0
    return (1 - model.exposed_share) * float(_wire_s(model, kind, link, np.array([bytes_in]), np.array([bytes_out]), transfer)[0])


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
    wire = _wire_s(model, kind, link, bytes_in, bytes_out, transfer)
    hides = kind in COLLECTIVES and transfer is not Transfer.BLOCKING
    whole = wire + _copies_s(model, copied_bytes)
    return whole, (1 - model.exposed_share) * wire if hides else np.zeros_like(wire)


def _copies_s(model: CostModel, copied_bytes: np.ndarray) -> np.ndarray:
    """Of tensors that are read and written once more."""
    if model.measured is not None and (found := copy_seconds(model.measured, 2 * copied_bytes)) is not None:
        return found
    return 2 / model.memory_bytes_per_s * copied_bytes + model.launch_s * (copied_bytes > 0)


def _measured_wire_s(
    measured: MeasuredRows, kind: StepKind, link: AxisLink, bytes_in: np.ndarray, bytes_out: np.ndarray, bucket: int, meets: bool
) -> np.ndarray | None:
    """As the runtime does it (`runtime.comm`); `meets`: ranks come to it from compute and wait for each other. An all_reduce works on a copy (but of a large gradient that nobody else reads, where the copy is priced all the same). `bucket`: bytes that travel together, 0 where each tensor travels alone."""
    if kind is StepKind.SLICE:
        return copy_seconds(measured, 2 * bytes_out)
    if kind is StepKind.KEEP:
        return copy_seconds(measured, bytes_in + bytes_out)
    if link.per_host < link.ranks:
        return None
    sizes = np.maximum(bytes_in, bytes_out)
    found = wire_seconds(measured, _KINDS[kind], (link.ranks, link.stride), np.maximum(sizes, bucket))
    copied = copy_seconds(measured, 2 * bytes_in) if kind is StepKind.ALL_REDUCE else 0.0
    met = meeting_seconds(measured, (link.ranks, link.stride)) if meets else 0.0
    return None if found is None or copied is None else _share_of(sizes, bucket) * found + copied + met


def _wire_s(model: CostModel, kind: StepKind, link: AxisLink, bytes_in: np.ndarray, bytes_out: np.ndarray, transfer: Transfer) -> np.ndarray:
    """Without the copies of a split that is not outermost."""
    bucketed = transfer is Transfer.GRAD or (transfer is not Transfer.BLOCKING and model.cluster.device.kind != "cpu")  # of states on a CPU often few are split: their message is not full
    bucket = model.bucket_bytes if kind in _BUCKETED and bucketed else 0
    if model.measured is not None and (found := _measured_wire_s(model.measured, kind, link, bytes_in, bytes_out, bucket, transfer is Transfer.BLOCKING)) is not None:
        return found
    if kind is StepKind.SLICE:
        return 2 * bytes_out / model.memory_bytes_per_s + model.launch_s  # reads only what it keeps
    if kind is StepKind.KEEP:
        return (bytes_in + bytes_out) / model.memory_bytes_per_s + model.launch_s
    sizes = bytes_out if kind is StepKind.ALL_GATHER else bytes_in
    way = collective_way(model.links, _KINDS[kind], link.ranks, link.per_host, model.nics)
    return _share_of(np.maximum(bytes_in, bytes_out), bucket) * _way_s(model, way, np.maximum(sizes, bucket))


def _share_of(sizes: np.ndarray, bucket: int) -> np.ndarray | float:
    """Of a bucket, what it fills."""
    return np.minimum(1.0, sizes / bucket) if bucket else 1.0


def _way_s(model: CostModel, way: Way, sizes: np.ndarray) -> np.ndarray:
    """A measured curve has the start of its kernel in it."""
    return way_seconds(way, sizes) + (model.launch_s if way.knots is None else 0.0)


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


