"""Steps in microbatches and stages that are no ordinary training steps, beside plain PyTorch in float64."""

import functools

import pytest
import torch
from torch import nn

import autopar
from autopar.constraints import parse_fix
from autopar.demo.model import Gpt, token_loss
from autopar.errors import ConstraintError
from autopar.graph.schedules.known import build_schedule
from autopar.verify import describe_failure, verify_workload

pytestmark = pytest.mark.torch
VOCAB, BATCH, SEQ = 16, 8, 4


def verify(workload: autopar.Workload, cluster: str, fix: str, random_plans: int = 0):
    report = verify_workload(workload, cluster, autopar.Options(constraints=parse_fix(fix), price=False, time_limit_s=10.0), random_plans=random_plans)
    assert not report.failures, describe_failure(report)
    return report


def make_gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt(vocab=VOCAB, seq=SEQ, layers=2, hidden=8, heads=2)


def draw_tokens() -> torch.Tensor:
    return torch.randint(0, VOCAB, (BATCH, SEQ))


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize("cluster, fix", [("cpu:1", "pp=1"), ("cpu:2", "dp=2,pp=1"), ("cpu:2", "pp=2"), ("cpu:4", "pp=2,dp=2")])
def test_gradients_that_no_optimizer_reads_are_summed_over_the_turns(cluster, fix, microbatches):
    workload = autopar.Workload(make_gpt(), (draw_tokens(),), (draw_tokens(),), token_loss)
    report = verify(workload, cluster, f"{fix},microbatches={microbatches}")
    assert report.plans_in_turns == 1 and {k.kind for k in report.kinds} == {"loss", "gradient", "parameter"}


class Layered(Gpt):
    """Gives what many a model gives beside its logits: every layer's output, a mean over the samples, what depends on the input alone, and a weight."""

    def forward(self, tokens: torch.Tensor) -> dict:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        layers = []
        for block in self.blocks:
            x = block(x)
            layers.append(x)
        logits = self.head(self.norm(x))
        return {
            "logits": logits, "layers": tuple(layers), "mean": logits.mean(), "padding": tokens == 0, "tokens": tokens, "scale": self.norm.weight,
            "bias": self.norm.bias * 2.0, "again": logits,
        }  # fmt: skip


def inference(layers: int = 4) -> autopar.Workload:
    torch.manual_seed(0)
    return autopar.Workload(Layered(vocab=VOCAB, seq=SEQ, layers=layers, hidden=8, heads=2).eval(), (draw_tokens(),))


FIXES = ("pp=1,microbatches=1", "pp=1,microbatches=2", "pp=1,dp=2,microbatches=4", "pp=2,microbatches=1", "pp=2,microbatches=2", "pp=4,microbatches=8",
         "pp=2,dp=2,microbatches=4", "pp=2,tp=2,microbatches=1", "pp=2,vpp=2,microbatches=4")  # fmt: skip


@pytest.mark.parametrize("fix", FIXES)
def test_outputs_leave_the_step_whole_on_every_rank(fix):
    words = dict(word.split("=") for word in fix.split(","))
    ranks = int(words["pp"]) * int(words.get("dp", 1)) * int(words.get("tp", 1))
    report = verify(inference(), f"cpu:{ranks}", fix)
    assert [(k.kind, k.num_tensors) for k in report.kinds][0] == ("output", 11)


@pytest.mark.parametrize("seed", range(3))
def test_random_plans_of_inference(seed):
    """Cut anywhere, any sharding; a model that draws in its forward pass, or has a batch norm that learns."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3) if seed else nn.BatchNorm1d(6), nn.ReLU()) for _ in range(4)]
    workload = inference(2) if seed == 2 else autopar.Workload(nn.Sequential(*blocks), (torch.randn(8, 6),))
    report = verify(workload, "cpu:4", "pp=2", random_plans=12)
    assert (report.plans_in_turns > 0) is (seed > 0) and report.random_plans == 12


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_there_and_back(stages, microbatches):
    """ZB-V; with momentum, tied embeddings and dropout (the tied weight is on the first stage alone, which has the head, too)."""
    torch.manual_seed(0)
    model = Gpt(vocab=VOCAB, seq=SEQ, layers=6, hidden=8, heads=2)
    model.norm = nn.Sequential(model.norm, nn.Dropout(0.1))
    optimizer = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    workload = autopar.Workload(model, (draw_tokens(),), (draw_tokens(),), token_loss, optimizer)
    verify(workload, f"cpu:{stages}", f"pp={stages},microbatches={microbatches},schedule=zbv")


@pytest.mark.parametrize("grid", ["0F0:0F1:0B0:0I1:0W1;1F0:1B0:1F1:1B1", "0F0:0F1:3F0:3I0:0F2:3W0:3F1:3B1:0B0:3F2:3B2:0I1:0W1:0B2;1F0:2F0:1F1:2F1:2B0:1F2:1B0:2F2:2I1:1B1:2W1:2B2:1I2:1W2"])
def test_a_grid_with_full_backwards_and_split_ones(grid):
    torch.manual_seed(0)
    workload = autopar.Workload(Gpt(vocab=VOCAB, seq=SEQ, layers=4, hidden=8, heads=2), (draw_tokens()[:6],), (draw_tokens()[:6],), token_loss, torch.optim.SGD)
    microbatches = 1 + max(int(cell.split("F")[1]) for cell in grid.replace(";", ":").split(":") if "F" in cell)
    verify(workload, "cpu:2", f"pp=2,microbatches={microbatches},schedule={grid}")


def test_schedules_without_a_backward_are_those_of_inference():
    steps = {"forward-only": "0F0:0F1;1F0:1F1", "trained": "0F0:0F1:0B0:0B1;1F0:1B0:1F1:1B1"}
    plan = autopar.plan_workload(inference(), "cpu:2", autopar.Options(constraints=parse_fix("pp=2,microbatches=4"), price=False)).plan
    assert plan.pipeline.kind == "forward-only" and {row.in_flight for row in plan.pipeline.stages} == {1.0}
    assert {a.kind.value for row in build_schedule("forward-only", 2, 4).actions for a in row} == {"F"}
    verify(inference(), "cpu:2", f"pp=2,microbatches=2,schedule={steps['forward-only']}")
    for schedule in ("1f1b", steps["trained"]):
        with pytest.raises(ConstraintError, match="schedule=(1f1b|own): the model has no loss, so nothing goes backward; take forward-only, or leave it out"):
            verify(inference(), "cpu:2", f"pp=2,microbatches=2,schedule={schedule}")
    trained = autopar.Workload(make_gpt(), (draw_tokens(),), (draw_tokens(),), token_loss, torch.optim.SGD)
    for schedule in ("forward-only", steps["forward-only"]):
        with pytest.raises(ConstraintError, match="schedule=(forward-only|own): the model is trained, so every forward needs its backward"):
            verify(trained, "cpu:2", f"pp=2,microbatches=2,schedule={schedule}")


def test_gradients_of_parameters_that_the_optimizer_leaves_alone():
    def some(parameters):
        return torch.optim.SGD(list(parameters)[2:], lr=0.1)

    workload = autopar.Workload(make_gpt(), (draw_tokens(),), (draw_tokens(),), token_loss, some)
    verify(workload, "cpu:2", "pp=2,microbatches=4")
