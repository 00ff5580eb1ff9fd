"""Embeddings and cross-entropy in the forms that split over the vocabulary: equal to eager, whatever the spelling, and without new big tensors."""

from __future__ import annotations

import functools

import pytest
import torch
from compare import batch, first_states, worst_differences
from torch import nn
from torch.nn import functional as F
from zoo import ADAMW, gpt2

from autopar.graph.graph import value_table
from autopar.graph.node import Phase
from autopar.graph.tensor import num_elements
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch
TOLERANCE = 1e-10
B, S, V, D = 2, 6, 12, 8
WHOLE = ("aten._log_softmax.default", "aten._log_softmax_backward_data.default")
SPLIT = ("autopar.sum_exp", "autopar.pick", "autopar.cross_entropy_backward")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Head(nn.Module):
    """Tokens to logits [B, S, V]."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D, **options)
        self.head = nn.Linear(D, V)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(ids)))


def head(loss, targets=None, **options) -> Workload:
    ids = torch.randint(0, V, (B, S))
    if targets is None:
        targets = torch.randint(0, V, (B, S))
        targets[0, 1] = targets[1, 3] = -100
    return Workload(Head(**options), (ids,), (targets,), loss, ADAMW)


CLASS_WEIGHTS = torch.linspace(0.5, 2.0, V)


def flat(x, t, **options):
    return F.cross_entropy(x.flatten(0, 1), t.flatten(), **options)


SPELLINGS = {
    "classes second": lambda x, t: F.cross_entropy(x.transpose(1, 2), t),
    "view": lambda x, t: F.cross_entropy(x.view(-1, V), t.view(-1)),
    "reshape": lambda x, t: F.cross_entropy(x.reshape(B * S, V), t.reshape(B * S)),
    "module": lambda x, t: nn.CrossEntropyLoss()(x.flatten(0, 1), t.flatten()),
    "module, classes second": lambda x, t: nn.CrossEntropyLoss()(x.permute(0, 2, 1), t),
    "log_softmax and nll": lambda x, t: F.nll_loss(F.log_softmax(x, -1).flatten(0, 1), t.flatten()),
    "flat log_softmax and nll": lambda x, t: F.nll_loss(F.log_softmax(x.flatten(0, 1), 1), t.flatten()),
    "log_softmax, classes second": lambda x, t: F.nll_loss(F.log_softmax(x, -1).transpose(1, 2), t),
    "nll, classes second": lambda x, t: nn.NLLLoss()(nn.LogSoftmax(1)(x.transpose(1, 2)), t),
    "five dims": lambda x, t: F.cross_entropy(x.view(B, 1, 2, 3, V).permute(0, 4, 1, 2, 3), t.view(B, 1, 2, 3)),
    "four dims": lambda x, t: F.cross_entropy(x.view(B, 2, 3, V).permute(0, 3, 1, 2), t.view(B, 2, 3)),
}
REDUCTIONS = {
    "sum": functools.partial(flat, reduction="sum"),
    "weights": lambda x, t: flat(x, t, weight=CLASS_WEIGHTS.to(x.dtype)),
    "weights summed": lambda x, t: flat(x, t, weight=CLASS_WEIGHTS.to(x.dtype), reduction="sum"),
    "none": lambda x, t: (flat(x, t, reduction="none") * torch.arange(12.0)).mean(),
    "none, classes second": lambda x, t: (F.cross_entropy(x.transpose(1, 2), t, reduction="none") ** 2).sum(),
    "ignored class": lambda x, t: flat(x, t.clamp(min=0), ignore_index=3),
    "shifted": lambda x, t: F.cross_entropy(x[:, :-1].reshape(-1, V), t[:, 1:].reshape(-1)),
    "two losses": lambda x, t: flat(x, t) + 0.3 * flat(2 * x, t.roll(1)),
    "twice the same logits": lambda x, t: flat(x, t) + 0.3 * flat(x, t.roll(1)),
    "one sequence": lambda x, t: F.cross_entropy(x[0], t[0]) * 2,
    "one token": lambda x, t: F.cross_entropy(x[0, 0], t[0, 0]),
}


def by_hand(smooth, dim=-1):
    """Label smoothing as people spell it: `smooth(log-probabilities, targets)` beside the loss of the targets."""

    def loss(x, t):
        log_p = F.log_softmax(x.flatten(0, 1) if dim == -1 else x.transpose(1, 2), dim)
        return 0.9 * F.nll_loss(log_p, t.flatten() if dim == -1 else t) + 0.1 * smooth(log_p, t)

    return loss


SMOOTHED = {
    "label smoothing": functools.partial(flat, label_smoothing=0.1),
    "smoothing, summed": functools.partial(flat, label_smoothing=0.1, reduction="sum"),
    "smoothing, none": lambda x, t: (flat(x, t, label_smoothing=0.2, reduction="none") * torch.arange(12.0)).mean(),
    "smoothing, none, classes second": lambda x, t: (F.cross_entropy(x.transpose(1, 2), t, reduction="none", label_smoothing=0.2) ** 2).sum(),
    "smoothing and weights": lambda x, t: flat(x, t, weight=CLASS_WEIGHTS.to(x.dtype), label_smoothing=0.1),
    "smoothing and weights, summed": lambda x, t: flat(x, t, weight=CLASS_WEIGHTS.to(x.dtype), label_smoothing=0.1, reduction="sum"),
    "smoothing and weights, classes second": lambda x, t: F.cross_entropy(x.transpose(1, 2), t, CLASS_WEIGHTS.to(x.dtype), label_smoothing=0.3),
    "smoothing, ignored class": lambda x, t: flat(x, t.clamp(min=0), ignore_index=3, label_smoothing=0.1),
    "nothing but smoothing": functools.partial(flat, label_smoothing=1.0),
    "smoothing, four dims": lambda x, t: F.cross_entropy(x.view(B, 2, 3, V).permute(0, 3, 1, 2), t.view(B, 2, 3), label_smoothing=0.1),
    "smoothing, one token": lambda x, t: F.cross_entropy(x[0, 0], t[0, 0], label_smoothing=0.1),
    "smoothing, far from zero": lambda x, t: flat(x + 40, t, label_smoothing=0.1),
    "two smoothed losses": lambda x, t: flat(x, t, label_smoothing=0.1) + 0.3 * flat(x, t.roll(1), label_smoothing=0.2),
    "mean by hand": by_hand(lambda p, t: -(p.mean(-1)).mean()),
    "mean of all by hand": by_hand(lambda p, t: -p.mean()),
    "sum by hand": by_hand(lambda p, t: (-p).sum(-1, keepdim=True).mean() / V),
    "sum of all by hand": by_hand(lambda p, t: -p.sum()),
    "masked by hand": by_hand(lambda p, t: -(p.mean(-1) * (t.flatten() != -100)).sum()),
    "weighted by hand": by_hand(lambda p, t: -(p * (CLASS_WEIGHTS.to(p.dtype) * 0.5)).sum(-1).mean()),
    "weighted twice by hand": by_hand(lambda p, t: (CLASS_WEIGHTS.to(p.dtype) * (-p / 3) * CLASS_WEIGHTS.to(p.dtype)).sum(1).square().mean()),
    "classes second by hand": by_hand(lambda p, t: -(p.mean(1) * (t != -100)).sum(), 1),
    "sequences summed by hand": by_hand(lambda p, t: p.mean((1, 2)).square().mean(), 1),
    "two targets of one softmax": lambda x, t: (lambda p: F.nll_loss(p, t.flatten()) + F.nll_loss(p, t.roll(1).flatten()))(F.log_softmax(x.flatten(0, 1), -1)),
    "views of one softmax": lambda x, t: (lambda p: F.nll_loss(p.flatten(0, 1), t.flatten()) - 0.1 * p.transpose(1, 2).mean(1).mean() - p.view(-1, V).sum(1).std())(F.log_softmax(x, -1)),
}
def soft(t, dtype=torch.float64):
    """Probabilities of the classes, which add up to other numbers than 1."""
    return torch.softmax(torch.sin(torch.arange(B * S * V, dtype=dtype)).view(B, S, V) * 3, -1) * (1 + t.clamp(min=0)[..., None])


def flat_soft(x, t, **options):
    return F.cross_entropy(x.flatten(0, 1), soft(t, x.dtype).flatten(0, 1), **options)


# one class gathered for each token
GATHERED = {
    "gathered": lambda x, t: -F.log_softmax(x, -1).gather(-1, t.clamp(min=0)[..., None]).mean(),
    "gathered, squeezed, masked": lambda x, t: -(F.log_softmax(x, -1).gather(2, t.clamp(min=0).unsqueeze(2)).squeeze(2) * (t != -100)).sum() / 7,
    "gathered, flat": lambda x, t: torch.gather(F.log_softmax(x.view(-1, V), 1), 1, t.view(-1, 1).clamp(min=0)).square().mean(),
    "gathered, classes second": lambda x, t: F.log_softmax(x.transpose(1, 2), 1).gather(1, t.clamp(min=0)[:, None]).exp().sum(),
    "taken along": lambda x, t: torch.take_along_dim(F.log_softmax(x, -1), t.clamp(min=0)[..., None], -1).sum(),
    "indexed": lambda x, t: -F.log_softmax(x.flatten(0, 1), -1)[torch.arange(12), t.flatten().clamp(min=-2)].mean(),
    "gathered and smoothed": lambda x, t: (lambda p: -0.9 * p.gather(-1, t.clamp(min=0)[..., None]).mean() - 0.1 * p.mean(-1).mean())(F.log_softmax(x, -1)),
    "gathered twice": lambda x, t: (lambda p: -p.gather(-1, t.clamp(min=0)[..., None]).mean() - p.gather(-1, t.roll(1).clamp(min=0)[..., None]).exp().mean())(F.log_softmax(x, -1)),
    "gathered beside a loss": lambda x, t: (lambda p: F.nll_loss(p.flatten(0, 1), t.flatten()) + p.gather(-1, t.clamp(min=0)[..., None]).square().mean())(F.log_softmax(x, -1)),
    "one gathered token": lambda x, t: F.log_softmax(x[0, 0], 0).gather(0, t[0, :1]).sum(),
}
# sums over the classes of what is linear in the log-probabilities
LINEAR = {
    "probabilities": flat_soft,
    "probabilities, summed": functools.partial(flat_soft, reduction="sum"),
    "probabilities, none": lambda x, t: (flat_soft(x, t, reduction="none") * torch.arange(12.0)).mean(),
    "probabilities, smoothed, weighted": lambda x, t: flat_soft(x, t, label_smoothing=0.2, weight=CLASS_WEIGHTS.to(x.dtype)),
    "probabilities, classes second": lambda x, t: F.cross_entropy(x.transpose(1, 2), soft(t, x.dtype).transpose(1, 2)),
    "one-hot": lambda x, t: F.cross_entropy(x.flatten(0, 1), F.one_hot(t.flatten().clamp(min=0), V).to(x.dtype)),
    "probabilities by hand": lambda x, t: torch.sum(-soft(t, x.dtype) * F.log_softmax(x, -1), dim=-1).mean(),
    "divergence": lambda x, t: F.kl_div(F.log_softmax(x / 2, -1), soft(t, x.dtype), reduction="batchmean") * 4,
    "divergence, flat": lambda x, t: F.kl_div(F.log_softmax(x.flatten(0, 1), -1), soft(t, x.dtype).flatten(0, 1), reduction="sum"),
    "divergence of logarithms": lambda x, t: F.kl_div(F.log_softmax(x, -1), soft(t, x.dtype).log(), log_target=True, reduction="sum"),
    "divergence, none": lambda x, t: (F.kl_div(F.log_softmax(x, -1), soft(t, x.dtype), reduction="none").sum(-1) * (t != -100)).mean(),
    "divergence by hand": lambda x, t: (soft(t, x.dtype) * (soft(t, x.dtype).log() - F.log_softmax(x, -1))).sum(-1).mean(),
    "distilled beside the loss": lambda x, t: (lambda p: 0.5 * F.nll_loss(p.flatten(0, 1), t.flatten()) + 0.5 * F.kl_div(p, soft(t, x.dtype), reduction="batchmean"))(F.log_softmax(x, -1)),
    "weights of tokens": lambda x, t: -(F.log_softmax(x, -1) * (t != -100)[..., None].to(x.dtype)).sum(-1).square().mean(),
    "shifted": lambda x, t: (F.log_softmax(x, -1) * 2 + 3).sum(-1).square().mean(),
    "shifted, then weighted": lambda x, t: ((1 - F.log_softmax(x, -1)) * CLASS_WEIGHTS.to(x.dtype)).sum(-1).square().mean(),
    "far from zero": lambda x, t: flat_soft(x + 40, t),
}
SUMS_ALONE = {
    "mean": lambda x, t: -F.log_softmax(x, -1).mean(),
    "class weights": lambda x, t: (F.log_softmax(x, -1) * CLASS_WEIGHTS.to(x.dtype)).sum(-1).square().mean(),
}
STAY_WHOLE = {
    "smoothing over tokens": lambda x, t: (lambda p: F.nll_loss(p.flatten(0, 1), t.flatten()) + p.mean(1).square().sum())(F.log_softmax(x, -1)),
    "a weight for each token": lambda x, t: (lambda p: F.nll_loss(p, t.flatten()) + (p * torch.arange(12.0)[:, None]).exp().sum())(F.log_softmax(x.flatten(0, 1), -1)),
    "an entropy beside the loss": lambda x, t: (lambda p: F.nll_loss(p, t.flatten()) - 0.1 * (p.exp() * p).sum(-1).mean())(F.log_softmax(x.flatten(0, 1), -1)),
    "scaled log-probabilities": lambda x, t: F.nll_loss(1.5 * F.log_softmax(x.flatten(0, 1), -1), t.flatten()),
    "two gathered log-probabilities": lambda x, t: -F.log_softmax(x, -1).gather(-1, torch.stack((t, t.roll(1)), -1).clamp(min=0)).mean(),
    "log-probabilities of some tokens": lambda x, t: -F.log_softmax(x.flatten(0, 1), -1)[torch.arange(6), t.flatten()[:6].clamp(min=0)].mean(),
    "log-probabilities of tokens in another order": lambda x, t: -(F.log_softmax(x.flatten(0, 1), -1)[torch.arange(12).flip(0), t.flatten().clamp(min=0)] * torch.arange(12.0)).mean(),
    "a target that learns": lambda x, t: -(torch.sigmoid(x.sum(0)) * F.log_softmax(x, -1)).sum(-1).mean(),
    "softmax over tokens": lambda x, t: F.nll_loss(F.log_softmax(x, 1).flatten(0, 1), t.flatten()),
}


WITHOUT_LOG_PROBABILITIES = {
    "logsumexp less a logit": lambda x, t: (x.logsumexp(-1) - x.gather(-1, t.clamp(min=0)[..., None]).squeeze(-1)).mean(),
    "masked": lambda x, t: ((x.logsumexp(-1) - x.gather(-1, t.clamp(min=0)[..., None])[..., 0]) * (t != -100)).sum() / (t != -100).sum(),
    "with a loss of the sum": lambda x, t: (lambda z: (z - x.gather(-1, t.clamp(min=0)[..., None]).squeeze(-1)).mean() + 1e-2 * z.square().mean())(x.logsumexp(-1)),
    "flat": lambda x, t: (lambda y: (y.logsumexp(1) - y.gather(1, t.flatten().clamp(min=0)[:, None])[:, 0]).sum())(x.flatten(0, 1)),
    "in float32": lambda x, t: (lambda y: (y.logsumexp(-1) - y.gather(2, t.clamp(min=0)[..., None]).squeeze(-1)).mean())(x.to(torch.promote_types(x.dtype, torch.float32))),
    "by numbers of rows": lambda x, t: (lambda y: (y.logsumexp(1) - y[torch.arange(B * S), t.flatten().clamp(min=-2)]).clamp(max=50).sum())(x.flatten(0, 1)[:, :]),
    "a chosen value": lambda x, t: (x.gather(-1, t.clamp(min=0)[..., None]).squeeze(-1) - 1).square().mean(),
}


def ops_of(graph) -> set[str]:
    return {n.op for n in graph.nodes}


OPENED = {**SPELLINGS, **REDUCTIONS, **SMOOTHED, **GATHERED}


@pytest.mark.parametrize("name", OPENED)
def test_opened_losses_equal_eager(name):
    worst, traced = worst_differences(head(OPENED[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert ops_of(traced.graph) >= set(SPLIT) and not ops_of(traced.graph) & set(WHOLE)
    assert not [op for op in ops_of(traced.graph) if "nll_loss" in op]


@pytest.mark.parametrize("name", {**SUMS_ALONE, **LINEAR})
def test_sums_without_a_target_are_opened_too(name):
    worst, traced = worst_differences(head({**SUMS_ALONE, **LINEAR}[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert "autopar.sum_exp" in ops_of(traced.graph) and not ops_of(traced.graph) & set(WHOLE)


@pytest.mark.parametrize("name", STAY_WHOLE)
def test_other_losses_stay_whole_and_equal_eager(name):
    worst, traced = worst_differences(head(STAY_WHOLE[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert ops_of(traced.graph) >= set(WHOLE) and not ops_of(traced.graph) & set(SPLIT)


@pytest.mark.parametrize("name", WITHOUT_LOG_PROBABILITIES)
def test_one_logit_for_each_token_is_picked(name):
    worst, traced = worst_differences(head(WITHOUT_LOG_PROBABILITIES[name]))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert ops_of(traced.graph) >= {"autopar.pick", "autopar.unpick"} and not [op for op in ops_of(traced.graph) if "gather" in op or "scatter" in op or "index" in op]


def test_what_is_picked_is_no_more_than_one_of_each_row():
    loss = lambda x, t: x.gather(-1, torch.stack((t, t.roll(1)), -1).clamp(min=0)).mean() + x.gather(1, t.clamp(min=0, max=S - 1)[..., None]).square().mean()  # noqa: E731
    worst, traced = worst_differences(head(loss))
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert not ops_of(traced.graph) & {"autopar.pick", "autopar.unpick"}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_does_not_matter(name):
    def told(loss):
        graph = trace_step(head(loss)).graph
        return [(n.op, n.args, n.inputs, n.outputs, n.phase) for n in graph.nodes]

    assert told(SPELLINGS[name]) == told(flat)


def test_the_loss_sees_batch_and_sequence_apart():
    graph = trace_step(head(flat)).graph
    values = value_table(graph)
    node = next(n for n in graph.nodes if n.op == "autopar.sum_exp")
    assert values[node.inputs[0]].shape == (B, S, V) and values[node.outputs[0]].shape == (B, S)


def test_no_loss_at_all():
    class Scores(Head):
        def forward(self, ids):
            return F.log_softmax(super().forward(ids), -1)

    graph = trace_step(Workload(Scores(), (torch.randint(0, V, (B, S)),))).graph
    assert "aten._log_softmax.default" in ops_of(graph)


def test_log_probabilities_that_are_returned_stay_whole():
    class Both(Head):
        def forward(self, ids):
            scores = F.log_softmax(super().forward(ids), -1)
            return scores, F.nll_loss(scores.flatten(0, 1), ids.flatten())

    work = Workload(Both(), (torch.randint(0, V, (B, S)),))
    traced = trace_step(work, "fp64")
    known = run_graph(traced.graph, {**first_states(work, traced, torch.float64), **batch(work, traced, True, 0)[2]})
    expected = work.model.double()(*work.example_inputs)
    for found, wanted in zip((known[o] for o in traced.graph.outputs), expected):
        torch.testing.assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert not ops_of(traced.graph) & set(SPLIT)


def big_values(graph) -> dict[Phase, list[tuple[str, str]]]:
    """(op, dtype) of every value as large as the logits that is no view, by phase."""
    values = value_table(graph)
    found: dict[Phase, list[tuple[str, str]]] = {Phase.FORWARD: [], Phase.BACKWARD: [], Phase.UPDATE: []}
    for node in graph.nodes:
        for out in node.outputs:
            if out and num_elements(values[out].shape) == B * S * V and node.op not in ("aten.view.default", "aten.permute.default"):
                found[node.phase].append((node.op, values[out].dtype))
    return found


def test_only_the_logits_and_their_gradient_are_large():
    found = big_values(trace_step(head(flat)).graph)
    assert found[Phase.FORWARD] == [("autopar.linear", "float32")]
    assert found[Phase.BACKWARD] == [("autopar.cross_entropy_backward", "float32")]


def test_bf16_logits_are_never_widened():
    found = big_values(trace_step(head(flat), "bf16").graph)
    assert found[Phase.FORWARD] == [("autopar.linear", "bfloat16")]
    assert found[Phase.BACKWARD] == [("autopar.cross_entropy_backward", "bfloat16")]


@pytest.mark.parametrize("precision, dtype", [("fp32", "float32"), ("bf16", "bfloat16")])
def test_smoothing_makes_nothing_large(precision, dtype):
    found = big_values(trace_step(head(SMOOTHED["label smoothing"]), precision).graph)
    assert found[Phase.FORWARD] == [("autopar.linear", dtype)]
    assert found[Phase.BACKWARD] == [("autopar.cross_entropy_backward", dtype)]


def test_masked_classes_that_are_smoothed_are_as_infinite_as_in_eager():
    def loss(x, t):
        masked = x.flatten(0, 1).masked_fill(torch.arange(V) == 11, -torch.inf)
        return F.cross_entropy(masked, t.flatten().clamp(max=10), label_smoothing=0.1, reduction="none").clamp(max=100).sum()

    worst, traced = worst_differences(head(loss))
    assert worst["loss"] == 0 and "autopar.sum_exp" in ops_of(traced.graph)


def test_means_of_halves_are_made_in_float32():
    """Of 4,000 log-probabilities near -40 the sum is beyond float16."""

    class Halves(nn.Module):
        def forward(self, x):
            return F.log_softmax(x.to(torch.float16), -1).mean(-1)

    x = torch.randn(3, 4000)
    x[:, 0] = 40
    traced = trace_step(Workload(Halves(), (x,)))
    known = run_graph(traced.graph, {**traced.constants, "input:0": x})
    assert "autopar.sum_exp" in ops_of(traced.graph)
    torch.testing.assert_close(known[traced.graph.outputs[0]], F.log_softmax(x, -1).mean(-1).half(), rtol=2e-3, atol=0)


@pytest.mark.parametrize("loss", [flat, SMOOTHED["label smoothing"]], ids=["plain", "smoothed"])
def test_bf16_loss_equals_the_widened_one(loss):
    work = head(loss)
    traced = trace_step(work, "bf16")
    known = run_graph(traced.graph, {**first_states(work, traced, None), **batch(work, traced, False, 0)[2]})
    logits_node = next(n for n in traced.graph.nodes if n.op == "autopar.sum_exp")
    logits = known[logits_node.inputs[0]].float().requires_grad_()
    wanted = loss(logits, work.example_targets[0])
    (gradient,) = torch.autograd.grad(wanted, logits)
    torch.testing.assert_close(known[traced.graph.loss], wanted.detach(), rtol=1e-6, atol=1e-6)
    made = next(n for n in traced.graph.nodes if n.op == "autopar.cross_entropy_backward")
    torch.testing.assert_close(known[made.outputs[0]], gradient.bfloat16())


# -- embeddings --------------------------------------------------------------------------------------------------------------------------

EMBEDDINGS = {"plain": {}, "padding": {"padding_idx": 3}, "negative padding": {"padding_idx": -2}, "frequency": {"scale_grad_by_freq": True}}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_equal_eager(name):
    work = head(flat, **EMBEDDINGS[name])
    work.example_inputs[0][0, :3] = 3
    work.example_inputs[0][1, :3] = V - 2
    worst, traced = worst_differences(work)
    assert all(w <= TOLERANCE for w in worst.values()), worst
    assert "autopar.embedding" in ops_of(traced.graph)
    assert ("autopar.embedding_backward" in ops_of(traced.graph)) == (name != "frequency")


def test_rows_are_shared_and_stand_in_the_root():
    graph = trace_step(gpt2()).graph
    rows = [n for n in graph.nodes if n.op.startswith("aten.arange") and dict(n.args)["end"] == 53]
    assert len(rows) == 1 and rows[0].path == "" and rows[0].phase is Phase.FORWARD
    readers = {n.op for n in graph.nodes if rows[0].outputs[0] in n.inputs}
    assert readers == {"autopar.embedding", "autopar.embedding_backward", "autopar.pick", "autopar.cross_entropy_backward"}
