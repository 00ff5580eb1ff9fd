"""What fidelity is judged by: rows of published beside predicted, their errors, and one line a group against its aim.

In: `Group`s of `Judged` rows. Out: text, or what JSON takes. It knows no table and predicts nothing. A row without a prediction says why
and counts in no figure but the number of those left out.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

RELATIVE = "relative"  # (predicted - published) / published
ABSOLUTE = "absolute"  # predicted - published
PLACES = (
    "places"  # (predicted - published) / one unit of the last place that is printed: less than 1 is the printed number, rounded or cut off
)
EXACT = 1.0 - 1e-9  # of a last place


@dataclass(frozen=True, slots=True)
class Judged:
    """One row.

    Args:
        published: None: nothing to compare with, the row is listed all the same.
        predicted: None: nobody predicts it, because `why`.
        printed: the published number as text, where its last place matters.
        band: (low, high): a stated band around the prediction; None: none is stated.
        note: said behind the row.
    """

    row: str
    published: float | None
    predicted: float | None
    unit: str
    why: str = ""
    printed: str = ""
    band: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """What is asked of a group. Of the errors' absolute values; None: not asked.

    Args:
        text: in the words of who asked.
        measure: RELATIVE, ABSOLUTE or PLACES.
        contained: the share of rows whose band holds the published value.
        never_under: no row may be predicted under the published value.
        right: the share of rows without any error, at least.
    """

    text: str
    measure: str = RELATIVE
    median: float | None = None
    p90: float | None = None
    worst: float | None = None
    mean: float | None = None
    contained: float | None = None
    never_under: bool = False
    right: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are judged together.

    Args:
        lines: what else is to be said of them, computed by their section.
        only_wrong: print the rows with an error alone.
    """

    name: str
    aim: Aim
    rows: tuple[Judged, ...]
    lines: tuple[str, ...] = ()
    only_wrong: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a group. Errors as its aim measures them; `bias`: their median with sign. None where no row is predicted."""

    count: int
    left_out: int
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    worst: float | None = None
    worst_row: str = ""
    mean: float | None = None
    contained: float | None = None
    under: int = 0
    right: float | None = None
    met: bool | None = None


def row_error(row: Judged, measure: str) -> float | None:
    """The error of a row; None where there is nothing to compare."""
    if row.predicted is None or row.published is None:
        return None
    off = row.predicted - row.published
    if measure == ABSOLUTE:
        return off
    if measure == PLACES:
        return off / last_place(row.printed)
    return off / row.published if row.published else (0.0 if off == 0 else math.copysign(math.inf, off))


def last_place(printed: str) -> float:
    """One unit of the last place of a printed number: `41.3` -> 0.1, `536` -> 1."""
    return 10.0 ** -len(printed.partition(".")[2])


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies, between neighbours in proportion."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low]) if ordered[low] != ordered[high] else ordered[low]


def summarise(group: Group) -> Summary:
    """The figures of a group, and whether it meets its aim (None: nothing is asked, or nothing is predicted)."""
    aim = group.aim
    pairs = [(e, r) for r in group.rows if (e := row_error(r, aim.measure)) is not None]
    left_out = len(group.rows) - len(pairs)
    if not pairs:
        return Summary(0, left_out)
    signed = [e for e, _ in pairs]
    sizes = [abs(e) for e in signed]
    worst, worst_row = max(((abs(e), r.row) for e, r in pairs), key=lambda p: p[0])
    banded = [r for _, r in pairs if r.band is not None]
    contained = (
        sum(r.band[0] <= r.published <= r.band[1] for r in banded if r.band and r.published is not None) / len(banded) if banded else None
    )
    mean, right = sum(sizes) / len(sizes), sum(e == 0 for e in sizes) / len(sizes)
    median, p90 = percentile(sizes, 0.5), percentile(sizes, 0.9)
    found = Summary(
        len(pairs), left_out, median, p90, percentile(signed, 0.5), worst, worst_row, mean, contained, sum(e < 0 for e in signed), right
    )
    tests = [
        value <= most for value, most in ((median, aim.median), (p90, aim.p90), (worst, aim.worst), (mean, aim.mean)) if most is not None
    ]
    if aim.right is not None:
        tests.append(right >= aim.right)
    if aim.contained is not None:
        tests.append(contained is not None and len(banded) == len(pairs) and contained >= aim.contained)
    if aim.never_under:
        tests.append(found.under == 0)
    return replace(found, met=all(tests) if tests else None)


def select_rows(group: Group, pattern: str) -> Group:
    """The rows whose id a glob matches."""
    return replace(group, rows=tuple(r for r in group.rows if fnmatch.fnmatchcase(r.row, pattern)))


# text ----------------------------------------------------------------------------------------------------------------------------------


_VERDICT = {True: "aim met", False: "AIM NOT MET", None: "no aim"}


def _print_verdict(found: Summary) -> str:
    """Whether the aim is met, and how many rows of the group it says nothing about."""
    if found.met is None or not found.left_out:
        return _VERDICT[found.met]
    return f"{_VERDICT[found.met]}, of {found.count} of {found.count + found.left_out} rows; {found.left_out} not asked"


def print_group(group: Group) -> str:
    """A table and its summary."""
    aim = group.aim
    lines = [f"== {group.name}: {aim.text}"]
    rows = tuple(r for r in group.rows if row_error(r, aim.measure)) if group.only_wrong else group.rows
    if rows:
        wide = max(len(r.row) for r in rows)
        lines.append(f"{'row':{wide}}  {'published':>12}  {'predicted':>12}  {'error':>9}  unit")
        lines += [_print_row(r, aim.measure, wide) for r in rows]
    return "\n".join([*lines, *group.lines, print_summary(group)])


def _print_row(row: Judged, measure: str, wide: int) -> str:
    published = row.printed or _print_number(row.published)
    note = f"; {row.note}" if row.note else ""
    if row.predicted is None:
        return f"{row.row:{wide}}  {published:>12}  {'':>12}  {'':>9}  {row.unit}; not predicted: {row.why}{note}"
    error = row_error(row, measure)
    band = f"; {_print_number(row.band[0])} to {_print_number(row.band[1])}" if row.band else ""
    return (
        f"{row.row:{wide}}  {published:>12}  {_print_number(row.predicted):>12}  {_print_error(error, measure):>9}  {row.unit}{band}{note}"
    )


def _print_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.7g}"


def _print_error(error: float | None, measure: str) -> str:
    if error is None:
        return "-"
    return f"{error * 100:+.2f} %" if measure == RELATIVE else f"{error:+.4f}" if measure == ABSOLUTE else f"{error:+.2f} ulp"


def print_summary(group: Group) -> str:
    """One line."""
    found, measure = summarise(group), group.aim.measure
    left = f", {found.left_out} not predicted" if found.left_out else ""
    if not found.count:
        return f"-- {group.name}: 0 rows compared{left}"

    def say(value: float | None) -> str:
        return _print_error(value, measure).lstrip("+")

    if group.aim.right is not None:
        right = f"right in {found.right:.1%}".replace("%", " %")
        return f"-- {group.name}: {found.count} rows{left}: {right}: {_print_verdict(found)}"
    parts = [
        f"median {say(found.median)}",
        f"p90 {say(found.p90)}",
        f"bias {_print_error(found.bias, measure)}",
        f"worst {say(found.worst)} ({found.worst_row})",
    ]
    parts += [f"mean {say(found.mean)}"] if group.aim.mean is not None else []
    parts += [f"band holds {found.contained:.0%}".replace("%", " %")] if found.contained is not None else []
    parts += [f"{found.under} under"] if group.aim.never_under else []
    return f"-- {group.name}: {found.count} rows{left}: {', '.join(parts)}: {_print_verdict(found)}"


def group_as_json(group: Group) -> dict[str, object]:
    """What JSON takes."""
    rows = [{**asdict(r), "error": row_error(r, group.aim.measure)} for r in group.rows]
    return {"name": group.name, "aim": asdict(group.aim), "rows": rows, "lines": list(group.lines), "summary": asdict(summarise(group))}
