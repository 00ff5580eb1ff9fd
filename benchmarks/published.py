"""Published tables as typed rows: training runs, memory, bubble rates, closed forms.

In: the folder of the tables. Out: frozen rows, numbers as numbers. A row, or a column, that is not there is no error: what a row does not
print is None ("" for text). So is a number that does not read as one, or that no run can have, but `Published.notes` says so; as it does of columns that are not
there and of names that come twice. A folder or a table that is not there is an error.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "published"


class PublishedError(Exception):
    """The tables are not where they were looked for, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Run:
    """A row of throughput.csv: one configuration, trained end to end. dp to vpp: degrees; `micro_bs`: of one rank of dp in one turn."""

    row_id: str
    source_id: str = ""
    locator: str = ""
    confidence: str = ""
    read_as: str = ""
    framework: str = ""
    model: str = ""
    family: str = ""
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    hardware: str = ""
    gpus_per_node: int | None = None
    n_gpus: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    vpp: int | None = None
    zero_stage: str = ""
    micro_bs: int | None = None
    global_bs: int | None = None
    recompute: str = ""
    seq_par: str = ""
    precision: str = ""
    tflops_per_gpu: float | None = None
    tflops_kind: str = ""
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    iter_time_s: float | None = None
    samples_per_s_total: float | None = None
    tokens_per_s_per_gpu: float | None = None
    peak_mem_gb: float | None = None
    status: str = ""
    precision_note: str = ""
    memory_fields: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class ImageRun:
    """A row of throughput_cnn.csv: a convolutional network, trained; `speedup`: over `relative_to`."""

    row_id: str
    source_id: str = ""
    locator: str = ""
    model: str = ""
    task: str = ""
    hardware: str = ""
    n_gpus: int | None = None
    batch_per_gpu: int | None = None
    patch_or_image: str = ""
    precision: str = ""
    throughput_img_s: float | None = None
    speedup: float | None = None
    relative_to: str = ""
    status: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """A row of memory.csv. `value_text`: as printed, for the places that it has."""

    row_id: str
    source_id: str = ""
    locator: str = ""
    read_as: str = ""
    kind: str = ""
    model: str = ""
    params_b: float | None = None
    hardware: str = ""
    n_gpus: int | None = None
    dp: int | None = None
    mp: int | None = None
    zero_stage: str = ""
    batch_or_patch: str = ""
    quantity: str = ""
    value: float | None = None
    value_text: str = ""
    unit: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class BubbleRate:
    """A row of pipeline_bubbles.csv: p stages, m microbatches; milliseconds of one microbatch on one stage."""

    row_id: str
    source_id: str = ""
    locator: str = ""
    model: str = ""
    p: int | None = None
    m: int | None = None
    schedule: str = ""
    TF_ms: float | None = None
    TB_ms: float | None = None
    TW_ms: float | None = None
    Tcomm_ms: float | None = None
    bubble_rate: float | None = None
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """A row of formulas.csv."""

    id: str
    source_id: str = ""
    locator: str = ""
    quantity: str = ""
    formula: str = ""
    variables: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The tables, in the order of their rows. `notes`: what of them does not read as it should."""

    runs: tuple[Run, ...] = ()
    image_runs: tuple[ImageRun, ...] = ()
    memory: tuple[MemoryCell, ...] = ()
    bubbles: tuple[BubbleRate, ...] = ()
    formulas: tuple[Formula, ...] = ()
    notes: tuple[str, ...] = ()


_Row = TypeVar("_Row", Run, ImageRun, MemoryCell, BubbleRate, Formula)


def load_published(folder: Path = DATA) -> Published:
    """All tables of a folder.

    Raises:
        PublishedError: the folder or a table is not there, or a table has no column of row names.
    """
    if not folder.is_dir():
        raise PublishedError(f"published tables: expected a folder at {folder}, found none; name it with --data DIR")
    notes: list[str] = []
    return Published(
        _read(folder / "throughput.csv", Run, notes),
        _read(folder / "throughput_cnn.csv", ImageRun, notes),
        _read(folder / "memory.csv", MemoryCell, notes),
        _read(folder / "pipeline_bubbles.csv", BubbleRate, notes),
        _read(folder / "formulas.csv", Formula, notes),
        tuple(notes),
    )


def _read(path: Path, kind: type[_Row], notes: list[str]) -> tuple[_Row, ...]:
    if not path.is_file():
        raise PublishedError(f"published tables: expected {path.name} in {path.parent}, found none; name the folder with --data DIR")
    columns = {f.name: str(f.type) for f in fields(kind)}
    key = next(iter(columns))
    with path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        if key not in (table.fieldnames or ()):
            raise PublishedError(f"{path}: expected a column {key}, found {', '.join(table.fieldnames or ()) or 'no header'}")
        lacks = [name for name in columns if name not in (*table.fieldnames, "value_text")]
        if lacks:
            notes.append(f"{path.name}: no column {', '.join(lacks)}: read as not printed in any row")
        rows: list[_Row] = []
        seen: set[str] = set()
        for line in table:
            cells = {name: (text or "").strip() for name, text in line.items() if name is not None and not isinstance(text, list)}
            cells["value_text"] = cells.get("value", "")
            if cells[key]:
                where = f"{path.name}: {cells[key]}"
                if cells[key] in seen:
                    notes.append(f"{where}: the name comes again; expected one row of a name")
                seen.add(cells[key])
                rows.append(kind(**{name: _read_cell(cells.get(name, ""), of, name, where, notes) for name, of in columns.items()}))  # type: ignore[arg-type]
    return tuple(rows)


_ZERO = {"samples_per_s_total", "value", "bubble_rate", "TW_ms", "Tcomm_ms"}  # printed with few places, or nothing of it
_MOST = {"tflops_per_gpu": 1e5, "mfu_pct": 100.0, "hfu_pct": 100.0, "bubble_rate": 1.0}
_STATUS = ("", "ok", "OOM", "OOM/failed")


def _read_cell(text: str, of: str, name: str, where: str, notes: list[str]) -> object:
    """What a cell says; None, with a note, where it is no number that it may be."""
    if of == "str":
        if name == "status" and text not in _STATUS:
            notes.append(f"{where}: status: expected one of {', '.join(_STATUS[1:])}, found {text!r}: in no group")
        return text
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    whole, most = of == "int | None", _MOST.get(name, math.inf)
    good = math.isfinite(found) and 0 <= found <= most and (found > 0 or name in _ZERO) and not (whole and found != int(found))
    if not good:
        limit = f" of at most {most:g}" if most < math.inf else ""
        notes.append(f"{where}: {name}: expected a {'whole ' if whole else ''}number {'of at least' if name in _ZERO else 'above'} 0{limit}, found {text!r}: read as not printed")
        return None
    return int(found) if whole else found
