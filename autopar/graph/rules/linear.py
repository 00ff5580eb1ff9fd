"""Matrix products. A product is linear in each side, but no Partial passes: reducing first is cheaper than multiplying every addend.

`autopar.linear(input, weight, bias, transposed)` and its two gradients keep a linear layer one node over any number of leading dims
(weight [o, i], or [i, o] where transposed), so that batch and sequence are not merged into one dim by a view.
"""

from __future__ import annotations

from ..rule import Rule, Site


def _addmm(site: Site) -> str:
    bias = ("m", "n")[2 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, m k, k n -> m n"


def _baddbmm(site: Site) -> str:
    bias = ("b", "m", "n")[3 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, b m k, b k n -> b m n"


def _weight(site: Site) -> str:
    return "i o" if site.arg("transposed", False) else "o i"


def _linear(site: Site) -> str:
    return f"input: ... i, weight: {_weight(site)}, bias: o -> ... o"


def _linear_input_grad(site: Site) -> str:
    return f"... o, {_weight(site)} -> ... i"


def _linear_weight_grad(site: Site) -> str:
    return f"... o, ... i -> {_weight(site)}"


def _grouped_mm(site: Site) -> str:
    # experts are ragged runs of rows, so rows and experts stay whole; offsets say where each run ends
    left, right = len(site.inputs[0]), len(site.inputs[1])
    operands = {
        (2, 3): "self: [t] k, mat2: [e] k n, offs: [e] -> [t] n",
        (3, 2): "self: [e] m k, mat2: k [t], offs: [e] -> m [t]",
        (2, 2): "self: m [t], mat2: [t] n, offs: [e] -> [e] m n",
        (3, 3): "self: e m k, mat2: e k n -> e m n",
    }
    return operands[left, right]


ROWS = (
    Rule("aten.mm", "m k, k n -> m n", flops=2),
    Rule("aten.bmm", "b m k, b k n -> b m n", flops=2),
    Rule("aten.addmm", _addmm, owed=("self",), flops=2),
    Rule("aten.baddbmm", _baddbmm, owed=("self",), flops=2),
    Rule("aten.mv", "m k, k -> m", flops=2),
    Rule("aten.dot", "k, k ->", flops=2),
    Rule("autopar.linear", _linear, owed=("bias",), flops=2),
    Rule("autopar.linear_input_grad", _linear_input_grad, flops=2),
    Rule("autopar.linear_weight_grad", _linear_weight_grad, flops=2),
    Rule("aten._grouped_mm", _grouped_mm, flops=2, why_whole="the rows of an expert are a run that only the offsets know"),
)
