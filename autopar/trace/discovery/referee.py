"""The referee of rules: pieces computed apart and joined equal the whole.

In: a sample (one call of one op with real tensors). For a strategy of its rule: cut the inputs as it says (a Partial into random
addends), run the op on every rank's pieces with localised arguments, join the outputs as it says and compare with the whole op. It
uses nothing of the engine but the text of placements: how a digit picks indices and what a Partial means are written here again.
Readers: the tests of the table, discovery, and the check of rules that users state.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from ...graph.node import Arg, Const, Node, Phase, Ref
from ...graph.rule import Rule, Shape, Signature, Site, find_rule, localise_args, resolve
from ...graph.sharding import Partial, Shard, Sharding, local_shape
from ...graph.strategy import Strategy, list_strategies
from ..lowering.draft import resolve_op

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[str, tuple[tuple[str, Arg], ...], Tensors], tuple[torch.Tensor | None, ...]]
TOLERANCE = 1e-10  # float64, relative to the largest number that was added
ROUNDING = 64 * torch.finfo(torch.float64).eps  # relative to the largest number that went in
NARROW = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}  # the same of narrower numbers


# how an op says that it does not take these pieces
REFUSALS = (RuntimeError, IndexError, AssertionError, ValueError, ZeroDivisionError)


def to_arg(value: object, tensors: list[torch.Tensor]) -> Arg:
    """A call's argument as a graph has it; its tensors are added to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Ref(len(tensors) - 1)
    if isinstance(value, torch.dtype):
        return Const("dtype", str(value))
    if isinstance(value, (list, tuple)):
        return tuple(to_arg(v, tensors) for v in value)
    assert value is None or isinstance(value, (bool, int, float, complex, str)), value
    return value


def from_arg(arg: Arg, tensors: Tensors) -> object:
    """The way back."""
    if isinstance(arg, Ref):
        return tensors[arg.index]
    if isinstance(arg, Const):
        return getattr(torch, arg.name.removeprefix("torch."))
    if isinstance(arg, tuple):
        return [from_arg(a, tensors) for a in arg]
    return arg


