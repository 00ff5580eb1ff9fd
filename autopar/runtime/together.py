"""One launch for many tensors: a kernel of the update works on all parameters that share it at once.

In: a Triton function that `codegen.kernels` printed for this, and for each of its arguments a list of tensors, an entry per parameter. Out: lists of results. The function
reads two tables of int64 on its device:

    table    a row per parameter: how many elements it has, then the address of each argument and result
    parts    a row per program: whose turn it is, which block of that parameter, and where it leaves its part of a sum

`parts` follows from sizes and alignment and is made once. `table` is looked up by all that is in it, so it is made again only where an address is new (gradients may come to lie
elsewhere). A number that is summed up over a whole parameter comes in parts, one per program, in the order of the parameters; a second launch (`add_up`) adds those of each
parameter, or where only a number of all parameters is made of them, the launch that makes it takes the parts (`runtime.totals`).

While a CUDA graph is captured nothing may be copied from the host: its launches read tables that were reserved before (`reserve`), and `fill` writes them before the graph is
replayed. Memory that is allocated during a capture would not do: what a graph did earlier lies in it again at each replay, activations where addresses are read. What a graph reads is kept as long as this is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..graph.blocks import most_rows
from .adam import adam_all, runs_adam  # noqa: F401  called by kernels
from .fused import Grid, along, block_sizes, blocks, identity_of, in_pieces, jit, more, num_ranks, on_device, tl
from .lists import columns, pack
from .straight import ALIGNED
from .totals import Share

_SUM_BLOCK = 1024  # parts that `add_up` holds at once
LARGE = {"ROWS": most_rows("flat"), "num_warps": 8}  # of kernels that leave nothing but parts: few are left to add up, and 16 elements for a thread need no more registers than loads
_MOST_TABLES = 64  # one for each lot of parameters and each of the places where its gradients come to lie


@dataclass(frozen=True)
class Made:
    """A result for each parameter: of its shape, or a number (`scalar`); `part_dtype`: the number is a sum, or an extreme (`kind`), whose parts have this dtype; `in_parts`: it is left so.
    `over`: the number of an argument that nobody reads afterwards, in whose place it is made."""

    dtype: torch.dtype
    scalar: bool = False
    part_dtype: torch.dtype | None = None
    kind: str = "sum"
    in_parts: bool = False
    over: int | None = None


@dataclass(frozen=True)
class _Parts:
    """What programs do. `rows`: of each alignment the table of its launch; `bounds`: of the parts of each parameter, on the host and on the device."""

    rows: tuple[tuple[int, Tensor], ...]
    bounds: tuple[int, ...]
    bounds_there: Tensor


@jit
def add_up(part_ptr, bounds_ptr, sum_out, COLS: tl.constexpr, KIND: tl.constexpr, NONE: tl.constexpr):
    """Of each parameter the sum (or extreme) of its programs' parts, which lie between two bounds. `NONE` changes no result."""
    which = tl.program_id(0)
    first, last = tl.load(bounds_ptr + which), tl.load(bounds_ptr + which + 1)
    total = tl.full([COLS], NONE, part_ptr.dtype.element_ty)
    for start in range(first, last, COLS):
        place = start + tl.arange(0, COLS)
        total = more(total, tl.load(part_ptr + place, mask=place < last, other=NONE), KIND)
    tl.store(sum_out + which, along(total, 0, KIND).to(sum_out.dtype.element_ty))


