"""Strategies: the legal ways to split one node over a mesh, read off its rule.

One mesh axis makes one choice, written as text:

    "R"          every rank along the axis computes the same
    "k"          factor k is split (its outermost digit)
    "o@768"      the digit of factor o that starts below 768: chunks of 768 are each split (fused QKV by heads)
    "P(self)"    a Partial passes through the inputs named self; the op is linear in them

A strategy is one choice per axis. Several axes may split one factor: the earlier axis takes the outer digit. Invariant: what a
strategy says of inputs and outputs is legal for their shapes, and the op run on the pieces gives the pieces (the referee checks).
What cannot be offered is told by `refusals`, with the reason; nothing is silently replicated.

An axis may cut a dim into chunks that do not divide it, where the node may take such (`Signature.uneven`) and at most an eighth is padding: one whose
size divides no dim of the node's tensors, or, beside other axes, no power of two (three divides a fused projection of q, k and v, but
does not fit beside tensor parallelism by heads). The choice is the factor's name, as of any other split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod

from .node import input_names
from .rule import Rule, Signature, Site
from .sharding import PARTIAL, REPLICATE, Partial, Placement, Shard, Sharding, uneven_chunks, why_illegal

REPLICATED = "R"
MOST_PADDING = 8  # of a dim, an eighth
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
    """The inner sizes at which each factor may be cut, from the cuts of the dims that it is part of.

    One whose pieces are runs of neighbours (`Factor.runs`) has them too: its outer part is split, and no further than the inner one.
    """
    found: dict[str, set[int]] = {f.name: set() for f in signature.factors}
    size = {f.name: f.size for f in signature.factors}
    for dims, cuts in zip((*signature.inputs, *signature.outputs), (*input_cuts, *output_cuts)):
        for names, dim_cuts in zip(dims, cuts):
            if not dim_cuts:
                continue
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
        blocks = (*(() if factor.runs else cuts.get(factor.name, ())), factor.size)
        choices += [factor.name if upper == factor.size else f"{factor.name}@{upper}" for upper in reversed(blocks)]
    for together in signature.linear:
        text = f"P({' '.join(together)})"
        if all(n in names for n in together) and text not in choices:
            choices.append(text)
    return tuple(choices)


def _parse_choice(choice: str, size: dict[str, int]) -> tuple[str, int]:
    factor, _, upper = choice.partition("@")
    return factor, int(upper) if upper else size[factor]


_EXACT = "what it makes is compared with an extreme of itself, bit by bit: it may not be left as a sum of parts"

Row = tuple[Placement, ...]  # what one axis does to each input, then to each output


class _Splits:
    """What choices make of one node, each choice worked out once.

    Args:
        site: the node with whole shapes.
        sizes: of the mesh axes.
        cuts: of each factor (`factor_cuts`).
    """

    def __init__(self, signature: Signature, site: Site, sizes: tuple[int, ...], cuts: dict[str, Cuts]) -> None:
        self.signature, self.sizes, self.cuts = signature, sizes, cuts
        self.names = input_names(site.node)
        self.size = {f.name: f.size for f in signature.factors}
        self.whole = {f.name: f.whole for f in signature.factors}
        self.runs = frozenset(f.name for f in signature.factors if f.runs)
        self.shapes = (*site.inputs, *site.outputs)
        count = len(signature.inputs) + len(signature.outputs)
        self.replicated: Row = (REPLICATE,) * count
        self.uneven = frozenset(n for n in sizes if signature.uneven and _has_use(n, self.size.values(), len(sizes)))
        self._digits: dict[str, tuple[str, int, int]] = {}
        self._rows: dict[tuple[str, int], Row | str] = {}
        self._shardings: list[dict[Row, tuple[int, Sharding, str]]] = [{} for _ in range(count)]

    def take(self, choice: str, n: int, used: dict[tuple[str, int], int]) -> tuple[Row, dict[tuple[str, int], int]] | str:
        """What an axis of size `n` does by this choice, or why it cannot.

        Args:
            used: (factor, block) -> stride of the digit that the axes before took last.
        Returns:
            The row, and what is used then.
        """
        if choice == REPLICATED:
            return self.replicated, used
        if choice.startswith("P("):
            row = self._pass_through(choice)
            return row if isinstance(row, str) else (row, used)
        if choice not in self._digits:
            factor, upper = _parse_choice(choice, self.size)
            self._digits[choice] = factor, upper, max((c for c in self.cuts.get(factor, ()) if c < upper), default=1)
        factor, upper, lower = self._digits[choice]
        if self.whole[factor]:
            return f"{factor} stays whole: {self.whole[factor]}"
        if factor in self.runs and upper != self.size[factor]:
            return f"{factor} is split into runs of neighbours, and {choice} leaves gaps"
        stride = used.get((factor, upper), upper)
        if n in self.uneven and stride == self.size[factor] == upper and upper % n:
            chunks = uneven_chunks(0, upper, n)
            if can_cut(upper, n):
                row = self._rows.get((factor, -n))
                if row is None:
                    row = self._rows[factor, -n] = self._split(factor, chunks.stride, chunks.short)
                return row if isinstance(row, str) else (row, {**used, (factor, upper): 1})  # no other axis cuts it
        if stride % (n * lower):
            what = f"{upper // lower}" if lower > 1 or upper != self.size[factor] else f"{self.size[factor]}"
            return f"{factor} of size {what} does not divide by {n * (upper // stride)}"
        stride //= n
        row = self._rows.get((factor, stride))
        if row is None:
            row = self._rows[factor, stride] = self._split(factor, stride)
        return row if isinstance(row, str) else (row, {**used, (factor, upper): stride})

    def _pass_through(self, choice: str) -> Row | str:
        row = self._rows.get((choice, 0))
        if row is None:
            together = tuple(choice[2:-1].split(" "))
            if together not in self.signature.linear or not all(n in self.names for n in together):
                return f"{self.signature.rule.op} is not linear in {' and '.join(together)} here"
            if self.signature.exact:
                return _EXACT
            inputs = tuple(PARTIAL if name in together else REPLICATE for name in self.names)
            row = self._rows[choice, 0] = inputs + (PARTIAL,) * len(self.signature.outputs)
        return row

    def _split(self, factor: str, stride: int, short: int = 0) -> Row | str:
        """The digit of a factor at this stride, or why there is none."""
        signature = self.signature
        where = [_find_dim(dims, factor, self.size) for dims in (*signature.inputs, *signature.outputs)]
        outs = len(signature.inputs)
        summed = [w is None and (not signature.same or factor not in signature.same[k]) for k, w in enumerate(where[outs:])]
        if signature.exact and any(summed):
            return _EXACT
        reductions = signature.rule.reduce.split() * (1 if " " in signature.rule.reduce else len(signature.outputs))
        row: list[Placement] = []
        for k, found in enumerate(where):
            if found is not None:
                row.append(Shard(found[0], stride * found[1], short))
            elif k >= outs:
                row.append(Partial(reductions[k - outs]) if summed[k - outs] else REPLICATE)
            else:
                row.append(PARTIAL if any(summed) and self.names[k] in signature.rule.owed else REPLICATE)
        return tuple(row)

    def join(self, choices: tuple[str, ...], rows: list[Row]) -> tuple[Strategy, tuple[int, ...]] | str:
        """The strategy of one row per axis, or why it is not legal.

        Returns:
            The strategy, and a number per input and output: equal where the shardings are.
        """
        columns = tuple(zip(*rows)) if rows else ((),) * len(self.replicated)
        found: list[Sharding] = []
        numbers: list[int] = []
        for shape, placements, known in zip(self.shapes, columns, self._shardings):
            entry = known.get(placements)
            if entry is None:
                sharding = Sharding(placements)
                entry = known[placements] = len(known), sharding, why_illegal(shape, sharding, self.sizes)
            number, sharding, reason = entry
            if reason:
                return reason
            numbers.append(number)
            found.append(sharding)
        outs = len(self.signature.inputs)
        return Strategy(choices, tuple(found[:outs]), tuple(found[outs:])), tuple(numbers)

    def list_all(self, per_axis: list[list[str]]) -> Iterator[tuple[Strategy, tuple[int, ...]]]:
        """Every legal strategy of one choice per axis, the last axis varying fastest."""

        def extend(
            choices: tuple[str, ...], rows: list[Row], used: dict[tuple[str, int], int]
        ) -> Iterator[tuple[Strategy, tuple[int, ...]]]:
            axis = len(choices)
            if axis == len(per_axis):
                made = self.join(choices, rows)
                if not isinstance(made, str):
                    yield made
                return
            for choice in per_axis[axis]:
                taken = self.take(choice, self.sizes[axis], used)
                if not isinstance(taken, str):
                    yield from extend((*choices, choice), [*rows, taken[0]], taken[1])

        return extend((), [], {})


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
    made = _combine(_Splits(signature, site, sizes, cuts), choices)
    return made if isinstance(made, str) else made[0]


def _combine(splits: _Splits, choices: tuple[str, ...]) -> tuple[Strategy, tuple[int, ...]] | str:
    rows: list[Row] = []
    used: dict[tuple[str, int], int] = {}
    for choice, n in zip(choices, splits.sizes):
        taken = splits.take(choice, n, used)
        if isinstance(taken, str):
            return taken
        row, used = taken
        rows.append(row)
    return splits.join(choices, rows)


def _has_use(size: int, lengths: Collection[int], num_axes: int) -> bool:
    """True where an axis of this size may need chunks that do not divide: its digit fits nowhere, or may not fit beside those of others."""
    return all(length % size for length in lengths) or (num_axes > 1 and bool(size & (size - 1)))


def can_cut(length: int, size: int) -> bool:
    """True where a state's dim may be cut among so many ranks: it divides, or an eighth of it at most would be padding."""
    return uneven_chunks(0, length, size).short * MOST_PADDING <= length


