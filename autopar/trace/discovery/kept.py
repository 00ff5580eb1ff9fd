"""What is known of ops from earlier runs: one small JSON file per claim, in the user's cache.

In: a key of everything that the claim depends on. Out: what was kept under it. Nothing here is believed without a look: a reader tries a
kept claim once more before it uses it. A folder that cannot be read or written only costs time.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch

from ...cache import cache_folder
from ...graph.registry import RuleRow
from ..lowering.draft import resolve_op
from ..private import source_file

CACHE_PATH = cache_folder() / "rules"


def kept_path(folder: Path, op: str, key: object) -> Path | None:
    """The file for a claim about an op; None where the op cannot be found.

    Args:
        key: what the claim depends on beside the op's schema, torch's version, and the file that defines the op where torch knows it.
    """
    try:
        schema = str(resolve_op(op)._schema)
    except (AttributeError, RuntimeError):
        return None
    digest = hashlib.sha256(repr((schema, key, torch.__version__)).encode())
    file = source_file(op)
    if file is not None and file.is_file():
        digest.update(file.read_bytes())
    return folder / f"{op}-{digest.hexdigest()[:16]}.json"


def write_row(path: Path, row: RuleRow) -> None:
    """Keep a row, whole or not at all."""
    kept = {"text": row.text, "linear": row.linear, "owed": row.owed, "reduce": row.reduce, "why_whole": row.why_whole,
            "num_trials": row.num_trials, "seconds": row.seconds}  # fmt: skip
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(kept))
        os.replace(unfinished, path)
    except OSError:
        return


def read_row(path: Path, op: str, origin: str) -> RuleRow | None:
    """The row that was kept; None where there is none that can be read."""
    try:
        kept = json.loads(path.read_text())
        linear = tuple(tuple(names) for names in kept["linear"])
        return RuleRow(op, origin, (), kept["text"], linear, tuple(kept["owed"]), kept["reduce"], 1.0, kept["why_whole"],
                       kept["num_trials"], kept["seconds"])  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