class Together:
    """A Triton function of many tensors.

    Args:
        kernel: takes (parts, table, what each sum leaves, ROWS, ALIGN).
        wide: number of an argument that has the parameters' shapes; None: all are scalars.
        made: its results.
        written: numbers of the arguments that it rewrites.
    """

    def __init__(self, kernel: Any, wide: int | None, made: Sequence[Made] = (), written: Sequence[int] = ()) -> None:
        self._kernel, self._wide, self._made, self._written = kernel, wide, tuple(made), tuple(written)
        self._parts: dict[object, _Parts] = {}
        self._tables: dict[object, Tensor] = {}
        self._unfilled: list[tuple[Tensor, Tensor]] = []
        self._of_graphs: list[Tensor] = []
        self._asked: list[tuple[tuple[int, int], torch.device]] | None = None  # tables of the step so far, where somebody will capture one
        self._reserved: list[Tensor] = []

    def run(self, lists: Sequence[Sequence[Tensor]]) -> Any:
        """Launch it.

        Args:
            lists: of each argument a tensor for each parameter; those that are rewritten are dense.
        Returns:
            None without results, a list for one, a tuple of lists for several.
        Raises:
            ValueError: a state that is rewritten is not dense.
        """
        if not lists[0]:
            return pack([[] for _ in self._made])
        dense = [[x.contiguous() for x in one] for one in lists]
        if any(x is not d for number in self._written for x, d in zip(lists[number], dense[number])):
            raise ValueError(f"{self._kernel.__name__}: a state that is rewritten in place is not dense")
        addresses = [[x.data_ptr() for x in one] for one in dense]
        with on_device(dense[0][0].device):
            if self._wide is None:
                return pack(self._launch({"ROWS": 1, "num_warps": 1}, dense, addresses, (1,) * len(dense[0])))
            return pack(self._launch(self._blocks(dense), dense, addresses, self._alignments(dense, addresses)))

    def begin_step(self) -> None:
        """What is launched from here on is a step."""
        self._asked = []

    def reserve(self) -> None:
        """Before a capture: memory for the tables of a step like the last one."""
        self._reserved = [torch.empty(shape, dtype=torch.int64, device=device) for shape, device in self._asked or ()]

    def fill(self) -> None:
        """Write the tables that a graph reads: after its capture, before it is replayed."""
        for table, rows in self._unfilled:
            table.copy_(rows)
        self._unfilled = []

    def _alignments(self, lists: Sequence[Sequence[Tensor]], addresses: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Of each parameter whether it may be loaded as wide as the device can: addresses (bytes) and sizes (elements) are multiples of `ALIGNED`. Those of one kind have a launch of their own."""
        wide = [of for one, of in zip(lists, addresses) if one[0].dim()]
        return tuple(1 if any([n % ALIGNED for n in numbers]) else ALIGNED for numbers in zip([x.numel() for x in lists[self._wide]], *wide))

    def _launch(self, blocks: dict[str, int], lists: Sequence[Sequence[Tensor]], addresses: Sequence[Sequence[int]], aligned: tuple[int, ...]) -> list[list[Any]]:
        device, count = lists[0][0].device, len(lists[0])
        shapes = [torch.Size()] * count if self._wide is None else [x.shape for x in lists[self._wide]]
        sizes = tuple(shape.numel() for shape in shapes)
        parts = self._parts_of(sizes, aligned, blocks["ROWS"], device)
        results: list[list[Any]] = []
        left, sums = [], []
        for made in self._made:
            if made.over is not None:
                results.append([*lists[made.over]])
                continue
            if not made.scalar:
                results.append([torch.empty(shape, dtype=made.dtype, device=device) for shape in shapes])
                continue
            if made.part_dtype is not None:
                left.append(torch.empty(parts.bounds[-1], dtype=made.part_dtype, device=device))
            if made.in_parts:
                results.append([Share(left[-1], parts.bounds, number) for number in range(count)])
                continue
            numbers = torch.empty(count, dtype=made.dtype, device=device)
            results.append(list(numbers.unbind()))
            if made.part_dtype is not None:
                sums.append((left[-1], numbers, made.kind))
        made_at = [[x.data_ptr() for x in found] for found, made in zip(results, self._made) if made.part_dtype is None and made.over is None]
        table = self._table_of(tuple(zip(sizes, *addresses, *made_at)), device)
        for align, rows in parts.rows:
            self._kernel[(len(rows),)](rows, table, *left, ALIGN=align, **blocks)
        for part, numbers, kind in sums:
            add_up[(count,)](part, parts.bounds_there, numbers, COLS=_SUM_BLOCK, KIND=kind, NONE=identity_of(kind, numbers.dtype))
        return results

    def _blocks(self, lists: Sequence[Sequence[Tensor]]) -> dict[str, int]:
        """The sizes of its blocks, which follow from the largest parameter: on it alone they are measured, on copies of what is rewritten."""
        sizes = [x.numel() for x in lists[self._wide]]
        largest = sizes.index(max(sizes))
        one = [tensors[largest] for tensors in lists]

        def known_of(taken: Sequence[Tensor]) -> tuple[list[list[Tensor]], list[list[int]], tuple[int, ...]]:
            alone, addresses = [[x] for x in taken], [[x.data_ptr()] for x in taken]
            return alone, addresses, self._alignments(alone, addresses)

        def run(sizes: dict[str, int], taken: Sequence[Tensor]) -> None:
            self._launch(sizes, *known_of(taken))

        def compile_sizes(sizes: dict[str, int]) -> None:
            sums = [made.part_dtype for made in self._made if made.part_dtype is not None]
            self._kernel.warmup(torch.int64, torch.int64, *sums, grid=(1,), ALIGN=known_of(one)[2][0], **sizes)

        grid = Grid("flat", max(sizes), any_size=True)
        rule = blocks(grid) | (LARGE if self._made and all(made.part_dtype is not None for made in self._made) else {})
        if any(made.part_dtype is not None for made in self._made) and num_ranks() > 1:  # the order of a sum, which ranks must have in common
            return rule
        written = (*self._written, *(made.over for made in self._made if made.over is not None))
        return block_sizes(self._kernel, grid, rule, one, False, written, run, compile_sizes)[0]

    def _parts_of(self, sizes: tuple[int, ...], aligned: tuple[int, ...], rows: int, device: torch.device) -> _Parts:
        key = (sizes, aligned, rows, device)
        if key not in self._parts:
            counts = [-(-size // rows) for size in sizes]
            bounds = (0, *itertools.accumulate(counts))
            owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(counts))
            slots = torch.arange(bounds[-1])
            whole = torch.stack((owners, slots - torch.tensor(bounds)[owners], slots), 1)
            of = torch.tensor(aligned)[owners]
            apart = tuple((align, self._place(whole[of == align], device)) for align in sorted({*of.tolist()}, reverse=True))
            self._parts[key] = _Parts(apart, bounds, self._place(torch.tensor(bounds), device))
        found = self._parts[key]
        if _captures(device):
            self._of_graphs += [found.bounds_there, *(rows for _, rows in found.rows)]
        return found

    def _table_of(self, rows: tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
        shape = len(rows), len(rows[0])
        if _captures(device):  # one of the graph's own: no later step writes over it
            table = self._take(shape, device)
            self._unfilled.append((table, torch.tensor(rows)))
            self._of_graphs.append(table)
            return table
        if self._asked is not None:
            self._asked.append((shape, device))
        key = (rows, device)
        if key not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            self._tables[key] = self._place(torch.tensor(rows), device)
        return self._tables[key]

    def _take(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        """A reserved table."""
        for number, table in enumerate(self._reserved):
            if table.shape == shape:
                return self._reserved.pop(number)
        if device.type == "cuda":
            raise self._unlike()
        return torch.empty(shape, dtype=torch.int64, device=device)

    def _unlike(self) -> InputError:
        return InputError(f"cuda_graph: {self._kernel.__name__}: the step that is captured launches it otherwise than the step before; emit the program without cuda_graph")

    def _place(self, rows: Tensor, device: torch.device) -> Tensor:
        """A table on its device, without waiting for it."""
        if _captures(device) and device.type == "cuda":
            raise self._unlike()
        return rows if device.type == "cpu" else rows.pin_memory().to(device, non_blocking=True)


def each(ops: Callable, lists: Sequence[Sequence[Tensor]], num_results: int, whole: bool = False, given_up: Collection[int] = ()) -> Any:
    """Run ops parameter by parameter; on a CPU large ones in pieces (`fused.in_pieces`).

    Args:
        ops: takes a tensor for each list, and makes `num_results` tensors.
        whole: never in pieces.
        given_up: numbers of the lists whose tensors nobody reads afterwards: the ops may write over them, and each is let go when they have run.
    Returns:
        as `Together.run`.
    """
    rows = []
    for place in range(len(lists[0])):
        rows.append(ops(*[one[place] for one in lists]) if whole else in_pieces(ops, [one[place] for one in lists], given_up))
        for number in given_up:
            lists[number][place] = None  # type: ignore[index]
    return pack(columns(rows, num_results)) if num_results else None


def _captures(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
