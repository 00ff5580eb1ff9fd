"""Strategies: the legal ways to split one node over a mesh, read off its rule.

One mesh axis makes one choice, written as text:

    "R"          every rank along the axis computes the same
    "k"          factor k is split (its outermost digit)
    "o@768"      the digit of factor o that starts below 768: chunks of 768 are each split (fused QKV by heads)
    "P(self)"    a Partial passes through the inputs named self; the op is linear in them

A strategy is one choice per axis. Several axes may split one factor: the earlier axis takes the outer digit. Invariant: what a
strategy says of inputs and outputs is legal for their shapes, and the op run on the pieces gives the pieces (the referee checks).
What cannot be offered is told by `refusals`, with the reason; nothing is silently replicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from .node import input_names
from .rule import Rule, Signature, Site
from .sharding import PARTIAL, REPLICATE, Partial, Placement, Shard, Sharding, why_illegal

REPLICATED = "R"
Cuts = tuple[int, ...]  # of a dim: the sizes of its inner parts, ascending; (768,) for 2304 = 3 x 768


@dataclass(frozen=True, slots=True)
class Strategy:
    """One choice per mesh axis, and what it makes of each input and output."""

    choices: tuple[str, ...]
    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A factor that a mesh axis (or two) cannot split here, and why."""

    factor: str
    reason: str


