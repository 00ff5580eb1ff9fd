"""Random legal assignments: what any plan might be, whatever the solver says. The compiler must be right for all of them.

In: a graph with its rules applied, a mesh; for pipeline stages the case of a step in its turns. Out: `Assignment`s. Readers: `autopar verify
--random-plans`, the property tests, the benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ..constraints import FORWARD_ONLY, SCHEDULES
from ..errors import MicrobatchError
from .case import Case, build_case, copy_case, split_case
from .choice import Assignment
from .cuts import CutTable, find_cuts, resolve_all
from .graph import Graph, value_table
from .mesh import Mesh, MeshAxis
from .node import Node
from .partition import node_cuts
from .plan import Pipeline
from .recompute import AGAIN, Recomputed, list_recomputable, recompute_graph
from .repeats import Fold, fold_graph
from .rule import Rule, Signature, Site
from .schedules.known import chunk_ranks, why_impossible
from .sharding import REPLICATE, Placement, Shard, Sharding, uneven_chunks, why_illegal
from .stages import COPY, Stage, cut_stages, list_units
from .strategy import Strategy, list_strategies
from .turns import count_microbatches, has_backward

_TRIES = 20  # to find a legal storage sharding
_MOST_CHUNKS = 2
_SHARES = (0.2, 0.5, 1.0)  # of what may be recomputed


def plain_mesh(sizes: tuple[int, ...]) -> Mesh:
    """A mesh of these sizes, its axes named a, b, c."""
    return Mesh(tuple(MeshAxis("abc"[k], n) for k, n in enumerate(sizes)))


def mesh_shapes(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """One axis, and two and three where the number divides: 8 -> (8,), (2, 4), (2, 2, 2)."""
    found = [(num_ranks,)]
    if num_ranks % 2 == 0 and num_ranks > 2:
        found.append((2, num_ranks // 2))
    if num_ranks % 4 == 0 and num_ranks > 4:
        found.append((2, 2, num_ranks // 4))
    return tuple(found)


def list_turns(case: Case) -> tuple[Case, ...]:
    """The case in one, two and four microbatches, where its model and its batch allow that."""
    found = [case]
    for count in (2, 4):
        try:
            found.append(split_case(case, count))
        except MicrobatchError:
            break
    return tuple(found)


def draw_recomputed(graph: Graph, rules: Mapping[str, Rule], rng: random.Random | None) -> Recomputed:
    """The graph with a random part of what may be recomputed made again, in equal blocks alike; without a generator as it is."""
    if rng is None:
        return recompute_graph(graph, ())
    _, signatures = resolve_all(graph, rules)
    fold, share = fold_graph(graph), rng.choice(_SHARES)
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    drawn: dict[int, bool] = {}
    names = list_recomputable(graph, signatures)
    return recompute_graph(graph, [n for n in names if drawn.setdefault(fold.node_class[index[n]], rng.random() < share)])


class Assigner:
    """Draws random legal assignments of one graph on one mesh; strategies are listed once.

    Args:
        graph: with its copies, where something is recomputed.
        sites, signatures: of the graph's nodes (`resolve_all`).
        again: what is recomputed in this graph (`recompute.recomputed_names`).
        cuts: of the graph, where they are known; those of a `Case` with copies are what its program is made with.

    What it draws is of a step in turns where the graph is (`microbatch`).
    """

    def __init__(
        self,
        graph: Graph,
        sites: tuple[Site, ...],
        signatures: tuple[Signature, ...],
        mesh: Mesh,
        again: tuple[str, ...] = (),
        cuts: CutTable | None = None,
    ) -> None:
        self.graph, self.sites, self.signatures, self.mesh, self.again = graph, sites, signatures, mesh, again
        self._sizes = tuple(axis.size for axis in mesh.axes)
        self.cuts = find_cuts(graph, signatures) if cuts is None else cuts
        self.options: list[tuple[Strategy, ...]] = []
        seen: dict[object, tuple[Strategy, ...]] = {}
        for site, signature in zip(sites, signatures):
            cuts = node_cuts(site, signature, self.cuts)
            key = (id(signature), site.node.args, tuple(sorted(cuts.items())))
            if key not in seen:
                seen[key] = list_strategies(signature, site, self._sizes, cuts)[0]
            self.options.append(seen[key])
        self.values = value_table(graph)

    def draw(self, rng: random.Random, fold: Fold | None = None) -> Assignment:
        """A random assignment; with a fold, equal blocks decide alike (the loops of the emitted program then stay)."""
        graph = self.graph
        leader = fold.value_class if fold else {v: v for v in self.values}
        node_class = fold.node_class if fold else tuple(range(len(graph.nodes)))
        stored = _draw_storages(rng, [(leader[name], self.values[name].shape) for name in graph.inputs], self._sizes)
        picks = _draw_choices(rng, zip(node_class, self.options))
        return Assignment(
            self.mesh,
            tuple((name, stored[leader[name]]) for name in graph.inputs),
            tuple((node.name, picks[node_class[i]]) for i, node in enumerate(graph.nodes)),
            self.again,
            count_microbatches(graph),
        )


def _draw_storages(rng: random.Random, states: Iterable[tuple[Hashable, tuple[int, ...]]], sizes: tuple[int, ...]) -> dict[Hashable, Sharding]:
    """Class -> how all of it is stored.

    Args:
        states: class and shape of each.
    """
    found: dict[Hashable, Sharding] = {}
    for key, shape in states:
        if key not in found:
            found[key] = _draw_storage(rng, shape, sizes)
    return found


def _draw_storage(rng: random.Random, shape: tuple[int, ...], sizes: tuple[int, ...]) -> Sharding:
    for _ in range(_TRIES):
        placements: list[Placement] = []
        used: dict[int, int] = {}
        for size in sizes:
            dim = rng.randrange(-1, len(shape))
            if dim < 0:
                placements.append(REPLICATE)
            else:
                used[dim] = used.get(dim, 1) * size
                divides = shape[dim] % used[dim] == 0 or used[dim] > size
                placements.append(Shard(dim, max(1, shape[dim] // used[dim])) if divides else uneven_chunks(dim, shape[dim], size))
        sharding = Sharding(tuple(placements))
        if not why_illegal(shape, sharding, sizes):
            return sharding
    return Sharding((REPLICATE,) * len(sizes))


def _draw_choices(rng: random.Random, options: Iterable[tuple[Hashable, tuple[Strategy, ...]]]) -> dict[Hashable, tuple[str, ...]]:
    """Class -> the choices of all its nodes.

    Args:
        options: class and strategies of each node.
    """
    found: dict[Hashable, tuple[Strategy, ...]] = {}
    for key, mine in options:
        if found.setdefault(key, mine) is not mine:  # dims of equal blocks may be cut differently
            found[key] = tuple(s for s in found[key] if s in mine)
    return {key: rng.choice(many).choices for key, many in found.items()}


def draw_pipeline(graph: Graph, rng: random.Random, between_units: bool = False, counts: Sequence[int] = (2, 3, 4)) -> Pipeline | None:
    """A random schedule of random stages of a step in its turns; None where too few nodes are there to cut between.

    Args:
        between_units: stages begin where the solver lets them begin; else at any node of the forward pass that is of one stage.
        counts: of stages, any of them.
    Returns:
        a pipeline without the rows of its stages.
    """
    units, turns = list_units(graph), count_microbatches(graph)
    places = [unit[0] for unit in units[1:]] if between_units else [i for unit in units for i in unit][1:]
    ways = [
        (kind, ranks, chunks)
        for kind in (SCHEDULES if has_backward(graph) else (FORWARD_ONLY,))
        for ranks in counts
        for chunks in range(1, _MOST_CHUNKS + 1)
        if why_impossible(kind, ranks, turns, chunks) is None and ranks * chunks <= len(places) + 1
    ]
    if not ways:
        return None
    kind = rng.choice(sorted({kind for kind, _, _ in ways}))
    kind, ranks, chunks = rng.choice([way for way in ways if way[0] == kind])
    starts = sorted(rng.sample(places, ranks * chunks - 1))
    return Pipeline(kind, chunks, tuple(graph.nodes[i].name for i in starts), ())


def count_stages(pipeline: Pipeline) -> int:
    """The number of its stages."""
    return (len(pipeline.starts) + 1) // pipeline.chunks


class StagedAssigner:
    """Draws random legal assignments of a step in stages: each stage is free, but what crosses has one sharding at both ends.

    Args:
        turned: the case of the step in its turns.
        again: a generator, from which is drawn what each stage makes again; None: nothing.
        fold: of the step; equal blocks then decide alike, also where they are on different stages.
    """

    def __init__(self, turned: Case, pipeline: Pipeline, mesh: Mesh, again: random.Random | None = None, fold: Fold | None = None) -> None:
        self.mesh, self.microbatches, self._values = mesh, count_microbatches(turned.graph), fold.value_class if fold else None
        self._nodes = {node.name: k for node, k in zip(turned.graph.nodes, fold.node_class)} if fold else None
        stages = cut_stages(turned.graph, pipeline.starts, chunk_ranks(pipeline.kind, count_stages(pipeline), pipeline.chunks))
        cases = [build_case(stage.graph, turned.rules) for stage in stages]
        self.again = self._draw_again(cases, again) if again else ((),) * len(cases)
        self.parts = []
        for case, names in zip(cases, self.again):
            case = copy_case(case, names)
            self.parts.append(Assigner(case.graph, case.sites, case.signatures, mesh, names, case.cuts))
        self._crossing = _ends(stages)

    def _draw_again(self, cases: Sequence[Case], rng: random.Random) -> tuple[tuple[str, ...], ...]:
        share = rng.choice(_SHARES)
        drawn: dict[Hashable, bool] = {}
        found = [[n for n in list_recomputable(c.graph, c.signatures) if drawn.setdefault(self._node_key(n), rng.random() < share)] for c in cases]
        return tuple(map(tuple, found))

    def _node_key(self, name: str) -> Hashable:
        if self._nodes is None:
            return name
        original = name.removesuffix(AGAIN)
        return self._nodes.get(original.partition(COPY)[0], original), original != name

    def _value_key(self, name: str) -> Hashable:
        return name if self._values is None else self._values.get(name.partition(COPY)[0], name)

    def draw(self, rng: random.Random) -> Assignment:
        """A random assignment of all stages."""
        sizes = tuple(axis.size for axis in self.mesh.axes)
        inputs = [part.values[name] for part in self.parts for name in part.graph.inputs]
        stored = _draw_storages(rng, [(self._value_key(value.name), value.shape) for value in inputs], sizes)
        nodes = [(node, mine) for part in self.parts for node, mine in zip(part.graph.nodes, part.options)]
        crossing = self._draw_crossing(rng, nodes)
        picks = _draw_choices(rng, [(self._node_key(node.name), mine) for node, mine in nodes if node.name not in crossing])
        strategies = [(node.name, crossing[node.name] if node.name in crossing else picks[self._node_key(node.name)]) for node, _ in nodes]
        return Assignment(
            self.mesh,
            tuple((value.name, stored[self._value_key(value.name)]) for value in inputs),
            tuple(strategies),
            tuple(name for names in self.again for name in names),
            self.microbatches,
        )

    def _draw_crossing(self, rng: random.Random, nodes: Sequence[tuple[Node, tuple[Strategy, ...]]]) -> dict[str, tuple[str, ...]]:
        """Send or receive -> its choices: of one sharding that all ends have."""
        ends: dict[Hashable, list[tuple[str, dict[Sharding, tuple[str, ...]]]]] = {}
        for node, mine in nodes:
            if node.name in self._crossing:
                menu = {s.outputs[0]: s.choices for s in mine}
                ends.setdefault(self._value_key(self._crossing[node.name]), []).append((node.name, menu))
        found = {}
        for rows in ends.values():
            sharding = rng.choice([s for s in rows[0][1] if all(s in menu for _, menu in rows)])
            found.update({name: menu[sharding] for name, menu in rows})
        return found


def _ends(stages: Sequence[Stage]) -> dict[str, str]:
    """Send or receive -> the value that crosses there."""
    found = {f"send_{crossing.sent}": crossing.value for stage in stages for crossing in stage.sent}
    return {**found, **{f"receive_{crossing.value}_on_{crossing.target}": crossing.value for stage in stages for crossing in stage.received}}
