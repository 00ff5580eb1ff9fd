"""The problem of one mesh, built.

In: a graph with its signatures and cuts, a fold, a mesh, prices. Out: a `Problem`. The way: menus, clusters of elementwise nodes, choosers,
then who reads what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes
from ..graph.plan import Pruned
from ..graph.repeats import Fold
from ..graph.rule import Signature, Site
from ..graph.sharding import Sharding
from ..graph.strategy import Strategy
from .again import Again, find_again, no_recompute
from .clusters import find_clusters
from .menus import WHY_TOGETHER, align, list_menus, list_storages
from .prices import Prices
from .problem import MOMENTS, Chooser, Part, Problem
from .reads import Lanes, Ports, build_groups, build_owners, list_reads, list_sources
from .steer import Steer, part_clusters, steer_menus, steer_storages
from .tables import NONE, Tables


def build_problem(
    graph: Graph, sites: tuple[Site, ...], signatures: tuple[Signature, ...], cuts: CutTable, fold: Fold, mesh: Mesh, prices: Prices, cluster: bool = True,
    steer: Steer | None = None,
    recompute: str = "none",
) -> Problem:
    """The tables of one mesh.

    Args:
        sites, signatures, cuts: of the whole graph (`cuts.resolve_all`, `cuts.find_cuts`).
        fold: who decides for whom.
        prices: of this mesh.
        cluster: elementwise nodes in a row decide together.
        steer: what users demand of the plan; the roles of the axes are their names (`role_meshes`).
        recompute: `none`, `free` (values may be made again for the backward pass) or `full` (all that may be is).
    Raises:
        ConstraintError: this mesh cannot obey.
    """
    sizes = axis_sizes(mesh)
    tables = Tables(prices, sizes, [], {})
    menus, dropped = list_menus(graph, sites, signatures, cuts, fold, sizes)
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
    again = find_again(graph, signatures, fold, clusters) if recompute != "none" else no_recompute(graph)
    choosers, of_input, of_node = _build_choosers(graph, fold, menus, storages, clusters, again, recompute == "full", tables)
    lanes = Lanes(graph, fold, again, of_input, of_node)
    sources, reads = list_sources(lanes), list_reads(lanes)
    groups, places = build_groups(lanes, sources, reads)
    owners = build_owners(lanes, choosers, sources, reads, groups, places)
    pruned = tuple(Pruned(f"{count} strategies", why) for why, count in dropped.items() if count) + exempt
    return Problem(graph, mesh, tuple(tables.shardings), choosers, groups, owners, MOMENTS * len(lanes.plus.nodes), pruned, tables)


def _build_choosers(
    graph: Graph, fold: Fold, menus: Mapping[int, tuple[Strategy, ...]], storages: Mapping[str, tuple[Sharding, ...]], clusters: Mapping[int, int],
    again: Again, always: bool, tables: Tables,
) -> tuple[tuple[Chooser, ...], dict[str, int], dict[int, Ports]]:
    choosers: list[Chooser] = []
    of_input: dict[str, int] = {}
    of_node: dict[int, Ports] = {}
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
        choosers.append(Chooser((Part(-1, tuple(names), options, 0, 0),), len(names) * seconds, (made,), (), len(options)))
    members: dict[int, list[str]] = defaultdict(list)
    for i, root in enumerate(fold.node_class):
        members[root].append(graph.nodes[i].name)
    together: dict[int, list[int]] = defaultdict(list)
    for root in sorted(members):
        together[clusters[root]].append(root)
    for roots in together.values():
        parts, makes, wants = [], [], []
        twice = roots[0] in again.classes
        for root in roots:
            node, options = graph.nodes[root], menus[root]
            wanted = [np.array([tables.intern(s.inputs[k]) for s in options]) for k in range(len(node.inputs))]
            made = [np.array([tables.intern(s.outputs[k]) for s in options]) for k in range(sum(1 for o in node.outputs if o))]
            first_out, first_in = len(makes), len(wants)
            parts.append(Part(root, tuple(members[root]), options + options if twice else options, first_out, first_in))
            if not twice:
                of_node[root] = Ports(len(choosers), first_out, first_in)
                makes, wants = makes + made, wants + wanted
                continue
            o, i, nothing = len(made), len(wanted), np.full(len(options), NONE)
            of_node[root] = Ports(len(choosers), first_out, first_in, first_out + o, first_out + 2 * o, first_in + i)
            makes += [np.concatenate(pair) for pair in (*((m, m) for m in made), *((m, nothing) for m in made), *((nothing, m) for m in made))]
            wants += [np.concatenate(pair) for pair in (*((w, w) for w in wanted), *((nothing, w) for w in wanted))]
        seconds = sum(len(p.members) * np.array(tables.prices.node_seconds(p.node, menus[p.node]), dtype=float) for p in parts)
        chooser = Chooser(tuple(parts), np.concatenate([seconds, 2 * seconds]) if twice else seconds, tuple(makes), tuple(wants), len(seconds))
        choosers.append(_only_again(chooser) if twice and always else chooser)
    return tuple(choosers), of_input, of_node


def _only_again(chooser: Chooser) -> Chooser:
    """The options with recompute alone."""
    n = chooser.num_kept
    parts = tuple(replace(part, options=part.options[n:]) for part in chooser.parts)
    return Chooser(parts, chooser.seconds[n:], tuple(m[n:] for m in chooser.makes), tuple(w[n:] for w in chooser.wants), 0)
