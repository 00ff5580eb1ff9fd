"""What an emitted program says about itself: its mesh, its states, its batch, and the step.

`program.py` is a plain module; `reading.read_program` turns its constants into one value and refuses what is malformed, so that everything
else here can trust it. Shapes are those of whole tensors; shardings are texts of `autopar.graph.sharding`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import torch

from ..errors import ProgramError
from ..graph.mesh import Mesh, MeshAxis, axis_sizes
from ..graph.sharding import Sharding, local_shape, parse_sharding

if TYPE_CHECKING:
    from .stages import Pipeline

STATE_KINDS = ("param", "buffer", "optim")

Number = Union[bool, int, float]
Recipe = tuple  # ("zeros",) | ("fill", v) | ("eye", v) | ("copy", name) | ("given",) | ("seed",) | ("tensor", (numbers...)) | (("normal_", mean, std), ...)


@dataclass(frozen=True)
class State:
    """A tensor that lives from step to step.

    Args:
        kind: `param`, `buffer` or `optim`.
        shape: of the whole tensor.
        dtype: torch's name without the prefix.
        sharding: how it is stored, as text (`S0/4,R`).
        init: how its first value is made, see `initial.py`.
        persistent: False for a buffer that the model keeps out of its `state_dict`.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    sharding: str
    init: Recipe = ("given",)
    persistent: bool = True


@dataclass(frozen=True)
class Batch:
    """A tensor that enters the step: whole shape, dtype and how ranks hold it."""

    shape: tuple[int, ...]
    dtype: str
    sharding: str


@dataclass(frozen=True)
class ProgramSpec:
    """An emitted program, read and checked.

    Args:
        aliases: other names of a state in the model (tied weights) -> its name in `states`.
        output: forward-only: what the model returns, as tuples and dicts with the number of each tensor that `step` returns in its
            place; None where the step returns the loss.
        step: `step(comm, state, batch)`.
        pipeline: its stages, where it has several (`runtime.stages`).
        held: the states of which a rank has a piece (`stages.here`); None: all.
        read: the batch entries that a rank reads, alike.
    """

    mesh: Mesh
    states: Mapping[str, State]
    batch: Mapping[str, Batch]
    output: object
    aliases: Mapping[str, str]
    step: Callable
    pipeline: Pipeline | None = None
    held: frozenset[str] | None = None
    read: frozenset[str] | None = None

    def holds(self, state: str) -> bool:
        """Whether this rank has a piece of a state."""
        return self.held is None or state in self.held

    def reads(self, entry: str) -> bool:
        """Whether this rank reads a batch entry."""
        return self.read is None or entry in self.read

    def home(self, state: str) -> int | None:
        """The stage that updates a state; None where there are no stages."""
        return None if self.pipeline is None else self.pipeline.homes[state]


def torch_dtype(name: str) -> torch.dtype:
    """`float32` -> `torch.float32`."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ProgramError(f"dtype: expected a torch dtype such as float32, found {name!r}")
    return found


def make_mesh(axes: tuple[tuple[str, int], ...]) -> Mesh:
    """The mesh of a program's `MESH` constant."""
    return Mesh(tuple(MeshAxis(name, size) for name, size in axes))


def local_piece(spec: State | Batch, mesh: Mesh) -> tuple[Sharding, tuple[int, ...]]:
    """The sharding of a state or batch tensor, and the shape that one rank holds."""
    sharding = parse_sharding(spec.sharding)
    return sharding, local_shape(spec.shape, sharding, axis_sizes(mesh))
