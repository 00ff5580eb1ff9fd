"""Wide rows: what a program does where its registers do not hold a row of everything.

A program of more than `blocks.ROOMY` columns has 16 warps, which leave 128 registers for 16 elements of every value. Sums over rows stay in them from round to round, so beside each exchange (a sum along
a row, for which all threads wait for each other) nothing else is held: what is needed of a row afterwards is loaded and made again, from the cache where the row still is.

In: a printer at work. Out: the order in which its sums are made, and loads that Triton does not join with those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.blocks import ROOMY
from ...graph.fusion import DRAWS
from ...graph.node import packet_of
from ...graph.tensor import power_of_two
from .index import place_in_row
from .reductions import EXTREMES, REDUCING, list_reductions, row_text

if TYPE_CHECKING:
    from .triton_text import Printer

# of one element, told apart: Triton makes one of loads that say the same; a kernel of more exchanges (two layer norms in a row have four) holds what it has made before the last of them
_LOADS = ("", ', eviction_policy="evict_first"', ', eviction_policy="evict_last"', ', cache_modifier=".ca"', ', cache_modifier=".cg"')


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
