"""The problem of one mesh as tables: who chooses, what each choice makes and wants, who reads what, and what it costs.

In: a graph with its signatures and cuts, a fold, a mesh, prices. Out: a `Problem` of arrays, from which the integer program, the memory
rows and the judge of an answer are built. Everything is over classes of the fold:

    chooser   a class of nodes (options: strategies), a cluster of such classes, or a class of graph inputs (options: storage shardings)
    port      what a chooser makes at one output, or wants at one input, as a sharding id per option
    group     instances of one value class that are read, in one phase, by the same set of endpoints: they share reshards, one per
              wanted sharding (the law of `graph.partition`); `count` of them pay it

The new version of a state must reach the storage of that state: an endpoint whose chooser is the input class. The loss and outputs must
be whole: an endpoint without a chooser. Invariant: a problem with the identity fold has exactly the semantics of the program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ..errors import GraphError
from ..graph.cuts import CutTable
from ..graph.graph import Graph, producer_table, use_table, value_table
from ..graph.liveness import is_view, storage_bases
from ..graph.mesh import Mesh, axis_sizes
from ..graph.node import Phase
from ..graph.partition import node_cuts
from ..graph.plan import Pruned
from ..graph.repeats import Fold
from ..graph.rule import Signature, Site
from ..graph.sharding import Partial, Sharding, chunk, has_partial, local_shape, replicated, why_illegal
from ..graph.strategy import Strategy, list_strategies
from ..graph.tensor import DTYPE_BYTES, STATE_KINDS, Value, num_elements
from .clusters import align_menus, find_clusters
from .prices import Prices
from .transients import transient_bytes

WHOLE = -1  # the chooser of an endpoint that wants the whole value
BRING, RUN, AFTER, MOMENTS = 0, 1, 2, 3  # at each node: its inputs are brought, it runs, what leaves is brought from where it was made
STORAGE = -1  # the position of an endpoint that is a state's storage


@dataclass(frozen=True, slots=True)
class Part:
    """A class of nodes, or of inputs, that a chooser decides for.

    Args:
        node: index of the node that stands for the class; -1 for an input.
        members: names of all its nodes, or inputs.
        options: strategies, or storage shardings, one per option of the chooser.
        makes, wants: port number in the chooser of the first output and of the first input.
    """

    node: int
    members: tuple[str, ...]
    options: tuple[Strategy, ...] | tuple[Sharding, ...]
    makes: int
    wants: int


@dataclass(frozen=True, slots=True)
class Chooser:
    """One decision: for a class of nodes or of inputs, or for a cluster of such classes.

    Args:
        parts: for whom it decides; all parts have as many options as the chooser.
        seconds: of all members together, per option.
        makes: per output of each part, the sharding id per option.
        wants: per input of each part, the sharding id per option.
    """

    parts: tuple[Part, ...]
    seconds: np.ndarray
    makes: tuple[np.ndarray, ...]
    wants: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who wants a value: input `position` of a chooser's nodes, the storage of an input chooser, or nobody but the end (whole)."""

    chooser: int
    position: int


