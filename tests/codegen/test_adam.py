"""Adam's step on a CPU: which kernels are one, and that torch's own kernel does what their ops do."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402

from autopar.api import Compiled, compile_workload  # noqa: E402
from autopar.codegen.kernels.emit_kernels import print_kernels  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph.graph import Graph  # noqa: E402
from autopar.graph.kernel import Kernel  # noqa: E402
from autopar.graph.node import Node, Phase, Ref  # noqa: E402
from autopar.graph.tensor import Kind, Value  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import adam as runtime_adam  # noqa: E402
from autopar.trace import Workload  # noqa: E402

SIZE = 300_000  # more than two pieces


def _compile(make: Callable, dtype: torch.dtype = torch.float32) -> Compiled:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(dtype)
    batch = torch.randn(8, 16, dtype=dtype), torch.randn(8, 16, dtype=dtype)
    workload = Workload(model, batch[:1], batch[1:], nn.functional.mse_loss, make)
    return compile_workload(workload, "cpu:1", Options(price=False), cache_path=None)


def _load(text: str, folder: Path) -> dict[str, Callable]:
    """Triton reads its functions from a file."""
    path = folder / "kernels.py"
    path.write_text(text)
    return runpy.run_path(str(path))


def _adam_kernels(text: str) -> list[str]:
    """Functions that call torch's kernel."""
    return [part.split("(")[0] for part in re.split(r"^def ", text, flags=re.M)[1:] if "together.runs_adam(" in part]


ADAMS = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "AdamW, no decay": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.0, betas=(0.8, 0.95)),
    "AdamW, short memory": lambda p: optim.AdamW(p, lr=0.01, betas=(0.4, 0.5)),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam, decay in the gradient": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1),
}  # fmt: skip
OTHERS = {
    "amsgrad": lambda p: optim.AdamW(p, amsgrad=True),
    "NAdam": lambda p: optim.NAdam(p),
    "RMSprop": lambda p: optim.RMSprop(p),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adamax": lambda p: optim.Adamax(p),
}  # fmt: skip


