"""What users count on in plans: spelling does not matter, tighter memory never makes a step faster, states are as large as predicted."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import autopar  # noqa: E402
from autopar.constraints import constrain
from autopar.errors import InfeasibleError  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.verify import verify_workload  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, HEADS, SEQ, BATCH, VOCAB = 64, 4, 32, 8, 128


class Block(nn.Module):
    """One transformer block, in the spelling that is asked for."""

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=spelling != "no bias")
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act = nn.GELU()

    def forward(self, x):
        b, s, w = (BATCH, SEQ, WIDTH) if self.spelling == "constants" else x.shape
        h = self.norm_1(x)
        qkv = F.linear(h, self.qkv.weight, self.qkv.bias) if self.spelling == "functional" else self.qkv(h)
        if self.spelling == "flat":
            qkv = self.qkv(h.reshape(b * s, w)).view(b, s, 3 * w)
        q, k, v = (t.view(b, s, HEADS, w // HEADS).transpose(1, 2) for t in qkv.split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, w)
        x = x + self.out(y)
        act = F.gelu if self.spelling == "functional" else self.act
        return x + self.down(act(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, spelling="plain", layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(spelling) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mean_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def sum_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), reduction="sum")


def plan_of(spelling="plain", cluster="cpu:4", memory=None, loss=mean_loss, seconds=60.0, most=None):
    ids = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    with torch.device("meta"):
        model = Gpt(spelling)
    return autopar.plan(
        model, cluster, example_inputs=(ids,), example_targets=(ids,), loss=loss, optimizer=torch.optim.AdamW,
        options=Options(memory_bytes=memory, time_limit_s=seconds, constraints=constrain(**{} if most is None else {"pp": most}), price=False),
    )  # fmt: skip


@pytest.fixture(scope="module")
def tight():
    """A limit at which the plan must split."""
    return int(0.7 * plan_of(cluster="cpu:2").cost.peak_bytes[0])


@pytest.fixture(scope="module")
def plain(tight):
    return plan_of(cluster="cpu:2", memory=tight)


@pytest.mark.parametrize("spelling", ["no bias", "constants", "functional", "flat", "sum loss"])
def test_spelling_does_not_change_the_plan(plain, tight, spelling):
    loss = sum_loss if spelling == "sum loss" else mean_loss
    other = plan_of(spelling, cluster="cpu:2", memory=tight, loss=loss)
    if spelling != "no bias":  # which has fewer parameters to update
        assert other.cost.step_s == pytest.approx(plain.cost.step_s, rel=0.01)
    assert other.assignment.mesh == plain.assignment.mesh
    stored = {p.name: (p.param, p.optim) for p in plain.params}
    assert {p.name: (p.param, p.optim) for p in other.params} == {p.name: stored[p.name] for p in other.params}


def measured_bytes(plan):
    """Bytes of the pieces that rank 0 makes: parameters, and optimizer states."""
    from autopar.graph.mesh import axis_sizes
    from autopar.graph.sharding import local_shape

    sizes = axis_sizes(plan.assignment.mesh)
    total = 0
    for t in plan.tensors:
        if t.version == 0 and t.kind.value in ("param", "optim", "buffer") and "@" in t.name:
            total += torch.empty(local_shape(t.shape, t.sharding, sizes), dtype=getattr(torch, t.dtype)).untyped_storage().nbytes()
    return total


def test_tighter_memory_moves_from_replicated_to_split_and_is_never_faster():
    """In one stage, where the proof closes; stages are as fast or faster."""
    ample = plan_of(cluster="cpu:2", most=1)
    peak, last, states = ample.cost.peak_bytes[0], ample.cost.step_s, []
    for share in (1.0, 0.75, 0.55):
        limit = int(peak * share)
        plan = plan_of(cluster="cpu:2", memory=limit, most=1)
        assert plan.cost.peak_bytes[0] <= limit
        assert plan.cost.step_s >= last * (1 - plan.solve.gap - 1e-9)
        assert plan.solve.gap <= 0.01
        assert plan.cost.state_bytes[0] == pytest.approx(measured_bytes(plan), rel=0.03)
        last = plan.cost.step_s
        states.append(plan.cost.state_bytes[0])
    assert states[-1] < states[0] and plan.assignment.again


def test_what_does_not_fit_at_all_says_what_is_missing():
    peak = plan_of(cluster="cpu:2").cost.peak_bytes[0]
    with pytest.raises(InfeasibleError) as error:
        plan_of(cluster="cpu:2", memory=peak // 10, seconds=5)
    assert "too much" in str(error.value) and "largest:" in str(error.value) and "nearest change that fits" in str(error.value)


class Causal(nn.Module):
    """Adds a mask of zeros and infinities, which is a buffer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, x):
        return (self.mix(x) + self.mask).softmax(-1)


def test_infinities_in_a_buffer():
    workload = autopar.Workload(Causal(), (torch.randn(8, 4, 4),), (torch.randn(8, 4, 4),), F.mse_loss, torch.optim.SGD)
    assert not verify_workload(workload, "cpu:2", Options(constraints=constrain(dp=2))).failures
