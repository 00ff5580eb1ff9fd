"""Compile the Triton kernels of a model ahead of time, without a GPU: registers, spills and seconds of each.

    python benchmarks/kernel_compile.py [MODEL] [--precision bf16] [--arch 80 --arch 90]

MODEL as for `autopar plan` (default: examples/gpt.py:build, 2 layers). A row per distinct kernel and architecture; spills are bytes of local memory that a thread
needs beside its registers (`cuobjdump --dump-resource-usage`, of Triton's own wheel), waits are places where all threads of a program wait for each other.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autopar import Workload  # noqa: E402
from autopar.codegen.kernels.emit_kernels import print_kernels  # noqa: E402
from autopar.codegen.kernels.parts import print_parts  # noqa: E402
from autopar.codegen.kernels.reductions import UnsupportedError  # noqa: E402
from autopar.codegen.kernels.totals import Total, print_total, take_apart, without_rest  # noqa: E402
from autopar.errors import AutoparError  # noqa: E402
from autopar.graph.kernel import Kernel, joined_numbers, takes_lists  # noqa: E402
from autopar.graph.tensor import DTYPE_BYTES, num_elements  # noqa: E402

POINTERS = {"float64": "*fp64", "float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16", "int64": "*i64", "int32": "*i32", "int16": "*i16", "int8": "*i8",
            "uint8": "*u8", "bool": "*i1"}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """One kernel for one architecture."""

    name: str
    arch: int
    registers: int
    spilled_bytes: int
    waits: int
    seconds: float
    cubin_bytes: int


def compile_kernels(kernels: Sequence[Kernel], archs: Sequence[int]) -> list[Compiled]:
    """Compile all kernels that have a Triton text."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(print_kernels(kernels), encoding="utf-8")
        namespace: dict = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        for kernel in kernels:
            if joined_numbers(kernel):
                found += [_compile_total(take_apart(kernel), namespace[f"{kernel.name}_kernel"], arch, Path(folder)) for arch in archs]
                continue
            try:
                parts = print_parts(kernel)
            except UnsupportedError:
                continue
            for arch in archs:
                found += [_compile(part.kernel, part.text, namespace[f"{part.kernel.name}_kernel"], arch, Path(folder)) for part in parts if part.text]
    return found


def _compile(kernel: Kernel, text, function, arch: int, folder: Path) -> Compiled:
    from autopar.runtime import fused, together

    values = {v.name: v for v in kernel.graph.values}
    into = dict(kernel.into)
    signature = {f"{name}_ptr": POINTERS[values[name].dtype] for name in kernel.graph.inputs}
    partial = {p.output: p for p in text.partials}
    for k, name in enumerate(kernel.graph.outputs):
        if k not in into:
            signature[f"{name}_out"] = POINTERS[partial[k].kept if k in partial else values[name].dtype]
    loaded = sum(DTYPE_BYTES[v.dtype] for v in kernel.graph.values if v.name in kernel.graph.inputs and num_elements(v.shape) >= text.rows * text.cols)
    sizes = fused.blocks(fused.Grid(text.shape, text.rows, text.cols, text.walks, widest=text.widest, pieces=text.pieces), max((p.width for p in text.partials), default=0), loaded)
    warps = sizes.pop("num_warps")
    if takes_lists(kernel):
        signature = {"parts": "*i64", "table": "*i64", **{f"{kernel.graph.outputs[p.output]}_out": POINTERS[p.kept] for p in text.partials}}
        rows = together.LARGE["ROWS"] if partial and len(partial) == len(kernel.graph.outputs) else sizes["ROWS"]
        warps = together.LARGE["num_warps"] if rows == together.LARGE["ROWS"] else warps
        sizes = {"ROWS": rows if kernel.any_shape else 1, "ALIGN": together.ALIGNED}
    elif kernel.any_shape:
        signature["SIZE"] = "i32"
    return _compile_function(kernel.name, function, signature, sizes, warps, arch, folder)


