"""Emitted files import what they use, and nothing else."""

from __future__ import annotations

import ast
import functools
import random

import pytest

torch = pytest.importorskip("torch")

from autopar.api import compile_workload  # noqa: E402
from autopar.codegen.imports import print_used  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.random_plans import list_turns  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import Executable, initial_state, solo_comm  # noqa: E402
from autopar.trace import Workload, trace_step  # noqa: E402

from .kernel_cases import CASES  # noqa: E402
from .random_plans import Assigner, Control, draw_staged, files_of  # noqa: E402

pytestmark = pytest.mark.torch


def unused(files: dict[str, str]) -> list[tuple[str, str]]:
    """(file, name) of what files import and never name again."""
    found = []
    for file, text in files.items():
        if file.endswith(".py"):
            tree = ast.parse(text)
            imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__"]
            names = {alias.asname or alias.name for node in imports for alias in node.names}
            found += [(file, name) for name in sorted(names - {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})]
    return found


@pytest.mark.parametrize("local", ["kernels", "ops", "inductor"])
@pytest.mark.parametrize("case", ["gpt", "momentum", "dropout"])
def test_a_program_imports_what_it_uses(case, local):
    graph = trace_step(CASES[case](), "fp32").graph
    assigner = Assigner(graph, ())
    files = files_of(graph, assigner.program(assigner.draw(random.Random(0))), local)
    assert set(files) == {"program.py"} | ({"kernels.py"} if local != "ops" else set()) and unused(files) == []


def test_stages_import_what_they_use():
    control = Control(CASES["gpt"]())
    case = build_case(control.graph)
    _, files = control.staged(draw_staged(list_turns(case), 1), case)
    assert sum(file.startswith("stage_") for file in files) > 1 and unused(files) == []


def test_what_a_comment_names_is_not_imported():
    text = '"""b is not used."""\n# nor is c\nx: d = a.c()\n'
    assert print_used(text, {"one.two": ("a", "b", "c", "d"), "three": ("e",), "x": ()}) == ["from one.two import a, d", "", "import x"]
    assert print_used("", {"one": ("a",), "two": ()}) == []


def test_what_is_not_used_is_found():
    assert unused({"a.py": "import os\nfrom b import c as d, e\ne()\n"}) == [("a.py", "d"), ("a.py", "os")]


class _Worded(torch.nn.Module):
    """Parts and parameters that are called as Python calls its words, and as programs call what they use."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleDict({word: torch.nn.Linear(6, 6) for word in ("in", "is", "zip", "range")})
        self.gains = torch.nn.ParameterDict({word: torch.nn.Parameter(torch.rand(6)) for word in ("from", "lambda", "dict")})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, gain in zip(self.parts.values(), (*self.gains.values(), 1.0)):
            x = torch.tanh(part(x)) * gain
        return x


@pytest.mark.parametrize("local", ["kernels", "ops"])
def test_words_of_python_are_no_names(local):
    torch.manual_seed(0)
    model, x, y = _Worded(), torch.randn(4, 6), torch.randn(4, 6)
    workload = Workload(model, (x,), (y,), torch.nn.functional.mse_loss, functools.partial(torch.optim.SGD, lr=0.1))
    files = compile_workload(workload, "cpu:1", Options(price=False, local=local), cache_path=None).files
    executable = Executable(None, files, solo_comm(), {})
    executable.state.update(initial_state(executable.program, 0, {name: t.detach().clone() for name, t in model.state_dict().items()}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        assert float(executable.step(x, y)) == pytest.approx(loss.item(), rel=1e-6)
