"""Folded names: what `runtime.names` expands again."""

from __future__ import annotations

from collections.abc import Collection

from ..graph.repeats import block_path, name_pattern, name_patterns


def fold_names(names: list[str], sequences: Collection[str] = ()) -> list[str]:
    """Names with their numbers folded: `h.0.w`, `h.1.w`, ... -> `h.{0..11}.w` (the number of the block, contiguous runs).

    Args:
        sequences: containers whose entries are no blocks (`Graph.sequences`).
    """
    folded: list[str] = []
    for (family, rest), rows in name_patterns(names, sequences).items():
        for low, high in _number_runs([number for number, _ in rows]):
            folded.append(family if low < 0 else f"{block_path(family, low if low == high else f'{{{low}..{high}}}')}{rest}")
    return folded


def fold_in_order(names: list[str], sequences: Collection[str] = ()) -> list[str]:
    """Names folded so that they come out in this order again: `h.0.w`, `h.0.b`, `h.1.w`, `h.1.b` -> `h.{0..1}{.w,.b}`; `sequences` as of `fold_names`."""
    runs: list[tuple[str, list[int], list[str]]] = []  # family, numbers, what each of them has
    for name in names:
        (family, rest), index = name_pattern(name, sequences)
        if index >= 0 and runs and runs[-1][0] == family and runs[-1][1] == [index]:
            runs[-1][2].append(rest)
        else:
            runs.append((family, [index], [rest]))
    merged: list[tuple[str, list[int], list[str]]] = []
    for family, numbers, rests in runs:
        if merged and numbers[0] > 0 and merged[-1][0] == family and merged[-1][2] == rests and merged[-1][1][-1] + 1 == numbers[0]:
            merged[-1][1].extend(numbers)
        else:
            merged.append((family, numbers, rests))
    return [family if numbers == [-1] else _fold_run(family, numbers, rests) for family, numbers, rests in merged]


def _fold_run(family: str, numbers: list[int], rests: list[str]) -> str:
    place = f"{numbers[0]}" if len(numbers) == 1 else f"{{{numbers[0]}..{numbers[-1]}}}"
    rest = rests[0] if len(rests) == 1 else f"{{{','.join(rests)}}}"
    return f"{block_path(family, place)}{rest}"


def _number_runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return [(low, high) for low, high in runs]