def run_torch(op: str, args: tuple[tuple[str, Arg], ...], inputs: Tensors) -> tuple[torch.Tensor | None, ...]:
    """Call a torch op; every call draws the same random numbers."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed asks every backend: ten times as slow as these ops
    made = resolve_op(op)(**{name: from_arg(arg, inputs) for name, arg in args})
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def call_op(op: str, args: tuple[tuple[str, Arg], ...], inputs: Tensors) -> tuple[torch.Tensor | None, ...]:
    """Call a torch op as it is, on the GPU where it has no CPU kernel and there is one."""
    function = resolve_op(op)
    try:
        made = function(**{name: from_arg(arg, inputs) for name, arg in args})
    except NotImplementedError:  # torch has no CPU kernel for the op
        if not torch.cuda.is_available():
            raise
        there = tuple(t.cuda() for t in inputs)
        made = function(**{name: from_arg(arg, there) for name, arg in args})
    results = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    return tuple(r.cpu() if isinstance(r, torch.Tensor) else None for r in results)


@dataclass(frozen=True)
class Sample:
    """One call: a node, its tensors, and what the op makes of them.

    Args:
        compare: `values`, or `shapes` for undefined contents.
        run: how the op is called.
    """

    name: str
    node: Node
    inputs: Tensors
    outputs: Tensors
    compare: str = "values"
    run: Run = run_torch


def sample_of(name: str, op: str, arguments: Mapping[str, object], compare: str = "values", run: Run = run_torch) -> Sample:
    """The sample of a call.

    Args:
        op: with its overload.
        arguments: by schema name, in schema order.
    """
    tensors: list[torch.Tensor] = []
    args = tuple((key, to_arg(value, tensors)) for key, value in arguments.items())
    made = run(op, args, tuple(tensors))
    names = tuple("" if out is None else f"out{k}" for k, out in enumerate(made))
    node = Node("node", op, tuple(f"in{k}" for k in range(len(tensors))), args, names, Phase.FORWARD)
    return Sample(name, node, tuple(tensors), tuple(o for o in made if o is not None), compare, run)


def site_of(sample: Sample) -> Site:
    """The node with its whole shapes."""
    shapes, made = (tuple(tuple(t.shape) for t in many) for many in (sample.inputs, sample.outputs))
    return Site(sample.node, shapes, made, tuple(str(t.dtype).removeprefix("torch.") for t in sample.inputs))


# --- cutting and joining ---------------------------------------------------------------------------------------------------------


def _piece_index(size: int, dim: int, sharding: Sharding, sizes: Shape, where: Shape) -> torch.Tensor:
    """Indices of the dim that the rank at coordinates `where` holds."""
    index = torch.arange(size)
    for placement, n, at in zip(sharding.placements, sizes, where):
        if isinstance(placement, Shard) and placement.dim == dim:
            index = index[(index // placement.stride) % n == at]
    return index


def _addends(whole: torch.Tensor, count: int, rng: torch.Generator, kind: str = "sum") -> list[torch.Tensor]:
    """Random signed parts that add up to the whole; of booleans, which have no parts, one rank keeps them.

    `kind` max or min: each element is held by a random rank, the others hold less (more); avg: the parts have the whole as their mean.
    """
    if count == 1:
        return [whole]
    if whole.dtype == torch.bool:
        return [whole] + [torch.zeros_like(whole)] * (count - 1)
    if kind == "avg":
        return _addends(whole * count, count, rng)
    if kind in ("max", "min"):
        owner = torch.randint(0, count, whole.shape, generator=rng)
        off = torch.randint(1, 9, whole.shape, generator=rng).to(whole.dtype)
        return [torch.where(owner == k, whole, whole - off if kind == "max" else whole + off) for k in range(count)]
    if whole.dtype.is_floating_point or whole.dtype.is_complex:
        parts = [torch.randn(whole.shape, generator=rng, dtype=whole.dtype) for _ in range(count - 1)]
    else:
        parts = [torch.randint(-9, 10, whole.shape, generator=rng, dtype=whole.dtype) for _ in range(count - 1)]
    rest = whole.clone()
    for part in parts:
        rest -= part
    return [*parts, rest]


def cut(whole: torch.Tensor, sharding: Sharding, sizes: Shape, rng: torch.Generator) -> dict[Shape, torch.Tensor]:
    """What each rank holds of a value."""
    owing = [axis for axis, p in enumerate(sharding.placements) if isinstance(p, Partial)]
    kind = next((p.op for p in sharding.placements if isinstance(p, Partial)), "sum")
    parts = _addends(whole, prod(sizes[a] for a in owing), rng, kind)
    index: dict[tuple[int, Shape], torch.Tensor] = {}
    found = {}
    for where in product(*(range(n) for n in sizes)):
        number = 0
        for axis in owing:
            number = number * sizes[axis] + where[axis]
        piece = parts[number]
        for dim in range(whole.dim()):
            if any(isinstance(p, Shard) and p.dim == dim for p in sharding.placements):
                if (dim, where) not in index:
                    index[dim, where] = _piece_index(whole.shape[dim], dim, sharding, sizes, where)
                piece = piece.index_select(dim, index[dim, where])
        found[where] = piece
    return found


def why_unequal(found: torch.Tensor, expected: torch.Tensor, scale: float | torch.Tensor) -> str:
    """ "" where they are the same: integers exactly, floats to the tolerance. `scale`: how large numbers were added, at most or in each."""
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if not found.dtype.is_floating_point and not found.dtype.is_complex:
        return "" if torch.equal(found, expected) else "other integers"
    bound = NARROW.get(expected.dtype, TOLERANCE) * (expected.abs() + scale)
    off = (found - expected).abs()
    wrong = ~((found == expected) | (off <= bound) | (found.isnan() & expected.isnan()))
    return f"differs by {float(off[wrong].max()):.2e}" if bool(wrong.any()) else ""


def _largest(tensors: list[torch.Tensor]) -> float:
    sizes = [float(t[t.isfinite()].abs().max()) for t in tensors if (t.is_floating_point() or t.is_complex()) and t[t.isfinite()].numel()]
    return max([1.0, *sizes])


def why_not_joined(
    pieces: dict[Shape, torch.Tensor], sharding: Sharding, sizes: Shape, expected: torch.Tensor, compare: str, inputs: Tensors = ()
) -> str:
    """Why the pieces, joined as the sharding says, are not the whole; "" where they are.

    `inputs`: what went in, whole. Cutting it into addends rounds it, the more the larger it is and the narrower its dtype.
    """
    wanted = local_shape(tuple(expected.shape), sharding, sizes)
    for where, piece in pieces.items():
        if tuple(piece.shape) != wanted:
            return f"rank {where} made {list(piece.shape)}, the sharding {sharding} says {list(wanted)}"
    if compare == "shapes":
        return ""
    # the scale is capped, so that one huge element does not hide what happens to the others
    own = NARROW.get(expected.dtype, TOLERANCE)
    coarse = max([own, *(NARROW.get(t.dtype, own) for t in inputs)]) / own
    scale = coarse * min(_largest(list(pieces.values())), 1e4) + ROUNDING * _largest(list(inputs)) / own
    # every element is written: the digits of all shards cover the dim
    total, added = torch.empty_like(expected), torch.zeros(expected.shape, dtype=torch.float64)
    groups: dict[Shape, list[torch.Tensor]] = {}  # one list of addends per (replica, shard) coordinate
    owing = [axis for axis, p in enumerate(sharding.placements) if isinstance(p, Partial)]
    for where, piece in pieces.items():
        key = tuple(0 if axis in owing else at for axis, at in enumerate(where))
        groups.setdefault(key, []).append(piece)
    reduction = next((p.op for p in sharding.placements if isinstance(p, Partial)), "sum")
    filled: dict[Shape, torch.Tensor] = {}
    for where, addends in groups.items():
        if len(addends) == 1:
            value = addends[0]
        elif reduction == "max":
            value = torch.stack(addends).amax(0)
        elif reduction == "min":
            value = torch.stack(addends).amin(0)
        elif reduction == "avg":
            value = torch.stack(addends).mean(0)
        elif reduction == "product":
            value = torch.stack(addends).prod(0).to(addends[0].dtype)
        else:
            value = torch.stack(addends).sum(0).to(addends[0].dtype)
        size = torch.stack(addends).abs().sum(0).to(added.dtype) if len(addends) > 1 and value.dtype != torch.bool else 0.0
        shard = tuple(at if isinstance(p, Shard) else 0 for at, p in zip(where, sharding.placements))
        if shard in filled:
            reason = why_unequal(value, filled[shard], scale)
            if reason:
                return f"replicas of {sharding}: {reason}"
            continue
        filled[shard] = value
        if expected.dim() == 0:
            total, added = value, torch.as_tensor(size)
        else:
            index = [_piece_index(expected.shape[d], d, sharding, sizes, where) for d in range(expected.dim())]
            grid = [i.view([-1 if d == k else 1 for d in range(expected.dim())]) for k, i in enumerate(index)]
            total[tuple(grid)], added[tuple(grid)] = value, size
    if owing and reduction == "sum" and expected.dtype.is_floating_point:
        total = torch.where(expected.isfinite(), total, expected)  # infinity has no parts: inf - inf is no number
    if expected.dtype == torch.bool:
        return why_unequal(total, expected, scale)
    return why_unequal(total, expected, scale + coarse * (added + expected.abs()).nan_to_num(posinf=0.0, neginf=0.0))


# --- strategies --------------------------------------------------------------------------------------------------------------------


def run_pieces(
    sample: Sample, signature: Signature, inputs: tuple[Sharding, ...], outputs: tuple[Sharding, ...], sizes: Shape
) -> list[dict[Shape, torch.Tensor]]:
    """Every rank's outputs, one table per output."""
    rng = torch.Generator().manual_seed(zlib.crc32(repr((sample.name, [str(s) for s in inputs])).encode()))
    site = site_of(sample)
    cuts = [cut(t, s, sizes, rng) for t, s in zip(sample.inputs, inputs)]
    local = Site(
        sample.node,
        tuple(local_shape(shape, s, sizes) for shape, s in zip(site.inputs, inputs)),
        tuple(local_shape(shape, s, sizes) for shape, s in zip(site.outputs, outputs)),
    )
    args = localise_args(signature, local, site.inputs)
    made: list[dict[Shape, torch.Tensor]] = [{} for _ in sample.outputs]
    for where in product(*(range(n) for n in sizes)):
        results = sample.run(sample.node.op, args, tuple(pieces[where] for pieces in cuts))
        for table, out in zip(made, (o for o in results if o is not None)):
            table[where] = out
    return made


