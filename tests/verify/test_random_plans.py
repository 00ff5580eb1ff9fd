"""`verify --random-plans`: a compiler that is wrong for some legal plan is found, though the chosen plan is right."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import MappingProxyType

import pytest

torch = pytest.importorskip("torch")

from autopar import verify  # noqa: E402
from autopar.graph.rules import RULES  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from autopar.verify import compare  # noqa: E402

pytestmark = pytest.mark.torch


def make_workload() -> Workload:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    loss = torch.nn.functional.mse_loss
    return Workload(model, (torch.randn(8, 8),), (torch.randn(8, 8),), loss, torch.optim.AdamW, name="mlp")


def test_random_plans_pass_and_are_counted():
    report = verify.verify_workload(make_workload(), "cpu:4", random_plans=6)
    assert report.random_plans == 6 and report.plans_in_turns > 0 and not report.failures
    assert {k.kind: k.num_tensors for k in report.kinds}["gradient"] == 4


def test_a_capturable_optimizer_is_compared_on_a_cpu():
    """torch itself takes `capturable` on GPUs only; the numbers are the same without."""
    model = torch.nn.Linear(4, 4)
    adamw = functools.partial(torch.optim.AdamW, lr=1e-2, capturable=True)
    report = verify.verify_workload(Workload(model, (torch.randn(8, 4),), (torch.randn(8, 4),), torch.nn.functional.mse_loss, adamw), "cpu:2")
    assert not report.failures


def test_a_wrong_rule_is_found_by_random_plans_only(monkeypatch):
    """A Partial through relu is wrong; no solver would choose it here."""
    wrong = MappingProxyType({**RULES, "aten.relu": replace(RULES["aten.relu"], linear=(("self",),))})
    monkeypatch.setattr(compare, "rules_in_force", lambda rows: wrong)
    report = verify.verify_workload(make_workload(), "cpu:4", random_plans=24)
    assert report.failures
    assert all(f.plan.startswith("random plan") for f in report.failures)
    assert "random plan" in verify.describe_failure(report)
    assert verify.report_to_json(report)["failures"][0]["plan"]
