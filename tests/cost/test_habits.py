"""Habits of other frameworks: blocks that are run again whole, ends of a step that hide, kernels of runs that fuse nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

import pytest

from autopar.cluster import parse_cluster
from autopar.constraints import constrain, names_layout
from autopar.cost.attention import attention_seconds
from autopar.cost.matmul import find_matmul_rates
from autopar.cost.model import build_cost_model
from autopar.solver.layout_cases import LayoutCases
from autopar.solver.pipeline import PipelineSearch
from tests.solver.blocks import build_block_case

SHAPE = {"blocks": 8, "width": 1024, "hidden": 4096, "batch": 4096, "vocab": 1024, "momentum": True}


def price(price_only=False, habits=(), **words):
    model = replace(build_cost_model(parse_cluster("2x4xH100-80GB")), **dict.fromkeys(habits, True))
    search = PipelineSearch(LayoutCases(build_block_case(**SHAPE), constrain(**words)), model, 60 * 2**30, time.monotonic() + 60, lambda line: None, price_only=price_only)
    search.run(inf)
    assert search.best is not None
    return search.best


def test_whole_blocks_cost_what_their_forward_pass_does():
    words = {"pp": 2, "tp": 4, "microbatches": 4, "recompute": "full", "schedule": "1f1b"}
    ours, theirs = price(**words), price(habits=("whole_blocks",), **words)
    for mine, other in zip(ours.stages, theirs.stages):
        assert mine.times.forward_s == pytest.approx(other.times.forward_s)
        more = other.times.backward_s - mine.times.backward_s
        assert 0 < more < mine.times.forward_s  # the last matmul of each block, and what follows it


def test_nothing_is_run_again_whole_without_full_recompute():
    words = {"pp": 2, "tp": 4, "microbatches": 4, "recompute": "none", "schedule": "1f1b"}
    assert price(habits=("whole_blocks",), **words).step_s == price(**words).step_s


def test_ends_hide_at_most_the_share_that_may():
    words = {"pp": 1, "dp": 8, "microbatches": 4, "zero": 1, "recompute": "none"}
    ours, theirs = price(**words), price(habits=("hides_ends",), **words)
    mine, other = ours.stages[0].times, theirs.stages[0].times
    assert 0.5 * mine.update_s <= other.update_s < mine.update_s
    assert (mine.forward_s, mine.backward_s) == pytest.approx((other.forward_s, other.backward_s))


def test_the_price_of_a_layout_is_what_the_search_finds():
    for words in ({"pp": 2, "dp": 4, "microbatches": 8, "vpp": 1}, {"pp": 4, "tp": 2, "microbatches": 8, "schedule": "1f1b"}, {"pp": 1, "dp": 8, "microbatches": 4}):
        assert names_layout(constrain(**words)) and not names_layout(constrain(dp=2, tp=4))
        assert price(price_only=True, **words).step_s == pytest.approx(price(**words).step_s, rel=0.01)


def test_triton_attention_is_slower_than_flash2_by_what_its_paper_says():
    rates = find_matmul_rates("A100-80GB")
    for backward, low, high in ((False, 1.3, 1.5), (True, 1.8, 2.2)):
        first, second = (attention_seconds(rates, 8, 16, 4096, 4096, 128, "bfloat16", causal=True, kernel=k, backward=backward) for k in ("triton", "flash2"))
        assert low < float(first / second) < high
