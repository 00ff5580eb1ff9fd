"""Emitted programs on disk: a folder is written whole or not at all, and nothing else is ever overwritten."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from ..errors import ProgramError

MARK = "program.py"
WEIGHTS = "weights.pt"  # first values that no recipe makes; `train.py` reads it
_OF_OTHERS = re.compile(r"stage_\d+\.py|schedule\.csv|kernels\.py")  # what a program of another plan leaves behind
RUN = "run.json"  # what `autopar run` recorded; no part of the program


def write_program(files: Mapping[str, str], directory: str | os.PathLike, weights: Mapping[str, Tensor] = MappingProxyType({})) -> Path:
    """Write the files of a program into a folder, which may exist if it is empty or holds an emitted program.

    Args:
        files: name -> text.
        weights: first values that must go with it, saved as `WEIGHTS`.
    Returns:
        the folder.
    Raises:
        ProgramError: the folder holds something else, or cannot be written.
    """
    target = Path(directory)
    _refuse_foreign(files, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        made.chmod(0o755)
        try:
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8")
            if weights:
                torch.save(dict(weights), made / WEIGHTS)
            if (target / RUN).is_file():
                shutil.copy2(target / RUN, made / RUN)
            _exchange(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ProgramError(f"cannot write {target}: {error.strerror or error}; choose another folder") from None
    return target


def read_files(directory: str | os.PathLike) -> dict[str, str]:
    """The text files of an emitted program.

    Raises:
        ProgramError: it is no such folder.
    """
    target = Path(directory)
    if not (target / MARK).is_file():
        raise ProgramError(f"{target} is not an emitted program: it has no {MARK}; make one with `autopar emit MODEL -o {target}`")
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(target.iterdir()) if p.suffix in (".py", ".json", ".csv") and p.name != RUN}


def _refuse_foreign(files: Mapping[str, str], target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ProgramError(f"{target} is a file, expected a folder to write the program into")
    found = {p.name for p in target.iterdir()} - {"__pycache__"}
    foreign = sorted(name for name in found - {*files, WEIGHTS, RUN} if not _OF_OTHERS.fullmatch(name))
    if found and (MARK not in found or foreign):
        raise ProgramError(
            f"{target} is not empty and not only an emitted program (it has {', '.join((foreign or sorted(found))[:3])}): choose another folder"
        )


def _exchange(made: Path, target: Path) -> None:
    """Put `made` where `target` is; what was there is gone only after."""
    if not target.exists():
        made.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    target.rename(old)  # onto an empty folder
    try:
        made.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
