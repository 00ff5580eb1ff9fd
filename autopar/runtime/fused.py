"""Triton kernels of emitted programs: where they run, how they are launched.

In: a Triton function that `codegen.kernels` printed and what its grid is divided into (`Launch`); its tensors. Out: its results. Without Triton, or on the CPU, `runs_triton` is
false and nothing here is called. Triton's own interpreter (its TRITON_INTERPRET) runs kernels on the CPU.

A result that comes in parts has a row per program, and is added up here, by a launch that is made ready while the kernel ends where the device can. Sizes of blocks by rule: of
rows and columns that are held at once about `_ELEMENTS`, whole rows where the kernel needs them. On CUDA sizes around these are measured when a kernel is first launched
(`block_table`) and worth it (`_WORTH`); of several ranks only where nothing is added up, as ranks that hold the same thing must add in one order.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..graph.blocks import COLUMN_ROWS, EIGHT, FLAT, LARGEST, PIECE_WARPS, block_cols, most_rows
from ..graph.layouts import span
from ..graph.tensor import power_of_two
from ..graph.view_strides import alike
from .adam import adam  # noqa: F401  called by kernels
from .block_table import BlockTable, candidates, loop_candidates, table_of
from .clock import clock_of
from .compiled import compiled  # noqa: F401  called by what torch.compile makes of segments
from .straight import straight

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU needs none
    triton = tl = None

_ELEMENTS = 2048  # of a block, in flat kernels and where rows are short
_WORTH = 1 << 20  # elements of a grid: what other blocks could save of fewer is taken to be less than measuring costs
_AHEAD, _AHEAD_BYTES = 3, 96 << 10  # rounds of a loop that are loaded at once by rule, and what they may hold: two programs of a processor have room (228 KiB on an H200)
_PIECE = 1 << 17  # elements that a CPU works on at a time: 512 KiB of float32 for each tensor; smaller pieces cost more calls than their caches save
_ASKING_S = 3e-4  # longer than a launch takes the host
_COMPILER_FAILED, _TOO_MUCH = "PassManager::run failed", "OutOfResources"
_HERE = contextlib.nullcontext()
_INSTEAD: dict[tuple[Any, Any], dict[str, int]] = {}  # kernels that do not compile with their sizes
_HALVES = (torch.bfloat16, torch.float16)
_SEEN = 8  # sets of inputs
_PART_COLS, _PART_ELEMENTS = 8, 4096  # of parts that one program adds up: many programs for few columns, all that it adds is loaded at once
_WAITING = (9, 0)  # the compute capability from which on a launch can be made ready before the one that it waits for has ended
_PROGRAMS = {"rows": 264, "columns": 1024}  # that leave wide parts: two and more for every processor of a device (132 on an H200), few enough to add up
_MOST_PROGRAMS = 1 << 14  # that leave a number each


@dataclass(frozen=True)
class Out:
    """A result. `shape` None: that of the argument which a kernel of any size is like. `width`: where it comes in parts, elements of a part; `part_dtype`: theirs; `kind`: what all parts
    make, `sum`, `max` or `min`. `strides`: where it does not lie row by row. `statistic`: of a norm, in float32 on a GPU. `groups`: a sum
    of each of so many runs of rows by itself; a program has rows of one run."""

    shape: Sequence[int] | None
    dtype: torch.dtype
    width: int = 0
    part_dtype: torch.dtype = torch.float32
    strides: Sequence[int] = ()
    statistic: bool = False
    kind: str = "sum"
    groups: int = 1


@dataclass(frozen=True)
class Grid:
    """What a kernel runs over: `flat` elements (rows), `rows` of `cols` elements, or `columns` of so many rows. `walks`: a program goes along its rows in blocks. `any_size`:
    the kernel is told how many rows there are, which are the elements of the argument that it is like. `widest`: elements of the widest thing of a row, where that is more than `cols`. `pieces`: a program goes
    through the rows that it holds in pieces of columns."""

    shape: str
    rows: int
    cols: int = 1
    walks: bool = False
    any_size: bool = False
    widest: int = 0
    pieces: bool = False

    @property
    def width(self) -> int:
        """Elements of a row that are held at once, where a row is."""
        return max(self.cols, self.widest)


def jit(function: Callable) -> Any:
    """`triton.jit` where there is Triton."""
    return function if triton is None else triton.jit(function)


INTERPRETED = None if triton is None else tl.constexpr(bool(triton.knobs.runtime.interpret))  # in texts of kernels; `interprets` elsewhere
if triton is not None:
    _EIGHT, _FLUSHES = tl.constexpr(EIGHT), tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)
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
def row_sums(x, y):
    """Of two blocks the sums along rows, in one exchange between the warps of a program: `[rows, cols]` each -> `[rows, 1]` each."""
    first, second = tl.split(tl.sum(tl.join(x, y), axis=1))
    return first[:, None], second[:, None]


@jit
def places(count, most):
    """0 .. count - 1, of which a thread takes at most so many side by side, a power of two."""
    return tl.max_contiguous(tl.multiple_of(tl.arange(0, count), most), most)


@jit
def opaque(number):
    """The number itself, of which a compiler knows nothing: of the number of a row that it knows it makes addresses in each tensor, and keeps them all from round to round."""
    if not _FLUSHES:
        found = number
    elif number.dtype == tl.int64:
        found = tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [number], dtype=tl.int64, is_pure=False, pack=1)
    else:
        found = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)
    return found


@jit
def _exp(x):
    """exp, in float32 on NVIDIA's GPUs without the three steps that results below 1e-38 would need."""
    if _FLUSHES and x.dtype == tl.float32:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1)
    return tl.exp(x)


