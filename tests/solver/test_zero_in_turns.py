"""ZeRO stages in several turns: what is added up is whole and reduced once (1), or in pieces from the first turn on (2, 3)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import constrain
from autopar.cost.memory import estimate_memory
from autopar.cost.model import build_cost_model
from autopar.graph.case import case_roles, decided_case
from autopar.graph.graph import value_table
from autopar.graph.partition import assigned_strategies, partition
from autopar.graph.sharding import Partial, Shard
from autopar.graph.tensor import size_bytes
from autopar.graph.turns import ACCUMULATE, LOOP
from autopar.solver.decide import Ask, decide
from autopar.solver.obeyed import check_obeyed
from autopar.solver.recognise import recognise
from autopar.solver.steer import Steer

from .blocks import build_block_case

TURNS = 4


@cache
def case_of():
    return build_block_case(blocks=4, width=64, hidden=128, batch=64, vocab=128, momentum=True)


@cache
def decided(turns=TURNS, **words):
    words = {"dp": 4, "pp": 1, "microbatches": turns, **words}
    ask = Ask(case_of(), build_cost_model(parse_cluster("1x4xH100-80GB")), constrain(**words), 2**40, 60.0, 1, lambda line: None)
    answer = decide(ask)
    return decided_case(answer.case, answer.assignment), answer.assignment


def sums_of(case, assignment):
    """How each gradient is added up."""
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, assignment)
    grads = {grad for _, grad in case.graph.grads}
    return [strategies[n.name].outputs[0].placements[0] for n in case.graph.nodes if n.op == ACCUMULATE and n.outputs[0] in grads]


def program_of(case, assignment):
    return partition(case.graph, case.sites, case.signatures, case.cuts, assignment)


def in_turns(program):
    """Collectives inside of the turns that move what has a gradient's name."""
    grads = {part for node in program.graph.nodes if node.op == ACCUMULATE for part in node.inputs}
    return [n for n in program.graph.nodes if n.phase in LOOP and n.op.startswith("comm.") and grads & {*n.inputs, *n.outputs}]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_what_is_added_up(zero):
    case, assignment = decided(zero=zero)
    found = sums_of(case, assignment)
    assert len(found) == 10
    assert zero == 0 or all(isinstance(p, Partial if zero == 1 else Shard) for p in found)
    assert zero > 1 or not any(isinstance(p, Shard) for p in found)
    roles = case_roles(case)
    steer = Steer(constrain(dp=4, zero=zero), roles)
    assert check_obeyed(case.graph, case.sites, case.signatures, case.cuts, assignment, steer) == ()


def test_one_is_reduced_when_the_turns_are_over_and_two_in_each():
    one, two = (program_of(*decided(zero=z)) for z in (1, 2))
    assert in_turns(one) == [] and len(in_turns(two)) == 10
    after = [n for n in one.graph.nodes if n.op == "comm.reduce_scatter"]
    assert len(after) == 10 and not any(n.phase in LOOP for n in after)


def test_one_holds_whole_gradients_and_two_pieces():
    bytes_ = {z: estimate_memory(program_of(*decided(zero=z)), 0).peak_bytes for z in (1, 2)}
    case, _ = decided(zero=1)
    values = value_table(case.graph)
    grads = sum(size_bytes(values[grad]) for _, grad in case.graph.grads)
    assert bytes_[1] - bytes_[2] == pytest.approx(grads * 3 / 4, rel=0.05)


def test_they_are_told_apart_by_name_and_by_the_check():
    for zero, other in ((1, 2), (2, 1)):
        case, assignment = decided(zero=zero)
        labels, _ = recognise(case.graph, case.sites, case.signatures, case.cuts, assignment)
        assert dict(labels)["dp"] == ("data", f"zero-{zero}")
        steer = Steer(constrain(dp=4, zero=other), case_roles(case))
        faults = check_obeyed(case.graph, case.sites, case.signatures, case.cuts, assignment, steer)
        told = "P, whole along dp, although" if other == 2 else "in pieces along dp"
        assert len([f for f in faults if f.startswith(f"zero={other}: ") and "is added up as" in f and told in f]) == 10


def test_a_sum_that_is_reduced_in_each_turn_is_no_zero_1():
    case, assignment = decided(zero=1)
    sums = {n.name for n in case.graph.nodes if n.op == ACCUMULATE}
    wrong = replace(assignment, strategies=tuple((n, ("R",) if n in sums else c) for n, c in assignment.strategies))
    faults = check_obeyed(case.graph, case.sites, case.signatures, case.cuts, wrong, Steer(constrain(dp=4, zero=1), case_roles(case)))
    assert len(faults) == 11 and all(f.endswith("is reduced along dp in each turn, not when they are over") for f in faults)  # the loss, too


def test_in_one_turn_they_are_one_program():
    programs = [decided(turns=1, zero=z)[1] for z in (1, 2)]
    case = case_of()
    labels = [recognise(case.graph, case.sites, case.signatures, case.cuts, a)[0] for a in programs]
    assert labels[0] == labels[1] == (("dp", ("data", "zero-2")),)


def test_the_loss_is_reduced_once():
    """Also where no word is said: what the ranks owe to it waits for the last turn."""
    case, assignment = decided()
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, assignment)
    loss = next(n for n in case.graph.nodes if n.op == ACCUMULATE and n.outputs[0] == case.graph.loss)
    assert isinstance(strategies[loss.name].outputs[0].placements[0], Partial)