def why_wrong(sample: Sample, signature: Signature, strategy: Strategy, sizes: Shape) -> str:
    """Why this strategy does not compute the op; "" where it does."""
    shown = ", ".join(map(str, strategy.inputs)) + " -> " + ", ".join(map(str, strategy.outputs))
    where = f"{sample.name} on {sizes}: strategy {' '.join(strategy.choices)} ({shown})"
    try:
        made = run_pieces(sample, signature, strategy.inputs, strategy.outputs, sizes)
    except REFUSALS as error:
        return f"{where}: the pieces do not run: {str(error).splitlines()[0]}"
    for k, (pieces, sharding, expected) in enumerate(zip(made, strategy.outputs, sample.outputs)):
        reason = why_not_joined(pieces, sharding, sizes, expected, sample.compare, sample.inputs)
        if reason:
            return f"{where}: output {k}: {reason}"
    return ""


def inner_cuts(signature: Signature) -> dict[str, tuple[int, ...]]:
    """For each factor that is a product, a cut at its largest proper divisor that leaves both sides something to split."""
    found = {}
    for factor in signature.factors:
        inner = [d for d in range(2, factor.size) if factor.size % d == 0]
        if inner:
            found[factor.name] = (inner[-1],)
    return found


MESHES: tuple[Shape, ...] = ((2,), (3,), (2, 2), (2, 3))
CUT_MESHES: tuple[Shape, ...] = ((2,), (2, 2))  # where the inner cuts are tried too


def check_sample(sample: Sample, rules: Mapping[str, Rule]) -> tuple[int, list[str]]:
    """(strategies checked, what is wrong) for one sample, on every mesh, without and with inner cuts."""
    site = site_of(sample)
    signature = resolve(find_rule(rules, sample.node), site)
    checked, wrong = 0, []
    for sizes in MESHES:
        done = set()
        for cuts in ({}, inner_cuts(signature)) if sizes in CUT_MESHES else ({},):
            strategies, _ = list_strategies(signature, site, sizes, cuts)
            for strategy in strategies:
                key = (strategy.inputs, strategy.outputs)
                if key in done:
                    continue
                done.add(key)
                checked += 1
                reason = why_wrong(sample, signature, strategy, sizes)
                if reason:
                    wrong.append(reason)
    return checked, wrong
