"""The problem of one mesh, built.

In: a graph with its signatures and cuts, a fold, a mesh, prices. Out: a `Problem`. The way: menus, clusters of elementwise nodes, choosers,
then who reads what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ..graph.cuts import CutTable
from ..graph.graph import Graph, value_table
from ..graph.mesh import Mesh, axis_sizes
from ..graph.plan import Pruned
from ..graph.repeats import Fold
from ..graph.rule import Signature, Site
from ..graph.sharding import Sharding, replicated
from ..graph.strategy import Strategy
from .clusters import find_clusters
from .menus import WHY_TOGETHER, align, list_menus, list_storages
from .prices import Prices
from .problem import MOMENTS, Chooser, Part, Problem
from .reads import build_groups, build_owners, list_reads, list_sources
from .tables import Tables


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
    menus, dropped = list_menus(graph, sites, signatures, cuts, fold, sizes)
    clusters = find_clusters(graph, signatures, fold) if cluster else {root: root for root in fold.node_class}
    count = sum(len(menu) for menu in menus.values())
    menus = align(graph, signatures, clusters, menus)
    dropped[WHY_TOGETHER] = count - sum(len(menu) for menu in menus.values())
    storages = list_storages(graph, fold, menus, sizes)
    choosers, of_input, of_node = _build_choosers(graph, fold, menus, storages, clusters, tables)
    sources = list_sources(graph, fold, of_input, of_node)
    reads = list_reads(graph, fold, of_input, of_node)
    groups, places = build_groups(graph, fold, sources, reads)
    owners = build_owners(graph, fold, sources, reads, groups, places)
    pruned = tuple(Pruned(f"{count} strategies", why) for why, count in dropped.items() if count)
    return Problem(graph, mesh, tuple(tables.shardings), choosers, groups, owners, MOMENTS * len(graph.nodes), pruned, tables)


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
