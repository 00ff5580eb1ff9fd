"""Memory over the step as text: columns of letters, one letter per holder, phases below.

In: moments. Out: lines no wider than asked for. A phase is as wide as its share of the step's time (and wide enough to be seen); each
column is the fullest moment of its part of the phase, so the peak is always there; a letter stands where its holder covers the middle
of the cell. Holders without a letter (the reserve, which never changes) are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import fsum

from ..graph.plan import Moment
from .units import print_bytes

ROWS = 10
MIN_PHASE = 10  # columns: `|backward` and a gap


def holder_letters(names: Sequence[str]) -> dict[str, str]:
    """Holder -> one letter of its name, the first that is free; those that hold little choose last."""
    taken: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name in ("gathered", "batch", "reserve")):
        taken[name] = next(c for c in (*name, *name.upper(), *"0123456789") if c.isalnum() and c not in taken.values())
    return {name: taken[name] for name in names}


def draw_chart(moments: Sequence[Moment], letters: Mapping[str, str], phase_s: Mapping[str, float], width: int) -> list[str]:
    """The chart.

    Args:
        letters: holder -> its letter, from the ground up.
        phase_s: seconds of each phase.
        width: in columns.
    """
    drawn = {m: sum(h.bytes for h in m.holders if h.name in letters) for m in moments}
    top = max(drawn.values(), default=0)
    label = print_bytes(top)
    room = width - len(label) - 2
    if not top or room < MIN_PHASE * len({m.phase for m in moments}):
        return []
    columns: list[Moment] = []
    phases = [(phase, list(those)) for phase, those in groupby(moments, key=lambda m: m.phase)]
    for (_, those), count in zip(phases, _share_out(room, [phase_s.get(phase.value, 0.0) for phase, _ in phases])):
        cuts = [min(k * len(those) // count, len(those) - 1) for k in range(count + 1)]
        columns += [max(those[a : max(b, a + 1)], key=lambda m: m.bytes) for a, b in zip(cuts, (*cuts[1:-1], len(those)))]
    lines = []
    for row in range(ROWS, 0, -1):
        level = (row - 0.5) / ROWS * top
        head = label if row == ROWS else print_bytes(top / 2) if row == ROWS // 2 else ""
        lines.append(f"{head:>{len(label)}} |" + "".join(_letter(m, letters, level) for m in columns).rstrip())
    peak = max(range(len(columns)), key=lambda i: columns[i].bytes)
    lines.append(f"{'0':>{len(label)}} +{'-' * peak}^{'-' * (len(columns) - peak - 1)}")
    return [*lines, " " * (len(label) + 2) + _phase_line(columns)]


def _share_out(room: int, shares: Sequence[float]) -> list[int]:
    """Columns of each phase: by share, at least `MIN_PHASE`, all together `room`."""
    narrow: set[int] = set()
    while True:
        rest = room - MIN_PHASE * len(narrow)
        total = fsum(share for i, share in enumerate(shares) if i not in narrow) or 1.0
        widths = [MIN_PHASE if i in narrow else int(rest * share / total) for i, share in enumerate(shares)]
        found = {i for i, width in enumerate(widths) if width < MIN_PHASE}
        if not found:
            break
        narrow |= found
    widths[max(range(len(widths)), key=widths.__getitem__)] += room - sum(widths)
    return widths


def _letter(moment: Moment, letters: Mapping[str, str], level: float) -> str:
    held = {h.name: h.bytes for h in moment.holders}
    below = 0
    for name, letter in letters.items():
        below += held.get(name, 0)
        if level < below:
            return letter
    return " "


def _phase_line(columns: Sequence[Moment]) -> str:
    """The name of each phase below its columns."""
    runs = [(phase, len(list(those))) for phase, those in groupby(columns, key=lambda m: m.phase)]
    return "".join(f"|{phase.value}"[:count].ljust(count) for phase, count in runs).rstrip()
