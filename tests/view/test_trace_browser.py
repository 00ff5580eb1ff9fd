"""The page of a step's opportunities in a real browser: it opens offline, asks for nothing, and its numbers are those of the report."""

from __future__ import annotations

import math

import pytest

from autopar.graph.opportunities.find import find_opportunities
from autopar.graph.rules import RULES
from autopar.graph.work import total_work
from autopar.view.shown import show_opportunities
from tests.graph.steps import pair, update

from .chrome import Chrome, why_no_chrome
from .test_browser import card, column

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_no_chrome()), reason=why_no_chrome() or "chromium is here")]

READY = "document.documentElement.dataset.ready"
FOUND = find_opportunities(pair(12, batch=64, hidden=256, wide=1024), RULES, precision="fp64")


@pytest.fixture(scope="module")
def chrome():
    with Chrome() as browser:
        yield browser


def open_page(chrome, found, path):
    show_opportunities(found).to_html(path)
    chrome.console_messages(), chrome.requests()
    chrome.open(path)
    chrome.wait(READY)
    return chrome


@pytest.fixture
def page(chrome, tmp_path):
    """The page of `FOUND`, ready; afterwards nothing has left it and nothing was complained about."""
    path = tmp_path / "trace.html"
    yield open_page(chrome, FOUND, path)
    assert chrome.console_messages() == []
    assert chrome.requests() == [path.resolve().as_uri()]


def test_cards_equal_the_report(page):
    total = total_work(FOUND.work)
    assert math.isclose(card(page, "flops"), total.flops)
    assert card(page, "split") == FOUND.splittable.flops_share
    flops = FOUND.dataflow.paths[0]
    assert math.isclose(card(page, "parallelism"), flops.total / flops.length)
    assert card(page, "depth") == len(FOUND.graph.nodes)


def test_each_factor_shows_its_share_and_its_places(page):
    total = total_work(FOUND.work)
    shown = page.run("return [...document.querySelectorAll('.factor[data-factor]')].map((f) => [f.dataset.factor, ...[...f.querySelectorAll('.covers td.number')].map((t) => Number(t.dataset.value))])")
    assert len(shown) == len(FOUND.reaches)
    for (_, flops, moved), reach in zip(shown, FOUND.reaches):
        assert math.isclose(flops, reach.work.flops / total.flops) and math.isclose(moved, reach.work.bytes / total.bytes)
    for k, reach in enumerate(FOUND.reaches):
        if reach.syncs:
            assert sum(column(page, f"syncs-{k}", "count")) == len(reach.syncs)
            assert sum(column(page, f"syncs-{k}", "bytes")) == sum(s.bytes for s in reach.syncs) == column(page, f"syncs-{k}", "bytes", "tfoot")[0]


def test_a_bar_is_as_long_as_its_share(page):
    widths = page.run("return [...document.querySelector('.factor .cover').children].map((i) => parseFloat(i.style.width))")
    assert math.isclose(sum(widths), 100, abs_tol=0.01)


def test_the_graph_is_coloured_by_the_factor_that_is_chosen(page):
    page.click(".factor button.link")  # see it in the graph
    assert page.run("return document.querySelector('[data-tab=Graph]').getAttribute('aria-selected')") == "true"
    page.click("[data-axis='features of up']")
    page.run("document.querySelector('[data-group=\"forward/h[0..11]\"] .toggle, .group:not(.open) .toggle').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    labels = page.run("return [...document.querySelectorAll('text.label')].map((t) => t.textContent)")
    assert any("all_reduce" in label for label in labels), labels
    kinds = dict(page.run("return [...document.querySelectorAll('.node')].map((n) => [n.dataset.node, n.dataset.category])"))
    assert kinds["relu_0"] == "S1" and kinds["down_0"] == "P" and kinds["out_0"] == "R"
    assert page.run("return document.querySelectorAll('.node.marked').length") > 0


def test_a_node_tells_what_each_factor_does_there(page):
    page.click("[data-tab=Graph]")
    page.type("#search", "down_0\n")
    page.wait("document.querySelector('[data-detail=down_0]')")
    told = page.run("return document.getElementById('details').textContent")
    assert "each rank holds a part of the sum" in told and "model.py:1" in told and "dividedoutput" in told.replace(" ", "")


def test_chains_and_rewrites_add_up(chrome, tmp_path):
    found = find_opportunities(update(), RULES)
    page = open_page(chrome, found, tmp_path / "update.html")
    page.click("[data-tab=Waiting]")
    assert column(page, "paths", "longest chain") == [p.length for p in found.dataflow.paths]
    assert sum(column(page, "chain", "FLOPs")) == found.dataflow.paths[0].length
    page.click("[data-tab=Rewrites]")
    assert sum(column(page, "rewrites", "count")) == len(found.dataflow.rewrites) == card(page, "rewrites")
    assert page.run("return document.getElementById('rewrites').textContent").count("@0 → @1") == 2
    assert chrome.console_messages() == []
