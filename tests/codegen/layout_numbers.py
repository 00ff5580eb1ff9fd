"""Run kernels that read and write tensors as they lie in Triton's interpreter or on a GPU, compared with float64: prints one JSON object per kernel.

    TRITON_INTERPRET=1 python -m tests.codegen.layout_numbers
    python -m tests.codegen.layout_numbers --device cuda

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from autopar import Workload
from autopar.codegen.kernels.parts import print_parts
from autopar.graph.kernel import Kernel, takes_lists
from autopar.graph.layouts import span
from autopar.graph.view_strides import packed
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_cases import ADAMW, CASES, RotaryAttention, draw_inputs, kernels_of
from tests.codegen.kernel_numbers import _worst, expected, functions_of

WIDE = 9001  # columns of rows that a program walks along
SWAPPED = ("rms norm", "softmax", "dropout", "pieces", "middle")


def rotary() -> Workload:
    torch.manual_seed(0)
    return Workload(RotaryAttention(4, 4, 8, 1030), (torch.randn(2, 16, 32),), (), lambda y: (y * y).mean(), ADAMW)


def drawn() -> Iterator[tuple[str, str, Kernel]]:
    """(case, precision, kernel): as programs lay them out, wide rows that are apart in float32, or with rows of other samples between them, and dims in any order."""
    for case, workload in (("rotary", rotary()), ("wide", CASES["gpt with a wide vocabulary"]())):
        yield from ((case, "bf16", kernel) for kernel in kernels_of(workload, "bf16") if kernel.layouts)
    for kernel in kernels_of(CASES["gpt with a wide vocabulary"](), "fp32"):
        apart = [(v.name, (*(step // WIDE * (WIDE + 7) for step in packed(v.shape)[:-1]), 1)) for v in _ends(kernel) if v.shape[-1:] == (WIDE,) and len(v.shape) > 1]
        if apart:
            yield "wide", "fp32", replace(kernel, layouts=tuple(apart), roomy=tuple(name for name, _ in apart))
        turned = [(v.name, (WIDE, v.shape[0] * WIDE, 1)) for v in _ends(kernel) if len(v.shape) == 3 and v.shape[-1] == WIDE]
        if turned:
            yield "turned", "fp32", replace(kernel, layouts=tuple(turned))
    for number, case in enumerate(SWAPPED):
        for kernel in kernels_of(CASES[case](), "fp32"):
            if not takes_lists(kernel) and not kernel.any_shape:
                rng = random.Random(number)
                yield "swapped", "fp32", replace(kernel, layouts=tuple((v.name, _swapped(rng, v.shape)) for v in _ends(kernel) if len(v.shape) > 1))


def _ends(kernel: Kernel) -> list:
    """What enters, and what is stored as it is made: not what leaves in parts."""
    parts = {part.kernel.graph.outputs[p.output] for part in print_parts(kernel) if part.text for p in part.text.partials}
    names = {*kernel.graph.inputs, *kernel.graph.outputs} - parts
    return [v for v in kernel.graph.values if v.name in names]


def _swapped(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    order = rng.sample(range(len(shape)), len(shape))
    inner = packed([shape[d] for d in order])
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def lay(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same numbers so far apart; what lies between is no number, where there is such."""
    between = float("nan") if x.is_floating_point() else 1
    return torch.full((span(x.shape, strides),), between, dtype=x.dtype, device=x.device).as_strided(x.shape, strides).copy_(x)


def main(asked: Asked) -> None:
    for number, (case, precision, kernel) in asked.share(enumerate(drawn())):
        kernel = replace(kernel, name=f"{kernel.name}_{number}")
        function, layouts = functions_of([kernel])[kernel.name], dict(kernel.layouts)
        inputs = draw_inputs(kernel, seed=number)
        wanted = expected(kernel, {name: x.clone() for name, x in inputs.items()})
        inputs = dict(zip(inputs, asked.place(inputs.values())))
        row: dict = {"case": case, "precision": precision, "kernel": kernel.name, "walks": any(part.text.walks for part in print_parts(kernel) if part.text)}
        row |= {kind: [name for name in names if name in layouts] for kind, names in (("reads", kernel.graph.inputs), ("leaves", kernel.graph.outputs))}
        for key, taken in (
            ("as it lies", {name: lay(x, layouts[name]) if name in layouts else x for name, x in inputs.items()}),
            ("row by row", inputs),
            ("otherwise", {name: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x for name, x in inputs.items()}),
        ):  # fmt: skip
            got = function(*taken.values())
            made = got if isinstance(got, tuple) else (got,)
            row[key] = _worst(kernel, made, taken, wanted)
            row["left"] = row.get("left", True) and all(x.stride() == layouts.get(name, packed(x.shape)) for name, x in zip(kernel.graph.outputs, made, strict=True))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
