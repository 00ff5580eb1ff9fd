"""Plans in stages and in microbatches, of a model made by hand, as the search finds them; no torch."""

from __future__ import annotations

import time
from functools import cache
from math import inf

from autopar.cluster import num_devices, parse_cluster
from autopar.constraints import constrain
from autopar.cost.model import build_cost_model, staged_model
from autopar.cost.prices import build_prices
from autopar.graph.graph import count_params
from autopar.graph.plan import Certificate, ClusterInfo, ModelInfo, Plan
from autopar.solver.answer import build_answer
from autopar.solver.answer_stages import build_staged_answer
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.layout_solve import Staged
from autopar.solver.pipeline import PipelineSearch
from tests.solver.blocks import build_block_case

LIMIT = 2**30


@cache
def find_staged(cluster: str, blocks: int, **words: object) -> Staged:
    """What the search finds under these words."""
    case, model = build_block_case(blocks=blocks, tied=True, momentum=True), build_cost_model(parse_cluster(cluster), None)
    search = PipelineSearch(LayoutCases(case, constrain(**words)), model, LIMIT, time.monotonic() + 60, lambda line: None, plain_too=True)
    search.run(inf)
    found = search.result()
    assert found.best is not None
    return found.best


@cache
def make_staged_plan(cluster: str = "cpu:4", blocks: int = 4, **words: object) -> Plan:
    """The plan of it, in stages, or in microbatches where it has one stage."""
    staged, found = find_staged(cluster, blocks, **words), parse_cluster(cluster)
    case, model = build_block_case(blocks=blocks, tied=True, momentum=True), build_cost_model(found, None)
    certificate = Certificate(staged.step_s, staged.step_s, 0.0, 0.1, (), 10, "what was asked", ())
    info = ModelInfo("blocks", count_params(case.graph), "0" * 16, "fp32")
    count, rate = num_devices(found), 1e10
    place = ClusterInfo(cluster, count, found.num_hosts, found.device.name, LIMIT, rate, rate, 1e-5, rate, 1e-5, rate, "made up")
    if staged.layout.place.num_stages > 1:
        return build_staged_answer(case, staged, certificate, staged_model(model, staged.layout.place.num_stages, count), info, place)
    stage = staged.stages[0]
    assert stage.assignment is not None
    mine = stage.case
    prices = build_prices(model, stage.assignment.mesh, mine.graph, mine.sites, mine.signatures)
    return build_answer(mine, stage.assignment, certificate, model, prices, (), "", info, place).plan
