"""Spans: one factor followed through the whole graph.

A rule's factor is a letter at one node. The dim of the value that it makes is a factor of whoever reads it, so the letters join to one
factor that spans many nodes: the batch from the tokens to the gradients, the heads of one layer from a projection to the next. In: a graph
with its rules and cuts. Out: `Spans`: which digit of which dim of which value belongs together, and what each node calls it. Invariant:
every digit of every dim (`cuts`) is in exactly one span; nothing is joined that no node carries from one side to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cuts import CutTable
from ..graph import Graph
from ..partition import node_cuts
from ..rule import Signature, Site

_GAPS = "its pieces are runs of neighbours"


@dataclass(frozen=True, slots=True, order=True)
class Digit:
    """A part of a dim: the indices `(i // lower) % (upper // lower)`. The whole dim where `lower` is 1 and `upper` its size."""

    dim: int
    lower: int
    upper: int

    @property
    def size(self) -> int:
        return self.upper // self.lower


@dataclass(frozen=True, slots=True)
class Letter:
    """What one node calls a span.

    Args:
        factor: of the node's signature.
        whole: why it is never split here, "" where it may be.
        inputs, outputs: where it lies in each input and each seen output, None where that lacks it.
    """

    factor: str
    whole: str
    inputs: tuple[Digit | None, ...]
    outputs: tuple[Digit | None, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One factor of the whole graph.

    Args:
        places: (value, digit), values in the graph's order.
        letters: (node, letter) by ascending node; a node that meets the span twice has two.
    """

    places: tuple[tuple[str, Digit], ...]
    letters: tuple[tuple[int, Letter], ...]


FactorCuts = dict[str, tuple[int, ...]]


def list_node_cuts(sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable) -> tuple[FactorCuts, ...]:
    """The cuts of each factor of each node (`node_cuts`); equal nodes share one table, so that it can be told by its identity."""
    shared: dict[tuple, FactorCuts] = {}
    found = []
    for site, signature in zip(sites, signatures):
        key = (id(signature), tuple(cuts[n] for n in (*site.node.inputs, *site.node.outputs) if n))
        own = shared.get(key)
        if own is None:
            own = shared[key] = node_cuts(site, signature, cuts)
        found.append(own)
    return tuple(found)


def find_spans(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, factor_cuts: tuple[FactorCuts, ...] | None = None
) -> tuple[Span, ...]:
    """Every span of a graph, in the order of the values where they start.

    Args:
        sites, signatures: of each node (`cuts.resolve_all`).
        cuts: of the graph (`cuts.find_cuts`).
        factor_cuts: of each node (`list_node_cuts`), where they are known already.
    """
    factor_cuts = list_node_cuts(sites, signatures, cuts) if factor_cuts is None else factor_cuts
    number: dict[tuple[str, Digit], int] = {}
    for value in graph.values:
        for dim, size in enumerate(value.shape):
            for digit in _digits(dim, size, cuts[value.name][dim]):
                number[value.name, digit] = len(number)
    parent = list(range(len(number)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    shared: dict[tuple[int, int], tuple[Letter, ...]] = {}
    met: list[tuple[int, Letter, int]] = []  # (node, letter, one of its digits)
    for i, (site, signature, own) in enumerate(zip(sites, signatures, factor_cuts)):
        key = (id(signature), id(own))
        if key not in shared:
            shared[key] = _letters(signature, own)
        names = (*site.node.inputs, *(o for o in site.node.outputs if o))
        for letter in shared[key]:
            held = [number[n, d] for n, d in zip(names, (*letter.inputs, *letter.outputs)) if d is not None and (n, d) in number]
            if not held:
                continue
            met.append((i, letter, held[0]))
            first = root(held[0])
            for other in held[1:]:
                low, high = sorted((first, root(other)))
                parent[high] = first = low
    places: dict[int, list[tuple[str, Digit]]] = {}
    for place, k in number.items():
        places.setdefault(root(k), []).append(place)
    letters: dict[int, list[tuple[int, Letter]]] = {}
    for i, letter, k in met:
        letters.setdefault(root(k), []).append((i, letter))
    return tuple(Span(tuple(found), tuple(letters.get(k, ()))) for k, found in places.items())


def _digits(dim: int, size: int, cuts: tuple[int, ...]) -> list[Digit]:
    """Digits of a dim, outermost first; none where it has one element."""
    bounds = (1, *cuts, size)
    return [Digit(dim, low, high) for low, high in reversed(list(zip(bounds, bounds[1:]))) if high > low]


def _letters(signature: Signature, cuts: dict[str, tuple[int, ...]]) -> tuple[Letter, ...]:
    """Each digit of each factor of a signature, with where it lies around the node."""
    size = {f.name: f.size for f in signature.factors}
    spots: dict[str, list[tuple[int, int] | None]] = {name: [] for name in size}  # (dim, size of what lies inside) per operand
    for dims in (*signature.inputs, *signature.outputs):
        here: dict[str, tuple[int, int]] = {}
        for dim, names in enumerate(dims):
            right = 1
            for name in reversed(names):
                here.setdefault(name, (dim, right))
                right *= size[name]
        for name in size:
            spots[name].append(here.get(name))
    found = []
    split = len(signature.inputs)
    for factor in signature.factors:
        for digit in _digits(0, factor.size, cuts.get(factor.name, ())):
            row = tuple(None if s is None else Digit(s[0], digit.lower * s[1], digit.upper * s[1]) for s in spots[factor.name])
            gaps = _GAPS if factor.runs and digit.upper != factor.size else ""
            found.append(Letter(factor.name, factor.whole or gaps, row[:split], row[split:]))
    return tuple(found)
