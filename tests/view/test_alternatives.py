"""Alternatives after solving again: they cost what a solve under the same constraint says, and none is cheaper than what was chosen."""

from __future__ import annotations

import dataclasses
import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.alternatives import explain, price_alternatives, set_up, solve_again  # noqa: E402
from autopar.constraints import Pin, constrain  # noqa: E402
from autopar.demo.model import Gpt, token_loss  # noqa: E402
from autopar.errors import InfeasibleError, PlanError  # noqa: E402
from autopar.graph.sharding import parse_sharding  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.view.explain_name import FITS, NOT_FOUND, TOO_LARGE, explain_name  # noqa: E402
from autopar.view.name_terminal import names_text  # noqa: E402
from autopar.view.split_text import print_split  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
CLUSTER, LAYERS, HIDDEN = "cpu:2", 2, 32  # two ranks: one mesh, so that planning with a pin is the same question


def make_workload(layers=LAYERS, hidden=HIDDEN):
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(0))
    return autopar.Workload(
        model=Gpt(64, 16, layers, hidden, 4), example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],), loss=token_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=3e-4), name="small",
    )  # fmt: skip


def make_plan(**words):
    options = Options(price=False, constraints=constrain(pp=1, microbatches=1, **words))
    return autopar.compile_workload(make_workload(), CLUSTER, options).plan


@pytest.fixture(scope="module")
def plan():
    return make_plan()


@pytest.fixture(scope="module")
def bench(plan):
    (found,) = set_up(plan, make_workload(), CLUSTER)
    return found


def priced(bench, name):
    (report,) = price_alternatives((bench,), explain_name(bench.plan, name), 20.0)
    assert report.again is not None, report.why_not
    return report.again


@pytest.mark.parametrize("name", ["blocks.*.up.weight", "tokens.weight", "blocks.0.up.bias"])
def test_a_stored_value_costs_what_a_plan_with_that_pin_takes(plan, bench, name):
    again = priced(bench, name)
    shape = next(p.shape for p in plan.params if f"{p.name}@0" in again.members)
    assert len(again.members) == (LAYERS if name.startswith("blocks") else 1) and again.step_s == pytest.approx(plan.cost.step_s, rel=1e-9)
    halves = ("R", *(f"S{d}/{n // 2}" for d, n in enumerate(shape)))
    by_text = {print_split(shape, parse_sharding(text), plan.assignment.mesh): text for text in halves}
    assert len(again.priced) >= min(2, len(shape))
    for row in again.priced:
        by_hand = make_plan(pin=[Pin(member, by_text[row.what]) for member in again.members])
        assert row.status == FITS and row.step_s == pytest.approx(by_hand.cost.step_s, rel=2e-3)
        assert row.step_s == pytest.approx(again.step_s + row.extra_s, rel=1e-12)


def test_what_was_chosen_is_never_dearer_than_the_others(plan, bench):
    names = [plan.params[1].name, *[n.name for n in plan.nodes if n.op == "autopar.linear"][:2]]
    seen = 0
    for name in names:
        again = priced(bench, name)
        assert [row.extra_s for row in again.priced] == sorted(row.extra_s for row in again.priced)
        for row in again.priced:
            seen += 1
            assert row.extra_s >= row.at_least_s >= -(plan.solve.gap + 1e-9) * again.step_s
            told = sum(cause.seconds for cause in row.difference.causes) + row.difference.rest_s
            assert told == pytest.approx(row.extra_s, abs=1e-12) and bool(row.because) == (row.extra_s > 1e-6 * again.step_s)
    assert seen >= 6


def test_the_choice_of_a_node_is_settled_for_all_alike(plan, bench):
    again = priced(bench, next(n.name for n in plan.nodes if n.op == "autopar.linear" and n.path == "blocks.0.up"))
    assert len(again.members) == LAYERS
    chosen = dict(plan.assignment.strategies)
    texts = {row.what: row for row in again.priced}
    way = ("o",) if chosen[again.members[0]] != ("o",) else ("R",)
    steer = dataclasses.replace(bench.steer, choices=tuple((name, way) for name in again.members))
    found = solve_again(bench.plan, bench.case, bench.model, steer, bench.limit_bytes, 20.0)
    strategies = dict(found.assignment.strategies)
    assert {strategies[name] for name in again.members} == {way}
    row = texts["o on a" if way == ("o",) else "R"]
    assert row.step_s == pytest.approx(found.certificate.objective_s, rel=1e-3)


