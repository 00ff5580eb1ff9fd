"""Written over: where plain torch may put what an op makes: in the place of what it reads, if nothing else needs that.

In: a node. Out: operands. The emitted kernels write so on a CPU (`codegen.kernels.torch_text`), and the laws of memory count so (`unheld`, `cost.arguments`).
"""

from __future__ import annotations

from collections.abc import Mapping

from .node import Node, get_arg, packet_of
from .tensor import Value

_IN_PLACE = frozenset((
    "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor", "aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar",
    "aten.addcmul.default", "aten.addcdiv.default", "aten.sqrt.default", "aten.rsqrt.default", "aten.neg.default", "aten.exp.default", "aten.reciprocal.default",
    "aten.tanh.default", "aten.sigmoid.default", "aten.abs.default",
))  # fmt: skip  # as methods: `x.add_(...)`
BY_OUT = frozenset(("aten.maximum.default", "aten.minimum.default"))  # as functions: `torch.maximum(x, y, out=x)`
BY_OUT_OTHER = frozenset(("aten.div.Tensor", "aten.sub.Tensor"))  # of which the second operand may go, too: `torch.div(x, y, out=y)`

INTO_ANY = frozenset((  # into any tensor of the shape and dtype of what they make: `torch.add(x, y, out=z)`
    "aten.abs.default", "aten.add.Tensor", "aten.div.Tensor", "aten.exp.default", "aten.mul.Tensor", "aten.neg.default", "aten.reciprocal.default", "aten.rsqrt.default", "aten.sqrt.default",
    "aten.sub.Tensor",
))  # fmt: skip


def list_replaceable(node: Node) -> tuple[str, ...]:
    """The operands over which plain torch may write what the op makes, where nothing else needs them: `self`, and the other one of two that may change places."""
    if node.op not in _IN_PLACE | BY_OUT or len(node.outputs) != 1:
        return ()
    commutes = node.op in ("aten.add.Tensor", "aten.mul.Tensor", *BY_OUT) and get_arg(node, "alpha", 1) == 1
    return ("self", "other") if commutes or node.op in BY_OUT_OTHER else ("self",)


def reads_once(node: Node, name: str) -> bool:
    """True where an op may write over a value for all that it reads of it itself; a square may, too."""
    return node.inputs.count(name) == 1 or node.op == "aten.mul.Tensor"


def gives_back(node: Node, values: Mapping[str, Value]) -> bool:
    """True for a conversion to its own dtype: torch gives back what it got."""
    return packet_of(node.op) == "aten._to_copy" and values[node.inputs[0]].dtype == values[node.outputs[0]].dtype