def _compile_total(total: Total, function, arch: int, folder: Path) -> Compiled:
    """One number of all, and what follows of it: of as many parts as a program holds."""
    from autopar.runtime import totals

    try:
        print_total(total)
    except UnsupportedError:
        total = without_rest(total)
    kernel, into = total.kernel, dict(total.kernel.into)
    kinds = {v.name: POINTERS[v.dtype] for v in kernel.graph.values}
    outs = {f"{name}_out": kinds[name] for k, name in enumerate(kernel.graph.outputs) if k not in into}
    signature = {"parts_ptr": POINTERS[total.partial.kept], **{f"{name}_ptr": kinds[name] for name in kernel.graph.inputs[1:]}, **outs, "COUNT": "i32"}
    sizes = {"COLS": totals.MOST_COLS, "WAITS": arch >= 90}
    return _compile_function(kernel.name, function, signature, sizes, totals.MOST_COLS // totals.OF_A_WARP, arch, folder)


def _compile_function(name: str, function, signature: dict[str, str], sizes: dict[str, int], warps: int, arch: int, folder: Path) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature.update(dict.fromkeys(sizes, "constexpr"))
    # as the launcher finds them: torch's allocations are aligned to 16 bytes
    attrs = {(k,): [["tt.divisibility", 16]] for k, kind in enumerate(signature.values()) if kind.startswith("*")}
    began = time.perf_counter()
    source = ASTSource(fn=function, signature=signature, constexprs=sizes, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    seconds = time.perf_counter() - began
    cubin = folder / f"{name}_{arch}.cubin"
    cubin.write_bytes(made.asm["cubin"])
    registers, spilled = _resources(cubin)
    return Compiled(name, arch, registers, spilled, made.asm["ptx"].count("bar.sync"), seconds, cubin.stat().st_size)


def _resources(cubin: Path) -> tuple[int, int]:
    """(registers, bytes of local memory) of a thread."""
    import triton

    tool = next(Path(triton.__file__).parent.glob("backends/nvidia/bin/cuobjdump*"))
    text = subprocess.run([str(tool), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {text!r}")
    return int(found.group(1)), int(found.group(2)) + int(found.group(3))


def model_kernels(model: str, precision: str, args: dict[str, str] | None = None) -> tuple[Kernel, ...]:
    """The distinct kernels of a model's step on one device."""
    from autopar.trace.load import load_workload

    return workload_kernels(load_workload(model, args), precision)


def workload_kernels(workload: Workload, precision: str) -> tuple[Kernel, ...]:
    """The distinct kernels of a step on one device."""
    import random

    from autopar.graph.case import build_case
    from autopar.graph.fuse import fuse_program
    from autopar.graph.partition import partition
    from autopar.graph.random_plans import Assigner, plain_mesh
    from autopar.graph.sections import phase_sections
    from autopar.trace import trace_step

    case = build_case(trace_step(workload, precision).graph)
    assignment = Assigner(case.graph, case.sites, case.signatures, plain_mesh(())).draw(random.Random(0))  # of one device there is one
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
    return fuse_program(program, phase_sections(program.graph)).kernels


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="examples/gpt.py:build")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--arch", type=int, action="append", default=None, help="80, 90; repeatable")
    parser.add_argument("--arg", action="append", default=[], help="K=V, as for `autopar plan`")
    asked = parser.parse_args(words)
    args = dict(a.split("=", 1) for a in asked.arg)
    if asked.model == "examples/gpt.py:build":
        args.setdefault("layers", "2")
    try:
        kernels = model_kernels(asked.model, asked.precision, args)
    except AutoparError as error:
        print(f"kernel_compile.py: {error}", file=sys.stderr)
        return 2
    rows = compile_kernels(kernels, asked.arch or [80, 90])
    width = max((len(r.name) for r in rows), default=6)
    print(f"{'kernel':{width}}  sm  registers  spilled bytes  waits  cubin bytes  compile s")
    for r in rows:
        print(f"{r.name:{width}}  {r.arch:2}  {r.registers:9}  {r.spilled_bytes:13}  {r.waits:5}  {r.cubin_bytes:11}  {r.seconds:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
