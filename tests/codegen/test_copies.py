"""Copies of what was expanded (keys that several heads share): one kernel reads what is there once; the program's numbers are the same."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
from autopar import Workload  # noqa: E402
from autopar.graph import fuse  # noqa: E402
from autopar.graph.program import check_program  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.trace import trace_step  # noqa: E402

from . import random_plans  # noqa: E402
from .kernel_cases import ADAMW, RotaryAttention  # noqa: E402
from .kernel_numbers import functions_of  # noqa: E402
from .random_plans import Assigner, Control, files_of  # noqa: E402


def _workload(groups):
    torch.manual_seed(0)
    return Workload(RotaryAttention(4, groups, 6, 10), (torch.randn(2, 8, 24),), (), lambda y: (y * y).mean(), ADAMW)


def _fuse(graph, sizes=(), **options):
    assigner = Assigner(graph, sizes)
    program = assigner.program(assigner.draw(random.Random(4)))  # of few draws in pieces does one have copies
    return program, fuse.fuse_program(program, phase_sections(program.graph), **options)


def _copies(fused):
    return [node for node in fused.program.graph.nodes if node.op.startswith("kernel.expand")]


def test_keys_and_values_are_copied_by_one_kernel(monkeypatch):
    graph = trace_step(_workload(2), "fp64").graph
    assert not _copies(_fuse(graph)[1]), "torch copies few elements as fast"
    monkeypatch.setattr(fuse, "_LEAST_COPIED", 1)
    program, fused = _fuse(graph)
    check_program(fused.program)
    assert len(_copies(fused)) == 2 and [k.name for k in fused.kernels].count("expand") == 1
    [kernel] = [k for k in fused.kernels if k.name == "expand"]
    assert [node.op for node in kernel.graph.nodes][:1] == ["aten.expand.default"] and len(kernel.graph.nodes) == 2 and kernel.sources
    expands = sum(node.op == "aten.expand.default" for node in program.graph.nodes)
    assert expands == 3 and not any(node.op == "aten.expand.default" for node in fused.program.graph.nodes), "kernels read what is there: both copies, and the gradient of a mean"
    shared = torch.randn(kernel.graph.values[0].shape, dtype=torch.float64)
    found = functions_of([kernel])["expand"](shared)
    assert torch.equal(found, shared.expand(2, 2, 2, 8, 6).reshape(2, 4, 8, 6))


def test_heads_of_their_own_are_not_copied(monkeypatch):
    """Nor what a compiler of plain torch is given."""
    monkeypatch.setattr(fuse, "_LEAST_COPIED", 1)
    assert not _copies(_fuse(trace_step(_workload(4), "fp64").graph)[1])
    assert not _copies(_fuse(trace_step(_workload(2), "fp64").graph, segments=True)[1])


@pytest.mark.parametrize("sizes", [(), (2,)])
def test_programs_with_copies_have_plain_torchs_numbers(monkeypatch, sizes):
    monkeypatch.setattr(fuse, "_LEAST_COPIED", 1)
    graph, control = trace_step(_workload(2), "fp64").graph, Control(_workload(2))
    program, fused = _fuse(graph, sizes)
    assert _copies(fused)
    files = files_of(graph, program, "kernels")
    assert "def expand(" in files["kernels.py"]
    with monkeypatch.context() as patch:
        patch.setattr(random_plans, "files_of", lambda graph, program: files)
        assert control.worst(program)[0] < 1e-10
