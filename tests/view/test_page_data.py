"""The page's data has no number of its own: its rows add up to the plan's headline, and the page is one safe file."""

import base64
import dataclasses
import gzip
import json
import math
import re

import pytest

from autopar.errors import PlanError
from autopar.graph.mesh import Mesh
from autopar.view.html import plan_repr_html, plan_to_html, save_html
from autopar.view.page_data import page_data

from .synthetic_plans import make_plan

PLANS = {"mesh": make_plan(num_layers=3), "one-rank": make_plan(mesh=Mesh(())), "unfolded": make_plan(folded=False)}


def embedded(page: str) -> dict:
    packed = re.search(r'id="plan-data">([^<]*)<', page)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed.group(1))))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_rows_add_up_to_the_headline(plan):
    data = embedded(plan_to_html(plan))
    cost = data["head"]["cost"]
    assert data == json.loads(json.dumps(page_data(plan)))
    assert math.isclose(math.fsum(data["nodes"]["seconds"]), cost["compute_s"], rel_tol=1e-9)
    assert math.isclose(cost["compute_s"] + cost["exposed_comm_s"] + cost["bubble_s"], cost["step_s"], rel_tol=1e-9)
    exposed = math.fsum(data["comms"]["seconds"]) - math.fsum(data["comms"]["hidden_s"])
    assert math.isclose(cost["exposed_comm_s"], exposed, rel_tol=1e-9, abs_tol=1e-12)
    assert sum(cost["holders"].values()) == max(cost["peak_bytes"])
    assert max(map(sum, zip(*data["moments"]["holders"].values()))) == max(cost["peak_bytes"])
    shapes = [data["texts"][t] for t in data["params"]["shape_t"]]
    assert sum(map(math.prod, shapes)) == data["head"]["model"]["num_params"]
    assert sorted(m for fold in data["param_folds"] for m in fold["members"]) == list(range(len(plan.params)))
    assert [data["texts"][t] for t in data["nodes"]["op_t"]] == [n.op for n in plan.nodes]


def test_a_plan_whose_numbers_disagree_gets_no_page(tmp_path):
    plan = PLANS["mesh"]
    wrong = dataclasses.replace(plan, cost=dataclasses.replace(plan.cost, compute_s=plan.cost.compute_s * 2))
    with pytest.raises(PlanError, match="cost.step_s"):
        save_html(wrong, tmp_path / "plan.html")
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_leave_their_tag():
    plan = PLANS["mesh"]
    evil = '</script><script>alert(1)</script>"><img src=x onerror=alert(1)>{{script}}'
    page = plan_to_html(dataclasses.replace(plan, model=dataclasses.replace(plan.model, name=evil), summary=evil))
    assert page.count("<script") == 2 and page.count("</script>") == 2 and "<img" not in page
    assert embedded(page)["head"]["summary"] == evil


def test_the_page_asks_for_nothing():
    page = plan_to_html(PLANS["mesh"])
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="?([^" >]*)', page.split("<style>")[0]) == ["data:,"]
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert plan_to_html(PLANS["mesh"]) == page  # the same plan is the same file


def test_a_notebook_shows_the_text_first_and_the_page_in_a_sandbox():
    shown = plan_repr_html(PLANS["mesh"])
    assert shown.index("<pre") < shown.index('<iframe sandbox="allow-scripts"')
    assert shown.count("<script") == 0 and "&lt;script" in shown


def test_twenty_thousand_nodes_stay_below_a_megabyte():
    plan = make_plan(num_layers=110, update_ops=12)
    assert len(plan.nodes) > 19_000
    assert len(plan_to_html(plan)) < 1_000_000