@pytest.mark.parametrize("name", ADAMS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_torchs_kernel_does_what_the_ops_do(name: str, dtype: str, tmp_path: Path) -> None:
    text = _compile(ADAMS[name], getattr(torch, dtype)).files["kernels.py"]
    [function] = _adam_kernels(text)
    space = _load(text, tmp_path)
    arguments = re.search(rf"def {function}\((.*)\):", text)[1].split(", ")
    torch.manual_seed(1)
    tensors = {a: torch.randn(SIZE, dtype=torch.float64) for a in arguments}
    tensors["exp_avg_sq"] = tensors["exp_avg_sq"].abs()
    rate, late = 0.01 / (1 - 0.9**3), (1 - 0.999**3) ** 0.5
    tensors["mul"], tensors["mul_2"] = torch.tensor(-late * rate, dtype=torch.float64), torch.tensor(-1e-8 / rate, dtype=torch.float64)
    given = {a: x.to(getattr(torch, dtype), copy=True) if x.dim() else x for a, x in tensors.items()}
    wide = {a: x.double().clone() for a, x in given.items()}  # what is right: the ops in float64
    space[f"{function}_ops"](*wide.values())
    space[function](*([x] for x in given.values()))
    info = torch.finfo(getattr(torch, dtype))
    for state in ("param", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(given[state].double(), wide[state], rtol=20 * info.eps, atol=4 * info.eps)
    assert not torch.equal(given["param"].double(), tensors["param"])


@pytest.mark.parametrize("name", ADAMS)
def test_what_stands_around_the_step_is_done(name: str, tmp_path: Path) -> None:
    """A working copy in bf16 of float32 masters is made after the step, and the gradient converted before it."""
    workload = replace(demo.build(batch=2, seq=8, vocab=32, layers=2, hidden=16, heads=2), optimizer=ADAMS[name])
    text = compile_workload(workload, "cpu:1", Options(price=False, precision="bf16"), cache_path=None).files["kernels.py"]
    space = _load(text, tmp_path)
    functions = _adam_kernels(text)
    assert any(".copy_(to_copy" in part for part in re.findall(r"^def \w+_adam\(.*?(?=^def )", text, flags=re.M | re.S))
    for function in functions:
        arguments = re.search(rf"def {function}\((.*)\):", text)[1].split(", ")
        described = dict(re.findall(r"(\w+)\s+(float32|bfloat16|float64)\[", text[text.index(f"def {function}(") :]))
        torch.manual_seed(1)
        given = {a: torch.randn(SIZE).to(getattr(torch, described[a])) if not a.startswith("mul") else torch.tensor(-0.01, dtype=torch.float64) for a in arguments}
        given["exp_avg_sq"] = given["exp_avg_sq"].abs()
        right = {a: x.clone() for a, x in given.items()}
        told, wanted = space[function](*([x] for x in given.values())), space[f"{function}_ops"](*right.values())
        for a in arguments:
            torch.testing.assert_close(given[a], right[a], rtol=1e-5 if given[a].dtype != torch.bfloat16 else 1e-2, atol=1e-6)
        if wanted is not None:
            torch.testing.assert_close(told[0], wanted, rtol=1e-5, atol=1e-6)


def test_what_is_made_before_the_step_may_be_read_after_it(tmp_path: Path) -> None:
    """A kernel by hand: the gradient is scaled, and the kernel returns it and its sum with the new parameter."""
    names = ("param", "grad", "exp_avg", "exp_avg_sq", "factor", "scaled", "apart", "first", "decayed", "second", "root", "divided", "summed", "moved", "after")
    values = tuple(Value(n, n, 0, () if n == "factor" else (SIZE,), "float64", Kind.ACTIVATION) for n in names)

    def node(name: str, op: str, *inputs: str, **args: object) -> Node:
        keys = {"addcmul": ("self", "tensor1", "tensor2"), "addcdiv": ("self", "tensor1", "tensor2")}.get(op.split(".")[1], ("self", "other"))
        refs = tuple((key, Ref(k)) for k, key in enumerate(keys[: len(inputs)]))
        return Node(name, op, inputs, (*refs, *args.items()), (name,), Phase.UPDATE)  # type: ignore[arg-type]

    nodes = (
        node("scaled", "aten.mul.Tensor", "grad", "factor"),
        node("apart", "aten.sub.Tensor", "scaled", "exp_avg"),
        node("first", "aten.add.Tensor", "exp_avg", "apart", alpha=0.1),
        node("decayed", "aten.mul.Scalar", "exp_avg_sq", other=0.99),
        node("second", "aten.addcmul.default", "decayed", "scaled", "scaled", value=1 - 0.99),
        node("root", "aten.sqrt.default", "second"),
        node("divided", "aten.div.Tensor", "root", "factor"),
        node("summed", "aten.add.Scalar", "divided", other=1e-8),
        node("moved", "aten.addcdiv.default", "param", "first", "summed", value=-0.1),
        node("after", "aten.add.Tensor", "moved", "scaled"),
    )
    graph = Graph("", values, nodes, ("param", "grad", "exp_avg", "exp_avg_sq", "factor"), outputs=("first", "second", "moved", "scaled", "after"))
    kernel = Kernel("update", graph, ((0, 2), (1, 3)), True, ("x.py:1: add",))
    space = _load(print_kernels([kernel]), tmp_path)
    torch.manual_seed(0)
    given = [torch.rand(SIZE, dtype=torch.float64) for _ in range(4)] + [torch.tensor(0.7, dtype=torch.float64)]
    right = [x.clone() for x in given]
    made, wanted = space["update"](*([x] for x in given)), space["update_ops"](*right)
    assert "update_adam" in space and len(made) == 3
    for a, b in zip((*(x for [x] in made), *given), (*wanted, *right)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_adams_step_runs_its_ops(name: str) -> None:
    assert _adam_kernels(_compile(OTHERS[name]).files["kernels.py"]) == []


def test_a_rate_of_nothing_moves_nothing() -> None:
    param, grad, first, second = (torch.rand(10) for _ in range(4))
    before = param.clone()
    runtime_adam.adam(param, grad, first, second, keep=0.5, beta1=0.9, beta2=0.99, divide=0.0, plus=1.0, value=1.0)
    torch.testing.assert_close(param, 0.5 * before)


def test_a_state_that_is_not_dense_runs_its_ops() -> None:
    assert not runtime_adam.runs_adam(torch.rand(4, 4).t(), torch.rand(4, 4))
    assert runtime_adam.runs_adam(torch.rand(4, 4))


def test_a_gradient_may_be_strided() -> None:
    made = []
    for grad in (torch.arange(12.0).view(3, 4).t(), torch.arange(12.0).view(3, 4).t().contiguous()):
        states = [torch.ones(4, 3) for _ in range(3)]
        runtime_adam.adam(states[0], grad, *states[1:], keep=0.9, beta1=0.9, beta2=0.99, divide=-0.1, plus=-1e-6, value=1.0)
        made.append(states)
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)
