"""Sums and extremes of whole numbers, of what is no number, and extremes that are compared with what they were taken of, in Triton's interpreter or on a GPU, beside torch on the CPU: prints one
JSON object per kernel, with whether its results are torch's own, to the last bit.

    TRITON_INTERPRET=1 python -m tests.codegen.reduction_numbers
    python -m tests.codegen.reduction_numbers --device cuda

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json

import torch

from autopar.graph.graph import Graph
from autopar.graph.kernel import Kernel
from autopar.graph.node import Const, Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.runtime.execute import run_graph
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_numbers import functions_of

WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
WIDTHS = (1, 13, 16, 9001)  # of rows: one element, odd, whole, and wider than a program holds
ROWS = 3
EXTREMES = ("amax", "amin")


def chain(name: str, given: dict[str, torch.Tensor], *steps: tuple, outputs: tuple[str, ...] = ()) -> Kernel:
    """A kernel of steps (name of the result, op, arguments); arguments that are names of values are these. Its results: by default that of the last step."""
    made, nodes, values = dict(given), [], []
    for number, (result, op, args) in enumerate(steps):
        inputs = tuple(dict.fromkeys(arg for arg in args.values() if isinstance(arg, str) and arg in made))
        told = tuple((key, Ref(inputs.index(arg)) if arg in inputs else arg) for key, arg in args.items())
        nodes.append(Node(f"n{number}", op, inputs, told, (result,), Phase.FORWARD))
        like = [Value(n, n, 0, tuple(made[n].shape), str(made[n].dtype)[6:], Kind.ACTIVATION) for n in inputs]
        made[result] = torch.zeros(())
        step = Graph("", (*like, Value(result, result, 0, (), "float32", Kind.ACTIVATION)), (nodes[-1],), inputs, outputs=(result,))
        made[result] = run_graph(step, {n: made[n] for n in inputs})[result]
    values = [Value(n, n, 0, tuple(x.shape), str(x.dtype)[6:], Kind.ACTIVATION) for n, x in made.items()]
    return Kernel(name, Graph("", tuple(values), tuple(nodes), tuple(given), outputs=outputs or (steps[-1][0],)), (), False, ())


def whole_numbers(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Large ones, so that float32 has them not, and their sums overflow what is narrower than 64 bits."""
    torch.manual_seed(0)
    if dtype == "bool":
        return torch.rand(shape) > 0.4
    most = min(torch.iinfo(getattr(torch, dtype)).max, 2**50)
    return torch.randint(most // 2, most, shape).to(getattr(torch, dtype)) * torch.randint(-1 if dtype != "uint8" else 1, 2, shape).to(getattr(torch, dtype))


def whole_cases():
    for dtype, width in itertools.product(WHOLE, WIDTHS):
        x = {"x": whole_numbers(dtype, (ROWS, width))}
        for dims, kind in itertools.product(((1,), (0,), (0, 1)), ("sum", *EXTREMES)):
            if width < 9001 or dims == (1,) or dims == (0, 1) and dtype in ("int64", "bool"):  # columns of many blocks take the interpreter long
                op = "aten.sum.dim_IntList" if kind == "sum" else f"aten.{kind}.default"
                yield f"{kind} of {dtype} over {dims} of {width}", chain(kind, x, ("made", op, {"self": "x", "dim": dims})), x
        if width > 1:
            steps = ("total", "aten.sum.dim_IntList", {"self": "x", "dim": (1,), "keepdim": True}), ("low", "aten.amin.default", {"self": "x", "dim": (1,), "keepdim": True})
            more = ("parts", "aten.div.Scalar_mode", {"self": "total", "other": 3, "rounding_mode": "trunc"}), ("made", "aten.bitwise_xor.Tensor", {"self": "parts", "other": "low"})
            yield f"whole numbers of both of {dtype} of {width}", chain("both", x, *steps, *more), x
    for dims, width in (((1,), 13), ((0,), 13), ((0, 1), 13), ((1,), 9001), ((0, 1), 9001)):
        x = {"x": torch.full((ROWS, width), 2**24 + 1)}
        yield f"whole numbers as floats over {dims} of {width}", chain("floats", x, ("made", "aten.sum.dim_IntList", {"self": "x", "dim": dims, "dtype": Const("dtype", "torch.float64")})), x
        x = {"x": torch.full((ROWS, width), 1.5)}
        yield f"floats as whole numbers over {dims} of {width}", chain("wholes", x, ("made", "aten.sum.dim_IntList", {"self": "x", "dim": dims, "dtype": Const("dtype", "torch.int64")})), x


def counting_cases():
    """Of what is not 0, which what is no number is not: of nothing but 0, of some and of all else."""
    for dtype, width, dims in itertools.product(("float32", "bfloat16", "int64", "uint8", "bool"), (1, 13, 16, 9001), ((1,), (0,), (0, 1))):
        if width == 9001 and (dims == (0,) or dtype in ("uint8", "bfloat16")):
            continue
        for share in (0.0, 0.05, 1.0):
            torch.manual_seed(0)
            x = torch.where(torch.rand(ROWS, width) < share, torch.randint(1, 100, (ROWS, width)), 0).to(getattr(torch, dtype))
            if dtype in ("float32", "bfloat16"):
                x = torch.where((x != 0) & (torch.rand(ROWS, width) < 0.5), torch.nan, -x)
            for op in ("any.dims", "all.dims", "count_nonzero.dim_IntList"):
                yield f"{op} of {dtype} over {dims} of {width}, {share}", chain(op.split(".")[0], {"x": x}, ("made", f"aten.{op}", {"self": "x", "dim": dims})), {"x": x}


def everything_cases():
    """Extremes of everything, beside others, and read by what is made of each element."""
    for dtype, size, kind in itertools.product(("float32", "bfloat16", "float64", "int64", "int32", "uint8"), ((7, 13), (3, 9001)), EXTREMES):
        torch.manual_seed(0)
        x = torch.randint(1 if dtype == "uint8" else -90, 90, size).to(getattr(torch, dtype))
        both = ("high", "aten.amax.default", {"self": "x", "dim": (0, 1)}), ("low", "aten.amin.default", {"self": "x", "dim": (0, 1)})
        yield f"both extremes of {dtype} of {size}", chain("both_of_all", {"x": x}, *both, outputs=("high", "low")), {"x": x}
        steps = ("top", f"aten.{kind}.default", {"self": "x", "dim": (0, 1)}), ("made", "aten.sub.Tensor", {"self": "x", "other": "top"})
        yield f"{kind} of {dtype} of {size} taken off", chain("taken_off", {"x": x}, *steps), {"x": x}
        if dtype in ("float32", "bfloat16", "float64"):
            for odd in (torch.nan, torch.inf, -torch.inf):
                other = torch.where(torch.rand(size) < 3 / x.numel(), torch.tensor(odd, dtype=x.dtype), x)
                yield f"{kind} of {dtype} of {size} with {odd}", chain("odd", {"x": other}, steps[0]), {"x": other}


def nan_cases():
    for dtype, width, kind in itertools.product(("float32", "bfloat16", "float64"), WIDTHS, EXTREMES):
        torch.manual_seed(0)
        x = torch.randn(ROWS, width)
        x[1, width // 2], x[2] = torch.nan, torch.inf
        given = {"x": x.to(getattr(torch, dtype))}
        yield f"{kind} of {dtype} where one is no number, of {width}", chain(kind, given, ("made", f"aten.{kind}.default", {"self": "x", "dim": (1,)})), given
    middle = {"x": x[:, :12].reshape(ROWS, 4, 3)}
    yield "amax of middle dims where one is no number", chain("middle", middle, ("made", "aten.amax.default", {"self": "x", "dim": (1,)})), middle


def equal_cases():
    """Of products in halves (of float16, for the interpreter cuts bfloat16 off where GPUs round it): which of a column are as large as its largest."""
    torch.manual_seed(0)
    given = {"x": torch.randn(30, 24).half(), "w": torch.rand(24).half()}
    product, count = ("y", "aten.mul.Tensor", {"self": "x", "other": "w"}), ("hits", "aten.sum.dim_IntList", {"self": "hit", "dim": (0,)})
    wide, share = {"dtype": Const("dtype", "torch.float32")}, ("share", "aten.div.Tensor", {"self": "hit", "other": "hits"})
    for kind in EXTREMES:
        extreme, hit = ("top", f"aten.{kind}.default", {"self": "y", "dim": (0,)}), ("hit", "aten.eq.Tensor", {"self": "y", "other": "top"})
        yield f"{kind} in one function", chain("one", given, product, extreme, hit), given
        yield f"{kind} in parts", chain("parts", given, product, extreme, hit, count, share), given
        handed = {**given, "top": getattr(given["x"] * given["w"], kind)(0)}
        yield f"{kind} of another kernel", chain("other", handed, product, hit), handed
        cast, cast_top = ("z", "aten._to_copy.default", {"self": "y", **wide}), ("peak", "aten._to_copy.default", {"self": "top", **wide})
        hit = ("hit", "aten.ge.Tensor" if kind == "amax" else "aten.le.Tensor", {"self": "z", "other": "peak"})
        yield f"{kind} in parts, both cast", chain("cast", given, product, extreme, cast, cast_top, hit, count, share), given
        extreme = ("peak", f"aten.{kind}.default", {"self": "z", "dim": (0,)})
        yield f"{kind} of the cast", chain("of_cast", given, product, cast, extreme, hit, outputs=("z", "peak", "hit")), given
        yield f"{kind} of the cast in parts", chain("of_cast_parts", given, product, cast, extreme, hit, count, share), given
        handed = {"w": given["w"], "x": given["x"], "peak": getattr((given["x"] * given["w"]).float(), kind)(0)}
        yield f"{kind} of the cast of another kernel", chain("other_cast", handed, product, cast, hit), handed


def main(asked: Asked) -> None:
    cases = [(*case, family) for family, made in (("whole", whole_cases()), ("counting", counting_cases()), ("everything", everything_cases()), ("nan", nan_cases()), ("equal", equal_cases())) for case in made]
    cases = [(what, Kernel(f"{kernel.name}_{k}", kernel.graph, (), False, ()), given, family) for k, (what, kernel, given, family) in asked.share(enumerate(cases))]
    functions = functions_of([kernel for _, kernel, *_ in cases])
    for what, kernel, given, family in cases:
        wanted = run_graph(kernel.graph, {name: x.clone() for name, x in given.items()})
        found = functions[kernel.name](*asked.place(given.values()))
        pairs = list(zip([x.cpu() for x in (found if isinstance(found, tuple) else (found,))], (wanted[name] for name in kernel.graph.outputs), strict=True))
        same = all(a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=-7.0), b.reshape(a.shape).nan_to_num(nan=-7.0)) for a, b in pairs)
        print(json.dumps({"family": family, "what": what, "same": same, "found": "" if same else str(pairs)[:400]}), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
