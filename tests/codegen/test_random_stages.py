"""Any legal plan in pipeline stages gives the numbers of the plain step: stages that begin anywhere, any schedule, any sharding of what crosses; as emitted,
on all ranks in one process. A run that hangs fails."""

import functools
import random
import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import ProgramError, RankError  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.graph import producer_table  # noqa: E402
from autopar.graph.node import Phase  # noqa: E402
from autopar.graph.plan import Pipeline  # noqa: E402
from autopar.graph.random_plans import draw_pipeline, list_turns  # noqa: E402
from autopar.graph.stage_programs import build_stage_programs  # noqa: E402
from autopar.graph.stages import cut_stages, list_units, stage_table  # noqa: E402
from autopar.graph.turns import SEND, count_microbatches  # noqa: E402
from autopar.graph.update_parts import update_parts  # noqa: E402

from .crossing_models import MODELS  # noqa: E402
from .random_models import make_random_workload  # noqa: E402
from .random_plans import Control, Hung, StagedPlan, draw_staged, make_mesh, relative_difference, run_stages, run_within  # noqa: E402

pytestmark = pytest.mark.torch

PLANS = {"mixed": 12, "u-net": 3, "u-net, clipped": 2, "translator": 2, "translator, dropout": 1, "gpt": 1, "gpt, ignored targets, clipped": 2, "gpt, momentum": 3, "mixed, two rates": 2, "biased": 2, "turning": 3, "turning, by hand": 1}


@functools.cache
def traced(name):
    torch.manual_seed(0)
    control = Control(MODELS[name]())
    case = build_case(control.graph)
    return control, case, list_turns(case)


def check(control, case, turns, seeds):
    for seed in seeds:
        plan = draw_staged(turns, seed)
        difference, whose = control.worst_staged(*control.staged(plan, case))
        assert difference < 1e-10, f"seed {seed}, {plan}: {whose} is {difference:.1e} off"


@pytest.mark.parametrize("name", MODELS)
def test_random_stages_of_a_model(name):
    first = 100 * list(MODELS).index(name)
    assert len(traced(name)[2]) == 3
    check(*traced(name), range(first, first + PLANS[name]))


@pytest.mark.filterwarnings("ignore:var\\(\\). degrees of freedom")
@pytest.mark.parametrize("seed", range(2000, 2006))
def test_random_stages_of_a_random_model(seed):
    control = Control(make_random_workload(seed, 12))
    case = build_case(control.graph)
    check(control, case, list_turns(case), (seed, seed + 1))


@pytest.mark.parametrize("name", ["mixed", "gpt, momentum"])
def test_outputs_beside_the_loss_are_whole_on_every_rank(name):
    control, _, _ = traced(name)
    values, makers = {v.name: v for v in control.graph.values}, producer_table(control.graph)
    forward = [n for n in values if n in makers and control.graph.nodes[makers[n][0]].phase is Phase.FORWARD and len(values[n].shape) > 1]
    compared = 0
    for seed in range(6):
        names = tuple(random.Random(seed).sample(forward, 3))
        case = build_case(replace(control.graph, outputs=names))
        turns = list_turns(case)
        plan = StagedPlan(turns[seed % len(turns)], seed)
        plan.keeps_grads = False
        _, files = control.staged(plan, case)
        _, results, _ = run_stages(files, control.states, control.batch)
        for loss, outputs in results:
            assert relative_difference(loss, control.expected[control.graph.loss]) < 1e-10
            for name, found in zip(names, outputs, strict=True):
                assert relative_difference(found, control.expected[name]) < 1e-10, (seed, name)
                compared += 1
    assert compared >= 36


def test_stages_that_go_there_and_back_say_so():
    _, case, turns = traced("gpt, momentum")
    starts = tuple(next(n.name for n in turns[1].graph.nodes if n.path.startswith(path) and n.phase is Phase.FORWARD) for path in ("blocks.0", "blocks.1", "norm"))
    plan = StagedPlan(turns[1], 0, meshes=((),), pipeline=Pipeline("zbv", 2, starts, ()))
    control = traced("gpt, momentum")[0]
    stages, files = control.staged(plan, case)
    assert control.worst_staged(stages, files)[0] < 1e-10
    assert "CHUNKS = (0, 1, 1, 0)  # the stage that runs each chunk of the model" in files["program.py"]
    assert not {"tokens.weight#1", "tokens.weight#2"} & {v.name.partition("@")[0] for stage in stages for v in stage.program.graph.values}  # first and last chunk share it
    assert all(abs(int(dict(n.args)["stage"])) == 1 for stage in stages for n in stage.program.graph.nodes if n.op == SEND)
    swapped_rows = files["schedule.csv"].replace("3", "x").replace("2", "3").replace("x", "2")
    with pytest.raises(ProgramError, match=r"schedule.csv: expected 2F0 in row 2, found it in row 1: rows are in the order of STAGES in program.py"):
        control.worst_staged(stages, {**files, "schedule.csv": swapped_rows})


def test_all_that_can_be_drawn_is_drawn():
    turns = traced("mixed")[2]
    plans = [StagedPlan(turns[seed % 3], seed) for seed in range(40)]
    assert {plan.pipeline.kind for plan in plans} == {"gpipe", "1f1b", "interleaved", "zero-bubble", "zbv"}
    assert {plan.num_stages for plan in plans} == {2, 3, 4} and {plan.pipeline.chunks for plan in plans} == {1, 2}
    assert {bool(plan.assignment.again) for plan in plans} == {len(plan.mesh.axes) > 0 for plan in plans} == {True, False}
    assert {plan.keeps_grads for plan in plans} == {True, False}
    assert len({plan.pipeline.starts for plan in plans}) > 30


