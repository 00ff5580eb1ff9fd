"""Cuts: at which inner sizes each dim of each value may be split, found from the whole graph.

A view that merges (batch sequence) into one dim, or a slice that takes a third of a fused QKV projection, tells that the dim is a
product. The cut travels along factors, through every op that only carries the dim, so that the projection's own matmul can be split
by heads although it does not know of them. In: a graph, its rules. Out: for each (value, dim) the ascending inner sizes; `(768,)`
for 2304 = 3 x 768. Invariant: the cuts of a dim divide one another and the dim.
"""

from __future__ import annotations

from collections.abc import Mapping

from .exact import mark_exact
from .graph import Graph, producer_table, use_table, value_table
from .node import packet_of
from .rule import Rule, Signature, Site, find_rule, meeting, resolve
from .uneven import mark_uneven

CutTable = dict[str, tuple[tuple[int, ...], ...]]


def build_sites(graph: Graph) -> tuple[Site, ...]:
    """Each node with the whole shapes around it. Outputs that nobody sees have no shape and are left out."""
    values = value_table(graph)
    sites = []
    for node in graph.nodes:
        inputs, outputs = [values[i] for i in node.inputs], [values[o] for o in node.outputs if o]
        sites.append(Site(node, tuple(v.shape for v in inputs), tuple(v.shape for v in outputs), tuple(v.dtype for v in inputs)))
    return tuple(sites)


def resolve_all(graph: Graph, rules: Mapping[str, Rule]) -> tuple[tuple[Site, ...], tuple[Signature, ...]]:
    """Site and signature of every node, equal nodes resolved once.

    Raises:
        NoRuleError: an op has no row.
    """
    sites = build_sites(graph)
    cache: dict[object, Signature] = {}
    return sites, mark_exact(graph, mark_uneven(graph, tuple(_resolve(site, rules, cache) for site in sites)))


def resolve_known(graph: Graph, rules: Mapping[str, Rule]) -> tuple[tuple[Site, ...], tuple[Signature | None, ...]]:
    """Site and signature of every node of a program; None for those whose op has no row: communication, writes of states."""
    sites = build_sites(graph)
    cache: dict[object, Signature] = {}
    return sites, tuple(_resolve(site, rules, cache) if site.node.op in rules or packet_of(site.node.op) in rules else None for site in sites)


def _resolve(site: Site, rules: Mapping[str, Rule], cache: dict[object, Signature]) -> Signature:
    key = (site.node.op, site.node.args, meeting(site.node), site.inputs, site.outputs, site.dtypes)
    if key not in cache:
        cache[key] = resolve(find_rule(rules, site.node), site)
    return cache[key]


def find_cuts(graph: Graph, signatures: tuple[Signature, ...]) -> CutTable:
    """Cuts of every dim of every value (a fixpoint over the graph).

    Args:
        signatures: of each node, in order (`resolve_all`).
    """
    values = value_table(graph)
    cuts: dict[str, list[set[int]]] = {v.name: [set() for _ in v.shape] for v in graph.values}
    readers, makers = use_table(graph), producer_table(graph)
    todo = list(range(len(graph.nodes) - 1, -1, -1))
    waiting = set(todo)
    while todo:
        index = todo.pop()
        waiting.discard(index)
        node, signature = graph.nodes[index], signatures[index]
        size = {f.name: f.size for f in signature.factors}
        names = (*node.inputs, *(o for o in node.outputs if o))
        dims = (*signature.inputs, *signature.outputs)
        factor: dict[str, set[int]] = {name: set() for name in size}
        for value, rows in zip(names, dims):
            for d, parts in enumerate(rows):
                right = 1
                for part in reversed(parts):
                    factor[part] |= {c // right for c in cuts[value][d] if c % right == 0 and 1 < c // right < size[part] and size[part] % (c // right) == 0}
                    right *= size[part]
        for value, rows in zip(names, dims):
            changed = False
            for d, parts in enumerate(rows):
                right = 1
                for part in reversed(parts):
                    if right > 1:
                        changed |= _add(cuts[value][d], right, values[value].shape[d])
                    for cut in sorted(factor[part]):
                        changed |= _add(cuts[value][d], cut * right, values[value].shape[d])
                    right *= size[part]
            if changed:
                near = [i for i, _ in readers[value]] + ([makers[value][0]] if value in makers else [])
                fresh = [i for i in near if i not in waiting]
                todo += fresh
                waiting.update(fresh)
    return {name: tuple(tuple(sorted(c)) for c in rows) for name, rows in cuts.items()}


def _add(cuts: set[int], cut: int, size: int) -> bool:
    """Add a cut if it fits the chain of those already there."""
    if cut in cuts or cut <= 1 or cut >= size or size % cut:
        return False
    if any(max(cut, other) % min(cut, other) for other in cuts):
        return False
    cuts.add(cut)
    return True
