"""Block tables: the sizes of a kernel's blocks with which a device was fastest, measured when a kernel is first launched there and kept in a file per device.

In: a kernel's key, the sizes that the rule gives (`fused.blocks`), a function that times one launch and one that compiles for it. Out: the sizes to launch with. The file is JSON with a line per kernel
(`~/.cache/autopar/blocks/DEVICE.json`, or where `$XDG_CACHE_HOME` says); it may be read, edited and deleted. Invariant: without a file, or where a size does not run, the rule's sizes are what is used.

Sizes decide in which order a kernel adds up, so ranks that hold the same thing may only differ in sizes where nothing is added up; `fused.block_sizes` sees to that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..cache import cache_folder
from ..graph.blocks import LARGEST, MORE_ROWS
from ..graph.tensor import power_of_two

Sizes = dict[str, int]

FOLDER = cache_folder() / "blocks"
_FASTER = 0.97  # of the rule's time: less is noise
_REPEATS = 5
_WARPS = (1, 16)
_OF_A_WARP = 2048  # elements of a block: with more its threads have no registers left, and it compiles for two to four times as long
_STAGES = (1, 2, 3, 4, 6)
_POWERS = ("ROWS", "COLS", "num_warps")  # are powers of two


class BlockTable:
    """The sizes that are known for one device. What it learns is written at once.

    Args:
        path: of its file; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._known = path, _read(path) if path is not None else {}

    def known(self, key: str) -> Sizes | None:
        """The sizes of a kernel that was measured."""
        return self._known.get(key)

    def find(self, key: str, rule: Sizes, seconds: Callable[[Sizes], float], make_ready: Callable[[Sizes], object], walks: bool, widest: int = 1) -> Sizes:
        """The sizes of a kernel, measured now if they are not known.

        Args:
            rule: sizes to compare with: its own, when nothing is clearly faster.
            seconds: times a launch; raises where the device cannot run these sizes.
            make_ready: compiles what a launch with these sizes runs; called in several threads.
            walks: programs go along their rows in blocks.
            widest: elements of the widest thing of a row, where that is more than the columns of a block.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _fastest(rule, seconds, make_ready, walks, widest)
            self._write()
        return found

    def _write(self) -> None:
        """Keep all lines, whole or not at all; those that another process has written meanwhile, too."""
        if self._path is None:
            return
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        rows = {**_read(self._path), **self._known}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text("{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)) + "\n}\n")
            os.replace(unfinished, self._path)
        except OSError:
            return


def table_of(device: str) -> BlockTable:
    """The table of a device by its name, as `torch.cuda.get_device_name` says it."""
    return BlockTable(FOLDER / f"{re.sub(r'[^A-Za-z0-9]+', '_', device)}.json")


def loop_candidates(sizes: Sizes, walks: bool) -> list[Sizes]:
    """For a kernel with loops: loads of other numbers of rounds at a time, more programs, and where it walks along rows more columns."""
    if "STAGES" not in sizes:
        return []
    found = [{**sizes, "STAGES": stages} for stages in _STAGES if stages != sizes["STAGES"]]
    found += [{**sizes, "PROGRAMS": sizes["PROGRAMS"] * halves // 2} for halves in (3, 4)] if "PROGRAMS" in sizes else []
    wider = [more for more in (2, 4) if walks and sizes["ROWS"] == 1 and sizes["COLS"] * more <= LARGEST]
    return [*found, *({**sizes, "COLS": sizes["COLS"] * more, "num_warps": min(_WARPS[1], sizes["num_warps"] * more)} for more in wider)]


def candidates(rule: Sizes, widest: int = 1) -> list[Sizes]:
    """Sizes around those of the rule, which come first: half and twice to four times the rows, half and twice the warps. `widest`: as of `BlockTable.find`."""
    found, cols = [rule], max(rule.get("COLS", 1), power_of_two(widest))
    of_all, of_a_warp = max(LARGEST, rule["ROWS"] * cols), max(_OF_A_WARP, rule["ROWS"] * cols // rule["num_warps"])
    for rows in (rule["ROWS"] // 2, rule["ROWS"], rule["ROWS"] * 2, rule["ROWS"] * MORE_ROWS):
        for warps in (rule["num_warps"] // 2, rule["num_warps"], rule["num_warps"] * 2):
            sizes = {**rule, "ROWS": rows, "num_warps": warps}
            if rows and _WARPS[0] <= warps <= _WARPS[1] and rows * cols <= min(of_all, warps * of_a_warp) and sizes not in found:
                found.append(sizes)
    return found


def _fastest(rule: Sizes, seconds: Callable[[Sizes], float], make_ready: Callable[[Sizes], object], walks: bool, widest: int) -> Sizes:
    """The fastest of the sizes around the rule's; then of other loops with these."""
    best, least = rule, float("inf")
    for list_sizes in (partial(candidates, widest=widest), partial(loop_candidates, walks=walks)):
        asked = list_sizes(best)
        _make_ready(asked, make_ready)
        for sizes in asked:
            try:
                seconds(sizes)
                taken = min(seconds(sizes) for _ in range(_REPEATS))
            except Exception:  # noqa: BLE001 - too much shared memory, too many registers: not these sizes
                if sizes == rule:
                    return rule
                continue
            if taken < (least if best is not rule else least * _FASTER):
                best, least = sizes, taken
    return best


def _make_ready(asked: Sequence[Sizes], make_ready: Callable[[Sizes], object]) -> None:
    """Compile for all of them: the first alone, as it fills what all share, then the others side by side. What does not compile is said when it is run."""

    def one(sizes: Sizes) -> None:
        with contextlib.suppress(Exception):
            make_ready(sizes)

    for sizes in asked[:1]:
        one(sizes)
    if len(asked) > 1:
        with ThreadPoolExecutor(min(len(asked) - 1, os.cpu_count() or 1)) as pool:
            list(pool.map(one, asked[1:]))


def _read(path: Path) -> dict[str, Sizes]:
    """The lines of a file that are sizes; none where it cannot be read."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: row for key, row in rows.items() if _is_sizes(row)} if isinstance(rows, dict) else {}


def _is_sizes(row: object) -> bool:
    if not isinstance(row, Mapping) or not {"ROWS", "num_warps"} <= row.keys() <= {*_POWERS, "PROGRAMS", "STAGES"}:
        return False
    return all(type(n) is int and n > 0 and (key not in _POWERS or n & (n - 1) == 0) for key, n in row.items())
