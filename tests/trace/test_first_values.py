"""First values of optimizer states that are made of numbers alone, when the first step makes them."""

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.constraints import constrain  # noqa: E402
from autopar.errors import TraceError  # noqa: E402
from autopar.trace import trace_step  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402

pytestmark = pytest.mark.torch


class Preconditioned(torch.optim.Optimizer):
    """Rows and columns, as Shampoo has them. Args: begin: what the rows' matrix begins with, of its size."""

    def __init__(self, params, begin):
        super().__init__(params, {"lr": 0.05})
        self.begin = begin

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if p.ndim < 2:
                    p.sub_(p.grad, alpha=group["lr"])
                    continue
                if not state:
                    state["rows"], state["columns"] = self.begin(p.shape[0]), torch.eye(p.shape[1])
                state["rows"].add_(p.grad @ p.grad.t())
                state["columns"].add_(p.grad.t() @ p.grad)
                p.sub_(state["rows"] @ p.grad @ state["columns"] / state["rows"].trace(), alpha=group["lr"])


def workload(begin):
    layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    return autopar.Workload(layers, (torch.randn(8, 6),), (torch.randn(8, 4),), torch.nn.functional.mse_loss, lambda params: Preconditioned(params, begin))


@pytest.mark.parametrize(
    "begin, wanted",
    [(torch.eye, ("eye", 1.0)), (lambda n: 0.1 * torch.eye(n), ("eye", 0.1)), (lambda n: torch.eye(n).mul(3).t().contiguous(), ("eye", 3.0)), (lambda n: torch.full((n, n), 0.3) * 2, ("fill", 0.6))],
    ids=["eye", "scaled", "turned", "full"],
)
def test_made_of_numbers(begin, wanted):
    found = trace_step(workload(begin), "fp32").init_optim
    kind, number = found["rows:0.weight"]
    assert (kind, number) == (wanted[0], pytest.approx(wanted[1], rel=1e-6)) and found["columns:2.weight"] == ("eye", 1.0)


@pytest.mark.parametrize("words", [{"dp": 2, "zero": 0}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3, "microbatches": 2}, {"tp": 2}], ids=str)
def test_numbers_are_those_of_plain_pytorch(words):
    options = autopar.Options(constraints=constrain(**words), price=False, time_limit_s=20.0)
    report = verify_workload(workload(lambda n: 0.1 * torch.eye(n)), "cpu:2", options)
    assert not report.failures, describe_failure(report)


def test_a_state_with_other_numbers_says_what_it_may_start_as():
    with pytest.raises(TraceError, match=r"(?s)state rows:0.weight.*torch.eye"):
        trace_step(workload(lambda n: torch.ones(n, n).tril()), "fp32")


class Growing(torch.optim.Optimizer):
    """Does something at first that later steps do not, with what it made of numbers."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["held"] = torch.zeros_like(p)
                    p.add_(0.5 * torch.ones(p.shape))
                state["held"].add_(p.grad)
                p.sub_(state["held"])


def test_a_first_step_that_does_more_is_refused():
    layers = torch.nn.Linear(6, 4)
    with pytest.raises(TraceError, match="first step is not like the later ones"):
        trace_step(autopar.Workload(layers, (torch.randn(8, 6),), (torch.randn(8, 4),), torch.nn.functional.mse_loss, lambda params: Growing(params, {})), "fp32")
