"""Wide rows: what a program does where its registers do not hold a row of everything.

A program of more than `blocks.ROOMY` columns has 16 warps, which leave 128 registers for 16 elements of every value. Sums over rows stay in them from round to round, so beside each exchange (a sum along
a row, for which all threads wait for each other) nothing else is held: what is needed of a row afterwards is loaded and made again, from the cache where the row still is.

Where that is not enough, beside several sums over rows or addresses of many tensors, a round goes through the row in pieces (`pieces`), by 8 warps; and where these would not hold three sums over rows, the kernel
is two functions (`parts`).

In: a printer at work. Out: the order in which its sums are made, and loads that Triton does not join with those before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.blocks import PIECE_WARPS, ROOMY, THREADS
from ...graph.fusion import DRAWS
from ...graph.node import packet_of
from ...graph.tensor import DTYPE_BYTES, num_elements, power_of_two
from .index import place_in_row
from .pieces import in_pieces, is_exchange
from .reductions import EXTREMES, REDUCING, UnsupportedError, list_reductions, row_text

if TYPE_CHECKING:
    from .partials import Running
    from .triton_text import Printer

# of one element, told apart: Triton makes one of loads that say the same; a kernel of more exchanges (two layer norms in a row have four) holds what it has made before the last of them
_LOADS = ("", ', eviction_policy="evict_first"', ', eviction_policy="evict_last"', ', cache_modifier=".ca"', ', cache_modifier=".cg"')


# registers of a thread that sums over rows and what stands beside each further exchange may take: in whole rows addresses, too (of 128; by bytes of an element), in pieces without (of 255). With more, kernels
# of norms spilled (`benchmarks/norm_spills.py`; Triton 3.9)
_WHOLE, _IN_PIECES = {2: 76, 4: 46}, 100
_COLUMN, _ADDRESSED = re.compile(r"\bcol\b"), re.compile(r"\w+_(?:ptr|out)\b")


def find_wide(printer: Printer) -> WideRows | None:
    """The exchanges of a kernel whose programs hold wide rows; None for others, and where an element may be compared with its own extreme: made again it may be rounded otherwise."""
    wide = printer.shape == "rows" and not printer.walks and power_of_two(printer.widest) > ROOMY
    return WideRows(printer) if wide and not any(packet_of(node.op) in EXTREMES for node in printer.graph.nodes) else None


class WideRows:
    """The exchanges of a kernel."""

    def __init__(self, printer: Printer) -> None:
        self._printer, self._exchanged = printer, 0
        self._settled: set[int] = set()
        self._needs, self._held = self._find_needs(), self._find_drawn()

    def settle(self, *names: str) -> None:
        """Make all sums along rows of which values are made before anything else of them, so that nothing waits for them."""
        printer = self._printer
        for number in sorted(set().union(*(self._needs[name] for name in names)) - self._settled):
            if number in self._settled:  # by a sum that is made of it
                continue
            self._settled.add(number)
            node = printer.graph.nodes[number]
            for reduced in list_reductions(replace(printer.graph, nodes=(node,)), printer.values):
                if reduced.along == "row" and reduced.outputs:
                    printer.at(node.outputs[0], printer.row())
                elif reduced.along == "row":
                    row_text(printer, node, 0, place_in_row(printer.row(), printer.col(reduced.cols), reduced.cols, reduced.inner), "", None)

    def let_go(self) -> None:
        """After an exchange: who needs an element of the row again makes it again."""
        if self._exchanged + 1 < len(_LOADS):
            self._exchanged += 1
            self._printer.outer.let_go(self._held)

    def loads(self) -> str:
        """What is said of a load after the exchanges so far."""
        return _LOADS[self._exchanged]

    def block_text(self, accumulated: Sequence[Running], pieces: int) -> str:
        """The number of a round's first row. Beside two sums or more it comes from a place that the compiler does not see through; in 64 bits where there are pieces, else the distance of a piece is no part of
        an address."""
        block = "fused.opaque(block)" if len(accumulated) > 1 else "block"
        return f"tl.cast({block}, tl.int64)" if pieces else block

    def find_pieces(self, body: Sequence[str], accumulated: Sequence[Running]) -> int:
        """Columns of a piece, where a program goes through its rows in pieces (`pieces`); 0 where it holds them whole.

        Raises:
            UnsupportedError: even in pieces registers would not hold so many sums over rows.
        """
        cols, exchanges = self._printer.cols, [line for line in body if is_exchange(line)]
        sums = sum(running.width == cols for running in accumulated)
        if any(running.width != running.partial.width for running in accumulated):  # a number of all columns
            return 0
        if not sums or self._printer.widths != {cols} or not exchanges or not all("tl.sum(" in line or "row_sums(" in line for line in exchanges):
            return 0
        bytes_each = self._least_bytes()
        side_by_side = 16 // bytes_each  # columns of a thread
        addressed = {name for line in body if _COLUMN.search(line) for name in _ADDRESSED.findall(line)}
        addresses = 2 * (1 + power_of_two(cols) // (THREADS * side_by_side) // 2)
        held = (sums + len(exchanges) - 1) * power_of_two(cols) // THREADS + len(addressed) * addresses
        step = 32 * PIECE_WARPS * side_by_side
        if held < _WHOLE.get(bytes_each, held + 1) or step >= cols:
            return 0
        if sums > 2 and (sums + len(exchanges) - 1) * -(-cols // step) * side_by_side > _IN_PIECES:
            raise UnsupportedError("more sums over wide rows than registers hold")
        return step

    def in_pieces(self, lines: Sequence[str], step: int) -> list[str]:
        """The lines of a function in pieces of so many columns."""
        return in_pieces(lines, self._printer.cols, step, power_of_two(self._printer.cols) // step)

    def _least_bytes(self) -> int:
        """Of an element of what the kernel reads or makes, but for masks."""
        printer = self._printer
        ends = {*printer.graph.inputs, *printer.graph.outputs}
        return min({DTYPE_BYTES[v.dtype] for v in printer.graph.values if v.name in ends and num_elements(v.shape) >= printer.rows * printer.cols} - {1}, default=4)

    def notes(self, body: Sequence[str]) -> list[str]:
        """What a reader of a function with these lines is told."""
        return ["# registers hold no more of such a row: what is needed again after a sum along it is loaded again, from the cache"] if any(said in line for line in body for said in _LOADS[1:]) else []

    def _find_needs(self) -> dict[str, set[int]]:
        """The nodes that reduce along rows and of which a value is made, its own among them."""
        found: dict[str, set[int]] = {}
        for number, node in enumerate(self._printer.graph.nodes):
            own = {number} if packet_of(node.op) in REDUCING else set()
            found |= dict.fromkeys(node.outputs, own.union(*(found.get(name, set()) for name in node.inputs)))
        return found

    def _find_drawn(self) -> frozenset[str]:
        """What is kept: random numbers, too dear to be made again, and the bits made of them."""
        found: set[str] = set()
        drawn: set[str] = set()
        for node in self._printer.graph.nodes:
            if node.op == DRAWS or drawn & set(node.inputs):
                drawn |= set(node.outputs)
                found |= {name for name in node.outputs if node.op == DRAWS or self._printer.values[name].dtype == "bool"}
        return frozenset(found)
