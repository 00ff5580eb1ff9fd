"""Run the steps of a reshard (`graph.reshard`) on this rank's piece."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..graph.mesh import axis_sizes
from ..graph.reshard import Step, StepKind, reshard_steps
from ..graph.sharding import Sharding, replicated
from .comm import Comm
from .spec import ProgramSpec, local_piece, torch_dtype
from .stages import STAGES


def apply_steps(comm: Comm, x: Tensor, steps: tuple[Step, ...]) -> Tensor:
    """Bring this rank's piece through the steps; every rank calls it with its own piece."""
    for step in steps:
        x = _apply_step(comm, x, step)
    return x


def gather_whole(comm: Comm, x: Tensor, shape: tuple[int, ...], sharding: Sharding) -> Tensor:
    """The whole tensor of which every rank holds the piece `x`."""
    sizes = axis_sizes(comm.mesh)
    return apply_steps(comm, x, reshard_steps(shape, sharding, replicated(len(sizes)), sizes))


def gather_state(comm: Comm, program: ProgramSpec, pieces: Mapping[str, Tensor], name: str) -> Tensor:
    """A state, whole, on every rank; in stages it comes from the stage that updates it. All ranks call it together."""
    state, home = program.states[name], program.home(name)
    sharding, _ = local_piece(state, program.mesh)
    if home is None:
        return gather_whole(comm, pieces[name], state.shape, sharding)
    if comm.coordinate(STAGES) == home:
        whole = gather_whole(comm, pieces[name], state.shape, sharding)
    else:
        whole = torch.empty(state.shape, dtype=torch_dtype(state.dtype), device=comm.device)
    return comm.broadcast(whole, STAGES, home)


def _apply_step(comm: Comm, x: Tensor, step: Step) -> Tensor:
    axis = comm.mesh.axes[step.axis].name
    if step.kind is StepKind.ALL_GATHER:
        return comm.all_gather(x, axis, step.from_dim, step.from_stride, step.from_short)
    if step.kind is StepKind.REDUCE_SCATTER:
        return comm.reduce_scatter(x, axis, step.to_dim, step.to_stride, step.op)
    if step.kind is StepKind.ALL_REDUCE:
        return comm.all_reduce(x, axis, step.op)
    if step.kind is StepKind.ALL_TO_ALL:
        return comm.all_to_all(x, axis, step.from_dim, step.from_stride, step.to_dim, step.to_stride)
    if step.kind is StepKind.SLICE:
        return comm.slice(x, axis, step.to_dim, step.to_stride)
    return comm.keep(x, axis)
