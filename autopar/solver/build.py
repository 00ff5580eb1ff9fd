"""The problem of one mesh, built.

In: a graph with its signatures and cuts, a fold, a mesh, prices. Out: a `Problem`. The way: menus, clusters of elementwise nodes, choosers,
then who reads what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes
from ..graph.plan import Pruned
from ..graph.repeats import Fold
from ..graph.rule import Signature, Site
from ..graph.sharding import Sharding
from ..graph.strategy import Strategy
from ..graph.turns import times_of
from .again import scope_of
from .clusters import find_clusters
from .menus import WHY_TOGETHER, align, list_menus, list_storages
from .prices import Prices
from .problem import MOMENTS, Chooser, Part, Problem, Turns
from .reads import build_owners
from .skeleton import Skeleton, build_skeleton
from .steer import Steer, part_clusters, screen_axes, steer_menus, steer_storages
from .tables import NONE, Tables


@dataclass(slots=True)
class Shared:
    """What problems on one mesh have in common, by one cost model and under the same constraints: strategies of nodes, prices of reshards.

    A cache: the same problems come out with it and without.
    """

    strategies: dict[object, tuple[Strategy, ...]] = field(default_factory=dict)
    tables: Tables | None = None


def build_problem(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, fold: Fold, mesh: Mesh, prices: Prices, cluster: bool = True,
    steer: Steer | None = None,
    recompute: str = "none",
    skeletons: list[Skeleton] | None = None,
    in_flight: float = 1.0,
    turn_weight: float | None = None,
    shared: Shared | None = None,
) -> Problem:
    """The tables of one mesh.

    Args:
        sites, signatures, cuts: of the whole graph (`cuts.resolve_all`, `cuts.find_cuts`).
        fold: who decides for whom.
        prices: of this mesh.
        cluster: elementwise nodes in a row decide together.
        steer: what users demand of the plan; the roles of the axes are their names (`role_meshes`).
        recompute: `none`, `free` (values may be made again for the backward pass) `full` (all that may be is) or `selective`
            (attention cores are).
        skeletons: of this graph; one that fits is used, else a new one goes there.
        in_flight: microbatches between their forward and backward at once (`problem.Turns`).
        turn_weight: what one turn counts in the objective; None: as many turns as there are.
        shared: with other problems on the same mesh.
    Raises:
        ConstraintError: this mesh cannot obey.
    """
    sizes = axis_sizes(mesh)
    shared = shared or Shared()
    tables = shared.tables = Tables(prices, sizes, [], {}) if shared.tables is None else replace(shared.tables, prices=prices)
    menus, dropped = list_menus(graph, sites, signatures, cuts, fold, sizes, None if steer is None else screen_axes(steer, graph, mesh), shared.strategies)
    if steer is not None:
        menus, broken = steer_menus(steer, graph, signatures, menus, mesh)
        dropped |= broken
    clusters = find_clusters(graph, signatures, fold) if cluster else {root: root for root in fold.node_class}
    count = sum(len(menu) for menu in menus.values())
    together = align(graph, signatures, clusters, menus)
    if steer is not None:
        clusters = part_clusters(clusters, together)
        together = align(graph, signatures, clusters, menus)
    menus = together
    dropped[WHY_TOGETHER] = count - sum(len(menu) for menu in menus.values())
    storages = list_storages(graph, fold, menus, sizes)
    exempt: tuple[Pruned, ...] = ()
    if steer is not None:
        storages, exempt = steer_storages(steer, graph, fold, storages, mesh)
    skeletons = [] if skeletons is None else skeletons
    scope = scope_of(recompute)
    skeleton = next((s for s in skeletons if s.fits(clusters, scope, turn_weight)), None)
    if skeleton is None:
        skeleton = build_skeleton(graph, signatures, fold, clusters, scope, turn_weight)
        skeletons.append(skeleton)
    choosers = _build_choosers(graph, skeleton, menus, storages, recompute in ("full", "selective"), fold, tables)
    groups, lanes = skeleton.groups, skeleton.lanes
    owners = skeleton.owners
    if owners is None:
        owners = build_owners(lanes, choosers, skeleton.sources, skeleton.reads, groups, skeleton.places)
    pruned = tuple(Pruned(f"{count} strategies", why) for why, count in dropped.items() if count) + exempt
    return Problem(graph, mesh, tuple(tables.shardings), choosers, groups, owners, MOMENTS * len(lanes.plus.nodes), pruned, tables, Turns(*lanes.loop, lanes.turn, in_flight, lanes.turn_weight))


def _build_choosers(
    graph: Graph, skeleton: Skeleton, menus: Mapping[int, tuple[Strategy, ...]], storages: Mapping[str, tuple[Sharding, ...]], always: bool, fold: Fold, tables: Tables
) -> tuple[Chooser, ...]:
    """In the order, and with the ports, of the skeleton."""
    choosers: list[Chooser] = []
    values, turns = value_table(graph), skeleton.lanes.turn_weight
    replaced = {old for old, new in graph.updates if new != old}
    for root, names in skeleton.inputs.items():
        options = storages[root]
        made = np.array([tables.intern(s) for s in options])
        written = values[root] if any(name in replaced for name in names) else None
        seconds = np.array([tables.prices.write_seconds(written, s) if written else 0.0 for s in options])
        choosers.append(Chooser((Part(-1, names, options, 0, 0),), len(names) * seconds, (made,), (), len(options)))
    members: dict[int, list[str]] = defaultdict(list)
    for i, root in enumerate(fold.node_class):
        members[root].append(graph.nodes[i].name)
    for roots in skeleton.together:
        parts, makes, wants = [], [], []
        twice = any(root in skeleton.again.classes for root in roots)
        for root in roots:
            again = root in skeleton.again.classes
            node, options = graph.nodes[root], menus[root]
            wanted = [np.array([tables.intern(s.inputs[k]) for s in options]) for k in range(len(node.inputs))]
            made = [np.array([tables.intern(s.outputs[k]) for s in options]) for k in range(sum(1 for o in node.outputs if o))]
            parts.append(Part(root, tuple(members[root]), options + options if twice else options, len(makes), len(wants), again))
            if again:  # in any case; as kept; as made again
                nothing = np.full(len(options), NONE)
                made = [np.concatenate(pair) for pair in (*((m, m) for m in made), *((m, nothing) for m in made), *((nothing, m) for m in made))]
                wanted = [np.concatenate(pair) for pair in (*((w, w) for w in wanted), *((nothing, w) for w in wanted))]
            elif twice:
                made, wanted = [np.concatenate([m, m]) for m in made], [np.concatenate([w, w]) for w in wanted]
            makes += made
            wants += wanted
        each = [
            len(p.members) * times_of(graph.nodes[p.node].phase, turns) * np.array(tables.prices.node_seconds(p.node, menus[p.node]), dtype=float) for p in parts
        ]
        seconds, more = sum(each), sum(own for own, p in zip(each, parts) if p.again)
        chooser = Chooser(tuple(parts), np.concatenate([seconds, seconds + more]) if twice else seconds, tuple(makes), tuple(wants), len(seconds))
        choosers.append(_only_again(chooser) if twice and always else chooser)
    return tuple(choosers)


def _only_again(chooser: Chooser) -> Chooser:
    """The options with recompute alone."""
    n = chooser.num_kept
    parts = tuple(replace(part, options=part.options[n:]) for part in chooser.parts)
    return Chooser(parts, chooser.seconds[n:], tuple(m[n:] for m in chooser.makes), tuple(w[n:] for w in chooser.wants), 0)
