"""Run every kernel of `kernel_cases` in Triton's interpreter or on a GPU and compare with float64: prints one JSON object per kernel and dtype.

    TRITON_INTERPRET=1 python -m tests.codegen.kernel_numbers [CASE ...]
    python -m tests.codegen.kernel_numbers --device cuda [CASE ...]

A process of its own, for Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import itertools
import json
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from autopar.codegen.kernels.emit_kernels import print_kernels
from autopar.codegen.kernels.parts import print_parts
from autopar.codegen.kernels.reductions import UnsupportedError, list_statistics
from autopar.graph.blocks import LARGEST, most_rows
from autopar.graph.kernel import Kernel, takes_lists
from autopar.graph.tensor import power_of_two
from autopar.runtime import fused
from autopar.runtime.execute import run_graph
from tests.codegen.asked import Asked, read_words
from tests.codegen.kernel_cases import CASES, draw_inputs, kernels_of

CPU = torch.device("cpu")
_NUMBERS = itertools.count()
PRECISIONS = ("fp32", "bf16", "fp64")
SIZES = ((1,), (1025,), (3, 5, 67), (2048,))  # of further parameters of one launch: less than a block, a block and a bit, odd, whole blocks


def functions_of(kernels):
    """The functions of `kernels.py`. Triton reads their source where Python looks for lines, so no file is needed."""
    text, name = print_kernels(kernels), f"<kernels {next(_NUMBERS)}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    namespace: dict = {}
    exec(compile(text, name, "exec"), namespace)
    return namespace


def in_half(kernel: Kernel) -> Kernel:
    """The kernel with float16 where it has bfloat16."""
    return replace(kernel, graph=in_dtype(kernel.graph, ("bfloat16",), "float16"))


def in_dtype(graph, old, new):
    """The graph with another dtype in the place of some."""
    def node(n):
        return replace(n, args=tuple((k, replace(a, name=f"torch.{new}") if getattr(a, "name", "")[6:] in old else a) for k, a in n.args))

    values = tuple(replace(v, dtype=new) if v.dtype in old else v for v in graph.values)
    return replace(graph, values=values, nodes=tuple(node(n) for n in graph.nodes))


def expected(kernel, inputs):
    """Results and rewritten arguments in float64, by place and name."""
    def wide(x):
        return x.double() if x.is_floating_point() else x

    found = run_graph(in_dtype(kernel.graph, ("float32", "bfloat16", "float16"), "float64"), {k: wide(v) for k, v in inputs.items()})
    into = dict(kernel.into)
    results = [found[name] for k, name in enumerate(kernel.graph.outputs) if k not in into]
    return results, {kernel.graph.inputs[i]: found[kernel.graph.outputs[o]] for o, i in kernel.into}


def of_sizes(kernel: Kernel) -> list[Kernel]:
    """The kernel as parameters of several sizes call it, where it takes lists; else as it is."""
    if not takes_lists(kernel):
        return [kernel]

    def of(shape: tuple[int, ...]) -> Kernel:
        values = tuple(replace(v, shape=shape) if v.shape else v for v in kernel.graph.values)
        return replace(kernel, graph=replace(kernel.graph, values=values))

    return [kernel, *(of(shape) for shape in SIZES)]


def differences(kernel: Kernel, function: Callable, strided: bool, device: torch.device = CPU) -> float:
    """The largest difference from float64 on the CPU, relative to the largest value, over results and rewritten arguments."""
    kernels = of_sizes(kernel)
    drawn = [draw_inputs(one, seed, strided=strided) for seed, one in enumerate(kernels)]
    wanted = [expected(one, {k: v.clone() for k, v in given.items()}) for one, given in zip(kernels, drawn)]
    inputs = [{name: x.to(device) for name, x in given.items()} for given in drawn]
    if takes_lists(kernel):
        got = function(*([given[name] for given in inputs] for name in kernel.graph.inputs))
        got = () if got is None else got if isinstance(got, tuple) else (got,)
        rows = list(zip(*got)) if got else [()] * len(kernels)
    else:
        got = function(*inputs[0].values())
        rows = [() if got is None else got if isinstance(got, tuple) else (got,)]
    return max(_worst(one, row, given, want) for one, row, given, want in zip(kernels, rows, inputs, wanted, strict=True))


def _worst(kernel: Kernel, got: Sequence[torch.Tensor], inputs: Mapping[str, torch.Tensor], wanted: tuple) -> float:
    results, states = wanted
    values = {v.name: v for v in kernel.graph.values}
    into = dict(kernel.into)
    names = [name for k, name in enumerate(kernel.graph.outputs) if k not in into]
    worst, statistics = 0.0, list_statistics(kernel.graph)
    for name, x, want in [*zip(names, got, results, strict=True), *((n, inputs[n], w) for n, w in states.items())]:
        kept = f"torch.{'float32' if x.is_cuda and name in statistics and values[name].dtype in ('bfloat16', 'float16') else values[name].dtype}"
        assert tuple(x.shape) == values[name].shape and str(x.dtype) == kept, (kernel.name, name, x.shape, x.dtype)
        x, want = x.cpu(), want.reshape(x.shape)
        assert torch.equal(x.isnan(), want.isnan()), f"{kernel.name}: {name}: not a number in other places"
        both = x.isfinite() & want.isfinite()
        if both.any():
            scale = want[both].double().abs().max().clamp(min=1e-3)
            worst = max(worst, ((x[both].double() - want[both].double()).abs().max() / scale).item())
    return worst


def _with_blocks(rule: Callable, kernel: Kernel, function: Callable, device: torch.device = CPU) -> float:
    """The difference where launches ask this rule for their blocks."""
    before, fused.blocks = fused.blocks, rule
    try:
        return differences(kernel, function, False, device)
    finally:
        fused.blocks = before


def _with_largest_blocks(kernel: Kernel, usual: float, asked: Sequence[tuple]) -> float:
    """The difference where blocks have the most rows, and walks the most columns, that a launch may choose: kernels print masks by it.

    Args:
        usual: the difference with the blocks of the rule.
        asked: what the rule was asked then. Where these blocks are the same, so is the launch: it is not run again.
    """
    rule = fused.blocks

    def most(grid: fused.Grid, *args: int) -> dict[str, int]:
        return {**rule(grid, *args), "ROWS": min(most_rows(grid.shape, grid.width, grid.walks), power_of_two(grid.rows))}

    def widest(grid: fused.Grid, *args: int) -> dict[str, int]:
        return {**rule(grid, *args), **({"COLS": LARGEST} if grid.walks else {})}

    others = [largest for largest in (most, widest) if any(largest(*words) != rule(*words) for words in asked)]
    return max([usual, *(_with_blocks(largest, kernel, functions_of([kernel])[kernel.name]) for largest in others)])


def measure(kernel: Kernel, function: Callable, device: torch.device) -> dict[str, object]:
    """Why a kernel is plain, or its differences from float64."""
    try:
        print_parts(kernel)
    except UnsupportedError as error:
        return {"plain": str(error)}
    rule, asked = fused.blocks, []

    def noted(*words: object) -> dict[str, int]:
        asked.append(words)
        return rule(*words)

    usual = _with_blocks(noted, kernel, function, device)
    row = {"plain": "", "difference": usual, "strided": differences(kernel, function, True, device)}
    if device.type == "cpu":  # compiling for a GPU takes minutes for blocks that no launch would choose there
        row["largest"] = _with_largest_blocks(kernel, usual, asked)
    return row


def main(asked: Asked) -> None:
    known: dict[Kernel, dict[str, object]] = {}  # many cases have kernels in common, those of the update above all
    for case, precision in asked.share(itertools.product(asked.names or CASES, PRECISIONS)):
        kernels = list(kernels_of(CASES[case](), precision))
        halves = [replace(in_half(k), name=f"{k.name}_half") for k in kernels if any(v.dtype == "bfloat16" for v in k.graph.values)]
        functions = functions_of([*kernels, *halves])
        for kernel in (*kernels, *halves):
            if kernel not in known:
                known[kernel] = measure(kernel, functions[kernel.name], asked.device)
            print(json.dumps({"case": case, "precision": precision, "kernel": kernel.name, **known[kernel]}), flush=True)


if __name__ == "__main__":
    main(read_words(__doc__))