def _find_dim(dims: tuple[tuple[str, ...], ...], factor: str, size: dict[str, int]) -> tuple[int, int] | None:
    """(dim, size of what lies inside of the factor there)."""
    for d, names in enumerate(dims):
        if factor in names:
            return d, prod(size[n] for n in names[names.index(factor) + 1 :])
    return None


def list_strategies(
    signature: Signature, site: Site, sizes: tuple[int, ...], cuts: dict[str, Cuts], allowed: Callable[[Strategy, int], bool] | None = None
) -> tuple[tuple[Strategy, ...], tuple[Refusal, ...]]:
    """All legal strategies of one node on a mesh, replicated first, and what was refused on single axes with the reason.

    Args:
        site: the node with whole shapes.
        sizes: of the mesh axes.
        cuts: of each factor.
        allowed: told a strategy that splits along one axis alone, and this axis: whether that may be part of any; None: always.
    """
    choices = axis_choices(signature, cuts, input_names(site.node))
    refused = {Refusal(f.name, f"{f.name} (size {f.size}) stays whole: {f.whole}") for f in signature.factors if f.whole}
    splits = _Splits(signature, site, sizes, cuts)
    per_axis: list[list[str]] = []
    for axis, n in enumerate(sizes):
        fine = []
        for choice in choices:
            made = _combine(splits, tuple(choice if a == axis else REPLICATED for a in range(len(sizes))))
            if isinstance(made, str):
                refused.add(Refusal(choice, f"{made}, axis of {n}"))
            elif allowed is None or choice == REPLICATED or allowed(made[0], axis):
                fine.append(choice)
        per_axis.append(fine)
    strategies: dict[tuple[int, ...], Strategy] = {}
    for strategy, numbers in splits.list_all(per_axis):
        strategies.setdefault(numbers, strategy)
    return tuple(strategies.values()), tuple(sorted(refused, key=lambda r: (r.factor, r.reason)))


def split_share(strategy: Strategy, rule: Rule, sizes: tuple[int, ...]) -> int:
    """Among how many ranks the node's work is divided (a Partial that passes through is computed by all: not divided)."""
    return prod(n for choice, n in zip(strategy.choices, sizes) if choice != REPLICATED and not choice.startswith("P("))

