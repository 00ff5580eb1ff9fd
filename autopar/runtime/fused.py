"""Triton kernels of emitted programs: where they run, how they are launched.

In: a Triton function that `codegen.kernels` printed, its tensors, what its grid is divided into. Out: its results. Without Triton, or on the CPU, `runs_triton` is
false and nothing here is called. Triton's own interpreter (its TRITON_INTERPRET) runs kernels on the CPU.

A result that comes in parts has a row per program, and is added up here. Sizes of blocks by rule: of rows and columns that are held at once about `_ELEMENTS`, whole rows
where the kernel needs them. On CUDA sizes around these are measured when a kernel is first launched (`block_table`); of several ranks only where nothing is added up, as ranks
that hold the same thing must add in one order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..graph.layouts import alike, span
from ..graph.tensor import power_of_two
from .adam import adam  # noqa: F401  called by kernels
from .block_table import BlockTable, candidates, table_of
from .clock import clock_of

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU needs none
    triton = tl = None

_ELEMENTS = 2048  # of a block, in flat kernels and where rows are short
_FLAT = 1024
_WALK = 4096  # columns at a time where rows are wider than a program holds
_COLUMN_BLOCK = 64  # columns of a program that walks down rows
_PIECE = 1 << 17  # elements that a CPU works on at a time: 512 KiB of float32 for each tensor; smaller pieces cost more calls than their caches save
_ASKING_S = 3e-4  # longer than a launch takes the host
_COMPILER_FAILED = "PassManager::run failed"
_INSTEAD: dict[tuple[Any, Any], dict[str, int]] = {}  # kernels that do not compile with their sizes
_HALVES = (torch.bfloat16, torch.float16)
_SEEN = 8  # sets of inputs
_PART_COLS = 32  # of parts that one program adds up: what is loaded at once, many programs for few columns
_PROGRAMS = {"rows": 264, "columns": 1024}  # that leave wide parts: two and more for every processor of a device (132 on an H200), few enough to add up
_MOST_PROGRAMS = 1 << 14  # that leave a number each


@dataclass(frozen=True)
class Out:
    """A result. `width`: where it comes in parts, elements of a part; `part_dtype`: theirs. `strides`: where it does not lie row by row.
    `statistic`: of a norm, in float32 on a GPU."""

    shape: Sequence[int]
    dtype: torch.dtype
    width: int = 0
    part_dtype: torch.dtype = torch.float32
    strides: Sequence[int] = ()
    statistic: bool = False


@dataclass(frozen=True)
class Laid:
    """A tensor that lies as its kernel reads it."""

    tensor: Tensor


@dataclass(frozen=True)
class Grid:
    """What a kernel runs over: `flat` elements (rows), `rows` of `cols` elements, or `columns` of so many rows. `walks`: a program goes along its rows in blocks. `any_size`:
    the kernel is told how many rows there are."""

    shape: str
    rows: int
    cols: int = 1
    walks: bool = False
    any_size: bool = False


def jit(function: Callable) -> Any:
    """`triton.jit` where there is Triton."""
    return function if triton is None else triton.jit(function)


if triton is not None:
    _GOLDEN, _FIRST, _SECOND = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)


@jit
def _mix(z):
    z = (z ^ (z >> 30)) * _FIRST
    z = (z ^ (z >> 27)) * _SECOND
    return z ^ (z >> 31)


@jit
def uniform(seed, place, BITS: tl.constexpr):
    """`runtime.random.uniform` of one element: `place` is its number in the whole tensor."""
    key = _mix((seed.to(tl.uint64) + 1) * _GOLDEN) + _GOLDEN
    z = _mix(place.to(tl.uint64) * _GOLDEN + key) >> (64 - BITS)
    return z.to(tl.float64) * (1.0 / (1 << BITS)) if BITS > 24 else z.to(tl.float32) * (1.0 / (1 << BITS))


@jit
def add_parts(part_ptr, sum_out, count, width, pitch, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Of each sum the parts that programs left, added up: `[sums, count, width]` -> `[sums, pitch]`."""
    which = tl.program_id(0)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros([ROWS, COLS], part_ptr.dtype.element_ty)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        total += tl.load(part_ptr + (which * count + row) * width + col, mask=(row < count) & (col < width), other=0)
    tl.store(sum_out + which * pitch + col, tl.sum(total, axis=0)[None, :].to(sum_out.dtype.element_ty), mask=col < width)


@functools.cache
def _interprets() -> bool:
    return triton is not None and bool(triton.knobs.runtime.interpret)


def runs_triton(x: Tensor) -> bool:
    """True where kernels on this tensor's device are Triton's."""
    return triton is not None and (x.is_cuda or _interprets())


