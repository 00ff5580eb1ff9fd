"""Folded names: what `runtime.names` expands again."""

from __future__ import annotations

from ..graph.repeats import block_of


def fold_names(names: list[str]) -> list[str]:
    """Names with their numbers folded: `h.0.w`, `h.1.w`, ... -> `h.{0..11}.w` (outermost number, contiguous runs)."""
    patterns: dict[tuple[str, str], list[int]] = {}
    order: dict[object, None] = {}
    for name in names:
        place = block_of(name)
        if place is None:
            order.setdefault(name)
            continue
        family, index = place
        start = f"{family}.{index}" if family else f"{index}"
        key = (family, name[len(start) :])
        patterns.setdefault(key, []).append(index)
        order.setdefault(key)
    folded: list[str] = []
    for key in order:
        if isinstance(key, str):
            folded.append(key)
            continue
        family, rest = key
        lead = f"{family}." if family else ""
        for low, high in _number_runs(sorted(patterns[key])):
            folded.append(f"{lead}{low}{rest}" if low == high else f"{lead}{{{low}..{high}}}{rest}")
    return folded


def _number_runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return [(low, high) for low, high in runs]
