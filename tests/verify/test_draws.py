"""A program that draws: its counter is saved and loaded, and its steps go on as if nothing had happened."""

import functools

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.graph.rules.random_numbers import STATE  # noqa: E402
from autopar.options import Options  # noqa: E402

pytestmark = pytest.mark.torch


def start(seed=0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
    return autopar.compile(
        model, "cpu:1", example_inputs=(torch.randn(8, 6),), example_targets=(torch.arange(8) % 4,), loss=torch.nn.functional.cross_entropy,
        optimizer=functools.partial(torch.optim.SGD, lr=0.0), options=Options(precision="fp32", seed=seed),
    )  # fmt: skip


def run(step, count):
    x, y = torch.linspace(-1, 1, 48).view(8, 6), torch.arange(8) % 4
    return [float(step(x, y)) for _ in range(count)]  # no parameter changes: what differs is what was drawn


def test_steps_draw_others_and_a_checkpoint_goes_on(tmp_path):
    step = start()
    losses = run(step, 2)
    step.save(tmp_path / "saved")
    losses += run(step, 2)
    assert len(set(losses)) == 4
    again = start()
    again.load(tmp_path / "saved")
    assert run(again, 2) == losses[2:]
    assert run(start(), 4) == losses
    assert run(start(seed=1), 1)[0] not in losses


def test_the_counter_is_no_part_of_the_model():
    step = start()
    assert STATE in step.program.states and STATE not in step.state_dict()
    before = int(step.state[STATE])
    step.load_state_dict(step.state_dict())
    run(step, 3)
    assert int(step.state[STATE]) == before + 3


class Fickle(torch.nn.Linear):
    """Draws on real tensors only."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x) if type(x) is torch.Tensor else torch.nn.functional.dropout(x + torch.rand_like(x)))


def test_another_way_through_the_model_is_told():
    from autopar.errors import ModelError
    from autopar.verify import verify_workload

    x, y = torch.randn(8, 6), torch.arange(8) % 4
    work = autopar.Workload(Fickle(6, 4), (x,), (y,), torch.nn.functional.cross_entropy, torch.optim.SGD)
    with pytest.raises(ModelError, match="plain PyTorch has drawn 1 fewer random tensors than the traced step"):
        verify_workload(work, "cpu:2")
