"""Rules in force for one graph: the table, and a row for each op that it lacks, stated by the user or discovered.

In: the rows of the ops that the table lacks, each a value that a plan can carry (who found them is `trace.discovery`). Out: one table of
rules. Invariant: an op of the table is never given another row, and every row says where it comes from. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import GraphError
from .graph import Graph
from .node import Node, packet_of
from .rule import LinearSets, Rule, node_key
from .rules import RULES

ORIGINS = ("discovered", "registered", "region")


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule that is not in the table, for the nodes of a graph that it holds for.

    Args:
        op: `mylib.op.default`.
        origin: `discovered` by running the op, `registered` (`autopar.register_rule`) or of a `region` (`autopar.region`).
        nodes: names of the nodes that follow it.
        text, linear, owed, reduce, flops: as in `Rule`.
        why_whole: why what stands in brackets is whole, "" where nothing does.
        num_trials: how many times pieces were compared with the whole; 0: stated and not checked.
        seconds: that it took.
    """

    op: str
    origin: str
    nodes: tuple[str, ...]
    text: str
    linear: LinearSets = ()
    owed: tuple[str, ...] = ()
    reduce: str = "sum"
    flops: float = 1.0
    why_whole: str = ""
    num_trials: int = 0
    seconds: float = 0.0


def has_row(node: Node, rules: Mapping[str, Rule] = RULES) -> bool:
    """True where the table knows the node's op."""
    return node.op in rules or packet_of(node.op) in rules


def nodes_without_row(graph: Graph, rules: Mapping[str, Rule] = RULES) -> tuple[Node, ...]:
    """The nodes whose op the table lacks, in order."""
    return tuple(node for node in graph.nodes if not has_row(node, rules))


def rules_in_force(rows: Iterable[RuleRow], rules: Mapping[str, Rule] = RULES) -> Mapping[str, Rule]:
    """The table with the rows of one graph: each holds for the nodes that it names.

    Raises:
        GraphError: a row is for an op of the table, or two rows are for one node.
    """
    table = dict(rules)
    for row in rows:
        if row.op in rules or packet_of(row.op) in rules:
            raise GraphError(f"a {row.origin} rule for {row.op}, which has a row in the table: one op, one row")
        for name in row.nodes:
            key = node_key(row.op, name)
            if key in table:
                raise GraphError(f"two rules for {name} = {row.op}: one node, one rule")
            table[key] = rule_of(row)
    return MappingProxyType(table)


def rule_of(row: RuleRow) -> Rule:
    """The row as the engine reads rules."""
    why = row.why_whole or "the rule says so"
    return Rule(packet_of(row.op), row.text, row.linear, row.owed, row.reduce, row.flops, why_whole=why)
