"""Opportunities: what a step offers, before any plan.

In: a graph and the table of rules. Out: its work, what must wait for what, how far each factor runs before ranks must synchronise, and which
share of FLOPs and bytes some strategy divides among so many ranks, with the reason for everything that is kept whole. Invariant: every
total is the sum of the rows beside it; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ...errors import NoRuleError
from ..cuts import find_cuts, resolve_all
from ..graph import Graph
from ..node import Node
from ..rule import Rule, Signature, Site, find_rule
from ..rules.dims import whole_operand
from ..strategy import list_strategies, split_share
from ..work import Work, count_work, total_work
from .dataflow import Dataflow, read_dataflow
from .reach import Reach, find_reaches
from .spans import FactorCuts, list_node_cuts

SMALL_SHARE = 0.01  # what holds less of both FLOPs and bytes is not listed as kept


@dataclass(frozen=True, slots=True)
class KeptWhole:
    """Nodes of one op and one line that no strategy divides among all ranks (equal layers together).

    Args:
        node: the first of them.
        source: the user's line.
        flops_share, bytes_share: of the whole step, all of them together.
        reason: why, for people.
        count: how many they are.
        ranks: among how many they can be divided at most; 1: not at all.
    """

    node: str
    op: str
    source: str
    flops_share: float
    bytes_share: float
    reason: str
    count: int = 1
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Splittable:
    """How much of a step can be divided among `num_ranks`.

    Args:
        flops_share, bytes_share: of the nodes that some strategy divides among all ranks. 1 where there is no work at all.
        kept: what is kept whole and holds more than 1 % of either, the largest first.
    """

    flops_share: float
    bytes_share: float
    kept: tuple[KeptWhole, ...]
    num_ranks: int = 8


@dataclass(frozen=True, slots=True)
class Opportunities:
    """What a step offers.

    Args:
        work: of each node, in the graph's order.
        reaches: of every factor, the one that covers most first.
        unknown: ops that have no rule, each once; their nodes count as whole.
        precision: in which the step was traced, "" where that was not told.
    """

    graph: Graph
    work: tuple[Work, ...]
    dataflow: Dataflow
    reaches: tuple[Reach, ...]
    splittable: Splittable
    unknown: tuple[str, ...] = ()
    precision: str = ""


def find_opportunities(graph: Graph, rules: Mapping[str, Rule], num_ranks: int = 8, precision: str = "") -> Opportunities:
    """All of it. An op without a rule is no error here: it is listed, and kept whole.

    Args:
        rules: the table of rows (`rules.RULES`).
        num_ranks: among how many ranks work is to be divided (`splittable`).
        precision: see `Opportunities`.
    """
    missing = {node.op: _whole_rule(node) for node in graph.nodes if not _has_rule(rules, node)}
    sites, signatures = resolve_all(graph, {**rules, **missing})
    work = count_work(graph, sites, signatures)
    cuts = find_cuts(graph, signatures)
    factor_cuts = list_node_cuts(sites, signatures, cuts)
    return Opportunities(
        graph, work, read_dataflow(graph, work), find_reaches(graph, sites, signatures, cuts, work, factor_cuts),
        splittable(graph, sites, signatures, num_ranks, factor_cuts), tuple(missing), precision,
    )  # fmt: skip


def _has_rule(rules: Mapping[str, Rule], node: Node) -> bool:
    try:
        find_rule(rules, node)
    except NoRuleError:
        return False
    return True


def _whole_rule(node: Node) -> Rule:
    """A row for an op that has none: nothing is split."""

    def text(site: Site) -> str:
        inputs = [whole_operand(len(shape), f"i{k}x") for k, shape in enumerate(site.inputs)]
        shapes = iter(site.outputs)
        outputs = [whole_operand(len(next(shapes)), f"o{k}x") if name else "" for k, name in enumerate(site.node.outputs)]
        return f"{', '.join(inputs)} -> {', '.join(outputs)}"

    return Rule(node.op, text, why_whole="the op has no sharding rule", flops=0)


def splittable(
    graph: Graph,
    sites: tuple[Site, ...],
    signatures: tuple[Signature, ...],
    num_ranks: int = 8,
    factor_cuts: tuple[FactorCuts, ...] | None = None,
) -> Splittable:
    """Which share of a step some strategy divides among `num_ranks`, node by node, over a mesh of one axis or more.

    Args:
        sites, signatures: of each node (`cuts.resolve_all`).
        factor_cuts: of each node (`list_node_cuts`), where they are known already.
    """
    work = count_work(graph, sites, signatures)
    total = total_work(work)
    if factor_cuts is None:
        factor_cuts = list_node_cuts(sites, signatures, find_cuts(graph, signatures))
    meshes = _list_meshes(num_ranks)
    asked: dict[tuple[int, int], tuple[int, str]] = {}
    divided: list[Work] = []
    kept: dict[tuple, tuple[str, int, Work]] = {}
    for site, signature, own, done in zip(sites, signatures, factor_cuts, work):
        key = (id(signature), id(own))
        if key not in asked:
            asked[key] = _most_ranks(signature, site, own, meshes)
        ranks, reason = asked[key]
        if ranks == num_ranks:
            divided.append(done)
            continue
        group = (site.node.op, site.node.source, ranks, reason)
        first, count, sum_so_far = kept.get(group, (site.node.name, 0, Work()))
        kept[group] = (first, count + 1, sum_so_far + done)
    rows = [
        KeptWhole(first, op, source, *_shares(done, total), reason, count, ranks)
        for (op, source, ranks, reason), (first, count, done) in kept.items()
    ]  # fmt: skip
    large = [row for row in rows if row.flops_share > SMALL_SHARE or row.bytes_share > SMALL_SHARE]
    flops, moved = _shares(total_work(divided), total)
    return Splittable(
        flops if total.flops else 1.0, moved if total.bytes else 1.0,
        tuple(sorted(large, key=lambda row: (-row.flops_share - row.bytes_share, row.node))), num_ranks,
    )  # fmt: skip


def _shares(part: Work, total: Work) -> tuple[float, float]:
    return part.flops / (total.flops or 1.0), part.bytes / (total.bytes or 1)


def _list_meshes(num_ranks: int, most: int | None = None) -> list[tuple[int, ...]]:
    """Axes of more than one rank, largest first, that make `num_ranks` together, fewer axes first: 8; 4 x 2; 2 x 2 x 2."""
    most = num_ranks if most is None else most
    if num_ranks == 1:
        return [()]
    found = [(size, *rest) for size in range(min(num_ranks, most), 1, -1) if num_ranks % size == 0 for rest in _list_meshes(num_ranks // size, size)]
    return sorted(found, key=len)


def _most_ranks(signature: Signature, site: Site, cuts: FactorCuts, meshes: list[tuple[int, ...]]) -> tuple[int, str]:
    """(among how many ranks a node can be divided at most, why no more)."""
    most = 1
    for sizes in meshes:
        strategies, _ = list_strategies(signature, site, sizes, cuts)
        most = max(most, *(split_share(s, signature.rule, sizes) for s in strategies))
        if most == prod(sizes):
            return most, ""
    reason = _why_whole(signature, site, cuts, meshes[0])
    return most, reason if most == 1 else f"at most {most} ranks: {reason}"


def _why_whole(signature: Signature, site: Site, cuts: FactorCuts, sizes: tuple[int, ...]) -> str:
    """What is in the way, each cause once: `k (768), t (1024) stay whole: ...; b of size 4 does not divide by 8`."""
    if not signature.factors:
        return "it has a single element"
    causes: dict[str, list[str]] = {}
    for factor in signature.factors:
        if factor.whole:
            causes.setdefault(factor.whole, []).append(f"{factor.name} ({factor.size})")
    told = [
        f"nothing splits: {cause}" if len(names) == len(signature.factors) > 1 else f"{', '.join(names)} stay{'s' if len(names) == 1 else ''} whole: {cause}"
        for cause, names in causes.items()
    ]
    whole = {factor.name for factor in signature.factors if factor.whole}
    _, refused = list_strategies(signature, site, sizes, cuts)
    told += [refusal.reason.partition(", axis of")[0] for refusal in refused if refusal.factor not in whole]
    return "; ".join(dict.fromkeys(told)) or "its rule offers no split"