@jit
def more_exps(block, peaks, sums):
    """Of a block `[rows, cols]` of a row the largest elements of each eight columns so far, and their sums of exp(element - largest), which are scaled anew where a larger one comes
    (Milakov and Gimelshein 2018, arXiv:1805.02867): `[rows, cols / 8]` each. Eight columns are a thread's own, so nothing is exchanged while a program walks."""
    eights = tl.reshape(block, [block.shape[0], block.shape[1] // _EIGHT, _EIGHT])
    tops = tl.maximum(peaks, tl.max(eights, axis=2))
    return tops, sums * _exp(peaks - tops) + tl.sum(_exp(eights - tops[:, :, None]), axis=2)


@jit
def row_exps(peaks, sums):
    """What `more_exps` found along rows -> their largest elements and sums, `[rows, 1]` each. Of nothing but -inf there is no sum, nor beside inf."""
    peak = tl.max(peaks, axis=1)[:, None]
    total = tl.sum(sums * _exp(peaks - peak), axis=1)[:, None]
    peak = tl.where(total == 0.0, float("-inf"), peak)
    return peak, total + (peak - peak)


@jit
def _larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@jit
def _smaller(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@jit
def more(x, y, KIND: tl.constexpr):
    """The sum, or the larger or smaller one: no number where one is none."""
    if KIND == "sum":
        return x + y
    else:
        return _larger(x, y) if KIND == "max" else _smaller(x, y)


@jit
def along(x, axis: tl.constexpr, KIND: tl.constexpr):
    """The sum or extreme of a block along an axis: an extreme is no number where an element is none. Triton's interpreter takes long for reductions that are not its own."""
    if KIND == "sum":
        return tl.sum(x, axis=axis)
    elif INTERPRETED:
        found = tl.max(x, axis=axis) if KIND == "max" else tl.min(x, axis=axis)
        return tl.where(tl.max((x != x).to(tl.int32), axis=axis) > 0, float("nan"), found) if x.dtype.is_floating() else found
    else:
        return tl.reduce(x, axis, _larger if KIND == "max" else _smaller)


@jit
def extreme(x, KIND: tl.constexpr):
    """Of a whole block, of one or two dims."""
    if len(x.shape) == 2:
        return along(along(x, 1, KIND), 0, KIND)
    else:
        return along(x, 0, KIND)


@jit
def add_parts(part_ptr, sum_out, count, width, pitch, ROWS: tl.constexpr, COLS: tl.constexpr, WAITS: tl.constexpr, KIND: tl.constexpr, NONE: tl.constexpr):
    """Of each sum (or extreme) the parts that programs left, added up: `[sums, count, width]` -> `[sums, pitch]`. `WAITS`: it may be there before they are; `NONE`: what changes no result."""
    which = tl.program_id(1)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    if WAITS:
        tl.extra.cuda.gdc_wait()
    total = tl.full([ROWS, COLS], NONE, part_ptr.dtype.element_ty)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        total = more(total, tl.load(part_ptr + (which * count + row) * width + col, mask=(row < count) & (col < width), other=NONE), KIND)
    tl.store(sum_out + which * pitch + col, along(total, 0, KIND)[None, :].to(sum_out.dtype.element_ty), mask=col < width)


@functools.cache
def interprets() -> bool:
    """True where kernels run in Triton's interpreter."""
    return triton is not None and bool(triton.knobs.runtime.interpret)


def runs_triton(x: Tensor) -> bool:
    """True where kernels on this tensor's device are Triton's."""
    return triton is not None and (x.is_cuda or interprets())


def blocks(grid: Grid, widest: int = 0, loaded: int = 0) -> dict[str, int]:
    """The sizes of a kernel's blocks, its programs where they leave parts, and its warps, by rule; how many rounds its loops load at once. The numbers are those
    that were fastest, or nearly, for the norms, losses and sums of a GPT and a Llama on an H200.

    Args:
        widest: elements of the widest part that a program leaves; 0: none leaves any.
        loaded: bytes that are loaded for an element of a block.
    """
    if grid.shape == "flat":
        sizes = {"ROWS": FLAT, "num_warps": 4}
    elif grid.shape == "columns":
        sizes = {"ROWS": COLUMN_ROWS, "COLS": block_cols("columns", grid.cols), "num_warps": 4}
    else:
        cols, wide = (block_cols("rows", width, grid.walks) for width in (grid.cols, grid.width))
        rows = max(1, min(_ELEMENTS // wide, power_of_two(grid.rows)))
        sizes = {"ROWS": rows, "COLS": cols, "num_warps": PIECE_WARPS if grid.pieces else min(16, max(2, rows * wide // 512))}
    if grid.shape == "rows" and widest > 1 and grid.cols % EIGHT:  # every element has an address and a mask of its own, which take the registers of half of the elements
        sizes["ROWS"] = max(1, sizes["ROWS"] // 2)
    if widest:
        most = _PROGRAMS.get(grid.shape, _MOST_PROGRAMS) if widest > 1 else _MOST_PROGRAMS
        sizes["PROGRAMS"] = max(1, most // _across(grid, sizes))
    if not widest and not grid.walks:
        return sizes
    ahead = grid.shape == "rows" and widest > 1 and sizes["ROWS"] * block_cols("rows", grid.width) * loaded * _AHEAD <= _AHEAD_BYTES
    return {**sizes, "STAGES": _AHEAD if ahead else 1}


def _across(grid: Grid, sizes: Mapping[str, int]) -> int:
    return -(-grid.cols // sizes["COLS"]) if grid.shape == "columns" else 1


@dataclass(frozen=True, slots=True)
class _Ready:
    """Sizes by the rule, those that run, and a function that runs with them."""

    rule: dict[str, int]
    sizes: dict[str, int]
    run: Callable[[Sequence[Tensor]], list[Any]]


class Launch:
    """A Triton function and what is known of its launches.

    Args:
        kernel: the function.
        grid: what it runs over.
        outs: its results.
        laid: number of an argument -> the strides with which it reads it; others it reads row by row.
        written: numbers of the arguments that it rewrites; they must be dense.
        like: of a kernel of any size the number of the argument that has its size.
    """

    def __init__(
        self, kernel: Any, grid: Grid, outs: Sequence[Out] = (), laid: Mapping[int, Sequence[int]] | None = None, written: Sequence[int] = (), like: int = 0
    ) -> None:
        self._kernel, self._grid, self._outs, self._written, self._like = kernel, grid, tuple(outs), tuple(written), like
        self._laid = {number: tuple(strides) for number, strides in (laid or {}).items()}
        together: dict[tuple, list[int]] = {}  # results that come in parts of one kind: added up in one launch
        for place, out in enumerate(outs):
            if out.width:
                together.setdefault((out.width, out.part_dtype, out.groups, out.dtype, out.kind), []).append(place)
        self._sums = tuple((width, dtype, groups, tuple(places)) for (width, dtype, groups, *_), places in together.items())
        self._groups = max((out.groups for out in outs), default=1)
        self._widest = max((width for width, *_ in self._sums), default=0)
        self._ready: dict[tuple, _Ready] = {}  # with the sizes that are settled

    def run(self, *inputs: Tensor) -> Any:
        """Run it.

        Returns:
            the results: one, a tuple of several, or None.
        Raises:
            ValueError: an argument that is rewritten is not dense.
        """
        dense = [lay(x, self._laid[k]) if k in self._laid else x.contiguous() for k, x in enumerate(inputs)]
        for number in self._written:
            if dense[number].data_ptr() != inputs[number].data_ptr():
                raise ValueError(f"{self._kernel.__name__}: a state that is rewritten in place is not dense")
        like = dense[self._like]
        rows = like.numel() if self._grid.any_size else self._grid.rows
        with on_device(like.device):
            key = like.device, rows, num_ranks() > 1
            ready = self._ready.get(key)
            if ready is None:
                results = self._find_sizes(key, replace(self._grid, rows=rows), dense)
            else:
                try:
                    results = ready.run(dense)
                except Exception as error:  # noqa: BLE001 - an address that begins elsewhere needs another compilation
                    grid = replace(self._grid, rows=rows)
                    ran, results = _run_instead(error, self._kernel, grid, ready.rule, ready.sizes, lambda sizes: self._run(grid, sizes, dense))
                    self._ready[key] = _Ready(ready.rule, ran, self._prepare(grid, ran, like.device))
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def _find_sizes(self, key: tuple, grid: Grid, dense: Sequence[Tensor]) -> list[Any]:
        """Run with the sizes that are right here, and have them ready for the next time where they are settled."""
        rule = blocks(grid, self._widest, sum(x.element_size() for x in dense if x.numel() >= grid.rows * grid.cols))
        sizes, settled = block_sizes(self._kernel, grid, rule, dense, self._widest > 0, self._written, partial(self._run, grid), partial(self._compile, grid, dense))
        ran, results = _run_compiled(self._kernel, grid, rule, sizes, lambda sizes: self._run(grid, sizes, dense))
        if settled:
            self._ready[key] = _Ready(rule, ran, self._prepare(grid, ran, dense[0].device))
        return results

    def _run(self, grid: Grid, sizes: Mapping[str, int], taken: Sequence[Tensor]) -> list[Any]:
        """The results with these sizes."""
        return self._prepare(grid, sizes, taken[0].device)(taken)

    def _prepare(self, grid: Grid, sizes: Mapping[str, int], device: torch.device) -> Callable[[Sequence[Tensor]], list[Any]]:
        """A function of what is taken: all that is the same at every launch is settled here, as the host asks for some hundred of them in a step."""
        programs, sizes = self._programs(grid, sizes)
        count, rows = sizes.get("PROGRAMS", 1), [grid.rows] if grid.any_size else []
        launch = straight(self._kernel, programs, rows, sizes, device)
        made_as = [(None if out.shape is None else tuple(out.shape), _dtype_of(out, device), out.strides) for out in self._outs]
        plain = [(place, *how) for place, (out, how) in enumerate(zip(self._outs, made_as)) if not out.width]
        sums = [
            ((len(places), count // groups, groups * width), dtype, places, _adder(len(places), count // groups, groups * width, dtype, self._outs[places[0]], device))
            for width, dtype, groups, places in self._sums
        ]

        def run(taken: Sequence[Tensor]) -> list[Any]:
            made: list[Any] = [None] * len(made_as)
            for place, shape, dtype, strides in plain:
                shape = taken[self._like].shape if shape is None else shape
                made[place] = _strided(shape, strides, dtype, device) if strides else torch.empty(shape, dtype=dtype, device=device)
            left = []
            for shape, dtype, places, _ in sums:
                left.append(torch.empty(shape, dtype=dtype, device=device))
                for place, part in zip(places, left[-1].unbind() if len(places) > 1 else left[-1:]):
                    made[place] = part
            launch(*taken, *made)
            for (_, _, places, add), parts in zip(sums, left):
                for place, total in zip(places, add(parts)):
                    shape = made_as[place][0]
                    assert shape is not None
                    made[place] = total if len(shape) == 1 else total.view(shape)
            return made

        return run

    def _compile(self, grid: Grid, taken: Sequence[Tensor], sizes: Mapping[str, int]) -> None:
        """Make ready what runs with these sizes; results are told by their dtypes."""
        programs, sizes = self._programs(grid, sizes)
        made = [out.part_dtype if out.width else _dtype_of(out, taken[0].device) for out in self._outs]
        self._kernel.warmup(*taken, *made, *([grid.rows] if grid.any_size else []), grid=programs, **sizes)

    def _programs(self, grid: Grid, sizes: Mapping[str, int]) -> tuple[tuple[int, int], Mapping[str, int]]:
        """The launch's grid, and the sizes with the number of programs along the rows where they leave parts. A grid's first side may be long, its second not."""
        programs, across = -(-grid.rows // sizes["ROWS"]), _across(grid, sizes)
        if self._widest:
            programs = min(-(-programs // self._groups), max(1, sizes["PROGRAMS"] // self._groups)) * self._groups
            sizes = {**sizes, "PROGRAMS": programs}
        return (across, programs) if grid.shape == "columns" else (programs, 1), sizes


def lay(x: Tensor, strides: Sequence[int]) -> Tensor:
    """`x` with these strides; a copy where it has others."""
    if x.stride() == strides or alike(x.shape, x.stride(), strides):
        return x
    return _strided(x.shape, strides, x.dtype, x.device).copy_(x)


def _run_compiled(kernel: Any, grid: Grid, rule: dict[str, int], sizes: dict[str, int], run: Callable[[dict[str, int]], Any]) -> tuple[dict[str, int], Any]:
    """Run with these sizes, or others where they do not do. The sizes that ran, and what that returned."""
    sizes = _INSTEAD.get((kernel, grid), sizes)
    try:
        return sizes, run(sizes)
    except Exception as error:  # noqa: BLE001 - what is none of our matter is raised again
        return _run_instead(error, kernel, grid, rule, sizes, run)


def _run_instead(
    error: Exception, kernel: Any, grid: Grid, rule: dict[str, int], sizes: dict[str, int], run: Callable[[dict[str, int]], Any]
) -> tuple[dict[str, int], Any]:
    """Run with sizes of the rule, or others near them, where Triton's compiler fails (3.6 does, on a softmax beside what else is read of its row), or the device has not what `sizes` need."""
    if not (isinstance(error, RuntimeError) and _COMPILER_FAILED in str(error) or type(error).__name__ == _TOO_MUCH):
        raise error
    others = [*candidates(rule, grid.widest), *loop_candidates(rule, grid.walks)]
    for other in (other for other in others if other != sizes and _may_have(grid, rule, other)):
        with contextlib.suppress(Exception):  # these may fail as well
            made = run(other)
            _INSTEAD[kernel, grid] = other
            return other, made
    raise error


def block_sizes(
    kernel: Any, grid: Grid, rule: dict[str, int], inputs: Sequence[Tensor], adds: bool, written: Sequence[int], run: Callable, compile_sizes: Callable[[dict[str, int]], object]
) -> tuple[dict[str, int], bool]:
    """The sizes of a kernel's blocks on its device: from its table, measured on copies of what is rewritten; where no table may decide, from the rule. True with them where
    they are the same at the next launch.

    Args:
        adds: it leaves sums for others to add up.
        written: numbers of the inputs that it rewrites.
        run: launches it, with the sizes and inputs that it is given.
        compile_sizes: makes it ready to run with these sizes, in any thread.
    """
    device, cells = inputs[0].device, grid.rows * grid.cols
    if device.type != "cuda" or cells < _WORTH or (grid.shape != "flat" or adds) and num_ranks() > 1:  # the order of a sum, which ranks must have in common
        return rule, True
    table = _table(device)
    key = _key(kernel, replace(grid, rows=power_of_two(grid.rows)) if grid.any_size else grid)
    found = table.known(key)
    if found is None and torch.cuda.is_current_stream_capturing():
        return rule, False
    if found is None:
        ours, clock = [x.clone() if number in written else x for number, x in enumerate(inputs)], clock_of(device)

        def seconds(sizes: dict[str, int]) -> float:
            clock.hold(_ASKING_S)
            begin = clock.stamp()
            run(sizes, ours)
            return clock.seconds(begin, clock.stamp())

        def make_ready(sizes: dict[str, int]) -> None:
            with on_device(device):
                compile_sizes(sizes)

        found = table.find(key, rule, seconds, make_ready, grid.walks, grid.widest)
    return (found if _may_have(grid, rule, found) else rule), True


def _may_have(grid: Grid, rule: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """True for sizes that the kernel's text knows of: those of a file may have been written by hand."""
    wide = sizes.get("COLS") == rule.get("COLS") or grid.walks and rule["COLS"] <= sizes.get("COLS", 0) <= LARGEST
    return sizes.keys() == rule.keys() and sizes["ROWS"] <= most_rows(grid.shape, grid.width, grid.walks) and wide


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


def in_pieces(ops: Callable, inputs: Sequence[Tensor], given_up: Collection[int] = ()) -> Any:
    """Run ops that work element by element; on a CPU piece by piece, so that what one op makes is still in the caches when the next one reads it.

    Args:
        inputs: of one shape, and scalars.
        given_up: numbers of inputs over which `ops` may write, and return them.
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
        pieces = [x[start : start + _PIECE] if x.dim() else x for x in flat]
        found = ops(*pieces)
        single = isinstance(found, Tensor)
        results = () if found is None else (found,) if single else found
        if start == 0:
            there = [next((number for number in given_up if pieces[number] is r), None) for r in results]
            made = [torch.empty(size, dtype=r.dtype) if number is None else flat[number] for number, r in zip(there, results)]
        for whole, piece, number in zip(made, results, there):
            if number is None:
                whole[start : start + _PIECE] = piece
        pieces = found = results = piece = None  # the next ones take their place
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


def identity_of(kind: str, dtype: torch.dtype) -> float:
    """What changes no sum, or no largest or smallest element."""
    if kind == "sum":
        return 0
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    if dtype == torch.bool:
        return int(kind == "min")
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def _adder(count: int, programs: int, width: int, dtype: torch.dtype, out: Out, device: torch.device) -> Callable[[Tensor], Sequence[Tensor]]:
    """A function of parts `[sums, programs, width]` that gives of each the sum (or extreme) over programs, its address a multiple of 16 bytes."""
    if programs == 1 and width % 16 == 0:
        return lambda parts: parts.squeeze(1).to(out.dtype).unbind()
    pitch = -(-width // 16) * 16
    cols = min(_PART_COLS, power_of_two(width))
    waits = can_wait(device)
    sizes = {"ROWS": min(_PART_ELEMENTS // cols, power_of_two(programs)), "COLS": cols, "WAITS": waits, "KIND": out.kind, "NONE": identity_of(out.kind, dtype)}
    sizes |= {"launch_pdl": True} if waits else {}
    launch = straight(add_parts, (-(-width // cols), count), [programs, width, pitch], sizes, device)

    def add(parts: Tensor) -> Sequence[Tensor]:
        sums = torch.empty((count, pitch) if count > 1 else pitch, dtype=out.dtype, device=device)
        launch(parts, sums)
        rows = sums.unbind() if count > 1 else (sums,)
        return rows if pitch == width else [row[:width] for row in rows]

    return add


@functools.cache
def can_wait(device: torch.device) -> bool:
    """True where a launch may begin before the one before it has ended, and wait for it (programmatic dependent launch)."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= _WAITING and hasattr(tl.extra.cuda, "gdc_wait")


def _dtype_of(out: Out, device: torch.device) -> torch.dtype:
    return torch.float32 if out.statistic and device.type == "cuda" and out.dtype in _HALVES else out.dtype


def _strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory to the end of the last row, what lies between rows included."""
    return torch.empty(span(shape, strides), dtype=dtype, device=device).as_strided(tuple(shape), tuple(strides))


def on_device(device: torch.device) -> Any:
    """Launches go there."""
    return _HERE if device.type != "cuda" or _is_only() or device.index == torch.cuda.current_device() else torch.cuda.device(device)


@functools.cache
def _is_only() -> bool:
    """True where this process sees one GPU."""
    return torch.cuda.device_count() == 1
