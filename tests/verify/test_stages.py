"""Steps in microbatches and stages that are no ordinary training steps, beside plain PyTorch in float64."""

import pytest
import torch

import autopar
from autopar.constraints import parse_fix
from autopar.demo.model import Gpt, token_loss
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


def test_gradients_of_parameters_that_the_optimizer_leaves_alone():
    def some(parameters):
        return torch.optim.SGD(list(parameters)[2:], lr=0.1)

    workload = autopar.Workload(make_gpt(), (draw_tokens(),), (draw_tokens(),), token_loss, some)
    verify(workload, "cpu:2", "pp=2,microbatches=4")
