"""In step: containers whose entries take turns, `q.0 k.0 out.0 q.1 k.1 out.1`, are one row of blocks that is spelled in lists side by side.

In: the places (container, number) where ops are, in the order of the forward pass. Out: for each container the first of those with which it is in step. Two are where
they have the same numbers in the same order, at least two, and each entry of one runs after that of the other and before the next of it. It renames nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

_Row = list[tuple[int, int]]  # (when it runs first, number)


def find_leads(places: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Container -> the first one that is in step with it, itself where there is none.

    Args:
        places: (container, number) of ops in order; again and again is once.
    """
    rows: dict[str, _Row] = {}
    for at, (family, number) in enumerate(dict.fromkeys(places)):
        rows.setdefault(family, []).append((at, number))
    leads: dict[str, str] = {}
    for family, row in rows.items():
        leads[family] = next((lead for lead in leads if leads[lead] == lead and _in_step(rows[lead], row)), family)
    return leads


def _in_step(lead: _Row, row: _Row) -> bool:
    if len(lead) < 2 or [number for _, number in lead] != [number for _, number in row]:
        return False
    ends = [at for at, _ in lead[1:]]
    return all(a < b for (a, _), (b, _) in zip(lead, row)) and all(b < end for (b, _), end in zip(row, ends))
