"""What a traced graph looks like: places, canonical ops, versions, equal graphs for equal meanings, bf16."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from compare import batch, first_states
from torch import nn
from torch.nn import functional as F
from zoo import ADAMW, bert, class_loss, gpt2, llama, mlp, resnet, tied, vit

from autopar.graph.node import Phase
from autopar.graph.tensor import Kind
from autopar.runtime.execute import run_graph
from autopar.trace import Workload, trace_step

pytestmark = pytest.mark.torch

NOT_CANONICAL = {
    "aten.mm.default", "aten.addmm.default", "aten.t.default", "aten.transpose.int", "aten.clone.default", "aten.detach.default",
    "aten.mean.dim", "aten.sum.default", "aten.stack.default", "aten.split.Tensor", "aten.unbind.int", "aten.zeros_like.default",
    "aten.native_batch_norm.default", "aten.mse_loss.default", "aten.unsqueeze.default", "aten._unsafe_view.default",
    "aten.masked_fill.Scalar", "aten.rsub.Scalar",
}  # fmt: skip


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("make", [mlp, gpt2, llama, bert, vit, resnet, tied])
def test_every_node_has_a_place_and_a_canonical_op(make):
    graph = trace_step(make()).graph
    assert sum(bool(n.source) for n in graph.nodes) >= 0.95 * len(graph.nodes)
    outside_loss = [n for n in graph.nodes if "zoo.py" not in n.source or n.path]
    assert sum(bool(n.path) for n in outside_loss) >= 0.95 * len(outside_loss)
    assert not {n.op for n in graph.nodes} & NOT_CANONICAL
    assert not any(n.op.split(".")[1].endswith("_") for n in graph.nodes)


def test_backward_and_update_carry_their_modules_path():
    graph = trace_step(gpt2()).graph
    grads = [n for n in graph.nodes if n.op == "autopar.linear_weight_grad"]
    assert {n.path for n in grads} >= {"transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"}
    assert all(n.phase is Phase.BACKWARD for n in grads)
    updates = Counter(n.path for n in graph.nodes if n.phase is Phase.UPDATE)
    assert updates["transformer.h.0.mlp.c_fc"] == updates["transformer.h.1.mlp.c_fc"] > 0


def test_batch_and_sequence_stay_apart_in_linears():
    graph = trace_step(gpt2()).graph
    shapes = {v.name: v.shape for v in graph.values}
    assert all(len(shapes[n.inputs[0]]) == 3 for n in graph.nodes if n.op == "autopar.linear")


def test_states_have_versions():
    traced = trace_step(resnet())
    updates = dict(traced.graph.updates)
    assert updates["bn.running_mean@0"] == "bn.running_mean@1" and updates["stem.weight@0"] == "stem.weight@1"
    assert updates["bn.num_batches_tracked@0"] == "bn.num_batches_tracked@1"
    assert traced.init_optim["exp_avg:head.weight"] == ("fill", 0.0)
    grads = dict(traced.graph.grads)
    kinds = {v.name: (v.kind, v.storage) for v in traced.graph.values}
    assert kinds[grads["head.weight@0"]] == (Kind.GRAD, "grad:head.weight")


def test_tied_weights_are_one_storage():
    traced = trace_step(tied())
    assert traced.param_aliases == {"head.weight": "embed.weight"}
    assert [n for n in traced.graph.inputs if "head" in n] == []


def test_plain_sgd_has_no_state():
    traced = trace_step(mlp(torch.optim.SGD))
    assert traced.init_optim == {} and not any(v.kind is Kind.OPTIM for v in traced.graph.values)


def _ops(forward, shape=(4, 6)) -> list[str]:
    class Spelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

        def forward(self, x):
            return forward(self, x)

    workload = Workload(Spelled(), (torch.randn(*shape),), (torch.randn(*shape[:-1], 5),), F.mse_loss, ADAMW)
    return [(n.op, n.args, n.phase) for n in trace_step(workload).graph.nodes]


SPELLINGS = {
    "functional": (lambda m, x: m.b(torch.relu(m.a(x))), lambda m, x: F.linear(F.relu(F.linear(x, m.a.weight, m.a.bias)), m.b.weight, m.b.bias)),
    "matmul": (lambda m, x: m.b(m.a(x)), lambda m, x: m.a(x) @ m.b.weight.T + m.b.bias),
    "in_place": (lambda m, x: m.b(F.relu(m.a(x))), lambda m, x: m.b(F.relu_(m.a(x)))),
    "addmm": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.addmm(m.b.bias, m.a(x), m.b.weight.t())),
    "einsum": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.einsum("bi,oi->bo", m.a(x), m.b.weight) + m.b.bias),
    "einsum of a turned weight": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.einsum("...i,io->...o", m.a(x), m.b.weight.T) + m.b.bias),
    "einsum, the weight first": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.einsum("oi,bi->bo", m.b.weight, m.a(x)) + m.b.bias),
    "tensordot": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.tensordot(m.a(x), m.b.weight.T, 1) + m.b.bias),
    "a batch of one": (lambda m, x: m.b(m.a(x)), lambda m, x: torch.bmm(m.a(x)[None], m.b.weight.T[None])[0] + m.b.bias),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_does_not_matter(name):
    first, second = (Counter(_ops(f)) for f in SPELLINGS[name])  # autograd's order of independent ops is its own
    assert first == second


def test_flattened_batch_does_not_matter():
    first = _ops(lambda m, x: m.b(m.a(x)), (2, 3, 6))
    second = _ops(lambda m, x: m.b(m.a(x.view(6, 6)).view(2, 3, 8)), (2, 3, 6))
    assert first == second


def test_bf16_keeps_masters_and_moments_in_float32():
    workload = mlp()
    traced = trace_step(workload, "bf16")
    graph = traced.graph
    values = {v.name: v for v in graph.values}
    assert values["up.weight@0"].dtype == "bfloat16" and values["up.weight@0"].kind is Kind.PARAM
    assert values["master:up.weight@0"].dtype == values["exp_avg:up.weight@0"].dtype == "float32"
    assert values[dict(graph.grads)["up.weight@0"]].dtype == "bfloat16"
    assert traced.init_optim["master:up.weight"] == ("param", "up.weight")
    model = copy.deepcopy(workload.model).bfloat16()
    masters = [p.detach().clone().requires_grad_() for p in workload.model.parameters()]
    optimizer = workload.optimizer(masters)
    env = first_states(workload, traced, None)
    for step in range(2):
        inputs, targets, named = batch(workload, traced, False, step)
        model.zero_grad()
        loss = workload.loss(model(*(x.bfloat16() for x in inputs)).float(), *targets)
        loss.backward()
        for p, master in zip(model.parameters(), masters):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for p, master in zip(model.parameters(), masters):
                p.copy_(master)
        known = run_graph(graph, {**env, **named})
        assert abs(float(known[graph.loss] - loss.detach())) < 1e-3
        env.update({old: known[new] for old, new in graph.updates})
        for (name, p), master in zip(model.named_parameters(), masters):
            assert torch.allclose(env[f"master:{name}@0"], master, atol=2e-3), name
            assert torch.equal(env[f"{name}@0"], env[f"master:{name}@0"].bfloat16())


@pytest.mark.parametrize("make", [gpt2, llama, bert, vit, resnet, tied])
def test_bf16_traces(make):
    workload = make()
    traced = trace_step(workload, "bf16")
    env = first_states(workload, traced, None)
    _, _, named = batch(workload, traced, False, 0)
    known = run_graph(traced.graph, {**env, **named})
    exact = trace_step(workload, "fp32")
    reference = run_graph(exact.graph, {**first_states(workload, exact, None), **named})
    assert float(known[traced.graph.loss]) == pytest.approx(float(reference[exact.graph.loss]), rel=3e-2)


def test_forward_only():
    workload = Workload(mlp().model, (torch.randn(4, 6),))
    traced = trace_step(workload)
    assert traced.graph.loss == "" and len(traced.graph.outputs) == 1 and traced.output_spec == 0
    named = {"input:0": workload.example_inputs[0]}
    known = run_graph(traced.graph, {**first_states(workload, traced, None), **named})
    assert torch.allclose(known[traced.graph.outputs[0]], workload.model(named["input:0"]), atol=1e-6)


def test_constants_of_the_program_are_kept():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.scale = torch.tensor([1.0, -2.0, 3.0])

        def forward(self, x):
            count = int(torch.arange(4).sum())  # depends on shapes alone
            return self.lin(x) * self.scale + torch.tensor(0.5) * count

    workload = Workload(Scaled(), (torch.randn(2, 3),), (torch.tensor([0, 2]),), class_loss, torch.optim.SGD)
    traced = trace_step(workload)
    assert list(traced.constants) == ["const:0@0"] and traced.constants["const:0@0"].tolist() == [1.0, -2.0, 3.0]
    known = run_graph(traced.graph, {**first_states(workload, traced, None), **batch(workload, traced, False, 0)[2]})
    expected = class_loss(workload.model(workload.example_inputs[0]), workload.example_targets[0])
    assert float(known[traced.graph.loss]) == pytest.approx(float(expected.detach()), abs=1e-6)


def test_the_users_model_is_not_changed():
    workload = resnet()
    before = {n: t.clone() for n, t in workload.model.state_dict().items()}
    trace_step(workload)
    after = workload.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before) and type(workload.model.stem.weight) is nn.Parameter
    assert all(p.grad is None for p in workload.model.parameters())
