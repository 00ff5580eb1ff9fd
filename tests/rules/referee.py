"""The referee of rules: pieces computed apart and joined equal the whole.

In: a sample (one call of one op with real tensors). For a strategy of its rule: cut the inputs as it says (a Partial into random
addends), run the op on every rank's pieces with localised arguments, join the outputs as it says and compare with the whole op. It
uses nothing of the engine but the text of placements: how a digit picks indices and what a Partial means are written here again.
`find_missed` turns it round: which single-axis placements are sound although the rule does not offer them?
"""

from __future__ import annotations

import inspect
import zlib
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
import torch._decomp

from autopar.graph.node import Arg, Const, Node, Phase, Ref
from autopar.graph.rule import Rule, Shape, Signature, Site, find_rule, localise_args, resolve
from autopar.graph.sharding import PARTIAL, REPLICATE, Partial, Placement, Shard, Sharding, local_shape
from autopar.graph.strategy import Strategy, list_strategies
from autopar.runtime import ops

Tensors = tuple[torch.Tensor, ...]
NO_CPU_KERNEL = frozenset({"aten._fused_rms_norm_backward.default"})  # checked through torch's own decomposition
TOLERANCE = 1e-10  # float64, relative to the largest number that was added


@dataclass(frozen=True)
class Sample:
    """One call: a node, its tensors, and what the op makes of them. `compare` is `values`, or `shapes` for undefined contents."""

    name: str
    node: Node
    inputs: Tensors
    outputs: Tensors
    compare: str = "values"


# how an op says that it does not take these pieces
REFUSALS = (RuntimeError, IndexError, AssertionError, ValueError, ZeroDivisionError)


def _to_arg(value: object, tensors: list[torch.Tensor]) -> Arg:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Ref(len(tensors) - 1)
    if isinstance(value, torch.dtype):
        return Const("dtype", str(value))
    if isinstance(value, (list, tuple)):
        return tuple(_to_arg(v, tensors) for v in value)
    assert value is None or isinstance(value, (bool, int, float, str)), value
    return value


def _from_arg(arg: Arg, tensors: Tensors) -> object:
    if isinstance(arg, Ref):
        return tensors[arg.index]
    if isinstance(arg, Const):
        return getattr(torch, arg.name.removeprefix("torch."))
    if isinstance(arg, tuple):
        return [_from_arg(a, tensors) for a in arg]
    return arg


def _schema_names(op: str) -> list[str]:
    if op.startswith("autopar."):
        return list(inspect.signature(ops.find_op(op)).parameters)
    space, packet, overload = op.split(".")
    schema = getattr(getattr(getattr(torch.ops, space), packet), overload)._schema
    return [a.name for a in schema.arguments]


def run_op(op: str, args: tuple[tuple[str, Arg], ...], inputs: Tensors) -> tuple[torch.Tensor | None, ...]:
    """Call the op; every call draws the same random numbers."""
    torch.manual_seed(0)
    call = ops.find_op(op)
    if op in NO_CPU_KERNEL:
        call = torch._decomp.decomposition_table[call]
    made = call(**{name: _from_arg(arg, inputs) for name, arg in args})
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def make_sample(op: str, *args: object, label: str = "", compare: str = "values", **named: object) -> Sample:
    """A sample from a call as one would write it; `op` without an overload means `.default`."""
    op = op if op.count(".") == 2 or op.startswith("autopar.") else f"{op}.default"
    tensors: list[torch.Tensor] = []
    given = {**dict(zip(_schema_names(op), args)), **named}
    arguments = tuple((name, _to_arg(given[name], tensors)) for name in _schema_names(op) if name in given)
    made = run_op(op, arguments, tuple(tensors))
    names = tuple("" if out is None else f"out{k}" for k, out in enumerate(made))
    node = Node("node", op, tuple(f"in{k}" for k in range(len(tensors))), arguments, names, Phase.FORWARD)
    text = f"{op.removesuffix('.default')}{' ' if label else ''}{label}"
    return Sample(text, node, tuple(tensors), tuple(o for o in made if o is not None), compare)


