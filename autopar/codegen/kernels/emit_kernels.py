"""`kernels.py`: the kernels of a program as a file that a person can read.

In: the kernels. Out: the text: for each the function that the program calls, which runs plain torch or launches the Triton function above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...graph.kernel import Kernel
from .adam import adam_of, print_adam
from .parts import Part, print_parts
from .reductions import UnsupportedError
from .torch_text import print_torch

FILE = "kernels.py"

_HEADER = '''"""The fused kernels of the program beside this file: one function per distinct group of ops, shared by all blocks.

Each function runs its ops as they are written in its body, in plain torch; on a device that runs Triton it launches the function above it instead, which reads and
writes each element once. Indices count elements of the local tensors, row by row.
"""

from __future__ import annotations

import torch

from autopar.runtime import formulas, fused, ops
from autopar.runtime.fused import tl, uniform

aten = torch.ops.aten
'''


_COMPILED_HEADER = '''"""What the program beside this file runs between collectives, each piece through torch.compile: one function per distinct piece, shared by all blocks."""

from __future__ import annotations

import torch

from autopar.runtime import fused, ops

aten = torch.ops.aten
'''


def print_kernels(kernels: Sequence[Kernel], compiled: bool = False) -> str:
    """The text of `kernels.py`.

    Args:
        compiled: `torch.compile` makes what runs.
    """
    header, show = (_COMPILED_HEADER, _print_compiled) if compiled else (_HEADER, _print_kernel)
    return "\n".join([header, *("\n" + text for kernel in kernels for text in show(kernel))])


def _print_compiled(kernel: Kernel) -> list[str]:
    """For torch.compile; what works on scalars alone is worth no compilation."""
    if not any(v.shape for v in kernel.graph.values):
        return _print_plain(kernel, _head(kernel, _describe(kernel)))
    lines = _head(kernel, _describe(kernel), "_ops") + _indented(print_torch(kernel))
    return [_text(lines), f"{kernel.name} = fused.compiled({kernel.name}_ops)\n"]


def _print_kernel(kernel: Kernel) -> list[str]:
    doc = _describe(kernel)
    try:
        parts = print_parts(kernel)
    except UnsupportedError as error:
        return _print_plain(kernel, _head(kernel, [*doc, f"Plain torch on every device: {error}."]))
    head = [*_head(kernel, doc), f"    if fused.runs_triton({kernel.graph.inputs[0]}):", *_indented(_indented(_launches(kernel, parts)))]
    return [*(_text(part.text.lines) for part in parts), *_print_plain(kernel, head)]


def _print_plain(kernel: Kernel, head: list[str]) -> list[str]:
    """The function, and those that it needs before it: on a CPU large tensors go through its ops in pieces, and equal counts are worked out once."""
    arguments, plain = f"[{', '.join(kernel.graph.inputs)}]", _indented(print_torch(kernel))
    apart = _text([f"def {kernel.name}_ops({arguments[1:-1]}):", *plain])
    if kernel.any_shape:
        texts, head = _print_adam(kernel, head, arguments)
        return [apart, *texts, _text([*head, f"    return fused.in_pieces({kernel.name}_ops, {arguments})"])]
    if kernel.into and not any(v.shape for v in kernel.graph.values):
        written = ", ".join(kernel.graph.inputs[i] for _, i in kernel.into)
        seen = f"{kernel.name}_seen = fused.Seen()\n"
        return [apart, seen, _text([*head, f"    return {kernel.name}_seen.run({kernel.name}_ops, {arguments}, [{written}])"])]
    return [_text([*head, *plain])]


def _print_adam(kernel: Kernel, head: list[str], arguments: str) -> tuple[list[str], list[str]]:
    """The function that makes Adam's step by torch's own kernel, if that is what the kernel does, and the head of the one that calls it."""
    step = adam_of(kernel)
    if step is None:
        return [], head
    head = [*head, f"    if fused.runs_adam({step.param}, {step.exp_avg}, {step.exp_avg_sq}):"]
    lines = print_adam(kernel, step)
    if not step.before and not step.after:
        return [], [*head, *_indented(_indented(lines if lines[-1].startswith("return ") else [*lines, "return None"]))]
    text = _text([f"def {kernel.name}_adam({arguments[1:-1]}):", *_indented(lines)])
    return [text], [*head, f"        return fused.in_pieces({kernel.name}_adam, {arguments})"]


def _head(kernel: Kernel, doc: list[str], suffix: str = "") -> list[str]:
    return [f"def {kernel.name}{suffix}({', '.join(kernel.graph.inputs)}):", f'    """{doc[0]}', *_indented(doc[1:]), '    """']


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _describe(kernel: Kernel) -> list[str]:
    """The lines that tell what it takes and makes, and where its ops come from."""
    values = {v.name: v for v in kernel.graph.values}
    into = dict(kernel.into)
    results = [name for k, name in enumerate(kernel.graph.outputs) if k not in into]

    def shown(name: str) -> str:
        value = values[name]
        return f"{name} {value.dtype}{'[...]' if kernel.any_shape and value.shape else list(value.shape)}"

    doc = textwrap.wrap(f"{', '.join(map(shown, kernel.graph.inputs))} -> {', '.join(map(shown, results)) or 'rewrites its states'}.", 130)
    return doc + textwrap.wrap(f"Ops: {'; '.join(kernel.sources)}.", 130)


def _launches(kernel: Kernel, parts: Sequence[Part]) -> list[str]:
    """The lines that launch the Triton functions, one after the other."""
    if len(parts) == 1:
        return _launch(parts[0], "return ")
    lines = [line for part in parts for line in _launch(part, f"{', '.join(part.kernel.graph.outputs)} = ")]
    return [*lines, f"return {', '.join(kernel.graph.outputs)}"]


def _launch(part: Part, before: str) -> list[str]:
    """The lines that launch one Triton function.

    Args:
        before: what is done with its results.
    """
    kernel, triton = part.kernel, part.text
    into, graph = dict(kernel.into), kernel.graph
    values = {v.name: v for v in graph.values}
    partial = {p.output: p for p in triton.partials}
    wide = next((name for name in graph.inputs if values[name].shape), graph.inputs[0])
    outs = []
    for k, name in enumerate(graph.outputs):
        if k not in into:
            value = values[name]
            parts = f", {partial[k].width}, torch.{partial[k].dtype}" if k in partial else ""
            shape = f"{wide}.shape" if kernel.any_shape and value.shape else str(list(value.shape))
            outs.append(f"fused.Out({shape}, torch.{value.dtype}{parts})")
    rows = f"{wide}.numel()" if kernel.any_shape else str(triton.rows)
    sizes = rows + (", any_size=True" if kernel.any_shape else "") if triton.shape == "flat" else f"{rows}, {triton.cols}{', walks=True' if triton.walks else ''}"
    lines = [f"{before}fused.launch({kernel.name}_kernel, fused.Grid(\"{triton.shape}\", {sizes}), [{', '.join(graph.inputs)}], ["]
    lines += [f"    {out}," for out in outs]
    written = f", written=[{', '.join(graph.inputs[i] for _, i in kernel.into)}]" if kernel.into else ""
    return [lines[0] + "]" + written + ")"] if not outs else [*lines, f"]{written})"]

