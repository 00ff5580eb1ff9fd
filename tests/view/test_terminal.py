"""What the terminal prints: whole at every width, its sums those of the plan."""

import dataclasses
import subprocess
import sys

import pytest

from autopar.graph.mesh import Mesh
from autopar.graph.sharding import replicated
from autopar.view.terminal import certificate_sentence, plan_text
from autopar.view.units import print_bytes, print_count, print_ms, print_percent

from .synthetic_plans import make_plan

PLAN = make_plan(num_layers=12, update_ops=4, hidden=768, seq=1024, memory_bytes=16 << 30)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_too_long_and_no_name_is_cut(width):
    text = plan_text(PLAN, width)
    assert max(map(len, text.splitlines())) <= width
    assert "transformer.h.[0..11].attn.c_attn.weight" in text
    assert "…" not in text and "..." not in text.replace("....", "")
    for word in ("axis a   data + zero-3", "not counted", "exposed", "Certificate", "all_gather", "activations", "S0/1152,S0/576"):
        assert word in text


@pytest.mark.parametrize("width", [60, 120])
def test_the_text_is_stable(width, golden):
    golden(f"plan_text_{width}", plan_text(PLAN, width))


def test_one_rank_has_no_axes_and_no_communication():
    text = plan_text(make_plan(mesh=Mesh(())), 80)
    assert "mesh     1 rank" in text and "Communication" not in text and "whole" in text


def test_three_shardings_that_differ_are_all_shown():
    first = dataclasses.replace(PLAN.params[0], optim=replicated(2))
    text = plan_text(dataclasses.replace(PLAN, params=(first, *PLAN.params[1:])), 120)
    assert "param S0/256,R" in text and "optim R,R" in text


def test_one_collective_along_two_axes_is_one_row():
    one = next(c for c in PLAN.comms if c.kind == "all_gather")
    first = dataclasses.replace(one, axis="b", bytes=1 << 20, seconds=0.5)
    then = dataclasses.replace(first, axis="a", bytes=4 << 20, seconds=0.0, source_sharding=first.target_sharding)
    apart = dataclasses.replace(then, seconds=0.25)

    def rows(*comms):
        text = plan_text(dataclasses.replace(PLAN, comms=comms), 120)
        return [line.split()[:-1] for line in text.splitlines() if line.split()[1:2] == ["all_gather"]]

    assert rows(first, then) == [["a+b", "all_gather", "float32", "1", "of", "1", "4.00", "MiB", "500"]]
    assert rows(first, apart) == [["a", "all_gather", "float32", "1", "of", "1", "4.00", "MiB", "250"], ["b", "all_gather", "float32", "1", "of", "1", "1.00", "MiB", "500"]]


def test_the_certificate_is_a_sentence():
    solve = dataclasses.replace(PLAN.solve, objective_s=0.0123, lower_bound_s=0.01229, gap=0.01 / 12.3)
    assert certificate_sentence(dataclasses.replace(PLAN, solve=solve)) == (
        "proven within 0.081 %: 12.3 ms; no plan in the search space is faster than 12.29 ms"
    )
    solve = dataclasses.replace(solve, lower_bound_s=0.0123, gap=0.0)
    assert certificate_sentence(dataclasses.replace(PLAN, solve=solve)) == "proven optimal: 12.3 ms; no plan in the search space is faster"
    solve = dataclasses.replace(solve, objective_s=35.17, lower_bound_s=9.9996, gap=0.7)
    assert "35,170 ms; no plan in the search space is faster than 10,000 ms" in certificate_sentence(dataclasses.replace(PLAN, solve=solve))


def test_units():
    assert [print_bytes(n) for n in (0, 900, 2048, 5 << 20, 3 << 29, 93 << 30)] == ["0", "900 B", "2.00 KiB", "5.00 MiB", "1.50 GiB", "93.0 GiB"]
    assert [print_ms(s) for s in (0, 1.234, 0.0123, 0.00052, 3e-6)] == ["0 ms", "1,234 ms", "12.3 ms", "0.52 ms", "0.0030 ms"]
    assert [print_percent(x) for x in (0, 0.5, 0.0013, 1e-6, 1)] == ["0 %", "50.0 %", "0.13 %", "<0.01 %", "100 %"]
    assert [print_count(n) for n in (12, 1500, 124_000_000, 1.2e12)] == ["12", "1.50 k", "124 M", "1.20 T"]


def test_rich_is_loaded_only_to_print():
    code = "import sys, autopar.view.terminal, autopar.view.html; assert 'rich' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
