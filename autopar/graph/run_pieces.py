"""Pieces of runs: how what stands in no block gathers its states a few at a time.

In: a graph with communication, the block of each node or the run of nodes in none that it is in (`overlap.list_places`), where states are gathered in runs. Out: the places, with long runs cut.
A model without blocks (a plain stack of linears, one that is written as a function) is one run: were all its states gathered where that begins, all of them would lie there at once.

A piece ends where it has gathered a thirty-second of its run, no less than what travels alone on a CPU and no more than a bucket (`graph.messages`), and something computes before the next gather. Where
nothing more is gathered it ends where it has reduced as much, before the next large gradient. As one piece is gathered ahead, two of them are held. A piece's place is (section, None, run, number).
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph, value_table
from .messages import BUCKET_BYTES, GATHERED_ALONE_BYTES
from .tensor import size_bytes

_PARTS = 32  # of a run, chosen by one measurement: 24 linears of 4 MiB, ZeRO-3 on 2 gloo ranks, hold 216.6 MiB in 16 parts and 206.6 in 32


def piece_bytes(total: int) -> int:
    """What a piece gathers before it ends, of a run that gathers so many bytes."""
    return min(BUCKET_BYTES, max(GATHERED_ALONE_BYTES, total // _PARTS))


def cut_runs(graph: Graph, places: Sequence[tuple], gathers: Sequence[tuple[int, int, int]]) -> list[tuple]:
    """The places, with those of runs cut into pieces.

    Args:
        places: of each node (section, family, number) of its block, or (section, None, first node) of its run.
        gathers: of states, in order: the first node of each and what goes before it, the one that makes the result, its bytes.
    """
    totals: dict[tuple, int] = {}
    for first, _, size in gathers:
        if places[first][1] is None:
            totals[places[first]] = totals.get(places[first], 0) + size
    starts = {first: (last, size) for first, last, size in gathers}
    values = value_table(graph)
    cut: dict[tuple, _Cut] = {run: _Cut(piece_bytes(total)) for run, total in totals.items()}
    found: list[tuple] = []
    gathered = -1  # the last node of a gather
    for i, (node, place) in enumerate(zip(graph.nodes, places)):
        here = cut.get(place)
        if here is not None and i in starts:
            last, size = starts[i]
            here.gather(size, any(not other.op.startswith("comm.") for other in graph.nodes[gathered + 1 : i]))
            gathered = last
        elif here is not None and node.op == "comm.reduce_scatter":
            here.reduce(size_bytes(values[node.inputs[0]]))
        found.append(place if here is None else (*place, here.number))
    return [piece if piece == place or cut[place].number else place for piece, place in zip(found, places)]


class _Cut:
    """The piece at hand of a run: its number, and what it has gathered and reduced.

    Args:
        most: that it gathers, or reduces, before it ends.
    """

    def __init__(self, most: int) -> None:
        self.most, self.number, self.gathered, self.reduced = most, 0, 0, 0

    def gather(self, size: int, computes: bool) -> None:
        """Args: computes: whether anything does since the gather before."""
        if computes and self.gathered >= self.most:
            self._end()
        self.gathered += size

    def reduce(self, size: int) -> None:
        if self.reduced >= self.most and 2 * size >= self.most:
            self._end()
        self.reduced += size

    def _end(self) -> None:
        self.number, self.gathered, self.reduced = self.number + 1, 0, 0


def is_piece(place: tuple) -> bool:
    """True of a piece of a run that was cut."""
    return place[1] is None and len(place) > 3


def piece_before(place: tuple) -> tuple | None:
    """The piece before this one; None of the first, and of what is no piece."""
    return (*place[:3], place[3] - 1) if is_piece(place) and place[3] else None
