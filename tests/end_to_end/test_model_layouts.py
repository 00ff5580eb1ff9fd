"""Layouts of traced models: bounds of work that hold where a device runs some ops as one, and parts that a step in turns does not have."""

from __future__ import annotations

import time
from math import inf

import pytest

pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.constraints import Constraints  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.demo.model import build  # noqa: E402
from autopar.errors import ConstraintError  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.solver.layout_cases import LayoutCases  # noqa: E402
from autopar.solver.layout_guess import bound_layout  # noqa: E402
from autopar.solver.layout_prices import LayoutPrices, Tier  # noqa: E402
from autopar.solver.layout_solve import Staged  # noqa: E402
from autopar.solver.layouts import print_layout, working_ranks  # noqa: E402
from autopar.solver.pipeline import PipelineSearch  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

pytestmark = pytest.mark.torch
SMALL = {"batch": 8, "seq": 16, "vocab": 64, "layers": 4, "hidden": 32, "heads": 4}


@pytest.mark.parametrize("spec", ["cpu:4", "4xH100-80GB"])
def test_what_is_not_priced_yet_is_bounded_by_less_than_its_price(spec):
    """Adam's step is one kernel on a CPU, a group of ops elsewhere: its parts start nothing. What several stages run counts for none."""
    case, model = build_case(trace_step(build(**SMALL), "fp32").graph), build_cost_model(parse_cluster(spec))
    search = PipelineSearch(LayoutCases(case, Constraints()), model, 60 * 2**30, time.monotonic() + 60, lambda line: None, plain_too=True)
    seen = 0
    for each in (e for e in search.list_open() if e.layout.num_microbatches <= 2):
        layout, fresh = each.layout, LayoutPrices(search.cases, model, search.prices.counts)
        floor, priced = (bound_layout(layout, fresh.costs(layout.place, layout.num_microbatches, tier)) for tier in (Tier.FLOOR, Tier.ALL))
        assert floor <= priced * (1 + 1e-9), print_layout(layout)
        if working_ranks(layout.place) == 1 and layout.chunks == 1:  # nothing to choose but the cuts: soon solved
            staged = search.solver.solve(layout, fresh.costs(layout.place, layout.num_microbatches, Tier.RUN), 60.0)
            assert isinstance(staged, Staged) and max(each.any_s, floor) <= staged.step_s * (1 + 1e-9), print_layout(layout)
        seen += priced < inf
    assert seen > 10


@pytest.mark.parametrize("words", [{"vpp": 2}, {"schedule": "zbv"}])
def test_more_chunks_than_parts_in_turns_are_refused(words):
    """The table of positions does not depend on the batch: in turns it is looked up once, before all of them, and is no part."""
    workload = build(**SMALL)
    with pytest.raises(ConstraintError, match=r"needs 8 parts, the model can be cut into 7 \(between its numbered modules; what no microbatch changes is no part\)"):
        autopar.plan(
            workload.model, "cpu:4", example_inputs=workload.example_inputs, example_targets=workload.example_targets, loss=workload.loss, optimizer=workload.optimizer,
            options=autopar.Options(constraints=autopar.constrain(pp=4, microbatches=8, **words)),
        )  # fmt: skip
