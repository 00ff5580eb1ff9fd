"""Random legal assignments: what any plan might be, whatever the solver says. The compiler must be right for all of them.

In: a graph with its rules applied, a mesh. Out: `Assignment`s. Readers: `autopar verify --random-plans`, the property tests, the benchmark.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from ..errors import MicrobatchError
from .case import Case, split_case
from .choice import Assignment
from .cuts import find_cuts, resolve_all
from .graph import Graph, value_table
from .mesh import Mesh, MeshAxis
from .partition import node_cuts
from .recompute import Recomputed, list_recomputable, recompute_graph
from .repeats import Fold, fold_graph
from .rule import Rule, Signature, Site
from .sharding import REPLICATE, Placement, Shard, Sharding, why_illegal
from .strategy import Strategy, list_strategies
from .turns import count_microbatches

_TRIES = 20  # to find a legal storage sharding


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
    fold, share = fold_graph(graph), rng.choice((0.2, 0.5, 1.0))
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

    What it draws is of a step in turns where the graph is (`microbatch`).
    """

    def __init__(self, graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], mesh: Mesh, again: tuple[str, ...] = ()) -> None:
        self.graph, self.sites, self.signatures, self.mesh, self.again = graph, sites, signatures, mesh, again
        self._sizes = tuple(axis.size for axis in mesh.axes)
        self.cuts = find_cuts(graph, signatures)
        self.options: list[tuple[Strategy, ...]] = []
        seen: dict[object, tuple[Strategy, ...]] = {}
        for site, signature in zip(sites, signatures):
            cuts = node_cuts(site, signature, self.cuts)
            key = (site.node.op, site.node.args, signature.linear, site.inputs, site.outputs, tuple(sorted(cuts.items())))
            if key not in seen:
                seen[key] = list_strategies(signature, site, self._sizes, cuts)[0]
            self.options.append(seen[key])
        self._values = value_table(graph)

    def _draw_storage(self, rng: random.Random, shape: tuple[int, ...]) -> Sharding:
        for _ in range(_TRIES):
            placements: list[Placement] = []
            used: dict[int, int] = {}
            for size in self._sizes:
                dim = rng.randrange(-1, len(shape))
                if dim < 0:
                    placements.append(REPLICATE)
                else:
                    used[dim] = used.get(dim, 1) * size
                    placements.append(Shard(dim, max(1, shape[dim] // used[dim])))
            sharding = Sharding(tuple(placements))
            if not why_illegal(shape, sharding, self._sizes):
                return sharding
        return Sharding((REPLICATE,) * len(self._sizes))

    def draw(self, rng: random.Random, fold: Fold | None = None) -> Assignment:
        """A random assignment; with a fold, equal blocks decide alike (the loops of the emitted program then stay)."""
        graph = self.graph
        leader = fold.value_class if fold else {v: v for v in self._values}
        node_class = fold.node_class if fold else tuple(range(len(graph.nodes)))
        stored: dict[str, Sharding] = {}
        for name in graph.inputs:
            if leader[name] not in stored:
                stored[leader[name]] = self._draw_storage(rng, self._values[name].shape)
        options: dict[int, tuple[Strategy, ...]] = {}
        for k, mine in zip(node_class, self.options):
            if options.setdefault(k, mine) is not mine:  # dims of equal blocks may be cut differently
                options[k] = tuple(s for s in options[k] if s in mine)
        picks = {k: rng.choice(many).choices for k, many in options.items()}
        return Assignment(
            self.mesh,
            tuple((name, stored[leader[name]]) for name in graph.inputs),
            tuple((node.name, picks[node_class[i]]) for i, node in enumerate(graph.nodes)),
            self.again,
            count_microbatches(graph),
        )
