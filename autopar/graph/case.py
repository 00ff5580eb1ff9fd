"""A case: a graph with its rules applied, its cuts, its equal blocks. What a solver, the tables of a plan and the program's builder need of it.

An `Assignment` speaks of the nodes of the graph that it decided for: that of a step in turns (`microbatch`), with copies of what is recomputed.
`decided_case` makes that graph from the traced one; every reader of an assignment starts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..collector import rare_collections
from ..constraints import DATA
from .choice import Assignment
from .cuts import CutTable, find_cuts, resolve_all
from .fusion import add_traffic
from .graph import Graph
from .microbatch import split_batch
from .recompute import recompute_all
from .repeats import Fold, Repeat, find_repeats, fold_graph
from .roles import Roles, find_roles
from .rule import Rule, Signature, Site
from .rules import RULES


@dataclass(frozen=True, slots=True)
class Case:
    """Args:
    sites, signatures: of each node.
    rules: those in force.
    whole_roles: of a graph in turns, the roles of the graph that it was made from.
    """

    graph: Graph
    sites: tuple[Site, ...]
    signatures: tuple[Signature, ...]
    cuts: CutTable
    fold: Fold
    repeats: tuple[Repeat, ...]
    rules: Mapping[str, Rule]
    whole_roles: Roles | None = None


@rare_collections()
def build_case(graph: Graph, rules: Mapping[str, Rule] = RULES) -> Case:
    """Apply the rules, find cuts and equal blocks."""
    sites, signatures = resolve_all(graph, rules)
    repeats = find_repeats(graph)
    fold = fold_graph(graph, repeats)
    sites = add_traffic(graph, sites, signatures, fold.node_class)
    return Case(graph, sites, signatures, find_cuts(graph, signatures), fold, repeats, rules)


def case_roles(case: Case) -> Roles:
    """The roles of a case's dims (`graph.roles`)."""
    return find_roles(case.graph, case.sites, case.signatures, case.cuts, case.whole_roles)


def split_case(case: Case, count: int, roles: Roles | None = None) -> Case:
    """The case of the step that takes its batch in `count` turns.

    Args:
        roles: of the case (`case_roles`), where they are known already.
    Raises:
        MicrobatchError: the model cannot be run in turns, or its batch does not divide.
    """
    if count == 1:
        return case
    roles = case_roles(case) if roles is None else roles
    pieces = {name: tuple((dim, lower, upper) for dim, lower, upper, role in found if role == DATA) for name, found in roles.pieces.items()}
    split = split_batch(case.graph, case.sites, case.signatures, case.cuts, pieces, count, case.rules)
    return replace(build_case(split, case.rules), whole_roles=roles)


def copy_case(case: Case, names: tuple[str, ...]) -> Case:
    """The case of the graph in which these nodes are run again for the backward pass."""
    if not names:
        return case
    graph, sites, signatures, cuts = recompute_all(case.graph, case.sites, case.signatures, case.cuts, names)
    repeats = find_repeats(graph)
    return replace(case, graph=graph, sites=sites, signatures=signatures, cuts=cuts, fold=fold_graph(graph, repeats), repeats=repeats)


def decided_case(case: Case, assignment: Assignment) -> Case:
    """The case of the graph that an assignment decides for, from that of the traced graph."""
    return copy_case(split_case(case, assignment.microbatches), assignment.again)
