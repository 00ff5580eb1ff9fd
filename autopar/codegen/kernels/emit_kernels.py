"""`kernels.py`: the kernels of a program as a file that a person can read.

In: the kernels. Out: the text: for each the function that the program calls, which runs plain torch or launches the Triton function above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...graph.kernel import Kernel
from .reductions import UnsupportedError
from .torch_text import print_torch
from .triton_text import TritonText, print_triton

FILE = "kernels.py"

_HEADER = '''"""The fused kernels of the program beside this file: one function per distinct group of ops, shared by all blocks.

Each function runs its ops as they are written in its body, in plain torch; on a device that runs Triton it launches the function above it instead, which reads and
writes each element once. Indices count elements of the local tensors, row by row.
"""

from __future__ import annotations

import torch

from autopar.runtime import fused, ops
from autopar.runtime.fused import tl, uniform

aten = torch.ops.aten
'''


def print_kernels(kernels: Sequence[Kernel]) -> str:
    """The text of `kernels.py`."""
    return "\n".join([_HEADER, *("\n" + text for kernel in kernels for text in _print_kernel(kernel))])


def _print_kernel(kernel: Kernel) -> list[str]:
    values = {v.name: v for v in kernel.graph.values}

    def shown(name: str) -> str:
        value = values[name]
        return f"{name} {value.dtype}{'[...]' if kernel.any_shape and value.shape else list(value.shape)}"

    into = dict(kernel.into)
    results = [name for k, name in enumerate(kernel.graph.outputs) if k not in into]
    doc = textwrap.wrap(f"{', '.join(map(shown, kernel.graph.inputs))} -> {', '.join(map(shown, results)) or 'rewrites its states'}.", 130)
    doc += textwrap.wrap(f"Ops: {'; '.join(kernel.sources)}.", 130)
    try:
        triton = print_triton(kernel)
    except UnsupportedError as error:
        triton = None
        doc.append(f"Plain torch on every device: {error}.")
    lines = [f"def {kernel.name}({', '.join(kernel.graph.inputs)}):", f'    """{doc[0]}', *(f"    {line}" for line in doc[1:]), '    """']
    if triton is not None:
        lines += [f"    if fused.runs_triton({kernel.graph.inputs[0]}):", *(f"        {line}" for line in _launch(kernel, triton))]
    plain = [f"    {line}" for line in print_torch(kernel)]
    functions = [] if triton is None else [list(triton.lines)]
    if kernel.any_shape:
        functions.append([f"def {kernel.name}_ops({', '.join(kernel.graph.inputs)}):", *plain])
        plain = [f"    return fused.in_pieces({kernel.name}_ops, [{', '.join(kernel.graph.inputs)}])"]
    elif kernel.into and not any(v.shape for v in kernel.graph.values):
        functions.append([f"def {kernel.name}_ops({', '.join(kernel.graph.inputs)}):", *plain, "", "", f"{kernel.name}_seen = fused.Seen()"])
        written = ", ".join(kernel.graph.inputs[i] for _, i in kernel.into)
        plain = [f"    return {kernel.name}_seen.run({kernel.name}_ops, [{', '.join(kernel.graph.inputs)}], [{written}])"]
    return ["\n".join(lines) + "\n" for lines in (*functions, [*lines, *plain])]


def _launch(kernel: Kernel, triton: TritonText) -> list[str]:
    """The lines that launch the Triton function."""
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
    lines = [f"return fused.launch({kernel.name}_kernel, fused.Grid(\"{triton.shape}\", {sizes}), [{', '.join(graph.inputs)}], ["]
    lines += [f"    {out}," for out in outs]
    written = f", written=[{', '.join(graph.inputs[i] for _, i in kernel.into)}]" if kernel.into else ""
    return [lines[0] + "]" + written + ")"] if not outs else [*lines, f"]{written})"]

