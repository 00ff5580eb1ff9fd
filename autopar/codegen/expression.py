"""Expressions: one node as one line of Python that a person would have written.

In: a node and the Python names of its inputs. Out: the right-hand side. The text calls the very op of the node: operators and
methods are used only where they are that op.
"""

from __future__ import annotations

import cmath
import keyword
import re
from collections.abc import Sequence

from ..graph.kernel import INTO, KERNEL
from ..graph.node import Arg, Const, Node, Ref
from ..graph.program import OPEN, WAIT
from ..graph.stages import COPY
from ..graph.strides import READS_PACKED
from ..graph.turns import RECEIVE, SEND, TAKE

_OPERATORS = {"aten.add.Tensor": "+", "aten.sub.Tensor": "-", "aten.mul.Tensor": "*", "aten.div.Tensor": "/"}
_SCALAR_OPERATORS = {"aten.add.Scalar": "+", "aten.sub.Scalar": "-", "aten.mul.Scalar": "*", "aten.div.Scalar": "/", "aten.pow.Tensor_Scalar": "**"}
_METHODS = {
    "aten.reshape.default": ("size",),
    "aten.permute.default": ("dims",),
    "aten.expand.default": ("size",),
    "aten.unsqueeze.default": ("dim",),
    "aten.squeeze.dim": ("dim",),
    "aten.select.int": ("dim", "index"),
}
_CAREFUL = {
    "aten.native_layer_norm_backward.default": "ops.layer_norm_backward", "aten._grouped_mm.default": "ops.grouped_mm",  # of strides
    "aten.index.Tensor": "ops.index", "aten.index_put.default": "ops.index_put",  # of a CPU's time
}  # fmt: skip
_RESHAPES = ("aten.view.default", "aten._unsafe_view.default")  # a shard need not be contiguous
_UNARY = ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "neg", "reciprocal", "abs", "sin", "cos")
_FUNCTIONS = frozenset(f"aten.{word if '.' in word else f'{word}.default'}" for word in (  # torch has a function that is this very op: it takes less time to call, and is what a person writes
    "_conj", "_log_softmax", "_log_softmax_backward_data", "_safe_softmax", "_softmax", "_softmax_backward_data", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "all",
    "amax", "amin", "angle", "any", "argmax", "argmin", "asin", "acos", "atan", "atan2", "baddbmm", "bitwise_and.Tensor", "bitwise_not", "bitwise_or.Tensor", "bitwise_xor.Tensor", "bmm", "cat", "ceil", "clamp",
    "clamp_max", "clamp_min", "clone", "constant_pad_nd", "convolution", "cosh", "count_nonzero.dim_IntList", "cummax", "cummin", "cumprod", "cumsum", "diag_embed", "diagonal", "div.Tensor_mode", "dot",
    "embedding", "eq.Scalar", "eq.Tensor", "erf", "erfc", "erfinv", "exp2", "expm1", "flip", "floor", "fmod.Tensor", "full_like", "gather", "ge.Scalar", "ge.Tensor", "gt.Scalar", "gt.Tensor", "index_add",
    "index_copy", "index_select", "isinf", "isnan", "le.Scalar", "le.Tensor", "lerp.Scalar", "lerp.Tensor", "lgamma", "log10", "log1p", "log2", "logaddexp", "logcumsumexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "lt.Scalar", "lt.Tensor", "masked_fill.Scalar", "masked_fill.Tensor", "max", "max.dim", "maximum", "mean", "mean.dim", "min", "min.dim", "minimum", "mm", "mv",
    "nan_to_num", "native_layer_norm", "ne.Scalar", "ne.Tensor", "ones_like", "pow.Scalar", "pow.Tensor_Tensor", "prod", "prod.dim_int", "remainder.Tensor", "repeat_interleave.Tensor",
    "roll", "round", "rsub.Scalar", "scatter.reduce", "scatter.src", "scatter.value", "scatter_add", "scatter_reduce.two", "select_scatter", "sgn", "sign", "sinc", "sinh", "slice_scatter", "sort",
    "sort.stable", "split_with_sizes", "std.correction", "sum", "sum.dim_IntList", "tan", "topk", "transpose.int", "tril", "triu", "trunc", "unbind.int", "var.correction", "var_mean.correction", "where.self",
    "xlogy.Tensor", "zeros_like",
))  # fmt: skip
_IDENTIFIER = re.compile(r"\W+")
_CALLED = frozenset(("range", "zip", "dict", "tuple", "list", "float", "len"))  # by the text of programs
_COPY = re.compile(rf"{COPY}\d+")


def identifier(text: str) -> str:
    """A Python identifier made of the letters and digits of `text`; with a line behind it where Python or the program's own text has that word."""
    name = _IDENTIFIER.sub("_", text).strip("_") or "value"
    name = f"v_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or name in _CALLED else name


def kept_key(name: str) -> str:
    """The key under which sections leave a value for each other: of each another one, also of `x~1` (`x` resharded) and `x_1`. A copy of what another stage
    has (`x#1`) is the only `x` of its own."""
    return identifier(_COPY.sub("", name).replace("~", "_as_"))