def test_memory_is_named_where_it_is_the_reason():
    """Of one large weight a rank has room for little more than its piece: kept whole it does not fit, and memory alone is why."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024, bias=False), torch.nn.ReLU(), torch.nn.Linear(1024, 4, bias=False))
    loss, targets = torch.nn.functional.cross_entropy, torch.randint(0, 4, (4,))
    workload = autopar.Workload(model, (torch.randn(4, 64),), (targets,), loss, torch.optim.AdamW, name="wide")
    with pytest.raises(InfeasibleError) as error:
        autopar.compile_workload(workload, CLUSTER, Options(price=False, memory_bytes=1024))
    tight = autopar.compile_workload(workload, CLUSTER, Options(memory_bytes=int(error.value.minimum_bytes * 1.02))).plan
    again = priced(*set_up(tight, workload, CLUSTER), "0.weight")
    whole = next(row for row in again.priced if row.what == "R")
    assert whole.status == TOO_LARGE and whole.step_s is None and whole.because == "memory" and whole.missing_bytes > 0
    assert whole.free_extra_s is not None and whole.free_extra_s < 0
    assert again.priced[-1].status != FITS  # what fits comes first
    text = str(explain(tight, "0.weight", workload))
    assert "R: does not fit; the smallest plan found is " in text and " too large" in text and "without a memory limit: -" in text


def test_without_a_workload_the_stored_prices_are_shown(plan):
    name = next(n.name for n in plan.nodes if n.alternatives)
    shown = explain(plan, name)
    assert shown.reports == explain_name(plan, name) and "neighbours as they are" in str(shown)
    assert "all else chosen anew" not in str(shown) and shown.to_json()["found"][0]["again"] is None


def test_explain_of_a_workload_prints_what_the_command_prints(plan):
    text = str(autopar.explain(plan, "tokens.weight", make_workload(), time_limit_s=5))
    assert "instead, all else chosen anew on mesh a=2 (the step now takes " in text and "because of " in text
    assert "neighbours as they are" not in text


def test_another_model_is_refused(plan):
    with pytest.raises(PlanError, match="the plan belongs to another model"):
        explain(plan, "tokens.weight", make_workload(layers=3))


def test_only_the_first_few_of_many_names_are_solved_with(bench):
    reports = price_alternatives((bench,), explain_name(bench.plan, "blocks.*"), 5.0)
    assert len(reports) > 3 and sum(r.again is not None for r in reports) <= 3
    assert reports[-1].why_not == f"only the first 3 of {len(reports)} kinds are; a narrower name says more"


def test_nothing_is_proven_by_figures_of_another_day(plan):
    other = dataclasses.replace(plan, cost=dataclasses.replace(plan.cost, step_s=plan.cost.step_s * 2))
    (bench,) = set_up(other, make_workload(), CLUSTER)
    again = priced(bench, "blocks.0.up.bias")
    assert again.gap is None and again.step_s == pytest.approx(plan.cost.step_s)


@pytest.fixture(scope="module")
def staged():
    words = constrain(pp=2, dp=2, microbatches=4, schedule="1f1b")
    return autopar.compile_workload(make_workload(), "cpu:4", Options(price=False, constraints=words)).plan


def test_a_stage_is_solved_again_and_the_step_is_that_of_the_schedule(staged):
    """Of each stage; a plan made with the same pin and cut alike takes as long."""
    first, last = benches = set_up(staged, make_workload(), "cpu:4")
    assert first.step_s == last.step_s == pytest.approx(staged.cost.step_s, rel=1e-9)
    seen = 0
    for number, name in ((0, "blocks.0.up.weight"), (1, "blocks.1.up.weight")):
        (report,) = price_alternatives(benches, explain_name(staged, name), 20.0)
        assert report.again is not None, report.why_not
        assert f"of stage {number}, the other stages and what crosses as they are" in report.again.mesh
        shape = next(p.shape for p in staged.params if p.name == name)
        by_text = {print_split(shape, parse_sharding(text), staged.assignment.mesh): text for text in ("R", f"S0/{shape[0] // 2}", f"S1/{shape[1] // 2}")}
        for row in report.again.priced:
            assert row.status == FITS and row.extra_s >= row.at_least_s
            assert row.extra_s >= -(staged.solve.gap + 1e-9) * staged.cost.step_s
            words = constrain(pp=2, dp=2, microbatches=4, schedule="1f1b", pin=[Pin(name, by_text[row.what])])
            by_hand = autopar.compile_workload(make_workload(), "cpu:4", Options(price=False, constraints=words)).plan
            if by_hand.pipeline.starts == staged.pipeline.starts:
                assert row.step_s == pytest.approx(by_hand.cost.step_s, rel=2e-3)
                seen += 1
    assert seen
    text = str(autopar.explain(staged, "blocks.1.up.weight", make_workload(), time_limit_s=5))
    assert "instead, all else chosen anew on mesh dp=2 of stage 1, the other stages and what" in text


def test_a_stage_that_cannot_hold_it_says_so(staged):
    """Without room nothing fits; how much is missing nobody looked for."""
    bench = set_up(dataclasses.replace(staged, cluster=dataclasses.replace(staged.cluster, memory_bytes=1024)), make_workload(), "cpu:4")
    (report,) = price_alternatives(bench, explain_name(staged, "blocks.0.up.weight"), 5.0)
    assert {row.status for row in report.again.priced} <= {TOO_LARGE, NOT_FOUND} and {row.missing_bytes for row in report.again.priced} == {0}
    assert "too large" not in names_text([report])


def test_an_edited_plan_in_stages_is_priced_anew(staged):
    """What is given is what was decided: the same decisions cost the same, others what they take."""
    workload, options = make_workload(), Options(price=False)
    same = autopar.plan_workload(workload, "cpu:4", options, given_plan=dataclasses.replace(staged, cost=dataclasses.replace(staged.cost, step_s=1.0))).plan
    assert same.cost.step_s == pytest.approx(staged.cost.step_s, rel=1e-9) and same.pipeline.stages == staged.pipeline.stages
    whole = tuple((n, parse_sharding("R") if "exp_avg" in n else s) for n, s in staged.assignment.storages)
    given = dataclasses.replace(staged, assignment=dataclasses.replace(staged.assignment, storages=whole))
    edited = autopar.plan_workload(workload, "cpu:4", options, given_plan=given).plan
    assert whole != staged.assignment.storages
    assert edited.cost.step_s != staged.cost.step_s and sum(edited.cost.state_bytes) > sum(staged.cost.state_bytes)
