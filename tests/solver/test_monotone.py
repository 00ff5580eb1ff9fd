"""More memory, more bandwidth or more devices never make the predicted step slower, by more than the gap to which it was searched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import Constraints
from autopar.cost.model import build_cost_model
from autopar.errors import InfeasibleError
from autopar.graph.case import build_case
from autopar.graph.repeats import identity_fold
from autopar.solver.decide import Ask, decide
from autopar.solver.search import Question, search

from .blocks import build_block_case
from .random_steps import ALL_RULES, StepPrices, held_step, random_step
from .tiny import make_mesh

_GAP = 1e-3  # to which the search goes, where it has the time
SMALL = {"blocks": 2}
MIDDLE = {"blocks": 2, "width": 256, "hidden": 1024, "batch": 512, "vocab": 256}
LARGE = {"blocks": 2, "width": 1024, "hidden": 4096, "batch": 4096, "vocab": 1024, "tied": True}


def step_of(shape, cluster, limit_bytes=60 * 2**30, constraints=Constraints(), most_stages=None):  # noqa: B008
    """Predicted seconds of the best plan."""
    ask = Ask(build_block_case(**shape), build_cost_model(cluster), constraints, limit_bytes, 60.0, most_stages, lambda line: None)
    return decide(ask).certificate.objective_s


def assert_never_slower(seconds):
    for before, after in zip(seconds, seconds[1:]):
        assert after <= before * (1 + _GAP), seconds


def search_step(graph, sizes, limit=None, wire=3.0, hides=0.0):
    """Predicted seconds on the best of these meshes; infinity where nothing fits."""
    case = build_case(graph, ALL_RULES)
    question = Question(case.graph, case.sites, case.signatures, case.cuts, identity_fold(case.graph), limit)
    try:
        return search(question, [make_mesh(*s) for s in sizes], lambda mesh: StepPrices(case, mesh, wire, hides)).certificate.objective_s
    except InfeasibleError:
        return float("inf")


def draw(seed):
    return held_step(seed) if seed % 2 else random_step(seed, 5 + seed % 3)


# --- hand-made prices, every mesh of so many devices


@pytest.mark.parametrize("seed", range(5))
def test_random_steps_with_more_memory(seed):
    seconds = [search_step(draw(seed), ((4,), (2, 2)), limit) for limit in (20, 60, 150, 250, 1_000)]
    assert_never_slower(seconds)
    assert seconds[0] == float("inf") and seconds[-1] < float("inf")


@pytest.mark.parametrize("hides", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_random_steps_with_more_bandwidth(seed, hides):
    seconds = [search_step(draw(seed), ((4,), (2, 2)), None, wire, hides) for wire in (100.0, 10.0, 1.0, 0.0)]
    assert_never_slower(seconds)


@pytest.mark.parametrize("seed", range(6))
def test_random_steps_with_more_devices(seed):
    """No device more than the first is ever needed: what all do alike costs nothing more."""
    seconds = [search_step(draw(seed), sizes, None, 0.3) for sizes in (((),), ((2,),), ((4,), (2, 2)), ((8,), (4, 2), (2, 2, 2)))]
    assert_never_slower(seconds)


# --- the whole decision, with the cost model of a cluster


def test_decisions_with_more_memory():
    seconds = [step_of(MIDDLE, parse_cluster("cpu:2"), limit) for limit in (6_000_000, 8_000_000, 12_000_000)]
    assert_never_slower(seconds)
    assert seconds[0] > seconds[-1]


@pytest.mark.parametrize("shape, most_stages", [(SMALL, 1), (SMALL, None), (LARGE, None)], ids=["small in one stage", "small", "large"])
def test_decisions_with_more_bandwidth(shape, most_stages):
    cluster, seconds = parse_cluster("2x2xA100-80GB"), []
    for factor in (0.25, 16.0):
        inside, across = (
            replace(link, name="own", bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s, latency_s=link.latency_s / factor)
            for link in (cluster.inside, cluster.across)
        )
        seconds.append(step_of(shape, replace(cluster, inside=inside, across=across), most_stages=most_stages))
    assert_never_slower(seconds)
    assert seconds[-1] < seconds[0] or shape == SMALL


@pytest.mark.parametrize("shape, most", [(SMALL, 8), (MIDDLE, 4), (LARGE, 4)], ids=["small", "middle", "large"])
@pytest.mark.parametrize("hosts", [False, True], ids=["devices", "hosts"])
def test_decisions_in_one_stage_with_more_devices(hosts, shape, most):
    specs = [f"{n // 2}x2xH100-80GB" if hosts else f"{n}xH100-80GB" for n in (2, 4, 8) if n <= most]
    seconds = [step_of(shape, parse_cluster(spec), constraints=Constraints(microbatches=1), most_stages=1) for spec in specs]
    assert_never_slower(seconds)
    assert seconds[-1] < seconds[0] or shape != LARGE


@pytest.mark.parametrize("shape, most", [(SMALL, 8), (MIDDLE, 4)], ids=["small", "middle"])
def test_decisions_in_stages_with_more_devices(shape, most):
    """Models so small that the launches of their ops are most of what they cost: more devices than stages may have to do the same."""
    assert_never_slower([step_of(shape, parse_cluster(f"{n}xH100-80GB")) for n in (1, 2, 4, 8) if n <= most])


def test_larger_models_in_stages_with_more_devices():
    assert_never_slower([step_of(LARGE, parse_cluster(spec)) for spec in ("1xH100-80GB", "2xH100-80GB", "4xH100-80GB")])
