"""The page in a real browser: it opens offline and fast, asks for nothing, and its numbers add up where they are shown."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from autopar.graph.mesh import Mesh
from autopar.graph.node import Phase
from autopar.view.html import plan_repr_html, save_html
from autopar.view.units import print_bytes, print_count, print_ms, print_number, print_percent

from .chrome import Chrome, why_no_chrome
from .staged_plans import make_staged_plan
from .synthetic_plans import make_plan

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_no_chrome()), reason=why_no_chrome() or "chromium is here")]

READY = "document.documentElement.dataset.ready"
PLAN = make_plan(num_layers=4, update_ops=4)


@pytest.fixture(scope="module")
def chrome():
    with Chrome() as browser:
        yield browser


@pytest.fixture
def page(chrome, tmp_path):
    """The page of `PLAN`, ready; afterwards nothing has left it and nothing was complained about."""
    path = tmp_path / "plan.html"
    save_html(PLAN, path)
    chrome.console_messages(), chrome.requests()
    chrome.open(path)
    chrome.wait(READY)
    yield chrome
    assert chrome.console_messages() == []
    assert chrome.requests() == [path.resolve().as_uri()]


def card(chrome, name: str) -> float:
    return float(chrome.run(f"return document.querySelector('[data-card={name}]').dataset.value"))


def column(chrome, table: str, title: str, part: str = "tbody") -> list[float]:
    """The raw numbers of the displayed rows."""
    script = """
      const table = document.getElementById(arguments[0]);
      const k = [...table.querySelectorAll("th")].findIndex((th) => th.textContent === arguments[1]);
      return [...table.querySelectorAll(arguments[2] + " tr")].map((tr) => Number(tr.children[k].dataset.value));"""
    return chrome.run(script, table, title, part)


def test_cards_equal_the_sums_of_the_displayed_rows(page):
    assert math.isclose(card(page, "step_s"), PLAN.cost.step_s, rel_tol=1e-9)
    assert math.isclose(card(page, "compute_s"), PLAN.cost.compute_s, rel_tol=1e-9)
    page.click("[data-tab=Memory]")
    assert sum(column(page, "holders", "bytes")) == card(page, "peak_bytes") == max(PLAN.cost.peak_bytes)
    assert column(page, "holders", "bytes", "tfoot") == [card(page, "peak_bytes")]
    page.click("[data-tab=Parameters]")
    folded = len(column(page, "params", "param bytes"))
    for unfold in (False, True):
        if unfold:
            page.click("main > section:not([hidden]) input[type=checkbox]")
            assert len(column(page, "params", "param bytes")) == len(PLAN.params) > folded
        assert sum(column(page, "params", "elements")) == card(page, "num_params") == PLAN.model.num_params
        assert sum(column(page, "params", "count")) == len(PLAN.params)
        for title, field in (("param bytes", "param_bytes"), ("grad bytes", "grad_bytes"), ("optim bytes", "optim_bytes")):
            assert sum(column(page, "params", title)) == sum(getattr(p, field) for p in PLAN.params)
    page.click("[data-tab=Communication]")
    total = math.fsum(c.seconds for c in PLAN.comms)
    for table in ("comm-groups", "comms"):
        assert math.isclose(sum(column(page, table, "time")), total, rel_tol=1e-9)
        assert sum(column(page, table, "count")) == len(PLAN.comms)
    assert sum(column(page, "comms", "message bytes")) == sum(column(page, "comm-groups", "message bytes")) == sum(c.bytes for c in PLAN.comms)
    page.click("[data-tab=Certificate]")
    assert math.isclose(sum(column(page, "phases", "seconds")), sum(s for _, s in PLAN.solve.phases))


def test_printed_numbers_are_the_raw_ones(page):
    assert page.run("return document.querySelector('[data-card=step_s] b').textContent") == f"{PLAN.cost.step_s * 1e3:.2f} ms"
    text = page.run("return document.querySelector('[data-card=peak_bytes] b').textContent")
    assert text == f"{max(PLAN.cost.peak_bytes) / 2**20:.2f} MiB of 1.00 GiB"


def test_the_page_and_the_terminal_print_the_same_number_alike(chrome):
    numbers = [0, 1e-9, 0.00012, 0.0035, 0.0125, 0.125, 0.375, 1.125, 9.995, 12.25, 99.95, 123.5, 1234.5, 1234567.8, *(1.37**k / 1e6 for k in range(90))]
    script = resources.files("autopar.view").joinpath("data.js").read_text()
    shown = chrome.run(f"{script}; return arguments[0].map((x) => [digits(x), ms(x), bytes(Math.round(x)), percent(x), short(Math.round(x))])", numbers)
    assert shown == [[print_number(x), print_ms(x), print_bytes(_round(x)), print_percent(x), print_count(_round(x))] for x in numbers]


def _round(x: float) -> int:
    return math.floor(x + 0.5)


def test_a_group_opens_in_place_and_closes(page):
    assert page.run("return document.querySelectorAll('[data-group^=\"forward/transformer.h\"]').length") == 0
    page.click('[data-group="forward/transformer"] .toggle')
    page.click('[data-group="forward/transformer.h[0..3]"] .toggle')
    assert "×4" in page.run("return document.querySelector('[data-group=\"forward/transformer.h[0..3]\"] .title').textContent")
    inside = page.run("return [...document.querySelectorAll('[data-group=\"forward/transformer.h[0..3]\"] .node')].map((n) => n.dataset.node)")
    first = next(r for r in PLAN.repeats if r.phase.value == "forward").blocks[0]
    assert set(inside) <= set(first) and len(inside) == 4
    labels = page.run("return [...document.querySelectorAll('[data-group=\"forward/transformer.h[0..3]\"] .label')].map((n) => n.textContent)")
    assert "all_reduce b 32.0 KiB per layer" in labels
    page.click('[data-group="forward/transformer.h[0..3]"] .toggle')
    assert page.run("return document.querySelectorAll('[data-group=\"forward/transformer.h[0..3]\"] .node').length") == 0


def test_edges_carry_every_communication_once(page):
    page.run("[...document.querySelectorAll('.tools button')].find((b) => b.textContent === 'Expand all').click()")
    kinds = page.run("return [...document.querySelectorAll('.canvas .label')].map((n) => n.textContent)")
    seen = 0
    for text in kinds:
        number = float(text.split(" × ")[0].replace(",", "")) if " × " in text else 1
        seen += int(number) * (4 if "per layer" in text else 1)
    assert seen == len(PLAN.comms)


def test_a_click_shows_everything_that_is_known(page):
    page.click('[data-group="forward/transformer"] .toggle')
    page.click('[data-group="forward/transformer.h[0..3]"] .toggle')
    page.click('[data-group="forward/transformer.h[0..3].attn"] .toggle')
    node = next(n for n in PLAN.nodes if n.path == "transformer.h.0.attn.c_attn")
    page.click(f'[data-node="{node.name}"]')
    text = page.run("return document.getElementById('details').innerText")
    readers = [n.name for n in PLAN.nodes if node.outputs[0] in n.inputs]
    producer = next(n.name for n in PLAN.nodes if node.inputs[0] in n.outputs)
    for word in (node.name, node.op, node.source, node.path, node.reason, node.refused[0], "float32[8, 32, 192]", "S0/4", producer, *readers, "per layer", "×4 summed"):
        assert word in text, word
    assert node.alternatives[0].choices == ("R", "R") and "R, R" in text
    script = "const s = document.querySelector('#details select'); s.value = 2; s.dispatchEvent(new Event('change'));"
    page.run(script)
    other = next(n for n in PLAN.nodes if n.path == "transformer.h.2.attn.c_attn")
    text = page.run("return document.getElementById('details').innerText")
    assert other.name in text and other.path in text


def test_search_finds_opens_and_selects(page):
    page.type("#search", "forward layer_norm transformer.ln_f")
    page.type("#search", "\ue007")
    node = next(n for n in PLAN.nodes if n.path == "transformer.ln_f")
    assert page.run("return document.querySelector('#details h2').dataset.detail") == node.name
    shown = page.run(f"const b = document.querySelector('[data-node=\"{node.name}\"]').getBoundingClientRect(); return [b.x, b.y, innerWidth, innerHeight]")
    assert 0 < shown[0] < shown[2] and 0 < shown[1] < shown[3]
    page.run("const s = document.getElementById('search'); s.value = 'no such thing'; s.dispatchEvent(new Event('input'));")
    assert page.run("return document.querySelector('.hits').innerText") == "0 found"


def test_the_axis_selector_recolours(page):
    page.type("#search", "forward lm_head linear")
    page.type("#search", "\ue007")
    name = next(n.name for n in PLAN.nodes if n.path == "lm_head")
    ask = f"const n = document.querySelector('[data-node=\"{name}\"]'); return [n.dataset.category, getComputedStyle(n.querySelector('rect')).fill]"
    page.click("[data-axis=a]")
    first = page.run(ask)
    page.click("[data-axis=b]")
    second = page.run(ask)
    assert first[0] == "S0" and second[0] == "S2" and first[1] != second[1]
    assert page.run("return document.querySelector('[data-axis=b]').getAttribute('aria-pressed')") == "true"


def test_phases_and_inputs_can_be_hidden(page):
    page.click("[data-phase=backward]")
    assert page.run("return document.querySelectorAll('[data-group=\"backward/\"]').length") == 0
    page.click("[data-phase=backward]")
    assert page.run("return document.querySelectorAll('[data-group=\"backward/\"]').length") == 1
    assert page.run("return document.querySelectorAll('.chipbox').length") > 0
    page.run("[...document.querySelectorAll('.tools button')].find((b) => b.textContent === 'inputs').click()")
    assert page.run("return document.querySelectorAll('.chipbox').length") == 0


def test_parameters_sort(page):
    page.click("[data-tab=Parameters]")
    page.run("[...document.querySelectorAll('#params th')].find((th) => th.textContent === 'param bytes').click()")
    numbers = column(page, "params", "param bytes")
    assert numbers == sorted(numbers, reverse=True) and len(numbers) > 5


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "unfolded"])
def test_twenty_thousand_nodes_are_ready_in_a_second(chrome, tmp_path, folded):
    plan = make_plan(num_layers=110, update_ops=12, folded=folded)
    assert len(plan.nodes) > 19_000
    save_html(plan, tmp_path / "plan.html")
    chrome.start_cpu_clock()
    before = chrome.cpu_s()
    chrome.open(tmp_path / "plan.html")
    ready_s = int(chrome.wait(READY)) / 1000
    assert chrome.cpu_s() - before < 0.7  # of one core, all that the page does until it is ready
    assert ready_s < 5.0  # by the clock on the wall, other work on this machine included
    chrome.run("[...document.querySelectorAll('.tools button')].find((b) => b.textContent === 'Expand all').click()")
    boxes = chrome.run("return document.querySelectorAll('.canvas .node, .canvas .group, .canvas .chipbox').length")
    assert 100 < boxes <= 2001
    assert folded or "stay closed" in chrome.run("return document.querySelector('.notice').textContent")


def test_one_rank_and_a_page_inside_a_notebook(chrome, tmp_path):
    save_html(make_plan(mesh=Mesh(())), tmp_path / "plan.html")
    chrome.open(tmp_path / "plan.html")
    chrome.wait(READY)
    assert "1 rank" in chrome.run("return document.body.innerText")
    assert set(chrome.run("return [...document.querySelectorAll('.node')].map((n) => getComputedStyle(n.querySelector('rect')).fill)")) == {"rgb(227, 230, 235)"}
    notebook = Path(tmp_path / "notebook.html")
    notebook.write_text(f"<!doctype html><meta charset=utf-8><title>x</title>{plan_repr_html(PLAN)}")
    chrome.console_messages()
    chrome.open(notebook)
    chrome.wait("document.querySelector('iframe')")
    assert chrome.run("return document.querySelector('summary').textContent").startswith("GPT on cpu:4")
    chrome.enter_frame(0)
    chrome.wait(READY)
    chrome.click('[data-group="forward/transformer"] .toggle')
    assert chrome.run("return document.querySelectorAll('[data-group=\"forward/transformer.h[0..3]\"]').length") == 1
    chrome.enter_frame(None)
    assert chrome.console_messages() == []


def test_a_script_that_wants_to_ask_cannot(chrome, tmp_path):
    save_html(PLAN, tmp_path / "plan.html")
    chrome.open(tmp_path / "plan.html")
    chrome.wait(READY)
    chrome.run("window.asked = 'waiting'; fetch('http://127.0.0.1:9/').then(() => { window.asked = 'answered'; }, (e) => { window.asked = 'refused'; });")
    assert chrome.wait("window.asked !== 'waiting' && window.asked") == "refused"
    assert any("Content Security Policy" in message for message in chrome.console_messages())


def test_what_is_done_before_the_turns_is_a_phase_where_there_is_any(chrome, tmp_path):
    """The first node of the plan as one that runs once before the microbatches."""
    first, *others = PLAN.nodes
    plan = replace(
        PLAN, num_microbatches=2, assignment=replace(PLAN.assignment, microbatches=2), nodes=(replace(first, phase=Phase.PREPARE), *others),
        comms=tuple(replace(c, phase=Phase.PREPARE) if c.reader == first.name else c for c in PLAN.comms),
        cost=replace(PLAN.cost, moments=tuple(replace(m, phase=Phase.PREPARE) if m.node == first.name else m for m in PLAN.cost.moments)),
    )  # fmt: skip
    for name, shown, phases in (("plain", PLAN, []), ("turns", plan, ["prepare"])):
        save_html(shown, tmp_path / f"{name}.html")
        chrome.open(tmp_path / f"{name}.html")
        chrome.wait(READY)
        chrome.click("[data-tab=Graph]")
        buttons = chrome.run("return [...document.querySelectorAll('button[data-phase]')].map((b) => b.dataset.phase);")
        groups = chrome.run("return [...document.querySelectorAll('[data-group]')].map((g) => g.dataset.group.split('/')[0]);")
        chrome.click("[data-tab=Memory]")
        texts = chrome.run("return [...document.querySelectorAll('svg.memory text')].map((t) => t.textContent);")
        assert buttons == [*phases, "forward", "backward", "update"]
        assert ("prepare" in groups) == ("prepare" in texts) == bool(phases)
    assert chrome.console_messages() == []
    chrome.requests()


def test_the_stages_of_a_pipeline_and_their_schedule(chrome, tmp_path):
    """A box for each action where the plan's own times put it, and cards that are the average device's."""
    plan = make_staged_plan(pp=2, dp=2, microbatches=4, schedule="1f1b")
    save_html(plan, tmp_path / "stages.html")
    chrome.open(tmp_path / "stages.html")
    chrome.wait(READY)
    for name in ("step_s", "compute_s", "exposed_comm_s"):
        assert math.isclose(card(chrome, name), getattr(plan.cost, name), rel_tol=1e-9)
    chrome.click("[data-tab=Stages]")
    kinds = chrome.run("return [...document.querySelectorAll('svg.schedule rect')].map((r) => r.dataset.kind);")
    drawn = sum(1 for s in plan.pipeline.stages if s.prepare_s) + sum(1 for s in plan.pipeline.stages if s.update_s)
    assert kinds.count("F") == kinds.count("B") == 8 and len(kinds) == 16 + drawn
    ends = chrome.run("return [...document.querySelectorAll('svg.schedule rect')].map((r) => Number(r.getAttribute('x')) + Number(r.getAttribute('width')));")
    assert math.isclose(max(ends), 1230, rel_tol=1e-6)  # the last one ends with the step, at the right edge
    assert column(chrome, "stages", "peak") == list(plan.cost.peak_bytes)
    assert column(chrome, "stages", "forward") == [s.forward_s for s in plan.pipeline.stages]
    chrome.click("[data-tab=Memory]")
    assert sum(column(chrome, "holders", "bytes")) == max(plan.cost.peak_bytes)
    chrome.click("[data-tab=Communication]")
    assert math.isclose(sum(column(chrome, "comms", "time")), math.fsum(c.seconds for c in plan.comms), rel_tol=1e-9)
    assert sum(column(chrome, "comms", "count")) == sum(4 if c.phase in (Phase.FORWARD, Phase.BACKWARD) else 1 for c in plan.comms)
    assert chrome.console_messages() == []
    chrome.requests()
