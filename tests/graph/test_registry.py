"""Rules in force: the table, and rows for the ops that it lacks."""

from __future__ import annotations

import pytest

from autopar.errors import GraphError, NoRuleError
from autopar.graph.graph import Graph
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.registry import RuleRow, nodes_without_row, rules_in_force
from autopar.graph.rule import find_rule
from autopar.graph.rules import RULES
from autopar.graph.tensor import Kind, Value


def call(name: str, op: str, value: str) -> Node:
    return Node(name, op, (value,), (("x", Ref(0)),), (f"{name}_out",), Phase.FORWARD)


def chain(*ops: str) -> Graph:
    nodes = [call(f"n{k}", op, "input:0" if k == 0 else f"n{k - 1}_out") for k, op in enumerate(ops)]
    names = ["input:0", *(n.outputs[0] for n in nodes)]
    values = tuple(Value(n, n, 0, (4, 6), "float32", Kind.BATCH if n == "input:0" else Kind.ACTIVATION) for n in names)
    return Graph("chain", values, tuple(nodes), ("input:0",), outputs=(names[-1],))


def test_a_row_holds_for_the_nodes_that_it_names_alone() -> None:
    graph = chain("mylib.op.default", "aten.exp.default", "mylib.op.default")
    rules = rules_in_force([RuleRow("mylib.op.default", "discovered", ("n0",), "b [s] -> b [s]", why_whole="its row")])
    assert [n.name for n in nodes_without_row(graph)] == ["n0", "n2"]
    assert (find_rule(rules, graph.nodes[0]).text, find_rule(rules, graph.nodes[0]).why_whole) == ("b [s] -> b [s]", "its row")
    assert find_rule(rules, graph.nodes[1]) is RULES["aten.exp"]
    with pytest.raises(NoRuleError, match="register_rule"):
        find_rule(rules, graph.nodes[2])


def test_one_op_one_row_and_one_node_one_rule() -> None:
    with pytest.raises(GraphError, match="a registered rule for aten.exp.default, which has a row in the table: one op, one row"):
        rules_in_force([RuleRow("aten.exp.default", "registered", ("n0",), "... -> ...")])
    row = RuleRow("mylib.op.default", "region", ("n0",), "b s -> b s")
    with pytest.raises(GraphError, match="two rules for n0 = mylib.op.default: one node, one rule"):
        rules_in_force([row, row])