def print_arg(arg: Arg, names: Sequence[str]) -> str:
    """A literal argument; `Ref` becomes the input's Python name."""
    if isinstance(arg, Ref):
        return names[arg.index]
    if isinstance(arg, Const):
        if arg.kind == "device":
            return f'torch.device("{arg.name}")'
        return arg.name if arg.name.startswith("torch.") else f"torch.{arg.name}"
    if isinstance(arg, tuple):
        return f"[{', '.join(print_arg(a, names) for a in arg)}]"
    return print_literal(arg)


def print_literal(value: object) -> str:
    """A number, a text, or a tuple of them, as Python reads it back: infinities and NaN, too."""
    if isinstance(value, tuple):
        return f"({', '.join(map(print_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, (float, complex)) and not cmath.isfinite(value):
        return f'{type(value).__name__}("{value}")'
    return repr(value)


def print_expression(node: Node, names: Sequence[str], device: str = "comm.device") -> str:
    """The right-hand side of the line that runs this node.

    Args:
        names: the Python name of each of `node.inputs`.
        device: the text that says on which device a tensor is made of nothing.
    """
    args = dict(node.args)
    op = "aten.reshape.default" if node.op in _RESHAPES else node.op
    space, _, rest = op.partition(".")
    if op == WAIT:
        return f"{names[0]}.wait()"
    if op == OPEN:
        return f"comm.{rest}({list(args['shapes'])!r}, torch.{args['dtype']}, own={args['own']!r})"
    if space == "comm":
        tensors = print_arg(args["x"], names)
        options = [f"{key}={print_arg(value, names) if isinstance(value, Ref) else repr(value)}" for key, value in node.args if key not in ("x", "axis")]
        return f"comm.{rest}({', '.join([tensors, repr(args['axis']), *options])})"
    if op == TAKE:
        return f"ops.microbatch({names[0]}, turn, dim={args['dim']}, count={args['count']})"
    if op in (SEND, RECEIVE):
        place = [f"stage={args['stage']}", f"message={args['message']}", *(["turn=turn"] if args["turn"] else [])]
        return f"comm.{rest}({', '.join([*names, *place])})"
    if space == "autopar":
        return f"ops.{rest}({_call_arguments(node, names)})"
    if space == KERNEL:
        return f"kernels.{rest}({', '.join(print_arg(value, names) for key, value in node.args if key != INTO)})"
    if space != "aten":
        return f"torch.ops.{node.op}({_user_arguments(node, names)})"
    if op in _OPERATORS and set(args) == {"self", "other"} and all(isinstance(args[k], (Ref, int, float)) for k in args):
        return f"{print_arg(args['self'], names)} {_OPERATORS[op]} {_operand(args['other'], names)}"
    if op in _SCALAR_OPERATORS and len(args) == 2:
        (_, left), (_, right) = node.args
        if isinstance(left, Ref) and isinstance(right, (int, float)) and not isinstance(right, bool):
            return f"{names[left.index]} {_SCALAR_OPERATORS[op]} {_operand(right, names)}"
    if op in _METHODS and isinstance(args.get("self"), Ref) and set(args) <= {"self", *_METHODS[op]}:
        literals = [args[key] for key in _METHODS[op] if key in args]
        if len(literals) == len(_METHODS[op]):
            if len(literals) == 1 and isinstance(literals[0], tuple):
                literals = list(literals[0])
            if literals:
                return f"{names[args['self'].index]}.{rest.split('.')[0]}({', '.join(print_arg(a, names) for a in literals)})"
    if rest.split(".")[0] in _UNARY and rest.endswith(".default") and set(args) == {"self"}:
        return f"torch.{rest.split('.')[0]}({names[0]})"
    if op == "aten._to_copy.default" and set(args) == {"self", "dtype"}:
        return f"{names[0]}.to({print_arg(args['dtype'], names)})"
    if op == "aten.reshape.default":
        return f"{names[0]}.reshape([{', '.join(print_arg(a, names) for a in args['size'])}])"
    if rest.split(".")[0] in READS_PACKED:
        return f"{op}({_call_arguments(node, [f'{name}.contiguous()' for name in names])})"
    if not node.inputs:  # made of nothing: on this rank's device
        return f"{op}({', '.join([*(f'{key}={print_arg(value, names)}' for key, value in node.args), f'device={device}'])})"
    if op in _FUNCTIONS:
        return f"torch.{rest.split('.')[0]}({_call_arguments(node, names, own='input')})"
    return f"{_CAREFUL.get(op, op)}({_call_arguments(node, names)})"


def _operand(arg: Arg, names: Sequence[str]) -> str:
    text = print_arg(arg, names)
    return f"({text})" if text.startswith("-") else text


def _user_arguments(node: Node, names: Sequence[str]) -> str:
    """Every argument by name, tensors packed: the kernel of a user's op may know of no strides."""
    packed = [f"{name}.contiguous()" for name in names]
    return ", ".join(f"{key}={print_arg(value, packed)}" for key, value in node.args)


def _call_arguments(node: Node, names: Sequence[str], own: str = "self") -> str:
    """The first tensor by position, everything after it by name: no position is guessed where the call left arguments out. `own`: what the schema's `self` is called, behind another."""
    parts = []
    for k, (key, value) in enumerate(node.args):
        text = print_arg(value, names)
        parts.append(text if k == 0 and isinstance(value, Ref) else f"{own if k and key == 'self' else key}={text}")
    return ", ".join(parts)
