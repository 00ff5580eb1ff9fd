"""Every pointwise function that has a Triton text, element by element over numbers of all sizes, in Triton's interpreter or on a GPU, beside torch on the CPU: prints one JSON object per function and dtype.

    TRITON_INTERPRET=1 python -m tests.codegen.pointwise_numbers [OP ...]
    python -m tests.codegen.pointwise_numbers --device cuda

An element is right where it is within so many roundings of float64 itself, however small that is, or where torch's own number in its dtype is no nearer. A process of its own, for
Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import torch

from autopar.codegen.kernels.pointwise import TEXTS
from autopar.graph.graph import Graph
from autopar.graph.kernel import Kernel
from autopar.graph.node import Const, Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.runtime.execute import run_graph
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_numbers import functions_of, in_dtype

SIZES = (1e-30, 1e-20, 1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.6, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 20.5, 30.0, 60.0, 1e3, 1e5, 1e10, 1e20, 1e30, math.inf)
GRID = (0.0, math.nan, *(sign * size for size in SIZES for sign in (1, -1)))
COARSE = (0.0, math.nan, *(sign * size for size in (1e-30, 1e-10, 1e-3, 0.5, 1.0, 2.0, 7.5, 1e5, 1e30, math.inf) for sign in (1, -1)))  # of functions of several numbers all combinations
WHOLE = (0, 1, -1, 2, 3, -7, 12, 2**20, -(2**31), 2**40)
CANCELLING = ("lerp", "addcmul")  # sums of several numbers, of which little may be left
UNLIKE = ("hardtanh_backward", "hardswish_backward", "hardshrink_backward", "softshrink_backward", "elu_backward", "logit_backward")  # where `self` is no number torch does one thing on a CPU, another on a GPU
NUMBERS = {
    "alpha": 1.5, "scale": 0.5, "input_scale": 2.0, "beta": 2.0, "threshold": 0.5, "lambd": 0.5, "negative_slope": 0.1, "min_val": -1.5, "max_val": 2.0, "value": 0.7, "is_result": False, "self_is_result": False,
}  # fmt: skip
POWERS = (0, 0.0, 1.0, 2, 3, 4, 5, -1, -2, -3, 0.5, -0.5, 1.5, -1.5, 1 / 3)
OPTIONS = [
    *(("aten.pow.Tensor_Scalar", {"exponent": power}) for power in POWERS), *(("aten.pow.Scalar", {"self": base}) for base in (1, 1.0, 0.5, 2, 10000.0)), ("aten.pow.Tensor_Tensor", {}),
    *((f"aten.gelu{form}.default", {"approximate": kind}) for form in ("", "_backward") for kind in ("none", "tanh")), ("aten.elu_backward.default", {}),
    *(("aten.div.Tensor_mode", {"rounding_mode": mode}) for mode in ("floor", "trunc")), ("aten.floor_divide.default", {}),
    ("aten.celu.default", {"alpha": 0.7}), ("aten.round.decimals", {"decimals": 2}), ("aten.round.decimals", {"decimals": -1}), *(("aten.copysign.Scalar", {"other": sign}) for sign in (2.0, -0.0)),
    *((f"aten.logit{form}.default", eps) for form in ("", "_backward") for eps in ({}, {"eps": 0.2})), *(("aten.nan_to_num.default", to) for to in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": -3.0})),
    *((f"aten.{shift}.Scalar", {"other": 3}) for shift in ("__lshift__", "__rshift__")), *((f"aten.bitwise_{side}_shift.Tensor_Scalar", {"other": 3}) for side in ("left", "right")),
    ("aten.clamp.default", {"min": -0.5, "max": 1.0}), ("aten.clamp.Tensor", {}), ("aten.clamp_min.Tensor", {}), ("aten.clamp_max.Tensor", {}), ("aten._to_copy.default", {"dtype": Const("dtype", "torch.float32")}),
]  # fmt: skip
ROUNDINGS = {
    "pow": 1500, "exp2": 1500,  # as many as its exponent times a logarithm, at most 128
    "erfc": 300, "log10": 8,
}  # of a result, where 16 are too few


def cases(wanted: Sequence[str]) -> list[tuple[str, dict]]:
    found = [*((op, {}) for op in TEXTS if op not in ("aten._to_copy.default", "aten.copy.default", "aten.masked_fill.Tensor") and packet(op) not in CANCELLING), *OPTIONS]
    return [case for case in found if not wanted or packet(case[0]) in wanted]


def packet(op: str) -> str:
    return op.split(".")[1]


def draw(op: str, options: dict, dtype: str) -> tuple[Kernel, dict[str, torch.Tensor]]:
    """A kernel of one node, and what it is given: all combinations of the numbers."""
    schema = getattr(getattr(torch.ops.aten, packet(op)), op.split(".")[2])._schema
    names = [a.name for a in schema.arguments if str(a.type) in ("Tensor", "Optional[Tensor]") and a.name not in options]
    kinds = {name: "bool" if name in ("condition", "mask") else "int64" if "bitwise" in op or "shift" in op else dtype for name in names}
    ranges = {"bool": (True, False), "int64": WHOLE, dtype: GRID if len(names) == 1 else COARSE}
    columns = list(zip(*itertools.product(*(ranges[kinds[name]] for name in names))))
    inputs = {name: torch.tensor(column, dtype=torch.float64 if kinds[name] == dtype else getattr(torch, kinds[name])).to(getattr(torch, kinds[name])) for name, column in zip(names, columns)}
    if "buffer" in inputs:  # its forward op leaves this on a CPU, and nothing on a GPU
        inputs["buffer"] = torch.exp(-inputs["self"].abs())
    args = []
    for argument in schema.arguments:
        if argument.name in names:
            args.append((argument.name, Ref(names.index(argument.name))))
        elif argument.name in options or argument.name in NUMBERS and not (argument.has_default_value() and argument.name == "alpha"):
            args.append((argument.name, options.get(argument.name, NUMBERS.get(argument.name))))
    shape = (len(columns[0]),)
    made = run_graph(_graph(op, names, args, kinds, shape, "float32"), inputs)["made"].dtype
    return Kernel(op.replace(".", "_"), _graph(op, names, args, kinds, shape, str(made)[6:]), (), False, ()), inputs


def _graph(op: str, names: list[str], args: list, kinds: dict[str, str], shape: tuple[int, ...], made: str) -> Graph:
    values = [Value(name, name, 0, shape, kinds[name], Kind.ACTIVATION) for name in names] + [Value("made", "made", 0, shape, made, Kind.ACTIVATION)]
    return Graph("", tuple(values), (Node("n0", op, tuple(names), tuple(args), ("made",), Phase.FORWARD),), tuple(names), outputs=("made",))


def wrong(op: str, kernel: Kernel, inputs: dict[str, torch.Tensor], found: torch.Tensor) -> list:
    """What it was given, what it made and what float64 and torch make, of the first elements that are wrong."""
    given = {name: x.clone() for name, x in inputs.items()}
    torch_s = run_graph(kernel.graph, given)["made"].double()
    wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    exact = exact_gelu(**wide) if "approximate', 'tanh" in str(kernel.graph.nodes[0].args) else run_graph(in_dtype(kernel.graph, ("float32",), "float64"), wide)["made"].double()
    kind, got = found.dtype, found.double()
    rounding = torch.finfo(kind).eps if kind.is_floating_point else 0.0
    off, tiny = (got - exact).abs(), torch.finfo(torch.float32).tiny  # below that devices may leave 0
    near = (off <= ROUNDINGS.get(packet(op), 16) * rounding * exact.abs() + tiny) | (off <= 4 * (torch_s - exact).abs())
    right = near | (got == torch_s) | (got == exact) | got.isnan() & torch_s.isnan()
    if packet(op) in UNLIKE:
        right |= next(x for name, x in inputs.items() if name.startswith("self")).isnan()
    if packet(op) == "hardsigmoid_backward" and kind == torch.float64:  # torch has 1 / 6 in float32
        right |= off < 1e-7 * exact.abs()
    if packet(op) == "logaddexp2":  # of -1 and -1 nothing is left but torch's own rounding
        right |= off <= rounding
    places = (~right).nonzero().flatten().tolist()
    return [(len(places), *(str(x[k].item()) for x in (*inputs.values(), got, exact, torch_s))) for k in places[:6]]


def exact_gelu(self: torch.Tensor, grad_output: torch.Tensor | None = None) -> torch.Tensor:
    """Of the one by tanh: (1 + tanh(u)) / 2, of which torch keeps little for negative u, is the sigmoid of 2 u."""
    root = 2 * math.sqrt(2 / math.pi)
    part = torch.sigmoid(root * (self + 0.044715 * self**3))
    return self * part if grad_output is None else grad_output * (part + self * part * (1 - part) * root * (1 + 3 * 0.044715 * self**2))


def main(asked: Asked) -> None:
    for dtype in ("float32", "float64"):
        drawn = [(op, options, *draw(op, options, dtype)) for op, options in asked.share(cases(asked.names))]
        drawn = [(op, options, Kernel(f"{kernel.name}_{k}", kernel.graph, (), False, ()), inputs) for k, (op, options, kernel, inputs) in enumerate(drawn)]
        functions = functions_of([kernel for *_, kernel, _ in drawn])
        for op, options, kernel, inputs in drawn:
            found = functions[kernel.name](*asked.place(inputs.values())).cpu()
            print(json.dumps({"op": op, "options": str(options), "dtype": dtype, "wrong": wrong(op, kernel, inputs, found)}), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
