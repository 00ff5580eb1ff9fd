"""A degree along which nothing can be split is refused, not replicated."""

from __future__ import annotations

import pytest

from autopar.errors import ConstraintError
from autopar.solver.recognise import require_split


@pytest.mark.parametrize(
    "labels, degrees, words",
    [
        ((("sp", ("replicated",)),), {"sp": 8}, "sp=8"),
        ((("dp", ("data",)), ("sp", ("replicated",)), ("sp_2", ("replicated",))), {"dp": 2, "sp": 4}, "sp=4"),
        ((("tp", ("replicated",)),), {"tp": 3}, "tp=3"),
    ],
    ids=str,
)
def test_what_splits_nothing_is_refused(labels, degrees, words):
    with pytest.raises(ConstraintError, match=f"{words}: no matmul of this model can be split by it.* leave it out"):
        require_split(labels, degrees)


@pytest.mark.parametrize(
    "labels, degrees",
    [
        ((("sp", ("sequence",)),), {"sp": 8}),
        ((("sp", ("sequence",)), ("sp_2", ("replicated",))), {"sp": 4}),
        ((("dp", ("replicated",)),), {"dp": 2}),
        ((("a", ("replicated",)),), {}),
        ((("tp", ("tensor", "zero-1")),), {"tp": 2}),
        ((), {"sp": 2}),
    ],
    ids=str,
)
def test_what_splits_something_is_not(labels, degrees):
    require_split(labels, degrees)


@pytest.mark.torch
def test_a_class_token_makes_a_sequence_that_does_not_divide():
    torch = pytest.importorskip("torch")
    from autopar.api import plan_workload
    from autopar.cluster import parse_cluster
    from autopar.constraints import parse_fix
    from autopar.options import Options
    from autopar.trace import Workload

    class Patches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.head = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
            self.token = torch.nn.Parameter(torch.zeros(1, 1, 8))

        def forward(self, x):
            x = self.cut(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
            q = self.head(x)[:, :, None].transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)[:, 0, 0]

    workload = Workload(Patches(), (torch.randn(2, 3, 16, 16),), (torch.randn(2, 8),), torch.nn.functional.mse_loss, torch.optim.SGD)
    with pytest.raises(ConstraintError, match="sp=4: no matmul of this model can be split by it"):
        plan_workload(workload, parse_cluster("cpu:4"), Options(constraints=parse_fix("sp=4"), price=False), cache_path=None)


@pytest.mark.torch
@pytest.mark.parametrize("vocab, told", [(50, "4 ranks do not divide 50 (dim 0 of 0.weight and 2 more, 100% of the bytes of parameters), so no op is split along it by all of them; padded to 52, it could be."), (52, "")])
def test_a_vocabulary_that_the_ranks_do_not_divide_is_told(vocab, told):
    torch = pytest.importorskip("torch")
    from autopar.api import plan_workload
    from autopar.cluster import parse_cluster
    from autopar.constraints import parse_fix
    from autopar.options import Options
    from autopar.trace import Workload

    model = torch.nn.Sequential(torch.nn.Embedding(vocab, 16), torch.nn.Linear(16, vocab))
    batch = (torch.randint(vocab, (8, 4)), torch.randint(vocab, (8, 4)))
    loss = lambda out, y: torch.nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
    workload = Workload(model, batch[:1], batch[1:], loss, torch.optim.SGD)
    plan = plan_workload(workload, parse_cluster("cpu:4"), Options(constraints=parse_fix("tp=4"), price=False), cache_path=None).plan
    assert (told or "Axis tp") in plan.summary and ("do not divide" in plan.summary) == bool(told), plan.summary
