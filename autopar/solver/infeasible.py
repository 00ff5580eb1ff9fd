"""Nothing fits: how many bytes are missing, who holds them, and the nearest change that was checked to fit."""

from __future__ import annotations

from collections.abc import Callable

from ..cost.memory import Memory
from ..errors import InfeasibleError
from ..graph.choice import Assignment
from ..graph.mesh import print_mesh

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class MemoryShortage(InfeasibleError):
    """An `InfeasibleError` with its figures.

    Attributes:
        limit_bytes: per device.
        minimum_bytes: at the peak of the smallest plan found (`assignment`), reserve included.
        missing_bytes: by how much that is too much.
        holders: (who, bytes) at that peak, largest first.
        proven: it is proven that nothing fits the limit (else time ran out).
    """

    def __init__(self, limit_bytes: int, memory: Memory, assignment: Assignment, proven: bool, nearest: str) -> None:
        self.limit_bytes, self.minimum_bytes = limit_bytes, memory.peak_bytes
        self.missing_bytes = memory.peak_bytes - limit_bytes
        self.holders = tuple(sorted(((h.name, h.bytes) for h in memory.holders), key=lambda h: -h[1]))
        self.assignment, self.proven = assignment, proven
        limit, need = _print_apart(limit_bytes, memory.peak_bytes)
        largest = ", ".join(f"{name} {print_bytes(size)}" for name, size in self.holders[:3])
        super().__init__(
            f"no plan fits {limit} per device; the best found needs {need} on mesh {print_mesh(assignment.mesh)} "
            f"({print_bytes(self.missing_bytes)} too much).\n  largest: {largest}.\n  nearest change that fits: {nearest}"
        )


def print_bytes(size: int) -> str:
    """`13.4 GiB`; three or four figures in the largest unit that gives at least 1."""
    for name, unit in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


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


def describe_nearest(minimum_bytes: int, try_changes: Callable[[], str] | None) -> str:
    """The change of memory that fits (the smallest plan is its proof), after what the caller has tried and found to fit."""
    memory = f"--memory {round_up(minimum_bytes)}."
    other = try_changes() if try_changes else ""
    return f"{other.rstrip('.')}, or {memory}" if other else memory
