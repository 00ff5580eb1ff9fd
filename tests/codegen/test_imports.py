"""Emitted files import what they use, and nothing else."""

from __future__ import annotations

import ast
import random

import pytest

torch = pytest.importorskip("torch")

from autopar.codegen.imports import print_used  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.random_plans import list_turns  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

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
