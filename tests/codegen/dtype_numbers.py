"""What depends on dtypes: numbers beside halves and whole numbers, whole numbers in ops of floats, halves where they are told apart, in Triton's interpreter or on a GPU, beside torch on the CPU:
prints one JSON object per kernel, with whether its results are torch's own, to the last bit.

    TRITON_INTERPRET=1 python -m tests.codegen.dtype_numbers
    python -m tests.codegen.dtype_numbers --device cuda

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import torch

from autopar.graph.kernel import Kernel
from autopar.graph.node import Const
from autopar.runtime.execute import run_graph
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_numbers import functions_of
from tests.codegen.reduction_numbers import WHOLE, chain

Case = tuple[str, Kernel, dict[str, torch.Tensor]]

ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")
HALVES = ("float16", "bfloat16")
NUMBERS = (0.1, 0.7, 257, 65519.0, 65520.0, 1e39, float("inf"), float("nan"))
OUTSIDE = (-1, -100, 200, 300, 2**33 + 5, 0.5)  # of one dtype of whole numbers or another


def halves(dtype: str) -> torch.Tensor:
    return torch.tensor([*NUMBERS, 0.0, -0.1, 256.0, 1.3, 65504.0], dtype=torch.float64).to(getattr(torch, dtype))


def wholes(dtype: str) -> torch.Tensor:
    kind = getattr(torch, dtype)
    least, most = (0, 1) if dtype == "bool" else (torch.iinfo(kind).min, torch.iinfo(kind).max)
    return torch.tensor([0, 1, 5, 44, most, least, most - 1, least + 1]).to(kind)


def number_cases() -> Iterator[Case]:
    """Compared as torch compares them: numbers are rounded to halves, whole ones go around."""
    for dtype, number in (*itertools.product(HALVES, NUMBERS), *itertools.product(WHOLE, OUTSIDE)):
        x = {"x": halves(dtype) if dtype in HALVES else wholes(dtype)}
        yield f"{dtype} compared with {number}", chain("compared", x, *((op, f"aten.{op}.Scalar", {"self": "x", "other": number}) for op in ORDERS), outputs=ORDERS), x
        if dtype in HALVES and number in (0.1, 0.7, 257):
            y = {"x": halves(dtype)[10:]}
            yield f"rests of {dtype} by {number}", chain("rests", y, *((op, f"aten.{op}.Scalar", {"self": "x", "other": number}) for op in ("remainder", "fmod")), outputs=("remainder", "fmod")), y
    for dtype, number in itertools.product(WHOLE[:-1], (200, 300, -7, 1000)):
        x = {"x": wholes(dtype)}
        steps = [(op, f"aten.{op}.Scalar", {"self": "x", "other": number}) for op in ("add", "sub", "mul", "rsub", "bitwise_and", "bitwise_xor", "remainder")]
        more = ("then", "aten.mul.Scalar", {"self": "add", "other": 3}), ("wide", "aten._to_copy.default", {"self": "then", "dtype": Const("dtype", "torch.float32")})
        yield f"{dtype} with {number}", chain("with_number", x, *steps, *more, outputs=(*(name for name, *_ in steps), "wide")), x
    for dtype, bound in (("uint8", {"min": -1}), ("uint8", {"max": -1}), ("int8", {"min": -5, "max": 9}), ("int64", {"max": 3})):
        x = {"x": wholes(dtype)}
        yield f"{dtype} within {bound}", chain("within", x, ("near", "aten.clamp.default", {"self": "x", **bound}), ("made", "aten.mul.Scalar", {"self": "near", "other": 60})), x


def mixed_cases() -> Iterator[Case]:
    """Tensors of two dtypes, the second with dims or without, are compared in the one that torch takes for both (in bfloat16 not what is none, which the interpreter cuts off)."""
    for one, other in itertools.product((*WHOLE, *HALVES, "float32"), repeat=2):
        x, y = (halves(d) if "float" in d else wholes(d).repeat(2)[:13] for d in (one, other))
        for beside in (y.flip(0), y[1], y[4]):
            given = {"x": x, "y": beside}
            if one != other and (beside.shape or (one, other) != ("bfloat16", "float32")):
                yield f"{one} beside {other} of {beside.dim()} dims", chain("mixed", given, *((op, f"aten.{op}.Tensor", {"self": "x", "other": "y"}) for op in ORDERS), outputs=ORDERS), given


def whole_cases() -> Iterator[Case]:
    for dtype in WHOLE[:-1]:
        x = {"x": wholes(dtype)}
        signs, steps = ("sign", "sgn"), ("floor", "ceil", "trunc", "round")
        made = [(op, f"aten.{op}.default", {"self": "x"}) for op in (*signs, *steps)]
        more = ("large", "aten.mul.Scalar", {"self": "x", "other": 100003}), ("signed", "aten.mul.Tensor", {"self": "sign", "other": "large"})
        yield f"signs and steps of {dtype}", chain("signs", x, *made, *more, outputs=(*signs, *steps, "signed")), x
    given = {"x": torch.tensor([True, True, False, False]), "y": torch.tensor([True, False, True, False])}
    yield "bools added up", chain("bools", given, ("made", "aten.add.Tensor", {"self": "x", "other": "y"})), given


def step_cases() -> Iterator[Case]:
    """Of products in float16, which may be a rounding away from whole (the interpreter cuts bfloat16 off where GPUs round it)."""
    torch.manual_seed(0)
    given = {"x": (torch.randn(900) * 3).half(), "y": (torch.randn(900) * 3).half()}
    product, ops = ("z", "aten.mul.Tensor", {"self": "x", "other": "y"}), ("floor", "ceil", "trunc", "round", "frac")
    steps = [(op, f"aten.{op}.default", {"self": "z"}) for op in ops]
    rests = [(op, f"aten.{op}.Tensor", {"self": "z", "other": "x"}) for op in ("remainder", "fmod")]
    cast = [(kind, "aten._to_copy.default", {"self": "z", "dtype": Const("dtype", f"torch.{kind}")}) for kind in ("int64", "bool")]
    yield "steps of a product", chain("steps", given, product, *steps, *rests, *cast, outputs=(*ops, "remainder", "fmod", "int64", "bool")), given
    one = {"x": given["x"][:5, None], "y": given["y"][:5, None]}
    for kind in ("amax", "amin"):
        extreme, hit = ("top", f"aten.{kind}.default", {"self": "z", "dim": (1,), "keepdim": True}), ("hit", "aten.eq.Tensor", {"self": "z", "other": "top"})
        wide = ("z", "aten._to_copy.default", {"self": "half", "dtype": Const("dtype", "torch.float32")})
        yield f"{kind} of one", chain("one", one, product, extreme, hit, outputs=("top", "hit")), one
        yield f"{kind} of one that is cast", chain("cast", one, ("half", *product[1:]), wide, extreme, hit, outputs=("z", "top", "hit")), one
        large = {"x": given["x"][:, None], "y": given["y"][None, :20]}
        yield f"{kind} of everything that is cast", chain("everything", large, ("half", *product[1:]), wide, ("top", f"aten.{kind}.default", {"self": "z", "dim": (0, 1)})), large
        alone = {"x": torch.tensor(3.5)}
        yield f"{kind} of a number", chain("number", alone, ("made", f"aten.{kind}.default", {"self": "x", "dim": (0,), "keepdim": True})), alone


def main(asked: Asked) -> None:
    cases = [(*case, family) for family, made in (("number", number_cases()), ("mixed", mixed_cases()), ("whole", whole_cases()), ("step", step_cases())) for case in made]
    cases = [(what, Kernel(f"{kernel.name}_{k}", kernel.graph, (), False, ()), given, family) for k, (what, kernel, given, family) in asked.share(enumerate(cases))]
    functions = functions_of([kernel for _, kernel, *_ in cases])
    for what, kernel, given, family in cases:
        wanted = run_graph(kernel.graph, {name: x.clone() for name, x in given.items()})
        found = functions[kernel.name](*asked.place(given.values()))
        pairs = list(zip(kernel.graph.outputs, [x.cpu() for x in (found if isinstance(found, tuple) else (found,))], (wanted[name] for name in kernel.graph.outputs), strict=True))
        wrong = [(name, a.flatten()[:13].tolist(), b.flatten()[:13].tolist()) for name, a, b in pairs if a.dtype != b.dtype or not torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0))]
        print(json.dumps({"family": family, "what": what, "wrong": str(wrong)[:400] if wrong else ""}), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