def blocks(grid: Grid, widest: int = 0) -> dict[str, int]:
    """The sizes of a kernel's blocks, its programs where they leave parts, and its warps, by rule; in which steps its loops load what comes next. The numbers are those
    that were fastest, or nearly, for the norms, losses and sums of a GPT and a Llama on an H200.

    Args:
        widest: elements of the widest part that a program leaves; 0: none leaves any.
    """
    if grid.shape == "flat":
        sizes = {"ROWS": _FLAT, "num_warps": 4}
    elif grid.shape == "columns":
        sizes = {"ROWS": 16, "COLS": min(_COLUMN_BLOCK, power_of_two(grid.cols)), "num_warps": 4}
    else:
        cols = _WALK if grid.walks else power_of_two(grid.cols)
        elements = 2 * _ELEMENTS if widest > 1 else _ELEMENTS
        rows = max(1, elements // cols)
        sizes = {"ROWS": rows, "COLS": cols, "num_warps": min(16, max(2, rows * cols // 512))}
    if widest:
        most = _PROGRAMS.get(grid.shape, _MOST_PROGRAMS) if widest > 1 else _MOST_PROGRAMS
        sizes["PROGRAMS"] = max(1, most // _across(grid, sizes))
    return {**sizes, "STAGES": 1} if widest or grid.walks else sizes


def _across(grid: Grid, sizes: Mapping[str, int]) -> int:
    return -(-grid.cols // sizes["COLS"]) if grid.shape == "columns" else 1


def laid(x: Tensor, strides: Sequence[int]) -> Laid:
    """`x` with these strides; a copy where it has others."""
    if alike(x.shape, x.stride(), strides):
        return Laid(x)
    return Laid(_strided(x.shape, strides, x.dtype, x.device).copy_(x))


def launch(kernel: Any, grid: Grid, inputs: Sequence[Tensor | Laid], outs: Sequence[Out], written: Sequence[Tensor] = ()) -> Any:
    """Run a kernel.

    Args:
        written: inputs that it rewrites; they must be dense.
    Returns:
        the results: one, a tuple of several, or None.
    """
    dense = [x.tensor if isinstance(x, Laid) else x.contiguous() for x in inputs]
    device = dense[0].device
    if any(x is not d and x.data_ptr() != d.data_ptr() for x, d in zip(inputs, dense) if any(x is w for w in written)):
        raise ValueError(f"{kernel.__name__}: a state that is rewritten in place is not dense")

    together: dict[tuple, list[int]] = {}  # results that come in parts of one kind: added up in one launch
    for place, out in enumerate(outs):
        if out.width:
            together.setdefault((out.width, out.part_dtype, out.dtype), []).append(place)
    widest = max((width for width, _, _ in together), default=0)

    def run(sizes: Mapping[str, int], taken: Sequence[Tensor]) -> list[Any]:
        programs, across = -(-grid.rows // sizes["ROWS"]), _across(grid, sizes)
        if widest:
            programs = min(programs, sizes["PROGRAMS"])
            sizes = {**sizes, "PROGRAMS": programs}
        made = [None if out.width else _empty(out, device) for out in outs]
        sums = [(places, torch.empty((len(places), programs, width), dtype=dtype, device=device)) for (width, dtype, _), places in together.items()]
        left = {place: part[number] for places, part in sums for number, place in enumerate(places)}
        kernel[(programs, across)](*taken, *(left.get(k, x) for k, x in enumerate(made)), *([grid.rows] if grid.any_size else []), **sizes)
        for places, part in sums:
            for place, total in zip(places, _add_parts(part, outs[places[0]].dtype)):
                made[place] = total.view(tuple(outs[place].shape))
        return made

    with on_device(device):
        results = _run_compiled(kernel, grid, block_sizes(kernel, grid, dense, widest, written, run), lambda sizes: run(sizes, dense))
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def _run_compiled(kernel: Any, grid: Grid, sizes: dict[str, int], run: Callable[[dict[str, int]], Any]) -> Any:
    """Run with these sizes; with others near them where Triton's compiler fails on them (3.6 does, on a softmax beside what else is read of its row)."""
    try:
        return run(_INSTEAD.get((kernel, grid), sizes))
    except RuntimeError as error:
        if _COMPILER_FAILED not in str(error):
            raise
        for other in candidates(sizes)[1:]:
            with contextlib.suppress(Exception):  # these may need more than the device has, which Triton says by an error of its own
                made = run(other)
                _INSTEAD[kernel, grid] = other
                return made
        raise


def block_sizes(kernel: Any, grid: Grid, inputs: Sequence[Tensor], widest: int, written: Sequence[Tensor], run: Callable) -> dict[str, int]:
    """The sizes of a kernel's blocks on its device: from its table, measured on copies of what is rewritten; where no table may decide, from the rule.

    Args:
        widest: as of `blocks`, of sums that it leaves for others to add up.
        run: launches it, with the sizes and inputs that it is given.
    """
    rule, device = blocks(grid, widest), inputs[0].device
    if device.type != "cuda" or (grid.shape != "flat" or widest) and num_ranks() > 1:  # the order of a sum, which ranks must have in common
        return rule
    table = _table(device)
    key = _key(kernel, replace(grid, rows=power_of_two(grid.rows)) if grid.any_size else grid)
    found = table.known(key)
    if found is None and torch.cuda.is_current_stream_capturing():
        return rule
    if found is None:
        ours, clock = [x.clone() if any(x is w for w in written) else x for x in inputs], clock_of(device)

        def seconds(sizes: dict[str, int]) -> float:
            clock.hold(_ASKING_S)
            begin = clock.stamp()
            run(sizes, ours)
            return clock.seconds(begin, clock.stamp())

        found = table.find(key, rule, seconds)
    return found


@functools.cache
def _table(device: torch.device) -> BlockTable:
    return table_of(torch.cuda.get_device_name(device))


@functools.cache
def _key(kernel: Any, grid: Grid) -> str:
    """A line's name in the table: the kernel and what it runs over; its text, as names are those of one program."""
    digest = hashlib.sha256(str(getattr(kernel, "src", "")).encode()).hexdigest()[:8]
    return f"{kernel.__name__} {grid.shape} {grid.rows}x{grid.cols} {digest}"


def num_ranks() -> int:
    """Of this job."""
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


def compiled(ops: Callable) -> Callable:
    """`ops` through torch.compile, made when it is first called: for its first shapes, then for any."""
    return torch.compile(ops)


def in_pieces(ops: Callable, inputs: Sequence[Tensor]) -> Any:
    """Run ops that work element by element; on a CPU piece by piece, so that what one op makes is still in the caches when the next one reads it.

    Args:
        inputs: of one shape, and scalars.
    Returns:
        what `ops` returns, of that shape.
    """
    wide = [x for x in inputs if x.dim()]
    if not wide or wide[0].device.type != "cpu" or wide[0].numel() < 2 * _PIECE or not all(x.is_contiguous() for x in wide):
        return ops(*inputs)
    shape, size = wide[0].shape, wide[0].numel()
    flat = [x.view(-1) if x.dim() else x for x in inputs]
    made: list[Tensor] = []
    single = False
    for start in range(0, size, _PIECE):
        found = ops(*(x[start : start + _PIECE] if x.dim() else x for x in flat))
        single = isinstance(found, Tensor)
        results = () if found is None else (found,) if single else found
        if start == 0:
            made = [torch.empty(size, dtype=r.dtype) for r in results]
        for whole, piece in zip(made, results):
            whole[start : start + _PIECE] = piece
    shaped = tuple(x.view(shape) for x in made)
    return None if not shaped else shaped[0] if single else shaped


class Seen:
    """Ops on scalars, with what they made of the last few inputs: the optimizer's counts are equal for most parameters, and so are its factors. On a CPU only: there reading
    a number waits for nothing.

    Args:
        written: numbers of the inputs that the ops rewrite.
    """

    def __init__(self, ops: Callable, written: Sequence[int]) -> None:
        self._ops, self._written = ops, tuple(written)
        self._found: dict[tuple, tuple[Any, list[float]]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """What the ops make; it is read only."""
        if any(x.device.type != "cpu" for x in inputs):
            return self._ops(*inputs)
        key = tuple((x.item(), x.dtype) for x in inputs)
        found = self._found.get(key)
        if found is not None:
            for place, number in zip(self._written, found[1]):
                inputs[place].fill_(number)
            return found[0]
        result = self._ops(*inputs)
        if len(self._found) >= _SEEN:
            self._found = {}
        self._found[key] = (result, [inputs[place].item() for place in self._written])
        return result


def _add_parts(parts: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """`[sums, programs, width]` -> of each the sum over programs, its address a multiple of 16 bytes."""
    count, programs, width = parts.shape
    pitch = -(-width // 16) * 16
    sums = torch.empty((count, pitch), dtype=dtype, device=parts.device)
    cols = min(_PART_COLS, power_of_two(width))
    add_parts[(count, -(-width // cols))](parts, sums, programs, width, pitch, ROWS=_ELEMENTS // cols, COLS=cols)
    return [row[:width] for row in sums.unbind()]


def _empty(out: Out, device: torch.device) -> Tensor:
    dtype = torch.float32 if out.statistic and device.type == "cuda" and out.dtype in _HALVES else out.dtype
    return _strided(out.shape, out.strides, dtype, device) if out.strides else torch.empty(tuple(out.shape), dtype=dtype, device=device)


def _strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to the end of the last row, what lies between rows included."""
    return torch.empty(span(shape, strides), dtype=dtype, device=device).as_strided(tuple(shape), tuple(strides))


def on_device(device: torch.device) -> Any:
    """Launches go there."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