@dataclass(frozen=True, slots=True)
class Group:
    """Instances of a value class with the same readers in one phase.

    Args:
        value: the value that stands for the class.
        source: (chooser, output) that makes it.
        phase: in which the reshards happen.
        endpoints: who wants it.
        spans: per instance and endpoint, (first, last) point of time between which a copy made for this endpoint is held.
    """

    value: Value
    source: tuple[int, int]
    phase: Phase
    endpoints: tuple[Endpoint, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class Life:
    """When a value is held as it was made.

    Args:
        first, certain: points of time from which and until which it is held whatever its readers want.
        longer: (group, endpoint, last): held until `last` if that endpoint takes the value as it was made.
    """

    first: int
    certain: int
    longer: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """A value class that owns bytes, and the life of each instance."""

    value: Value
    source: tuple[int, int]
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about one mesh. `shardings` gives the sharding of each id; `num_points`: of time, three per node of the whole graph."""

    graph: Graph
    mesh: Mesh
    shardings: tuple[Sharding, ...]
    choosers: tuple[Chooser, ...]
    groups: tuple[Group, ...]
    owners: tuple[Owner, ...]
    num_points: int
    pruned: tuple[Pruned, ...]
    tables: "Tables"


@dataclass(slots=True)
class Tables:
    """Reshard seconds and local bytes by sharding id, filled on demand; one per problem (a cache: same answers whatever was asked)."""

    prices: Prices
    sizes: tuple[int, ...]
    shardings: list[Sharding]
    ids: dict[Sharding, int]
    _seconds: dict[tuple[tuple[int, ...], str, int, int], float] = field(default_factory=dict)
    _transient: dict[tuple[tuple[int, ...], str, int, int], int] = field(default_factory=dict)
    _bytes: dict[tuple[tuple[int, ...], str, int], int] = field(default_factory=dict)

    def intern(self, sharding: Sharding) -> int:
        """The id of a sharding."""
        found = self.ids.get(sharding)
        if found is None:
            found = self.ids[sharding] = len(self.shardings)
            self.shardings.append(sharding)
        return found

    def reshard_seconds(self, value: Value, source: int, target: int) -> float:
        """Seconds of one reshard, infinity where there is no way."""
        if source == target:
            return 0.0
        key = (value.shape, value.dtype, source, target)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = self.prices.reshard_seconds(value, self.shardings[source], self.shardings[target])
        return found

    def transient_bytes(self, value: Value, source: int, target: int) -> int:
        """Bytes that a reshard holds on its way, beside source and result."""
        key = (value.shape, value.dtype, source, target)
        found = self._transient.get(key)
        if found is None:
            found = self._transient[key] = transient_bytes(value, self.shardings[source], self.shardings[target], self.sizes)
        return found

    def local_bytes(self, value: Value, sharding: int) -> int:
        """Bytes that one rank holds."""
        key = (value.shape, value.dtype, sharding)
        found = self._bytes.get(key)
        if found is None:
            shape = local_shape(value.shape, self.shardings[sharding], self.sizes)
            found = self._bytes[key] = num_elements(shape) * DTYPE_BYTES[value.dtype]
        return found


def build_problem(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, fold: Fold, mesh: Mesh, prices: Prices, cluster: bool = True
) -> Problem:
    """The tables of one mesh.

    Args:
        sites, signatures, cuts: of the whole graph (`cuts.resolve_all`, `cuts.find_cuts`).
        fold: who decides for whom.
        prices: of this mesh.
        cluster: elementwise nodes in a row decide together.
    """
    sizes = axis_sizes(mesh)
    tables = Tables(prices, sizes, [], {})
    tables.intern(replicated(len(sizes)))
    menus, dropped = _list_menus(graph, sites, signatures, cuts, fold, sizes)
    clusters = find_clusters(graph, signatures, fold) if cluster else {root: root for root in fold.node_class}
    count = sum(len(menu) for menu in menus.values())
    menus = _align(graph, signatures, clusters, menus)
    dropped[_WHY_TOGETHER] = count - sum(len(menu) for menu in menus.values())
    storages = _list_storages(graph, fold, menus, sizes)
    choosers, of_input, of_node = _build_choosers(graph, fold, menus, storages, clusters, tables)
    sources = _sources(graph, fold, of_input, of_node)
    reads = _list_reads(graph, fold, of_input, of_node)
    groups, places = _build_groups(graph, fold, sources, reads)
    owners = _build_owners(graph, fold, sources, reads, groups, places)
    pruned = tuple(Pruned(f"{count} strategies", why) for why, count in dropped.items() if count)
    return Problem(graph, mesh, tuple(tables.shardings), choosers, groups, owners, MOMENTS * len(graph.nodes), pruned, tables)


# --- options ----------------------------------------------------------------------------------------------------------------------


def _list_menus(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, fold: Fold, sizes: tuple[int, ...]
) -> tuple[dict[int, tuple[Strategy, ...]], dict[str, int]]:
    """Strategies of each node class: those that all of its nodes offer, whose dims may be cut differently; equal nodes share one table."""
    cache: dict[object, tuple[Strategy, ...]] = {}
    menus: dict[int, tuple[Strategy, ...]] = {}
    seen: dict[int, set[object]] = defaultdict(set)
    for index, root in enumerate(fold.node_class):
        site, signature = sites[index], signatures[index]
        around = tuple(cuts[name] for name in (*site.node.inputs, *site.node.outputs) if name)
        if around in seen[root]:
            continue
        seen[root].add(around)
        inner = node_cuts(site, signature, cuts)
        key = (site.node.op, site.node.args, signature.linear, site.inputs, site.outputs, site.dtypes, tuple(sorted(inner.items())))
        if key not in cache:
            cache[key] = list_strategies(signature, site, sizes, inner)[0]
        if root not in menus or menus[root] is cache[key]:
            menus[root] = cache[key]
        else:
            offered = set(cache[key])
            menus[root] = tuple(s for s in menus[root] if s in offered)
    return _drop_idle_partials(graph, fold, menus, len(sizes))


def _align(
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


_WHY_TOGETHER = "elementwise nodes in a row decide together: no value changes its sharding between them, and no Partial passes"
_WHY_IDLE = "a Partial would pass through although nothing before the node can make one on that axis"


def _drop_idle_partials(
    graph: Graph, fold: Fold, menus: dict[int, tuple[Strategy, ...]], num_axes: int
) -> tuple[dict[int, tuple[Strategy, ...]], dict[str, int]]:
    """Drop `P(...)` choices on axes where no input of the node can arrive Partial.

    The dropped strategy costs at least what `R` on that axis costs at the node, and leaves a reduction to do: never better.
    """
    makes: dict[str, frozenset[int]] = {name: frozenset() for name in graph.inputs}  # by value class: axes that may be Partial
    kept = dict(menus)
    users = use_table(graph)
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
                for member in members[index]:
                    for out in graph.nodes[member].outputs:
                        todo |= {fold.node_class[i] for i, _ in users.get(out, ())}
    dropped = sum((len(menus[i]) - len(kept[i])) for i in menus)
    useful, useless = _drop_useless_partials(graph, fold, kept)
    return useful, {_WHY_IDLE: dropped, _WHY_USELESS: useless}


_WHY_USELESS = "a Partial would pass through although no sum of Partials or smaller tensor follows: reducing it before moves as few bytes"


def _drop_useless_partials(graph: Graph, fold: Fold, menus: dict[int, tuple[Strategy, ...]]) -> tuple[dict[int, tuple[Strategy, ...]], int]:
    """Drop `P(...)` choices of nodes that only hand a Partial on, where nothing after them gains by it."""
    values, uses = value_table(graph), use_table(graph)
    gains: set[int] = set()  # node classes that make something of a Partial
    passes: set[int] = set()
    for i, node in enumerate(graph.nodes):
        through = {c for s in menus[fold.node_class[i]] for c in s.choices if c.startswith("P(")}
        shrinks = sum(num_elements(values[o].shape) for o in node.outputs if o) < sum(num_elements(values[n].shape) for n in node.inputs[:1])
        if any(" " in c for c in through) or (through and shrinks and not is_view(node.op)):
            gains.add(fold.node_class[i])
        elif through:
            passes.add(fold.node_class[i])
    grew = True
    while grew:
        grew = False
        for i in range(len(graph.nodes) - 1, -1, -1):
            root = fold.node_class[i]
            if root in passes and any(fold.node_class[j] in gains for o in graph.nodes[i].outputs if o for j, _ in uses[o]):
                passes.discard(root)
                gains.add(root)
                grew = True
    found = dict(menus)
    for root in passes - gains:
        found[root] = tuple(s for s in menus[root] if not any(c.startswith("P(") for c in s.choices))
    return found, sum(len(menus[r]) - len(found[r]) for r in menus)


def _arriving(graph: Graph, nodes: list[int], of_value) -> list[frozenset[int]]:
    count = len(graph.nodes[nodes[0]].inputs)
    return [frozenset().union(*(of_value(graph.nodes[n].inputs[k]) for n in nodes)) for k in range(count)]


def _is_fed(strategy: Strategy, arriving: list[frozenset[int]]) -> bool:
    for axis, choice in enumerate(strategy.choices):
        if choice.startswith("P("):
            if not any(isinstance(s.placements[axis], Partial) and axis in axes for s, axes in zip(strategy.inputs, arriving)):
                return False
    return True


def _list_storages(graph: Graph, fold: Fold, menus: Mapping[int, tuple[Strategy, ...]], sizes: tuple[int, ...]) -> dict[str, tuple[Sharding, ...]]:
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


def _plain_chunks(shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[Sharding]:
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
    return found


def _build_choosers(
    graph: Graph, fold: Fold, menus: Mapping[int, tuple[Strategy, ...]], storages: Mapping[str, tuple[Sharding, ...]], clusters: Mapping[int, int], tables: Tables
) -> tuple[tuple[Chooser, ...], dict[str, int], dict[int, tuple[int, int, int]]]:
    choosers: list[Chooser] = []
    of_input: dict[str, int] = {}
    of_node: dict[int, tuple[int, int, int]] = {}  # (chooser, its first output port, its first input port)
    classes: dict[str, list[str]] = defaultdict(list)
    values = value_table(graph)
    replaced = {old for old, new in graph.updates if new != old}
    for name in graph.inputs:
        classes[fold.value_class[name]].append(name)
    for root, names in classes.items():
        of_input[root] = len(choosers)
        options = storages[root]
        made = np.array([tables.intern(s) for s in options])
        written = values[root] if any(name in replaced for name in names) else None
        seconds = np.array([tables.prices.write_seconds(written, s) if written else 0.0 for s in options])
        choosers.append(Chooser((Part(-1, tuple(names), options, 0, 0),), len(names) * seconds, (made,), ()))
    members: dict[int, list[str]] = defaultdict(list)
    for i, root in enumerate(fold.node_class):
        members[root].append(graph.nodes[i].name)
    together: dict[int, list[int]] = defaultdict(list)
    for root in sorted(members):
        together[clusters[root]].append(root)
    for roots in together.values():
        parts, makes, wants = [], [], []
        for root in roots:
            node, options = graph.nodes[root], menus[root]
            of_node[root] = (len(choosers), len(makes), len(wants))
            parts.append(Part(root, tuple(members[root]), options, len(makes), len(wants)))
            wants += [np.array([tables.intern(s.inputs[k]) for s in options]) for k in range(len(node.inputs))]
            makes += [np.array([tables.intern(s.outputs[k]) for s in options]) for k in range(sum(1 for o in node.outputs if o))]
        seconds = sum(len(p.members) * np.array(tables.prices.node_seconds(p.node, p.options), dtype=float) for p in parts)
        choosers.append(Chooser(tuple(parts), seconds, tuple(makes), tuple(wants)))
    return tuple(choosers), of_input, of_node


# --- who reads what ---------------------------------------------------------------------------------------------------------------


def _sources(graph: Graph, fold: Fold, of_input: Mapping[str, int], of_node: Mapping[int, tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    """For each value: (chooser, output) that makes it."""
    found = {name: (of_input[fold.value_class[name]], 0) for name in graph.inputs}
    for i, node in enumerate(graph.nodes):
        for k, out in enumerate(o for o in node.outputs if o):
            chooser, first, _ = of_node[fold.node_class[i]]
            found[out] = (chooser, first + k)
    return found


def _held_until(graph: Graph) -> list[int]:
    """For each node: until when a copy of its first input is held (longer than the node itself where it makes views of it)."""
    until = list(range(len(graph.nodes)))
    reach: dict[str, int] = {}
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if is_view(node.op):
            until[i] = max([i, *(reach.get(o, i) for o in node.outputs if o)])
        for k, name in enumerate(node.inputs):
            reach[name] = max(reach.get(name, i), until[i] if k == 0 else i)
    return until


@dataclass(frozen=True, slots=True)
class _Reads:
    """Who reads what: per (value, phase) the endpoints, each with the span in which a copy for it is held."""

    made: dict[str, int]
    ends: dict[tuple[str, Phase], dict[Endpoint, tuple[int, int]]]

    def add(self, name: str, phase: Phase, endpoint: Endpoint, first: int, last: int) -> None:
        """One more read; reads by the same endpoint join."""
        here = self.ends.setdefault((name, phase), {})
        low, high = here.get(endpoint, (first, last))
        here[endpoint] = (min(low, first), max(high, last))


def _list_reads(graph: Graph, fold: Fold, of_input: Mapping[str, int], of_node: Mapping[int, tuple[int, int, int]]) -> _Reads:
    """By the law of `partition`: a final gradient that the update reads, a new state and what leaves are brought where they are made."""
    end = MOMENTS * len(graph.nodes)
    until = _held_until(graph)
    made = {name: -1 for name in graph.inputs} | {name: MOMENTS * i + RUN for name, (i, _) in producer_table(graph).items()}
    reads = _Reads(made, {})
    grads = {g for _, g in graph.grads}
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for k, name in enumerate(node.inputs):
            last = MOMENTS * (until[i] if k == 0 else i) + RUN
            last_read[name] = max(last_read.get(name, -1), last)
            first = _after(made[name]) if name in grads and node.phase is Phase.UPDATE else MOMENTS * i + BRING
            chooser, _, port = of_node[fold.node_class[i]]
            reads.add(name, node.phase, Endpoint(chooser, port + k), first, last)
    for old, new in graph.updates:
        at = _after(made[new])
        reads.add(new, Phase.UPDATE, Endpoint(of_input[fold.value_class[old]], STORAGE), at, max(at, _after(last_read.get(old, -1))))
    for name in dict.fromkeys((*([graph.loss] if graph.loss else []), *graph.outputs)):
        reads.add(name, Phase.UPDATE, Endpoint(WHOLE, 0), _after(made[name]), end)
    return reads


def _after(moment: int) -> int:
    """The moment right after a node ran (of what enters: the first moment)."""
    return moment - RUN + AFTER if moment >= 0 else 0


def _build_groups(
    graph: Graph, fold: Fold, sources: Mapping[str, tuple[int, int]], reads: _Reads
) -> tuple[tuple[Group, ...], dict[str, list[tuple[int, int]]]]:
    """The groups, and for each value where its reads are: (group, instance) pairs."""
    values = value_table(graph)
    groups: dict[tuple, list[tuple[str, tuple[tuple[int, int], ...]]]] = {}
    for (name, phase), ends in reads.ends.items():
        order = tuple(sorted(ends, key=lambda e: (e.chooser, e.position)))
        key = (fold.value_class[name], phase, order)
        groups.setdefault(key, []).append((name, tuple(ends[e] for e in order)))
    found = []
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, ((root, phase, order), instances) in enumerate(groups.items()):
        source = {sources[name] for name, _ in instances}
        if len(source) != 1:
            raise GraphError(f"{graph.name}: values of class {root} are made by different choosers: the fold is not consistent")
        found.append(Group(values[root], source.pop(), phase, order, tuple(spans for _, spans in instances)))
        for k, (name, _) in enumerate(instances):
            places[name].append((number, k))
    return tuple(found), places


def _build_owners(
    graph: Graph, fold: Fold, sources: Mapping[str, tuple[int, int]], reads: _Reads, groups: tuple[Group, ...], places: Mapping[str, list[tuple[int, int]]]
) -> tuple[Owner, ...]:
    values = value_table(graph)
    base = storage_bases(graph)
    lives: dict[tuple[str, tuple[int, int]], list[Life]] = defaultdict(list)
    end = MOMENTS * len(graph.nodes)
    for name in values:
        if base.get(name) != name:
            continue
        made = reads.made[name]
        if made < 0:
            life = Life(-1, end, ())
        else:
            spans = [(g, e, groups[g].spans[k][e]) for g, k in places.get(name, ()) for e in range(len(groups[g].endpoints))]
            certain = max([made, *(first for _, _, (first, _) in spans)])
            life = Life(made, certain, tuple((g, e, last) for g, e, (_, last) in spans if last > certain))
        lives[(fold.value_class[name], sources[name])].append(life)
    return tuple(Owner(values[root], source, tuple(found)) for (root, source), found in lives.items())
