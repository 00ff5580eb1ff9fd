"""What a program calls by a function of torch is the very op of its node."""

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from autopar.codegen.expression import _FUNCTIONS, print_expression  # noqa: E402
from autopar.graph.node import Node, Phase, Ref  # noqa: E402
from tests.rules.test_rules import FAMILIES  # noqa: E402

pytestmark = pytest.mark.torch

SCALARS = [Node(word, f"aten.{word}.Scalar", ("x",), (("self", Ref(0)), ("other", 0.5)), ("y",), Phase.FORWARD) for word in ("eq", "ne", "lt", "le", "gt", "ge")]


class Called(TorchDispatchMode):
    """The ops that were called."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.append(str(op))
        return op(*args, **(kwargs or {}))


def evaluate(node, inputs):
    names = [f"x{k}" for k in range(len(inputs))]
    text = print_expression(node, names)
    with torch.no_grad(), Called() as called:
        eval(text, {"torch": torch, **dict(zip(names, inputs))})
    return text, called.ops


def test_functions_are_the_ops_that_they_stand_for():
    seen = set()
    samples = [(sample.node, sample.inputs) for make in FAMILIES.values() for sample in make() if sample.node.op in _FUNCTIONS and sample.node.inputs]
    for node, inputs in [*samples, *((node, (torch.randn(4),)) for node in SCALARS)]:
        text, called = evaluate(node, inputs)
        assert called == [node.op] and not text.startswith("aten."), text
        seen.add(node.op)
    assert seen == _FUNCTIONS
