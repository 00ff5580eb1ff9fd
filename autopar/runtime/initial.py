"""First values of the states, made on each rank without the whole ever being there.

A state's `init` says how its value is made:

    ("zeros",)  ("fill", v)         a constant
    ("eye", v)                      so many times the identity, of a matrix
    (("normal_", 0.0, 0.02), ...)   tensor methods that fill or change elements one by one, in order
    ("tensor", (1, 2, 3))           these numbers, flat
    ("copy", NAME)                  the same first value as state NAME, in this state's own dtype and sharding
    ("seed",)                       a whole number made of the seed: the counter of random draws begins there
    ("given",)                      it must come from a model or a state dict

Random values are drawn in chunks of `CHUNK` elements of the flat whole tensor, each from its own generator (seed, name, chunk number),
in float32 on the CPU, then cast. So a value depends on no plan, no rank count, no device and no precision; a bf16 parameter is the cast of
its float32 master (`("copy", NAME)` copies the draw, not the cast); and a rank holds its piece and one chunk.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor

from ..errors import InputError, ProgramError
from ..graph.mesh import Mesh
from ..graph.sharding import Sharding, is_uneven
from .shards import cut, inside, owned_runs
from .spec import ProgramSpec, State, local_piece, torch_dtype
from .stages import here

CHUNK = 1 << 20  # elements

FILLS = frozenset({"normal_", "uniform_", "fill_", "zero_", "erfinv_", "mul_", "add_", "clamp_", "trunc_", "exp_", "log_", "neg_", "sqrt_"})


def initial_state(
    program: ProgramSpec, rank: int, given: Mapping[str, Tensor] | None = None, seed: int = 0, device: torch.device | None = None
) -> dict[str, Tensor]:
    """This rank's pieces of all states that it holds.

    Args:
        program: says what the states are.
        given: whole tensors under the model's own names (a `state_dict()`, tied names too); they win over recipes. Entries on the
            meta device count as absent.
        seed: of the recipes.
        device: where the pieces live; None is the CPU.
    Raises:
        InputError: a value must be given and is not, or has another shape.
    """
    known = _under_own_names(program, given or {})
    made = {}
    program = here(program, rank)
    for name, state in program.states.items():
        if not program.holds(name):
            continue
        root = _root(program, name)
        if root in known:
            made[name] = _from_whole(name, state, program.mesh, rank, known[root], device)
        else:
            made[name] = _from_recipe(name, state, program, rank, root, seed, device)
    return made


def state_of_module(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module under all their names: tied names, and buffers that its `state_dict` leaves out."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return {name: t.detach() for name, t in (*named.items(), *module.named_buffers(remove_duplicate=False))}


def _under_own_names(program: ProgramSpec, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    known = {}
    for alias, name in (*program.aliases.items(), *((n, n) for n in program.states)):
        if alias in given and not given[alias].is_meta:
            known[name] = given[alias]
    return known


def _root(program: ProgramSpec, name: str) -> str:
    """The state whose recipe this one follows through `("copy", NAME)`."""
    seen = [name]
    while program.states[name].init[:1] == ("copy",):
        name = program.states[name].init[1]
        if name not in program.states or name in seen:
            raise ProgramError(f"program.py: {seen[0]} copies {' copies '.join([*seen[1:], name])}, which leads to no value")
        seen.append(name)
    return name


def _from_whole(name: str, state: State, mesh: Mesh, rank: int, whole: Tensor, device: torch.device | None) -> Tensor:
    if tuple(whole.shape) != state.shape:
        raise InputError(f"{name}: expected shape {list(state.shape)}, found {list(whole.shape)}: it belongs to another model")
    sharding, _ = local_piece(state, mesh)
    return cut(whole.detach(), sharding, mesh, rank).to(device or torch.device("cpu"), torch_dtype(state.dtype))


def _from_recipe(name: str, state: State, program: ProgramSpec, rank: int, root: str, seed: int, device: torch.device | None) -> Tensor:
    sharding, shape = local_piece(state, program.mesh)
    init = program.states[root].init
    piece = torch.empty(shape, dtype=torch_dtype(state.dtype), device=device)
    if program.states[root].shape != state.shape:
        raise ProgramError(f"program.py: {name} {list(state.shape)} copies {root} {list(program.states[root].shape)}")
    if init == ("given",):
        raise InputError(f"{root}: its first value cannot be made again from a recipe: pass the model with real weights, a state dict or a checkpoint")
    if init == ("zeros",):
        return piece.zero_()
    if init == ("seed",):
        return piece.fill_(first_count(seed))
    if init[0] == "fill":
        return piece.fill_(init[1])
    if init[0] == "tensor":
        whole = torch.tensor(init[1], dtype=piece.dtype).reshape(state.shape)
        return piece.copy_(cut(whole, sharding, program.mesh, rank))
    fill: Callable[[int, int], Tensor]
    if init[0] == "eye":
        fill = functools.partial(_eye_chunk, init[1], state.shape[-1])
    else:
        _check_recipe(root, init)
        fill = functools.partial(_draw_chunk, init, root, seed)
    if not is_uneven(sharding):
        _fill_chunks(piece.view(-1), state.shape, sharding, program.mesh, rank, fill)
        return piece
    mine = inside(piece.zero_(), state.shape, sharding, program.mesh, rank)
    drawn = torch.empty(mine.shape, dtype=piece.dtype, device=device)
    _fill_chunks(drawn.view(-1), state.shape, sharding, program.mesh, rank, fill)
    mine.copy_(drawn)
    return piece


def first_count(seed: int) -> int:
    """Where the counter of random draws begins: 48 bits, so that runs of other seeds are far away and numbers stay exact in float64."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:draws".encode(), digest_size=6).digest(), "big")


def _check_recipe(name: str, recipe: tuple) -> None:
    for entry in recipe:
        if not isinstance(entry, tuple) or not entry or entry[0] not in FILLS:
            raise ProgramError(f"program.py: {name}: its recipe has {entry!r}, expected one of {', '.join(sorted(FILLS))} with its arguments")


def _fill_chunks(flat: Tensor, shape: tuple[int, ...], sharding: Sharding, mesh: Mesh, rank: int, fill: Callable[[int, int], Tensor]) -> None:
    """Args: fill: makes so many elements of the flat whole from one on."""
    runs, total, done = owned_runs(shape, sharding, mesh, rank), prod(shape), 0
    for start in range(0, total, CHUNK):
        stop = min(start + CHUNK, total)
        if runs.touches(start, stop):
            owned = runs.take(fill(start, stop - start), start)
            flat[done : done + owned.numel()].copy_(owned)
            done += owned.numel()


def _eye_chunk(number: float, columns: int, start: int, length: int) -> Tensor:
    places = torch.arange(start, start + length)
    return number * (places // columns == places % columns).double()


def _draw_chunk(recipe: tuple, name: str, seed: int, start: int, length: int) -> Tensor:
    digest = hashlib.blake2b(f"{seed}:{name}:{start // CHUNK}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    chunk = torch.zeros(length)
    for method, *args in recipe:
        keywords = {"generator": generator} if method in ("normal_", "uniform_") else {}
        getattr(chunk, method)(*args, **keywords)
    return chunk
