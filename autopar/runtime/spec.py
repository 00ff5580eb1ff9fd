"""What an emitted program says about itself: its mesh, its states, its batch, and the step.

`program.py` is a plain module; `read_program` turns its constants into one value and refuses what is malformed, so that everything
else here can trust it. Shapes are those of whole tensors; shardings are texts of `autopar.graph.sharding`.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Union

import torch

from ..errors import PlanError, ProgramError
from ..graph.mesh import Mesh, MeshAxis, axis_sizes
from ..graph.sharding import Sharding, has_partial, local_shape, parse_sharding, why_illegal

STATE_KINDS = ("param", "buffer", "optim")

Number = Union[bool, int, float]
Recipe = tuple  # ("zeros",) | ("fill", v) | ("copy", name) | ("given",) | ("seed",) | ("tensor", (numbers...)) | (("normal_", mean, std), ...)


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
    """

    mesh: Mesh
    states: Mapping[str, State]
    batch: Mapping[str, Batch]
    output: object
    aliases: Mapping[str, str]
    step: Callable


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


def compile_program(files: Mapping[str, str], name: str = "program.py") -> dict[str, object]:
    """Run the text of an emitted program as a module; tracebacks show its lines.

    Returns:
        the module's namespace.
    Raises:
        ProgramError: there is no such file, or its text is not Python.
    """
    if name not in files:
        raise ProgramError(f"the emitted program has no {name}, only {', '.join(sorted(files)) or 'nothing'}")
    text = files[name]
    shown = f"<autopar {name} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
    try:
        code = compile(text, shown, "exec")
    except SyntaxError as error:
        raise ProgramError(f"{name}, line {error.lineno}: the emitted program is not valid Python: {error.msg}") from None
    namespace: dict[str, object] = {"__name__": f"autopar_{name.removesuffix('.py')}", "__file__": shown}
    exec(code, namespace)
    return namespace


def read_program(namespace: Mapping[str, object]) -> ProgramSpec:
    """Read the constants of a program's namespace (`vars(module)` works too) and check them.

    Raises:
        ProgramError: a constant is missing or a sharding does not fit its tensor.
    """
    missing = [name for name in ("MESH", "STATES", "BATCH", "step") if name not in namespace]
    if missing:
        raise ProgramError(f"program.py: expected MESH, STATES, BATCH and step, {', '.join(missing)} missing; emit it again")
    mesh = make_mesh(namespace["MESH"])  # type: ignore[arg-type]
    states: dict[str, State] = dict(namespace["STATES"])  # type: ignore[call-overload]
    batch: dict[str, Batch] = dict(namespace["BATCH"])  # type: ignore[call-overload]
    aliases: dict[str, str] = dict(namespace.get("ALIASES", {}))  # type: ignore[call-overload]
    spec = ProgramSpec(mesh, states, batch, namespace.get("OUTPUT"), aliases, namespace["step"])  # type: ignore[arg-type]
    for name, entry in (*states.items(), *batch.items()):
        _check_entry(name, entry, mesh)
    for name, state in states.items():
        if state.kind not in STATE_KINDS:
            raise ProgramError(f"program.py: {name}: expected kind {', '.join(STATE_KINDS)}, found {state.kind!r}")
    for alias, target in aliases.items():
        if target not in states:
            raise ProgramError(f"program.py: {alias} is an alias of {target}, which is no state")
    return spec


def _check_entry(name: str, entry: State | Batch, mesh: Mesh) -> None:
    try:
        sharding = parse_sharding(entry.sharding)
    except PlanError as error:
        raise ProgramError(f"program.py: {name}: {error}") from None
    reason = why_illegal(entry.shape, sharding, axis_sizes(mesh)) or ("a stored tensor cannot be partial" if has_partial(sharding) else "")
    if reason:
        raise ProgramError(f"program.py: {name} {list(entry.shape)} cannot be stored as {entry.sharding}: {reason}")
    torch_dtype(entry.dtype)
