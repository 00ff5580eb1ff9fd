"""Notes beside the lines of a program: what was chosen for them and why, where there was a choice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar import Options
from autopar.codegen.emit import plan_notes

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_one_rank_nothing_is_said_for_there_is_no_choice(ranks, tmp_path):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    step = autopar.compile(model, f"cpu:{ranks}", example_inputs=(torch.randn(8, 16),), example_targets=(torch.randint(4, (8,)),), loss=F.cross_entropy, optimizer=torch.optim.AdamW, options=Options(price=False))
    step.emit(tmp_path)
    notes = [line.strip() for line in (tmp_path / "program.py").read_text().splitlines() if line.strip().startswith("#   ")]
    assert bool(notes) == bool(plan_notes(step.plan)) == (ranks > 1)
    assert all(" -> " in note and ";" in note for note in notes)
