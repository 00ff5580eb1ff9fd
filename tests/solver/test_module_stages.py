"""`module ... stage N`: cuts put modules where the user says, exactly and nowhere else; the answer is checked; what cannot be says why."""

from __future__ import annotations

import random
from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import ModuleStage, constrain
from autopar.cost.model import build_cost_model
from autopar.errors import ConstraintError
from autopar.graph.schedules.known import chunk_ranks
from autopar.solver.decide import Ask, decide
from autopar.solver.obeyed import check_obeyed_stages
from autopar.solver.stage_cuts import bound_cuts, choose_cuts, sum_segments
from autopar.solver.unit_stages import ANY, count_cuts, obey_homes, segment_fits, unit_homes

from .blocks import build_block_case, build_blocks

LIMIT = 2**30


def ask(seconds=30.0, **words):
    model = build_cost_model(parse_cluster("cpu:4"), None)
    return Ask(build_block_case(blocks=4, momentum=True), model, constrain(**words), LIMIT, seconds, None, lambda line: None)


@pytest.mark.parametrize("seed", range(60))
def test_cuts_with_homes_equal_every_way_to_cut(seed):
    rng = random.Random(seed)
    count, stages, kind = rng.randint(4, 8), rng.randint(2, 3), rng.choice(("1f1b", "interleaved", "zbv"))
    ranks = chunk_ranks(kind, stages, 1 if kind == "1f1b" else 2)
    ranks = ranks if len(ranks) <= count else chunk_ranks("1f1b", stages, 1)
    homes = tuple(rng.choice((ANY, ANY, rng.randrange(stages))) for _ in range(count))
    seconds = [rng.choice((0.5, 1.0, 3.0)) for _ in range(count)]
    ways = [cuts for cuts in combinations(range(1, count), len(ranks) - 1) if obey_homes(cuts, ranks, homes)]
    by_hand = [
        cuts for cuts in combinations(range(1, count), len(ranks) - 1)
        if all(homes[k] in (ANY, r) for a, b, r in zip((0, *cuts), (*cuts, count), ranks) for k in range(a, b))
    ]  # fmt: skip
    assert ways == by_hand and count_cuts(count, ranks, homes) == len(ways)
    tables = [np.where(segment_fits(homes, rank), sum_segments(seconds), inf) for rank in ranks]
    found = choose_cuts(tables)

    def slowest(cuts):
        return max(sum(seconds[a:b]) for a, b in zip((0, *cuts), (*cuts, count)))

    assert (found is None) == (not ways)
    if found is not None:
        assert found in ways and slowest(found) == pytest.approx(min(map(slowest, ways)))
        assert bound_cuts(tables, sum_segments([0.0] * count)) == pytest.approx(slowest(found))


@pytest.mark.parametrize(
    ("words", "homes"),
    [
        ({"pp": 2, "microbatches": 2, "module": [ModuleStage("h.0", 1)]}, {"h.0": 1}),
        ({"microbatches": 2, "module": [ModuleStage("h.2", 0), ModuleStage("head", 1)]}, {"h.2": 0, "head": 1}),
        ({"microbatches": 4, "vpp": 2, "module": [ModuleStage("h.0", 1), ModuleStage("h.1", 0)]}, {"h.0": 1, "h.1": 0}),
        ({"pp": 2, "microbatches": 2, "schedule": "zbv", "module": [ModuleStage("embed", 0), ModuleStage("h.[012]", 1)]}, {"h.0": 1, "h.2": 1}),
    ],
)
def test_modules_are_where_the_user_says(words, homes):
    question = ask(**words)
    decision = decide(question)
    assert decision.staged is not None
    assert check_obeyed_stages(question.case, decision.staged, question.constraints) == ()
    for path, stage in homes.items():
        for number, mine in enumerate(decision.staged.stages):
            states = {name for name in mine.case.graph.inputs if name.startswith(f"{path}.")}
            assert bool(states) == (number == stage), (path, number)  # its parameters lie there and nowhere else
    for path, wrong in product(homes, range(2)):
        if wrong != homes[path]:
            found = check_obeyed_stages(question.case, decision.staged, constrain(module=[ModuleStage(path, wrong)]))
            assert found and all(line.startswith(f"module {path} stage {wrong}: ") and line.endswith(f"is on stage {homes[path]}") for line in found)


def test_the_bound_knows_where_modules_must_be():
    """All blocks on one stage take nearly the whole step: the certificate says that no such plan is faster."""
    free, forced = (
        decide(ask(pp=2, microbatches=4, schedule="1f1b", dp=2, **words)) for words in ({}, {"module": [ModuleStage("h.*", 1)]})
    )
    assert forced.certificate.lower_bound_s > free.certificate.lower_bound_s
    assert forced.certificate.objective_s > free.certificate.objective_s


def test_the_first_stage_alone_leaves_one_stage_free():
    decision = decide(ask(seconds=5.0, microbatches=1, module=[ModuleStage("h.0", 0)]))
    assert decision.staged is None  # one stage is the first


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"pp": 2, "module": [ModuleStage("haed", 1)]}, "module haed: names no module of blocks that runs an op; near names: head"),
        (
            {"pp": 2, "microbatches": 2, "schedule": "1f1b", "module": [ModuleStage("h.0", 1), ModuleStage("h.3", 0)]},
            "module h.0 stage 1, module h.3 stage 0: expected stages in the order in which the model runs (embed, h.0, h.1, h.2, h.3, head), cut into a "
            "part for each of the stages 0, 1 in this order, found no such cuts; give other stages, or more chunks (vpp)",
        ),
        (
            {"pp": 2, "module": [ModuleStage("h.*", 1), ModuleStage("h.3", 0)]},
            "module h.3 stage 0 and module h.* stage 1: both are about h.3, which is not cut; give both the same stage, or leave one out",
        ),
        ({"microbatches": 2, "module": [ModuleStage("head", 6)]}, "module head stage 6: needs 7 stages or more; what there is: "),
    ],
)
def test_what_cannot_be_says_why(words, text):
    with pytest.raises(ConstraintError) as error:
        decide(ask(**words))
    assert text in str(error.value)


def test_a_module_that_every_stage_runs_has_no_stage():
    graph = build_blocks()
    with pytest.raises(ConstraintError, match=r"module none stage 1: its forward pass has no op that is on one stage alone"):
        unit_homes(graph, constrain(module=[ModuleStage("none", 1)]))
