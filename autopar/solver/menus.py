"""Menus: what each class of nodes, and each class of graph inputs, may choose on a mesh, and what is left out with the reason.

In: a graph with its signatures and cuts, a fold, mesh sizes. Out: strategies per node class, storage shardings per class of inputs. What is
dropped never makes a plan better, or it is counted and told in the certificate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from itertools import product

import numpy as np

from ..graph.cuts import CutTable
from ..graph.graph import Graph, producer_table, use_table, value_table
from ..graph.liveness import is_view
from ..graph.partition import node_cuts
from ..graph.repeats import Fold
from ..graph.rule import Signature, Site
from ..graph.sharding import Partial, Sharding, chunk, has_partial, replicated, why_illegal
from ..graph.strategy import Strategy, list_strategies
from ..graph.tensor import STATE_KINDS, num_elements
from ..graph.turns import GROWN
from .clusters import align_menus

AxisTest = tuple[Hashable, Callable[[Strategy, int], bool]]  # equal keys, equal tests; told a strategy that splits along one axis, and this axis


def list_menus(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, fold: Fold, sizes: tuple[int, ...],
    screen: Callable[[int], AxisTest | None] | None = None, known: dict[object, tuple[Strategy, ...]] | None = None,
) -> tuple[dict[int, tuple[Strategy, ...]], dict[str, int]]:
    """Strategies of each node class: those that all of its nodes offer, whose dims may be cut differently; equal nodes share one table.

    Args:
        screen: node number -> what it may do along single axes (None: anything), so that products of the rest are never made.
        known: strategies of nodes of other graphs on the same mesh, under the same laws; what is new goes there.
    """
    cache = {} if known is None else known
    menus: dict[int, tuple[Strategy, ...]] = {}
    seen: dict[int, set[object]] = defaultdict(set)
    for index, root in enumerate(fold.node_class):
        site, signature = sites[index], signatures[index]
        around = tuple(cuts[name] for name in (*site.node.inputs, *site.node.outputs) if name)
        if around in seen[root]:
            continue
        seen[root].add(around)
        inner = node_cuts(site, signature, cuts)
        same, allowed = (screen(index) if screen is not None else None) or (None, None)
        key = (site.node.op, site.node.args, signature.linear, signature.uneven, signature.exact, site.inputs, site.outputs, site.dtypes, tuple(sorted(inner.items())), same)
        if key not in cache:
            cache[key] = list_strategies(signature, site, sizes, inner, allowed)[0]
        if root not in menus or menus[root] is cache[key]:
            menus[root] = cache[key]
        else:
            offered = set(cache[key])
            menus[root] = tuple(s for s in menus[root] if s in offered)
    return _drop_idle_partials(graph, fold, menus, len(sizes))


def align(
    graph: Graph, signatures: tuple[Signature, ...], clusters: Mapping[int, int], menus: dict[int, tuple[Strategy, ...]]
) -> dict[int, tuple[Strategy, ...]]:
    """In each cluster, the same sharding at the same option."""
    together: dict[int, list[int]] = defaultdict(list)
    for root in sorted(menus):
        together[clusters[root]].append(root)
    found = dict(menus)
    for roots in together.values():
        if len(roots) > 1:
            full = [tuple(dims == signatures[r].outputs[0] for dims in signatures[r].inputs) for r in roots]
            found.update(zip(roots, align_menus([menus[r] for r in roots], full)))
    return found


WHY_TOGETHER = "elementwise nodes in a row decide together: no value changes its sharding between them, and no Partial passes"
_WHY_IDLE = "a Partial would pass through although nothing before the node can make one on that axis"


def _drop_idle_partials(
    graph: Graph, fold: Fold, menus: dict[int, tuple[Strategy, ...]], num_axes: int
) -> tuple[dict[int, tuple[Strategy, ...]], dict[str, int]]:
    """Drop `P(...)` choices on axes where no input of the node can arrive Partial.

    The dropped strategy costs at least what `R` on that axis costs at the node, and leaves a reduction to do: never better.
    """
    makes: dict[str, frozenset[int]] = {name: frozenset() for name in graph.inputs}  # by value class: axes that may be Partial
    kept = dict(menus)
    readers = _reading_classes(graph, fold)
    todo = set(kept)
    members: dict[int, list[int]] = defaultdict(list)
    for i, root in enumerate(fold.node_class):
        members[root].append(i)
    made: dict[str, frozenset[int]] = {}

    def of_value(name: str) -> frozenset[int]:
        return made.get(fold.value_class[name], makes.get(name, frozenset()))

    # grow what can be Partial from nothing: a least fixpoint, so that loops of the folded graph make no Partial of their own
    while todo:
        index = min(todo)
        todo.discard(index)
        arriving = _arriving(graph, members[index], of_value)
        options = [s for s in menus[index] if _is_fed(s, arriving)]
        kept[index] = tuple(options)
        for k, name in enumerate(o for o in graph.nodes[index].outputs if o):
            axes = frozenset(a for s in options for a, p in enumerate(s.outputs[k].placements) if isinstance(p, Partial))
            root = fold.value_class[name]
            if axes - made.get(root, frozenset()):
                made[root] = made.get(root, frozenset()) | axes
                todo |= readers[index]
    dropped = sum((len(menus[i]) - len(kept[i])) for i in menus)
    useful, useless = _drop_useless_partials(graph, readers, kept)
    return useful, {_WHY_IDLE: dropped, _WHY_USELESS: useless}


_WHY_USELESS = "a Partial would pass through although no sum of Partials or smaller tensor follows: reducing it before moves as few bytes"


def _drop_useless_partials(
    graph: Graph, readers: Mapping[int, set[int]], menus: dict[int, tuple[Strategy, ...]]
) -> tuple[dict[int, tuple[Strategy, ...]], int]:
    """Drop `P(...)` choices of nodes that only hand a Partial on, where nothing after them gains by it."""
    values = value_table(graph)
    gains: set[int] = set()  # node classes that make something of a Partial; what turns add up is reduced once instead of in each
    passes: set[int] = set()
    for root, menu in menus.items():
        node = graph.nodes[root]
        through = {c for s in menu for c in s.choices if c.startswith("P(")}
        shrinks = sum(num_elements(values[o].shape) for o in node.outputs if o) < sum(num_elements(values[n].shape) for n in node.inputs[:1])
        if any(" " in c for c in through) or (through and (node.op in GROWN or (shrinks and not is_view(node.op)))):
            gains.add(root)
        elif through:
            passes.add(root)
    grew = True
    while grew:
        grew = False
        for root in sorted(passes, reverse=True):
            if readers[root] & gains:
                passes.discard(root)
                gains.add(root)
                grew = True
    found = dict(menus)
    for root in passes:
        found[root] = tuple(s for s in menus[root] if not any(c.startswith("P(") for c in s.choices))
    return found, sum(len(menus[r]) - len(found[r]) for r in menus)


def _reading_classes(graph: Graph, fold: Fold) -> dict[int, set[int]]:
    """Node class -> the classes of the nodes that read what one of its nodes makes."""
    makers = producer_table(graph)
    found: dict[int, set[int]] = {root: set() for root in fold.node_class}
    for i, node in enumerate(graph.nodes):
        for name in node.inputs:
            if name in makers:
                found[fold.node_class[makers[name][0]]].add(fold.node_class[i])
    return found


def _arriving(graph: Graph, nodes: list[int], of_value) -> list[frozenset[int]]:
    count = len(graph.nodes[nodes[0]].inputs)
    return [frozenset().union(*(of_value(graph.nodes[n].inputs[k]) for n in nodes)) for k in range(count)]


def _is_fed(strategy: Strategy, arriving: list[frozenset[int]]) -> bool:
    for axis, choice in enumerate(strategy.choices):
        if choice.startswith("P("):
            if not any(isinstance(s.placements[axis], Partial) and axis in axes for s, axes in zip(strategy.inputs, arriving)):
                return False
    return True


def list_storages(graph: Graph, fold: Fold, menus: Mapping[int, tuple[Strategy, ...]], sizes: tuple[int, ...]) -> dict[str, tuple[Sharding, ...]]:
    """Candidates for each class of inputs: whole, plain chunks, and whatever a reader wants or the update makes."""
    values, uses, makers = value_table(graph), use_table(graph), producer_table(graph)
    new_of = dict(graph.updates)
    found: dict[str, dict[Sharding, None]] = {}
    for name in graph.inputs:
        value = values[name]
        mine = found.setdefault(fold.value_class[name], {replicated(len(sizes)): None})
        for index, position in uses[name]:
            for strategy in menus[fold.node_class[index]]:
                mine.setdefault(strategy.inputs[position])
        if name in new_of and new_of[name] in makers:
            index, output = makers[new_of[name]]
            seen = [k for k, o in enumerate(graph.nodes[index].outputs) if o].index(output)
            for strategy in menus[fold.node_class[index]]:
                mine.setdefault(strategy.outputs[seen])
        if value.kind in STATE_KINDS:
            for sharding in _plain_chunks(value.shape, sizes):
                mine.setdefault(sharding)
    return {
        name: tuple(s for s in candidates if not has_partial(s) and not why_illegal(values[name].shape, s, sizes))
        for name, candidates in found.items()
    }


@lru_cache(maxsize=1 << 10)
def _plain_chunks(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Sharding, ...]:
    """Every way to give each axis a dim to cut into chunks, or none."""
    found = []
    for dims in product((-1, *range(len(shape))), repeat=len(sizes)):
        placements = list(replicated(len(sizes)).placements)
        for dim in range(len(shape)):
            axes = tuple(a for a, d in enumerate(dims) if d == dim)
            if axes:
                if any(shape[dim] % n for n in [int(np.prod([sizes[a] for a in axes]))]):
                    break
                cut = chunk(dim, shape, axes, sizes)
                for a in axes:
                    placements[a] = cut.placements[a]
        else:
            found.append(Sharding(tuple(placements)))
    return tuple(found)
