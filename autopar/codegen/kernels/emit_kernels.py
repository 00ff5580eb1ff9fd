"""`kernels.py`: the kernels of a program as a file that a person can read.

In: the kernels. Out: the text: for each the function that the program calls, which runs plain torch or launches the Triton function above it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...graph.kernel import Kernel, joined_numbers, leaves_sums, places_given_up, short_op, takes_lists
from ...graph.liveness import is_view
from ..imports import print_used
from .adam import adam_of, print_adam, print_adam_lists
from .partials import Partial
from .parts import Part, print_parts
from .reductions import UnsupportedError, list_statistics
from .torch_text import print_torch
from .totals import LIST, print_plain, print_total, take_apart, without_rest
from .triton_text import TritonText

FILE = "kernels.py"

_HEADER = '''"""The fused kernels of the program beside this file: one function per distinct group of ops, shared by all blocks.

Each function runs its ops as they are written in its body, in plain torch; on a device that runs Triton it launches the function above it instead, which writes
each result once and reads each element once, or twice where a sum over its row has to be known first and the row is too wide to be kept. Indices count elements of the
local tensors, row by row, or as they lie where the launch says so; a mask stands where a block may reach beyond them. A kernel of the update takes a list for
each argument, an entry per parameter, and is launched once for all of them.
"""

from __future__ import annotations

import torch

{imports}

aten = torch.ops.aten
'''


_COMPILED_HEADER = '''"""What the program beside this file runs between collectives, each piece through torch.compile: one function per distinct piece, shared by all blocks. The update takes
a list for each argument, an entry per parameter; on a device that runs Triton it is launched once for all of them."""

from __future__ import annotations

import torch

{imports}

aten = torch.ops.aten
'''

_IMPORTS = {"autopar.runtime": ("formulas", "fused", "ops", "together", "totals"), "autopar.runtime.fused": ("more_exps", "row_exps", "row_sums", "tl", "uniform")}


def print_kernels(kernels: Sequence[Kernel], compiled: bool = False) -> str:
    """The text of `kernels.py`.

    Args:
        compiled: `torch.compile` makes what runs.
    """
    header, show = (_COMPILED_HEADER, _print_compiled) if compiled else (_HEADER, _print_kernel)
    texts = (_print_lists(kernel, compiled) if takes_lists(kernel) else _print_total(kernel) if joined_numbers(kernel) else show(kernel) for kernel in kernels)
    body = "\n".join("\n" + text for found in texts for text in found)
    imports = "\n".join(print_used(body, _IMPORTS))
    return f"{header.format(imports=imports)}\n{body}"


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
    plain = dict.fromkeys(short_op(node) for part in parts if part.text is None for node in part.kernel.graph.nodes if not is_view(node.op))
    doc += [f"Plain torch on every device: {', '.join(plain)} (no Triton text)."] if plain else []
    head = [*_head(kernel, doc), f"    if fused.runs_triton({kernel.graph.inputs[0]}):", *_indented(_indented(_runs(kernel, parts)))]
    return [*(text for part in parts for text in _print_part(part)), *_print_plain(kernel, head)]


def _print_part(part: Part) -> list[str]:
    """A Triton function and its launch, or plain torch."""
    if part.text is None:
        return [_text([f"def {part.kernel.name}({', '.join(part.kernel.graph.inputs)}):", *_indented(print_torch(part.kernel))])]
    return [_text(part.text.lines), _text(_launch(part, part.text))]


def _print_plain(kernel: Kernel, head: list[str]) -> list[str]:
    """The function, and those that it needs before it: on a CPU large tensors go through its ops in pieces."""
    if not kernel.any_shape or leaves_sums(kernel):
        return [_text([*head, *_indented(print_torch(kernel))])]
    return [_print_ops(kernel), _text([*head, f"    return fused.in_pieces({kernel.name}_ops, [{', '.join(kernel.graph.inputs)}])"])]


def _print_ops(kernel: Kernel) -> str:
    return _text([f"def {kernel.name}_ops({', '.join(kernel.graph.inputs)}):", *_indented(print_torch(kernel))])


def _print_lists(kernel: Kernel, compiled: bool) -> list[str]:
    """A kernel of many parameters: the function that the program calls takes a list for each argument. Where no Triton runs, its ops work on one parameter after
    the other: in pieces, equal counts are worked out once, and Adam's steps are torch's own."""
    doc, apart, head = _describe(kernel), [_print_ops(kernel)], [f"    lists = [{', '.join(kernel.graph.inputs)}]"]
    name, first, count = kernel.name, kernel.graph.inputs[0], len(kernel.graph.outputs) - len(kernel.into)
    scalar, step = not kernel.any_shape, None if compiled else adam_of(kernel)
    try:
        parts = print_parts(kernel)
    except UnsupportedError as error:
        parts, doc = (), doc if compiled else [*doc, f"Plain torch on every device: {error}."]
    if parts:
        apart = [*(text for part in parts if part.text for text in (_text(part.text.lines), _together(kernel, part, part.text))), *apart]
        head += [f"    if {first} and fused.runs_triton({first}[0]):", *_indented(_indented(_run_together(kernel, parts)))]
    ops, whole = f"{name}_ops", ", whole=True" if leaves_sums(kernel) else ""
    given_up = f", given_up={[*kernel.given_up]}" if kernel.given_up else ""
    if compiled and not scalar:
        apart.append(f"{name}_compiled = fused.compiled({name}_ops)\n")
        ops, whole = f"{name}_compiled", ", whole=True"
    elif scalar and kernel.into:
        apart.append(f"{name}_seen = fused.Seen({name}_ops, written={[i for _, i in kernel.into]})\n")
        ops = f"{name}_seen"
    if step is not None:
        head.append(f"    if together.runs_adam({step.param}, {step.exp_avg}, {step.exp_avg_sq}):")
        if step.before or step.after:
            apart.append(_text([f"def {name}_adam({', '.join(kernel.graph.inputs)}):", *_indented(print_adam(kernel, step))]))
            head.append(f"        return together.each({name}_adam, lists, {count}{given_up})")
        else:
            head += _indented(_indented(print_adam_lists(kernel, step)))
    doc = [f"Of each argument a list, an entry per parameter: {doc[0]}", *doc[1:]]
    return [*apart, _text([*_head(kernel, doc), *head, f"    return together.each({ops}, lists, {count}{whole}{given_up})"])]


def _print_total(kernel: Kernel) -> list[str]:
    """A kernel that makes one number of one of each parameter, which it takes as a list. Where what follows of the number has no Triton text, a launch makes it and plain torch goes on."""
    total = take_apart(kernel)
    others = total.arguments[1:]
    values = {v.name: v for v in kernel.graph.values}
    results = [name for k, name in enumerate(kernel.graph.outputs) if k not in dict(kernel.into)]
    shown = [f"{LIST} {total.made.dtype}[] of each", *(f"{name} {values[name].dtype}[]" for name in others)]
    doc = textwrap.wrap(f"Of numbers of all parameters one: {', '.join(shown)} -> {', '.join(f'{name} {values[name].dtype}[]' for name in results) or 'rewrites its states'}.", 130)
    doc += textwrap.wrap(f"Ops: {'; '.join(kernel.sources)}.", 130)
    run = [f"return {kernel.name}_total.run({', '.join(total.arguments)})"]
    try:
        lines, made = print_total(total)
    except UnsupportedError as error:
        lines, made = print_total(without_rest(total))
        doc.append(f"Plain torch on every device, but for the number of all: {error}.")
        run = [f"{total.made.name} = {kernel.name}_total.run({LIST})", *print_torch(total.rest)]
    head = [f"def {kernel.name}({', '.join(total.arguments)}):", f'    """{doc[0]}', *_indented(doc[1:]), '    """', f"    if totals.runs_triton({LIST}):", *_indented(_indented(run))]
    return [_text(lines), f"{made}\n", _text([*head, *_indented(print_plain(total))])]


def _run_together(kernel: Kernel, parts: Sequence[Part]) -> list[str]:
    """The lines that launch the Triton functions of many parameters, one after the other."""
    if len(parts) == 1:
        return [f"return {kernel.name}_together.run(lists)"]
    lines = [f"{', '.join(p.kernel.graph.outputs)} = {p.kernel.name}_together.run([{', '.join(p.kernel.graph.inputs)}])" for p in parts]
    return [*lines, f"return {', '.join(kernel.graph.outputs)}"]


def _together(whole: Kernel, part: Part, triton: TritonText) -> str:
    """The line that says what the Triton function of many parameters takes and makes; `whole` is the kernel whose part it is."""
    left = {whole.graph.outputs[k] for k in whole.in_parts}
    kernel, sums = part.kernel, {p.output: p for p in triton.partials}
    values, into = {v.name: v for v in kernel.graph.values}, dict(kernel.into)
    wide = next((k for k, name in enumerate(kernel.graph.inputs) if values[name].shape), None)
    made, over = [], places_given_up(kernel)
    for k, name in enumerate(kernel.graph.outputs):
        if k not in into:
            there = f", over={over[k]}" if k in over else ""
            parted = f", part_dtype=torch.{sums[k].kept}{_kind(sums[k])}{', in_parts=True' if name in left else ''}" if k in sums else ""
            made.append(f"together.Made(torch.{values[name].dtype}{'' if values[name].shape else ', scalar=True'}{parted}{there})")
    written = [i for _, i in kernel.into]
    return f"{kernel.name}_together = together.Together({kernel.name}_kernel, wide={wide}, made=[{', '.join(made)}], written={written})\n"


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


def _runs(kernel: Kernel, parts: Sequence[Part]) -> list[str]:
    """The lines that launch the Triton functions, one after the other."""
    if len(parts) == 1:
        return [f"return {_run(parts[0])}"]
    return [*(f"{', '.join(part.kernel.graph.outputs)} = {_run(part)}" for part in parts), f"return {', '.join(kernel.graph.outputs)}"]


def _run(part: Part) -> str:
    return f"{part.kernel.name}{'_launch.run' if part.text else ''}({', '.join(part.kernel.graph.inputs)})"


def _kind(partial: Partial) -> str:
    return ("" if partial.kind == "sum" else f', kind="{partial.kind}"') + (f", groups={partial.groups}" if partial.groups > 1 else "")


def _launch(part: Part, triton: TritonText) -> list[str]:
    """The lines that say what the Triton function runs over and makes."""
    kernel, graph, into = part.kernel, part.kernel.graph, dict(part.kernel.into)
    values = {v.name: v for v in graph.values}
    partial, layouts, statistics = {p.output: p for p in triton.partials}, dict(kernel.layouts), list_statistics(graph)
    outs = []
    for k, name in enumerate(graph.outputs):
        if k not in into:
            value = values[name]
            parts = f", {partial[k].width}, torch.{partial[k].kept}{_kind(partial[k])}" if k in partial else ""
            shape = None if kernel.any_shape and value.shape else list(value.shape)
            lies = f", strides={list(layouts[name])}" if name in layouts else ""
            lies += ", statistic=True" if name in statistics else ""
            outs.append(f"fused.Out({shape}, torch.{value.dtype}{parts}{lies})")
    sizes = "0, any_size=True" if kernel.any_shape else str(triton.rows)
    sizes += "" if triton.shape == "flat" else f", {triton.cols}{', walks=True' if triton.walks else ''}{f', widest={triton.widest}' if triton.widest > triton.cols else ''}"
    sizes += ", pieces=True" if triton.pieces else ""
    laid = {k: list(layouts[name]) for k, name in enumerate(graph.inputs) if name in layouts}
    wide = next((k for k, name in enumerate(graph.inputs) if values[name].shape), 0)
    options = (f", laid={laid}" if laid else "") + (f", written={[i for _, i in kernel.into]}" if kernel.into else "") + (f", like={wide}" if kernel.any_shape and wide else "")
    head = f'{kernel.name}_launch = fused.Launch({kernel.name}_kernel, fused.Grid("{triton.shape}", {sizes})'
    return [f"{head}, [", *(f"    {out}," for out in outs), f"]{options})"] if outs else [f"{head}{options})"]
