"""Matrix products. A product is linear in each side, but no Partial passes: reducing first is cheaper than multiplying every addend.

`autopar.linear(input, weight, bias, transposed)` and its two gradients keep a linear layer one node over any number of leading dims
(weight [o, i], or [i, o] where transposed), so that batch and sequence are not merged into one dim by a view.
"""

from __future__ import annotations

from math import prod

from ..rule import Rule, Site
from .dims import ints, letters, operand


def _addmm(site: Site) -> str:
    bias = ("m", "n")[2 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, m k, k n -> m n"


def _baddbmm(site: Site) -> str:
    bias = ("b", "m", "n")[3 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, b m k, b k n -> b m n"


def _addmv(site: Site) -> str:
    return f"{'m' if site.inputs[0] else ''}, m k, k -> m"


def _addbmm(site: Site) -> str:
    bias = ("m", "n")[2 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, b m k, b k n -> m n"


def _addr(site: Site) -> str:
    bias = ("m", "n")[2 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, m, n -> m n"


def _addmm_activation(site: Site) -> str:
    bias = ("m", "n")[2 - len(site.inputs[0]) :]
    return f"{' '.join(bias)}, m [k], [k] n -> m n"


def _trilinear(site: Site) -> str:
    """Three tensors with dims of size one put in (`expand1`), multiplied, and summed over `sumdim`."""
    texts = []
    for k, shape in enumerate(site.inputs):
        put = ints(site.arg(f"expand{k + 1}"))
        texts.append(operand(name for d, name in enumerate(letters(len(shape) + len(put))) if d not in put))
    rank, gone = len(site.inputs[0]) + len(ints(site.arg("expand1"))), ints(site.arg("sumdim"))
    return f"{', '.join(texts)} -> {operand(name for d, name in enumerate(letters(rank)) if d not in gone)}"


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


def _grouped_flops(site: Site) -> float:
    """Each row meets one expert only."""
    left, right = site.inputs[:2]
    if len(left) == len(right) == 2:  # [m, t] x [t, n]: each column of t belongs to one expert
        return 2.0 * prod(left) * right[1]
    return 2.0 * (prod(left) * right[-1] if len(left) == 2 or len(right) == 3 else prod(left[1:]) * right[-1])


def _ragged(site: Site) -> str:
    return "input: [t] k, weight: [e] k n, offs: [e] -> [t] n"


def _ragged_backward(site: Site) -> str:
    return "input: [t] k, weight: [e] k n, offs: [e], grad_output: [t] n -> [t] k, [e] k n"


def _ragged_flops(site: Site) -> float:
    rows, (_, k, n) = site.inputs[0][0], site.inputs[1]
    return (2.0 if len(site.outputs) == 1 else 4.0) * rows * k * n


_RAGGED = "the rows of an expert are a run that only the offsets know"

ROWS = (
    Rule("aten.addmv", _addmv, owed=("self",), flops=2),
    Rule("aten.addbmm", _addbmm, owed=("self",), flops=2),
    Rule("aten.addr", _addr, flops=2),
    Rule("aten.vdot", "k, k ->", flops=2),
    Rule("aten._addmm_activation", _addmm_activation, flops=2, why_whole="the activation is not linear in the sum"),
    Rule("aten._trilinear", _trilinear, flops=2),
    Rule("aten.mm", "m k, k n -> m n", flops=2),
    Rule("aten.bmm", "b m k, b k n -> b m n", flops=2),
    Rule("aten.addmm", _addmm, owed=("self",), flops=2),
    Rule("aten.baddbmm", _baddbmm, owed=("self",), flops=2),
    Rule("aten.mv", "m k, k -> m", flops=2),
    Rule("aten.dot", "k, k ->", flops=2),
    Rule("autopar.linear", _linear, owed=("bias",), flops=2),
    Rule("autopar.linear_input_grad", _linear_input_grad, flops=2),
    Rule("autopar.linear_weight_grad", _linear_weight_grad, flops=2),
    Rule("aten._grouped_mm", _grouped_mm, flops=_grouped_flops, why_whole=_RAGGED),
    Rule("transformers.grouped_mm_fallback", _ragged, flops=_ragged_flops, why_whole=_RAGGED),
    Rule("transformers.grouped_mm_fallback_backward", _ragged_backward, (("grad_output",),), flops=_ragged_flops, why_whole=_RAGGED),
)