def factor_cuts(signature: Signature, input_cuts: tuple[tuple[Cuts, ...], ...], output_cuts: tuple[tuple[Cuts, ...], ...]) -> dict[str, Cuts]:
    """The inner sizes at which each factor may be cut, from the cuts of the dims that it is part of."""
    found: dict[str, set[int]] = {f.name: set() for f in signature.factors}
    size = {f.name: f.size for f in signature.factors}
    for dims, cuts in zip((*signature.inputs, *signature.outputs), (*input_cuts, *output_cuts)):
        for names, dim_cuts in zip(dims, cuts):
            right = 1
            for name in reversed(names):
                for cut in dim_cuts:
                    if cut % right == 0 and 1 < cut // right < size[name] and size[name] % (cut // right) == 0:
                        found[name].add(cut // right)
                right *= size[name]
    return {name: _chain(cuts) for name, cuts in found.items()}


def _chain(cuts: set[int]) -> Cuts:
    """The cuts that divide one another, smallest first; one that does not fit the chain is left out."""
    chain: list[int] = []
    for cut in sorted(cuts):
        if not chain or cut % chain[-1] == 0:
            chain.append(cut)
    return tuple(chain)


def axis_choices(signature: Signature, cuts: dict[str, Cuts], names: tuple[str, ...]) -> tuple[str, ...]:
    """Every choice that the rule allows one axis, whatever its size.

    Args:
        names: schema argument name of each input (`input_names`).
    """
    choices = [REPLICATED]
    for factor in signature.factors:
        if factor.whole:
            continue
        blocks = (*cuts.get(factor.name, ()), factor.size)
        choices += [factor.name if upper == factor.size else f"{factor.name}@{upper}" for upper in reversed(blocks)]
    for together in signature.linear:
        text = f"P({' '.join(together)})"
        if all(n in names for n in together) and text not in choices:
            choices.append(text)
    return tuple(choices)


def _parse_choice(choice: str, size: dict[str, int]) -> tuple[str, int]:
    factor, _, upper = choice.partition("@")
    return factor, int(upper) if upper else size[factor]


def build_strategy(
    signature: Signature, site: Site, choices: tuple[str, ...], sizes: tuple[int, ...], cuts: dict[str, Cuts]
) -> Strategy | str:
    """The strategy of these choices, or the reason why it is not legal.

    Args:
        site: the node with whole shapes.
        choices: one per mesh axis.
        sizes: of the mesh axes.
        cuts: of each factor (`factor_cuts`).
    """
    if len(choices) != len(sizes):
        return f"{len(choices)} choices for {len(sizes)} mesh axes"
    if len(choices) != len(sizes):
        return f"{len(choices)} choices for {len(sizes)} mesh axes"
    size = {f.name: f.size for f in signature.factors}
    why = {f.name: f.whole for f in signature.factors}
    names = input_names(site.node)
    ins: list[list[Placement]] = [[] for _ in signature.inputs]
    outs: list[list[Placement]] = [[] for _ in signature.outputs]
    reductions = signature.rule.reduce.split() * (1 if " " in signature.rule.reduce else len(signature.outputs))
    used: dict[tuple[str, int], int] = {}  # (factor, block) -> stride of the digit taken last
    for choice, n in zip(choices, sizes):
        if choice == REPLICATED:
            for row in (*ins, *outs):
                row.append(REPLICATE)
            continue
        if choice.startswith("P("):
            together = tuple(choice[2:-1].split(" "))
            if together not in signature.linear or not all(n in names for n in together):
                return f"{signature.rule.op} is not linear in {' and '.join(together)} here"
            for row, name in zip(ins, names):
                row.append(PARTIAL if name in together else REPLICATE)
            for row in outs:
                row.append(PARTIAL)
            continue
        factor, upper = _parse_choice(choice, size)
        if why[factor]:
            return f"{factor} stays whole: {why[factor]}"
        lower = max((c for c in cuts.get(factor, ()) if c < upper), default=1)
        stride = used.get((factor, upper), upper)
        if stride % (n * lower):
            what = f"{upper // lower}" if lower > 1 or upper != size[factor] else f"{size[factor]}"
            taken = upper // stride
            return f"{factor} of size {what} does not divide by {n * taken}"
        stride //= n
        used[(factor, upper)] = stride
        lacking = [k for k, dims in enumerate(signature.outputs) if _find_dim(dims, factor, size) is None]
        summed = [k for k in lacking if not signature.same or factor not in signature.same[k]]
        for k, (row, dims) in enumerate(zip((*ins, *outs), (*signature.inputs, *signature.outputs))):
            where = _find_dim(dims, factor, size)
            if where is not None:
                row.append(Shard(where[0], stride * where[1]))
            elif k >= len(signature.inputs):
                out = k - len(signature.inputs)
                row.append(Partial(reductions[out]) if out in summed else REPLICATE)
            else:
                row.append(PARTIAL if summed and names[k] in signature.rule.owed else REPLICATE)
    strategy = Strategy(choices, tuple(Sharding(tuple(r)) for r in ins), tuple(Sharding(tuple(r)) for r in outs))
    for shape, sharding in zip((*site.inputs, *site.outputs), (*strategy.inputs, *strategy.outputs)):
        reason = why_illegal(shape, sharding, sizes)
        if reason:
            return reason
    return strategy


def _find_dim(dims: tuple[tuple[str, ...], ...], factor: str, size: dict[str, int]) -> tuple[int, int] | None:
    """(dim, size of what lies inside of the factor there)."""
    for d, names in enumerate(dims):
        if factor in names:
            return d, prod(size[n] for n in names[names.index(factor) + 1 :])
    return None


def list_strategies(
    signature: Signature, site: Site, sizes: tuple[int, ...], cuts: dict[str, Cuts]
) -> tuple[tuple[Strategy, ...], tuple[Refusal, ...]]:
    """All legal strategies of one node on a mesh, replicated first, and what was refused on single axes with the reason.

    Args:
        site: the node with whole shapes.
        sizes: of the mesh axes.
        cuts: of each factor.
    """
    choices = axis_choices(signature, cuts, input_names(site.node))
    refused = {Refusal(f.name, f"{f.name} (size {f.size}) stays whole: {f.whole}") for f in signature.factors if f.whole}
    per_axis: list[list[str]] = []
    for axis, n in enumerate(sizes):
        fine = []
        for choice in choices:
            alone = tuple(choice if a == axis else REPLICATED for a in range(len(sizes)))
            made = build_strategy(signature, site, alone, sizes, cuts)
            if isinstance(made, str):
                refused.add(Refusal(choice, f"{made}, axis of {n}"))
            else:
                fine.append(choice)
        per_axis.append(fine)
    strategies: dict[tuple[tuple[Sharding, ...], tuple[Sharding, ...]], Strategy] = {}
    for combo in product(*per_axis):
        made = build_strategy(signature, site, combo, sizes, cuts)
        if isinstance(made, Strategy):
            strategies.setdefault((made.inputs, made.outputs), made)
    return tuple(strategies.values()), tuple(sorted(refused, key=lambda r: (r.factor, r.reason)))


def split_share(strategy: Strategy, rule: Rule, sizes: tuple[int, ...]) -> int:
    """Among how many ranks the node's work is divided (a Partial that passes through is computed by all: not divided)."""
    return prod(n for choice, n in zip(strategy.choices, sizes) if choice != REPLICATED and not choice.startswith("P("))

