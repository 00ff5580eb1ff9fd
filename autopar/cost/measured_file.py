"""The profile that prices are read from: what it must have, and what is said where it has less.

In: the path of a profile, this machine. Out: its rows, or None where there is no file. A profile in which no op was measured is an error: all of its prices would be
assumptions. What is missing beyond that is said, a line each, for what was not measured is priced by formula.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import ClusterError
from ..graph.machine import Machine
from .rows import COMM_KINDS, SHAPE_NAMES, ProfileRows
from .rows_file import load_profile, machine_difference

_AGAIN = "run `autopar profile` again"


def load_measured(path: str | os.PathLike[str], here: Machine, say: Callable[[str], None]) -> ProfileRows | None:
    """The rows of this machine's profile.

    Args:
        say: told what the profile lacks, one line each.
    Raises:
        ClusterError: as of `load_profile`; or no op was measured.
    """
    rows = load_profile(path, here)
    if rows is None:
        return None
    if all(row.seconds is None for row in rows.ops):
        failed = f"{len(rows.ops)} rows of ops, none with seconds ({rows.ops[0].error})" if rows.ops else "no rows of ops"
        raise ClusterError(f"{os.fspath(path)}: not a profile to price with: expected measured ops, found {failed}; {_AGAIN}, or delete the file")
    for line in list_gaps(rows, here):
        say(f"{os.fspath(path)}: {line}")
    return rows


def list_gaps(rows: ProfileRows, here: Machine) -> tuple[str, ...]:
    """What makes a profile say less of this machine than it could: other versions, an early end, kinds of rows that it has not."""
    found = []
    if versions := machine_difference(here, rows.machine, ("torch", "python")):
        found.append(f"measured with other versions ({versions}); {_AGAIN}")
    ops, comms = {r.family for r in rows.ops if r.seconds is not None}, {r.kind for r in rows.comms if r.seconds is not None}
    missing = [name for name in SHAPE_NAMES if name not in ops] + [name for name in COMM_KINDS if name not in comms]
    if missing:
        found.append(f"not measured, so priced by formula: {', '.join(missing)}; {_AGAIN}")
    elif not rows.finished:
        found.append(f"measuring was interrupted: shapes between the measured ones are farther apart; {_AGAIN}")
    return tuple(found)
