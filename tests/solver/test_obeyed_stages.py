"""Plans in stages and in microbatches under constraints: what is found obeys every word, other words are told apart, and what cannot be is said."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints, Pin, constrain
from autopar.cost.model import build_cost_model
from autopar.errors import ConstraintError
from autopar.graph.stages import list_units
from autopar.solver import pipeline
from autopar.solver.decide import Ask, decide
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layouts import list_places
from autopar.solver.obeyed import check_obeyed_stages, require_obeyed_stages
from autopar.solver.pipeline import PipelineSearch
from autopar.solver.why_no_layout import why_no_layout

from .blocks import build_block_case

LIMIT, CLUSTER = 2**30, "cpu:4"


@cache
def case_of(tied=False):
    return build_block_case(blocks=4, tied=tied, momentum=True)


def find(words, tied=False):
    model = build_cost_model(parse_cluster(CLUSTER), None)
    search = PipelineSearch(LayoutCases(case_of(tied), words), model, LIMIT, time.monotonic() + 60, lambda line: None, plain_too=True)
    search.run(inf)
    found = search.result()
    assert found.best is not None, found.pruned
    return found.best


SAID = [
    {"pp": 2, "dp": 2, "microbatches": 4},
    {"pp": 2, "dp": 2, "microbatches": 4, "zero": 0, "recompute": "none"},
    {"pp": 2, "dp": 2, "microbatch": 1, "zero": 3, "schedule": "gpipe"},
    {"pp": 2, "dp": 2, "microbatches": 2, "zero": 1, "vpp": 2, "schedule": "interleaved", "recompute": "full"},
    {"pp": 2, "tp": 2, "microbatches": 2, "whole": ["head"], "schedule": "zero-bubble"},
    {"pp": 4, "microbatches": 8, "schedule": "1f1b"},
    {"pp": 1, "dp": 2, "tp": 2, "microbatches": 2, "alike": ["head"]},
    {"require": ["pp", "tp"], "microbatches": 2},
    {"only": "data", "microbatches": 2},
    {"pp": 2, "tp": 2, "microbatches": 2, "pin": [Pin("h.*.up@0", "S1", "tp")]},
]


@pytest.mark.parametrize("words", SAID, ids=lambda words: ",".join(f"{k}={v}" for k, v in words.items() if k not in ("pin", "whole", "alike")))
def test_what_is_found_obeys(words):
    constraints = constrain(**words)
    staged = find(constraints)
    assert check_obeyed_stages(case_of(), staged, constraints) == ()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"pp": 4}, "pp=4: the plan has 2"),
        ({"tp": 2}, "tp=2: the plan has 1"),
        ({"sp": 2}, "sp=2: the plan has 1"),
        ({"only": "data"}, "dp=4: the plan has 2"),
        ({"require": ["tp"]}, "require tp: no axis has this role"),
        ({"sequence_parallel": True}, "sequence_parallel=1: no axis is tp"),
        ({"microbatches": 2}, "microbatches=2: the plan has 4"),
        ({"microbatch": 2}, "microbatch=2: each rank takes 1 of 8 samples in a turn"),
        ({"vpp": 2}, "vpp=2: each stage has 1 chunk of the model"),
        ({"schedule": "gpipe"}, "schedule=gpipe: the plan has 1f1b"),
        ({"zero": 3}, "stage 0: zero=3: embed.weight@0 [16, 8] is stored as R, whole along dp"),
        ({"recompute": "full"}, "stage 0: recompute=full: no node is run again"),
        ({"alike": ["h.3"]}, "stage 1: alike: "),
        ({"pin": [Pin("h.3.up", "S0")]}, "stage 1: pin h.3.up S0: h.3.up@0 is R"),
    ],
)
def test_what_is_not_as_demanded_is_told(words, fault):
    staged = find(constrain(pp=2, dp=2, microbatches=4, schedule="1f1b", zero=0, recompute="none"))
    found = check_obeyed_stages(case_of(), staged, constrain(**words))
    assert any(line.startswith(fault) for line in found), found
    with pytest.raises(ConstraintError, match="the search did not obey; leave this constraint out, and please report it"):
        require_obeyed_stages(case_of(), staged, constrain(**words))


def test_one_stage_has_no_schedule():
    staged = find(constrain(pp=1, dp=4, microbatches=2))
    assert check_obeyed_stages(case_of(), staged, Constraints(schedule="1f1b", require=("pp",))) == (
        "require pp: the plan has one stage", "schedule=1f1b: the plan has one stage, and no schedule"
    )  # fmt: skip


def test_a_pin_holds_for_the_copies_of_a_tied_parameter():
    """By its plain name it is about all of them; with `@0` about the one that is updated, and a copy that lies otherwise is told."""
    words = {"pp": 2, "tp": 2, "microbatches": 2}
    both = find(constrain(**words, pin=[Pin("embed.weight", "S0", "tp")]), tied=True)
    assert check_obeyed_stages(case_of(True), both, constrain(pin=[Pin("embed.weight", "S0", "tp")])) == ()
    (fault,) = [f for f in check_obeyed_stages(case_of(True), both, constrain(pin=[Pin("embed.weight@0", "S1", "tp")])) if "copy" in f]
    assert fault == (
        "stage 1: pin embed.weight@0 S1: the copy that this stage holds, embed.weight@0#1, is S0/8; pin embed.weight to mean both"
    )


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ({}, {(1, "dp=4"), (1, "tp=4"), (1, "dp=2 tp=2"), (2, "dp=2"), (2, "tp=2"), (4, "1 rank")}),
        ({"sp": 2}, {(1, "dp=2 sp=2"), (1, "sp=2 tp=2"), (2, "sp=2")}),
        ({"sp": 2, "dp": 1, "zero": 0, "pp": 1}, {(1, "sp=2 tp=2")}),
        ({"sp": 4, "microbatches": 2}, {(1, "sp=4")}),
        ({"schedule": "1f1b"}, {(2, "dp=2"), (2, "tp=2"), (4, "1 rank")}),
        ({"vpp": 2, "zero": 1}, {(2, "dp=2")}),
        ({"require": ["tp"]}, {(1, "tp=4"), (1, "dp=2 tp=2"), (2, "tp=2")}),
        ({"only": "data"}, {(1, "dp=4"), (2, "dp=2"), (4, "1 rank")}),
        ({"sequence_parallel": True, "pp": 2}, {(2, "tp=2")}),
        ({"pin": [Pin("x", "S0", "dp")], "pp": 2}, {(2, "dp=2")}),
        ({"zero": 3, "dp_shard": 2}, {(1, "dp=2 dp_2=2"), (1, "dp=2 tp=2"), (2, "dp=2")}),
        ({"zero": 3, "dp_shard": 4}, {(1, "dp=4")}),
    ],
)
def test_places_have_the_roles_that_are_needed(words, places):
    from autopar.graph.mesh import print_mesh

    assert {(p.num_stages, print_mesh(p.mesh)) for p in list_places(4, 4, 6, constrain(**words))} == places


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"pp": 2, "tp": 2, "dp": 2}, "dp=2 x tp=2 x pp=2 make 8 ranks, the cluster has 4; what there is: pp=2 dp=2; pp=2 tp=2; pp=4"),
        ({"pp": 3}, "pp=3 makes 3 ranks, the cluster has 4; what there is: pp=2 dp=2; pp=2 tp=2; pp=4"),
        ({"pp": 2, "tp": 2, "zero": 1}, "tp=2 x pp=2 leaves no mesh that has an axis of dp, which zero=1 is about (leave zero out); what there is: pp=2 dp=2"),
        ({"pp": 4, "sequence_parallel": True}, "pp=4 leaves no mesh that has an axis of tp, which sequence_parallel=1 is about (leave sequence_parallel out)"),
        ({"pp": 2, "dp": 2, "microbatches": 8}, "microbatches=8: the batch of 8 samples does not divide so; what there is: pp=2 dp=2 with 1, 2, 4 microbatches"),
        ({"pp": 2, "dp": 2, "microbatches": 3, "vpp": 2}, "microbatches=3: the batch of 8 samples does not divide so; what there is: pp=2 dp=2 with 2, 4 microbatches"),
        ({"pp": 2, "dp": 2, "microbatch": 3}, "microbatch=3: the batch of 8 samples does not divide so; what there is: pp=2 dp=2 with 1, 2, 4 microbatches"),
        ({"dp": 2, "microbatches": 4, "microbatch": 8}, "microbatches=4 x microbatch=8 x dp=2 are 64 samples, the batch has 8; what there is: pp=1 dp=2"),
        ({"pp": 2, "microbatches": 4, "microbatch": 8}, "microbatches=4 x microbatch=8 are 32 samples for each rank of dp, the batch has 8; what there is: pp=2 dp=2 with 1"),
        ({"microbatches": 1, "microbatch": 8, "dp": 4}, "microbatches=1 x microbatch=8 x dp=4 are 32 samples, the batch has 8; what there is: pp=1 dp=4"),
        ({"pp": 2, "dp": 2, "microbatches": 2, "microbatch": 1}, "microbatches=2 x microbatch=1 x dp=2 are 4 samples, the batch has 8; what there is: pp=2 dp=2 with 1, 2, 4 microbatches"),
        ({"pp": 2, "dp": 2, "vpp": 4, "microbatches": 2}, "2 stages of 4 chunks need 8 parts, the model can be cut into 6 (between its numbered modules)"),
        (
            {"pp": 4, "schedule": "interleaved", "microbatches": 2},
            "interleaved: needs a multiple of 4 microbatches (it runs one microbatch a rank, then the next chunk), found 2; 4 fits, or take 1f1b",
        ),
        ({"schedule": "0F0,0B0\n1F0,1B0\n2F0,2B0\n"}, "the schedule of your own is one of pp=3, microbatches=1, vpp=1; the devices, the batch or another word leave none"),
        ({"schedule": "0F0,0B0\n1F0,1B0\n", "vpp": 2}, "the schedule of your own is one of pp=2, microbatches=1, vpp=1; the devices, the batch or another word leave none"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(words, text):
    assert why_no_layout(4, 4, 6, 8, constrain(**words)).startswith(text)
    ask = Ask(case_of(), build_cost_model(parse_cluster(CLUSTER), None), constrain(**words), LIMIT, 30.0, None, lambda line: None)
    with pytest.raises(ConstraintError) as error:
        decide(ask)
    assert f": no plan was found: {text}" in str(error.value)


def test_names_are_checked_before_anything_is_solved():
    model = build_cost_model(parse_cluster(CLUSTER), None)
    ask = Ask(case_of(), model, constrain(pp=2, whole=["haed"]), LIMIT, 30.0, None, lambda line: None)
    with pytest.raises(ConstraintError, match="whole haed: names no module of .* that runs an op; near names: head"):
        decide(ask)


def test_decide_refuses_what_does_not_obey(monkeypatch):
    """Whatever went wrong in the search, a plan that breaks a word is not given out."""
    words = constrain(pp=2, dp=2, microbatches=4)
    wrong = find(constrain(pp=2, dp=2, microbatches=2))
    real = PipelineSearch.result
    monkeypatch.setattr(PipelineSearch, "result", lambda self: replace(real(self), best=wrong))
    ask = Ask(case_of(), build_cost_model(parse_cluster(CLUSTER), None), words, LIMIT, 30.0, None, lambda line: None)
    with pytest.raises(ConstraintError, match="^microbatches=4: the plan has 2: the search did not obey"):
        decide(ask)


@pytest.mark.parametrize(
    ("hosts", "words", "text"),
    [
        (3, {"pp": 2, "dp": 12}, "pp=2 gives each stage 12 of the 24 devices; a stage is some whole hosts (of 8 devices), or divides one evenly; what there is: pp=3 dp=8; "),
        (3, {"pp": 2}, "pp=2 gives each stage 12 of the 24 devices; a stage is some whole hosts (of 8 devices), or divides one evenly; what there is: pp=3 dp=8; "),
        (3, {"pp": 5}, "pp=5 makes 5 ranks, the cluster has 24; "),
        (6, {"pp": 4}, "pp=4 gives each stage 12 of the 48 devices; a stage is some whole hosts (of 8 devices), or divides one evenly; what there is: pp=2 dp=24; "),
    ],
)
def test_stages_are_whole_hosts_or_divide_one(hosts, words, text):
    assert why_no_layout(8 * hosts, 8, 6, 48, constrain(**words)).startswith(text)


@pytest.mark.parametrize("words", [{"tp": 2, "sequence_parallel": True, "microbatches": 2}, {"tp": 2, "sequence_parallel": True, "pp": 2}, {"sp": 2, "pp": 2}, {"sequence_parallel": True}, {"sp": 2}])
def test_words_about_a_sequence_are_refused_where_there_is_none(words):
    ask = Ask(case_of(), build_cost_model(parse_cluster(CLUSTER), None), constrain(**words), LIMIT, 30.0, None, lambda line: None)
    said = "sp=2" if "sp" in words else "sequence_parallel=1"
    with pytest.raises(ConstraintError, match=f"^{said}: the model has no sequence to split: no dim of its batch inputs is one .*; leave it out"):
        decide(ask)


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (1, "pp=4: the model is one unit, and may be cut only between units; leave it out"),
        (3, "pp=4: the model has 3 units between which it may be cut; leave it out"),
    ],
)
def test_more_stages_than_units(monkeypatch, units, text):
    real = list_units
    monkeypatch.setattr(pipeline, "list_units", lambda graph: real(graph)[:units])
    with pytest.raises(ConstraintError, match=f"^{text}$"):
        find(constrain(pp=4))
