"""The problem of a step in more microbatches, made from that of a step in fewer: what each plan takes then, at least.

In: a `Problem` for a number of turns, and a larger one. Out: the same choosers and groups with other seconds. What a turn does with weights alone (gathers
them, adds up their gradients) it does as often as there are turns; what it does with samples is as much work in all turns together, and starts more often.

    in a turn         of fewer turns       of more
    no samples        seconds              seconds x more / fewer
    samples           seconds              seconds + starts of (more - fewer) turns

Invariant: no plan takes less, where smaller pieces are no faster than their share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cost.model import CostModel
from ..cost.ops import as_run, has_start
from ..graph.case import Case
from ..graph.graph import Graph, value_table
from ..graph.node import Node
from ..graph.stages import COPY
from ..graph.turns import ACCUMULATE, COLLECT, LOOP, TAKE
from .problem import Chooser, Group, Problem


@dataclass(frozen=True, slots=True)
class EachTurn:
    """What is the same in every turn, however many there are.

    Args:
        nodes: by name, that run in each turn and see no samples.
        values: by name, of which each turn has all.
        loop: nodes that run in each turn.
    """

    nodes: frozenset[str]
    values: frozenset[str]
    loop: frozenset[str]


def find_each_turn(whole: Graph, turned: Graph) -> EachTurn:
    """From a graph without turns and the same with some."""
    shapes = {value.name: value.shape for value in whole.values}
    values = {name for name, value in value_table(turned).items() if shapes.get(name) == value.shape}
    loop = [node for node in turned.nodes if node.phase in LOOP]
    nodes = {node.name for node in loop if _sees_no_samples(node, values)}
    return EachTurn(frozenset(nodes), frozenset(values), frozenset(node.name for node in loop))


def _sees_no_samples(node: Node, values: set[str]) -> bool:
    if node.op in (TAKE, COLLECT):
        return False
    made = () if node.op == ACCUMULATE else [out for out in node.outputs if out]  # a sum is as large as what is added to it
    return all(name in values for name in (*node.inputs, *made))


def with_turns(problem: Problem, case: Case, each: EachTurn, model: CostModel, count: int, turns: int) -> Problem:
    """The problem in `turns` microbatches.

    Args:
        problem: in `count` of them, which is no more. Of one: what then runs once, and what is summed, is done elsewhere in turns, so it counts as it is.
        case: of its graph.
    """
    if turns == count:
        return problem
    launch, more = model.launch_s * (turns - count), turns / count if count > 1 else 1.0
    nodes, roots = case.graph.nodes, case.fold.node_class
    starts = [_name(node.name) in each.loop and has_start(as_run(model, case.sites[root])) for node, root in zip(nodes, roots)]

    def in_turns(chooser: Chooser) -> Chooser:
        parts = [part for part in chooser.parts if part.node >= 0]
        if more > 1.0 and parts and all(_are_in(part.members, each.nodes) for part in parts):
            return replace(chooser, seconds=chooser.seconds * more)
        extra = launch * sum(len(part.members) for part in parts if starts[part.node])
        return replace(chooser, seconds=np.where(chooser.seconds > 0, chooser.seconds + extra, chooser.seconds)) if extra else chooser

    def times(group: Group) -> float:
        return group.times * more if group.phase in LOOP and _are_in(group.names, each.values) else group.times

    groups = tuple(replace(group, times=times(group)) for group in problem.groups) if more > 1.0 else problem.groups
    return replace(problem, choosers=tuple(map(in_turns, problem.choosers)), groups=groups)


def _are_in(names: Sequence[str], known: frozenset[str]) -> bool:
    return all(_name(name) in known for name in names)


def _name(name: str) -> str:
    """In the graph that it was cut from."""
    return name.partition(COPY)[0]