def test_a_seed_is_a_plan():
    turned = traced("mixed")[2][1]
    assert StagedPlan(turned, 3).assignment == StagedPlan(turned, 3).assignment != StagedPlan(turned, 4).assignment
    assert draw_pipeline(turned.graph, random.Random(0), counts=()) is None


def test_clipping_moves_only_numbers_between_stages():
    """Gradients are clipped where their parameters are; what all stages need is the norm. Each adds up its own part: one number goes there, one comes back."""
    _, _, turns = traced("u-net, clipped")
    for turned in turns:
        middle = next(node.name for node in turned.graph.nodes if node.path == "up.1")
        for stage in cut_stages(turned.graph, (middle,)):
            values = {v.name: v for v in stage.graph.values}
            shapes = {values[n.inputs[0]].shape for n in stage.graph.nodes if n.op == SEND and n.phase is Phase.UPDATE}
            assert shapes and shapes <= {(), (1,)}
        assert count_late(turned.graph, middle) == 2


def test_a_rate_that_is_a_tensor_stays_where_it_is_read():
    """What follows from constants alone is made on every stage."""
    _, _, turns = traced("mixed, two rates")
    for turned in turns:
        last = next(node.name for node in turned.graph.nodes if node.path == "last")
        plain = next(t for t in traced("mixed")[2] if count_microbatches(t.graph) == count_microbatches(turned.graph))
        other = next(node.name for node in plain.graph.nodes if node.path == "last")
        assert count_late(turned.graph, last) == count_late(plain.graph, other)


def count_late(graph, start):
    """How many messages go from stage to stage in the update."""
    return sum(node.op == SEND and node.phase is Phase.UPDATE for stage in cut_stages(graph, (start,)) for node in stage.graph.nodes)


@pytest.mark.parametrize("name", MODELS)
def test_the_backward_pass_goes_from_later_stages_to_earlier_ones(name):
    graph = traced(name)[2][1].graph
    units = list_units(graph)
    table = stage_table(graph, [graph.nodes[unit[0]].name for unit in units[1:]])
    made = {out: (stage, node.phase) for stage, node in zip(table, graph.nodes) for out in node.outputs}
    for stage, node in zip(table, graph.nodes):
        if node.phase is Phase.BACKWARD:
            assert all(made[n][0] >= stage for n in node.inputs if n in made and made[n][1] is Phase.BACKWARD), node


def test_what_is_sent_in_the_update_keeps_its_order():
    """A parameter's update that sends to another stage is no function of its own, which would run after what is received."""
    _, _, turns = traced("gpt, momentum")
    norm = next(node.name for node in turns[0].graph.nodes if node.path == "blocks.1.norm_1")
    graph = cut_stages(turns[0].graph, (norm,))[0].graph
    sent = {i for i, node in enumerate(graph.nodes) if node.op == SEND and node.phase is Phase.UPDATE}
    parts, rest = update_parts(graph)
    assert sent and parts and sent <= set(rest)


def swapped(files, right, wrong):
    name = next(name for name, text in files.items() if name.startswith("stage_") and right in text)
    return {**files, name: files[name].replace(right, wrong)}


def test_wrong_stages_are_found():
    """The comparison of this file can fail: a stage that sends something else, a copy that is not brought up to date, a message that is never sent."""
    control, case, turns = traced("gpt, momentum")
    norm = next(node.name for node in turns[1].graph.nodes if node.path == "blocks.1.norm_1")
    plan = StagedPlan(turns[1], 0, pipeline=Pipeline("1f1b", 1, (norm,), ()))
    stages, files = control.staged(plan, case)
    assert control.worst_staged(stages, files)[0] < 1e-10
    sent = next(line for line in files["stage_0.py"].splitlines() if "comm.send(" in line)
    assert control.worst_staged(stages, swapped(files, sent, sent.replace("comm.send(", "comm.send(2 * ")))[0] > 1e-6
    late = next(line for line in files["stage_1.py"].splitlines() if "tokens_weight_1 = comm.receive(" in line)
    assert control.worst_staged(stages, swapped(files, late, late.replace("comm.receive(", "2 * comm.receive(")))[0] > 1e-6
    with pytest.raises((ProgramError, RankError), match="message 0 of turn 0"):
        control.worst_staged(stages, swapped(files, sent, sent[: len(sent) - len(sent.lstrip())] + "pass"))


def test_ends_that_are_split_differently_are_refused():
    _, case, turns = traced("mixed")
    middle = next(node.name for node in turns[1].graph.nodes if node.path == "last")
    plan = StagedPlan(turns[1], 1, meshes=((2,),), pipeline=Pipeline("1f1b", 1, (middle,), ()))
    ends = [(name, choices) for name, choices in plan.assignment.strategies if name.startswith("receive_")]
    name, choices = next(end for end in ends if end[1] != ("R",))
    strategies = tuple((n, ("R",) if n == name else c) for n, c in plan.assignment.strategies)
    with pytest.raises(ProgramError, match="is sent as .* and received as R"):
        build_stage_programs(case, replace(plan.assignment, strategies=strategies), (middle,), (0, 1))


def test_ranks_that_hang_are_told_with_their_place():
    def stand_still(comm):
        while not done:
            time.sleep(0.01)

    done = []
    with pytest.raises(Hung, match="rank 0:(.|\n)*stand_still(.|\n)*rank 1:"):
        run_within(make_mesh((2,)), stand_still, 0.2)
    done.append(True)
