"""What ranks run between collectives: kernels, torch.compile, or op by op. The numbers are the same."""

from __future__ import annotations

import random
import re
import shutil
import warnings

import pytest

torch = pytest.importorskip("torch")

import autopar  # noqa: E402
from autopar.codegen.emit import ModelFacts, print_files  # noqa: E402
from autopar.errors import OptionsError  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

from . import random_plans  # noqa: E402
from .kernel_cases import CASES  # noqa: E402
from .random_plans import Assigner, Control  # noqa: E402


def emitted(case, sizes=()):
    """(control, program, its files for each back end) of a random plan."""
    graph = trace_step(CASES[case](), "fp64").graph
    assigner = Assigner(graph, sizes)
    program = assigner.program(assigner.draw(random.Random(5)))
    return Control(CASES[case]()), program, {local: print_files(program, graph, "it", "test", "", ModelFacts(), local=local) for local in ("kernels", "inductor", "ops")}


# A compiler is part of torch.compile on a CPU, not of autopar: machines without one run the other back ends.
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("case", ["gpt", "dropout"])
def test_torch_compile_gives_the_same_numbers(case, monkeypatch):
    warnings.simplefilter("ignore")  # of torch's compiler
    control, program, files = emitted(case)
    monkeypatch.setattr(random_plans, "files_of", lambda graph, program: files["inductor"])
    assert control.worst(program)[0] < 1e-10


class Summed(torch.nn.Module):
    """Its gradient is expanded, by the loss's module, and read by the linear's."""

    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(13, 4)

    def forward(self, x):
        return self.l(x).sum(1)


@pytest.mark.parametrize("local", ["kernels", "inductor", "ops"])
def test_what_a_segment_expands_another_reads(local):
    model, x, y = Summed().double(), torch.randn(4, 3, 13, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    loss = torch.nn.functional.mse_loss(model(x), y)
    step = autopar.compile(
        model, "cpu:1", example_inputs=(x,), example_targets=(y,), loss=torch.nn.functional.mse_loss, optimizer=torch.optim.SGD,
        options=Options(local=local, precision="fp64"),
    )  # fmt: skip
    if local == "inductor":
        assert "kernels.backward(expand" in step.files["program.py"] or "kernels.backward_l(expand" in step.files["program.py"]
    else:
        torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-12, atol=0)


class Codes(torch.nn.Module):
    """A buffer that keeps a running product of matrices, as a codebook does."""

    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(13, 6)
        self.register_buffer("held", torch.randn(6, 13))

    def forward(self, x):
        y = self.l(x)
        with torch.no_grad():
            self.held.copy_((self.held * 0.9).add(y.detach().t() @ x, alpha=0.1))
        return y + x @ self.held.t()


@pytest.mark.parametrize("local", ["kernels", "inductor", "ops"])
def test_the_factor_of_a_sum_with_a_product_of_matrices(local):
    """Inductor forgets it (`graph.segments.scale_apart`)."""
    model, x, y = Codes().double(), torch.randn(8, 13, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    loss = torch.nn.functional.mse_loss
    step = autopar.compile(
        model, "cpu:1", example_inputs=(x,), example_targets=(y,), loss=loss, optimizer=torch.optim.SGD, options=Options(local=local, precision="fp64")
    )
    if local == "inductor":
        assert "alpha" not in step.files["kernels.py"].split("\ndef forward")[1].split("\n\n\n")[0]
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return
    wanted = loss(model(x), y).detach()  # rewrites the model's buffer, not the step's
    torch.testing.assert_close(step(x, y), wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(step.state["held"], model.held, rtol=1e-12, atol=1e-12)


def test_what_inductor_breaks_down_over_runs_op_by_op(monkeypatch):
    from autopar.runtime import fused

    calls = []

    def broken(ops):
        def made(*inputs):
            calls.append(inputs)
            raise torch._inductor.exc.InductorError(KeyError("buf7"), None)

        return made

    monkeypatch.setattr(torch, "compile", broken)
    double = fused.compiled(lambda x: x + x)
    with pytest.warns(RuntimeWarning, match="runs op by op: KeyError: 'buf7'"):
        assert double(2) == 4
    assert double(3) == 6 and len(calls) == 1, "it is asked once"


@pytest.mark.parametrize("case", ["gpt", "batch norm"])
def test_op_by_op_gives_the_same_numbers(case, monkeypatch):
    control, program, files = emitted(case, (2,))
    monkeypatch.setattr(random_plans, "files_of", lambda graph, program: files["ops"])
    assert "kernels.py" not in files["ops"] and control.worst(program)[0] < 1e-10


def test_texts_differ_as_they_should():
    _, _, files = emitted("gpt")
    assert "fused.compiled(forward_blocks_ops)" in files["inductor"]["kernels.py"] and "kernels.forward_blocks(" in files["inductor"]["program.py"]
    triton = re.findall(r"@fused.jit\ndef (\w+)_kernel", files["inductor"]["kernels.py"])
    assert triton and all(name.startswith("update_") and f"{name}_together.run(lists)" in files["inductor"]["kernels.py"] for name in triton), "one launch for all parameters"
    assert "update_param_exp_avg_exp_avg_sq_compiled, lists" in files["inductor"]["kernels.py"] and "kernels.add_layer_norm(" in files["kernels"]["program.py"]


def test_another_back_end_is_refused():
    with pytest.raises(OptionsError, match="local: expected kernels, inductor or ops, found 'tvm'"):
        Options(local="tvm")