def site_of(sample: Sample) -> Site:
    """The node with its whole shapes."""
    return Site(sample.node, tuple(tuple(t.shape) for t in sample.inputs), tuple(tuple(t.shape) for t in sample.outputs))


# --- cutting and joining ---------------------------------------------------------------------------------------------------------


def _piece_index(size: int, dim: int, sharding: Sharding, sizes: Shape, where: Shape) -> torch.Tensor:
    """Indices of the dim that the rank at coordinates `where` holds."""
    index = torch.arange(size)
    for placement, n, at in zip(sharding.placements, sizes, where):
        if isinstance(placement, Shard) and placement.dim == dim:
            index = index[(index // placement.stride) % n == at]
    return index


def _addends(whole: torch.Tensor, count: int, rng: torch.Generator) -> list[torch.Tensor]:
    """Random signed parts that add up to the whole; of booleans, which have no parts, one rank keeps them."""
    if count == 1:
        return [whole]
    if whole.dtype == torch.bool:
        return [whole] + [torch.zeros_like(whole)] * (count - 1)
    if whole.dtype.is_floating_point:
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
    parts = _addends(whole, prod(sizes[a] for a in owing), rng)
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


def why_unequal(found: torch.Tensor, expected: torch.Tensor, scale: float) -> str:
    """ "" where they are the same: integers exactly, floats to the tolerance."""
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, expected {list(expected.shape)}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if not found.dtype.is_floating_point and not found.dtype.is_complex:
        return "" if torch.equal(found, expected) else "other integers"
    # the scale is capped, so that one huge element does not hide what happens to the others
    if torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * min(scale, 1e4), equal_nan=True):
        return ""
    return f"differs by {float((found - expected).abs().max()):.2e}"


def _largest(tensors: list[torch.Tensor]) -> float:
    sizes = [float(t[t.isfinite()].abs().max()) for t in tensors if t.dtype.is_floating_point and t[t.isfinite()].numel()]
    return max([1.0, *sizes])


def why_not_joined(pieces: dict[Shape, torch.Tensor], sharding: Sharding, sizes: Shape, expected: torch.Tensor, compare: str) -> str:
    """Why the pieces, joined as the sharding says, are not the whole; "" where they are."""
    wanted = local_shape(tuple(expected.shape), sharding, sizes)
    for where, piece in pieces.items():
        if tuple(piece.shape) != wanted:
            return f"rank {where} made {list(piece.shape)}, the sharding {sharding} says {list(wanted)}"
    if compare == "shapes":
        return ""
    scale = _largest(list(pieces.values()))
    total = torch.empty_like(expected)  # every element is written: the digits of all shards cover the dim
    groups: dict[Shape, list[torch.Tensor]] = {}  # one list of addends per (replica, shard) coordinate
    owing = [axis for axis, p in enumerate(sharding.placements) if isinstance(p, Partial)]
    for where, piece in pieces.items():
        key = tuple(0 if axis in owing else at for axis, at in enumerate(where))
        groups.setdefault(key, []).append(piece)
    by_max = any(isinstance(p, Partial) and p.op == "max" for p in sharding.placements)
    filled: dict[Shape, torch.Tensor] = {}
    for where, addends in groups.items():
        if len(addends) == 1:
            value = addends[0]
        elif by_max:
            value = torch.stack(addends).amax(0)
        else:
            value = torch.stack(addends).sum(0).to(addends[0].dtype)
        shard = tuple(at if isinstance(p, Shard) else 0 for at, p in zip(where, sharding.placements))
        if shard in filled:
            reason = why_unequal(value, filled[shard], scale)
            if reason:
                return f"replicas of {sharding}: {reason}"
            continue
        filled[shard] = value
        if expected.dim() == 0:
            total = value
        else:
            index = [_piece_index(expected.shape[d], d, sharding, sizes, where) for d in range(expected.dim())]
            grid = [i.view([-1 if d == k else 1 for d in range(expected.dim())]) for k, i in enumerate(index)]
            total[tuple(grid)] = value
    return why_unequal(total, expected, scale)


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
        results = run_op(sample.node.op, args, tuple(pieces[where] for pieces in cuts))
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
        reason = why_not_joined(pieces, sharding, sizes, expected, sample.compare)
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


def check_sample(sample: Sample, rules: dict[str, Rule]) -> tuple[int, list[str]]:
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


# --- what the rules do not offer -----------------------------------------------------------------------------------------------------


def _placements(shape: Shape, n: int, may_be_partial: bool = True, is_output: bool = False) -> list[Placement]:
    found: list[Placement] = [REPLICATE]
    if may_be_partial:
        found.append(PARTIAL)
    if is_output:
        found.append(Partial("max"))
    for dim, size in enumerate(shape):
        found += [Shard(dim, stride) for stride in range(1, size) if size % (stride * n) == 0]
    return found


def input_placements(sample: Sample, n: int) -> list[list[Placement]]:
    """Every placement of each input; integers are indices more often than not, and parts of an index point nowhere."""
    return [_placements(tuple(t.shape), n, t.dtype.is_floating_point) for t in sample.inputs]


def output_placements(sample: Sample, n: int) -> list[tuple[Placement, ...]]:
    """Every combination of placements of the outputs; booleans have no parts that add up."""
    return list(product(*(_placements(tuple(t.shape), n, t.dtype != torch.bool, is_output=True) for t in sample.outputs)))


def offered(sample: Sample, rules: dict[str, Rule], n: int) -> set[tuple[tuple[Placement, ...], tuple[Placement, ...]]]:
    """All single-axis strategies, whatever the cuts of the graph might be."""
    site = site_of(sample)
    signature = resolve(find_rule(rules, sample.node), site)
    found = set()
    for factor in signature.factors:
        inner = [()] + [(d,) for d in range(2, factor.size) if factor.size % d == 0]
        for cuts in inner:
            strategies, _ = list_strategies(signature, site, (n,), {factor.name: cuts})
            found |= {(tuple(s.placements[0] for s in x.inputs), tuple(s.placements[0] for s in x.outputs)) for x in strategies}
    strategies, _ = list_strategies(signature, site, (n,), {})
    return found | {(tuple(s.placements[0] for s in x.inputs), tuple(s.placements[0] for s in x.outputs)) for x in strategies}


def find_missed(sample: Sample, rules: dict[str, Rule], n: int = 2) -> list[str]:
    """Sound placements along one axis of n that the rule does not offer, as `P,S0/2 -> S0/2`."""
    site = site_of(sample)
    signature = resolve(find_rule(rules, sample.node), site)
    known = offered(sample, rules, n)
    has_localise = signature.rule.localise is not None
    outs, choices = output_placements(sample, n), input_placements(sample, n)
    found = []
    for ins in product(*choices):
        inputs = tuple(Sharding((p,)) for p in ins)
        made = None
        for out in outs:
            if (ins, out) in known or (Partial("max") in out and not any(isinstance(p, Shard) for p in ins)):
                continue  # equal replicas are also their own maximum: true and of no use
            outputs = tuple(Sharding((p,)) for p in out)
            if made is None or has_localise:
                try:
                    made = run_pieces(sample, signature, inputs, outputs, (n,))
                except REFUSALS:
                    made = []
            if not made:
                if has_localise:
                    continue
                break
            if all(not why_not_joined(p, s, (n,), e, sample.compare) for p, s, e in zip(made, outputs, sample.outputs)):
                found.append(f"{', '.join(map(str, ins))} -> {', '.join(map(str, out))}")
    return found
