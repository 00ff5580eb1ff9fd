"""Nothing fits: how many bytes are missing, who holds them, and the changes that were tried, the nearest that fits first.

In: the smallest plan found, and what `autopar.nearest` found out about each change by solving with it. Out: a `MemoryShortage` whose text
says all of it. It tries nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cost.memory import Memory
from ..errors import InfeasibleError
from ..graph.choice import Assignment
from ..graph.graph import Graph
from ..graph.mesh import Mesh, print_mesh
from ..graph.strategy import can_cut
from ..graph.tensor import STATE_KINDS, size_bytes

FITS, TOO_LARGE, NOT_FOUND, REFUSED, LATE = "fits", "does not fit", "nothing found", "refused", "time was up"
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True, slots=True)
class Change:
    """Something that could be asked for instead, and what solving with it gave.

    Args:
        what: as people would say it, with the words to type where there are any.
        size: how far it is from what was asked: how many times the bytes, devices, samples; 1 for a word that is dropped.
        status: `fits`; `does not fit` (proven); `nothing found` (that fits, in the time given); `refused` (`told` says why); `time was up`
            (before it could be tried).
        step_s: predicted, of the plan that fits; None where there is none.
        minimum_bytes: at the peak of the smallest plan found, where none fits; 0 where one does, or none was looked for.
    """

    what: str
    size: float
    status: str
    step_s: float | None = None
    minimum_bytes: int = 0
    told: str = ""


class MemoryShortage(InfeasibleError):
    """An `InfeasibleError` with its figures.

    Attributes:
        limit_bytes: per device.
        minimum_bytes: at the peak of the smallest plan found (`assignment`), reserve included.
        missing_bytes: by how much that is too much.
        holders: (who, bytes) at that peak, largest first.
        proven: it is proven that nothing fits the limit (else time ran out).
        layout: of that plan, where it is one of stages or microbatches: `assignment` is that of its stage; "" elsewhere.
        step_s: of that plan, predicted; None where it is not known.
        tried: what was, and what it was refused for; "" where it is not said.
        nearest: what is said of them.
        changes: that were solved with, what fits and is nearest first; () where nobody asked.
    """

    def __init__(
        self, limit_bytes: int, memory: Memory, assignment: Assignment, proven: bool, nearest: str, changes: tuple[Change, ...] = (), layout: str = "", step_s: float | None = None,
        tried: str = "",
    ) -> None:  # fmt: skip
        self.memory, self.nearest, self.changes, self.layout, self.step_s, self.tried = memory, nearest, changes, layout, step_s, tried
        self.limit_bytes, self.minimum_bytes = limit_bytes, memory.peak_bytes
        self.missing_bytes = memory.peak_bytes - limit_bytes
        self.holders = tuple(sorted(((h.name, h.bytes) for h in memory.holders), key=lambda h: -h[1]))
        self.assignment, self.proven = assignment, proven
        limit, need = _print_apart(limit_bytes, memory.peak_bytes)
        largest = ", ".join(f"{name} {print_bytes(size)}" for name, size in self.holders[:3])
        none = f"no plan fits {limit} per device" if proven else f"no plan that fits {limit} per device was found in the time given (--time-limit gives more)"
        super().__init__(
            f"{none}; the best found needs {need} {f'as {layout}' if layout else f'on mesh {print_mesh(assignment.mesh)}'} "
            f"({print_bytes(self.missing_bytes)} too much).\n{f'  tried: {tried}.{chr(10)}' if tried else ''}  largest: {largest}.\n  nearest change that fits: {nearest}"
        )


def print_bytes(size: int) -> str:
    """`13.4 GiB`; three or four figures in the largest unit that gives at least 1."""
    for name, unit in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def why_whole(graph: Graph, mesh: Mesh) -> str:
    """The axis along which most bytes of the states are held whole, because its degree divides none of their dims, nor nearly; "" where there is none.

    Args:
        graph: of a stage.
        mesh: of the stage.
    """
    states = [value for value in graph.values if value.kind in STATE_KINDS and value.name in graph.inputs]
    total = sum(map(size_bytes, states))
    for axis in sorted(mesh.axes, key=lambda a: -a.size):
        stuck = sum(size_bytes(value) for value in states if not any(can_cut(size, axis.size) for size in value.shape))
        if axis.size > 1 and 2 * stuck > total:
            return f"{axis.name}={axis.size} divides no dim of {print_bytes(stuck)} of its {print_bytes(total)} of states, so that every rank of that axis holds them whole"
    return ""


def _print_apart(low: int, high: int) -> tuple[str, str]:
    """Both sizes, with enough figures to be told apart."""
    short = print_bytes(low), print_bytes(high)
    return short if short[0] != short[1] else (f"{low:,} bytes", f"{high:,} bytes")


def round_up(size: int) -> str:
    """A size that can be typed after `--memory` and holds `size`: whole KiB, MiB at two decimals, GiB at two."""
    for name, unit in _UNITS[:2]:
        if size >= unit:
            hundredths = -(-size * 100 // unit)
            return f"{hundredths / 100:.2f}{name}"
    return f"{-(-size // 1024)}KiB"


def _print_ms(seconds: float) -> str:
    """`45.67 ms`, `35,170 ms`: four digits, no power of ten."""
    return f"{seconds * 1e3:,.{'4g' if seconds < 9.9995 else '0f'}} ms"


def add_changes(error: MemoryShortage, changes: Sequence[Change]) -> MemoryShortage:
    """The same shortage with what was found out about these changes."""
    order = sorted(changes, key=lambda c: (c.status != FITS, c.size, c.step_s or 0.0))
    return MemoryShortage(error.limit_bytes, error.memory, error.assignment, error.proven, print_changes(order), tuple(order), error.layout, error.step_s, error.tried)


def print_changes(changes: Sequence[Change]) -> str:
    """The nearest that fits, then one line each for the others that fit, those that do not, and those that time was too short for."""
    fits = [f"{c.what} (solved: step {_print_ms(c.step_s)})" for c in changes if c.step_s is not None]
    too_large = [f"{c.what} (smallest plan found: {print_bytes(c.minimum_bytes)})" for c in changes if c.status == TOO_LARGE]
    not_found = [f"{c.what} (smallest plan found: {print_bytes(c.minimum_bytes)})" for c in changes if c.status == NOT_FOUND]
    refused = [f"{c.what} ({c.told})" for c in changes if c.status == REFUSED]
    late = [c.what for c in changes if c.status == LATE]
    lines = [f"{fits[0]}." if fits else "none was found."]
    lines += [f"  these fit, too: {'; '.join(fits[1:])}."] if fits[1:] else []
    lines += [f"  these do not: {'; '.join(too_large)}."] if too_large else []
    lines += [f"  none was found in the time given for: {'; '.join(not_found)}."] if not_found else []
    lines += [f"  these cannot be planned: {'; '.join(refused)}."] if refused else []
    lines += [f"  not tried, as time was up (--time-limit gives more): {'; '.join(late)}."] if late else []
    return "\n".join(lines)


def describe_nearest(minimum_bytes: int) -> str:
    """The change of memory that fits: the smallest plan is its proof."""
    return f"--memory {round_up(minimum_bytes)}."
