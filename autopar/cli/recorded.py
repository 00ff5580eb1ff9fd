"""Where `autopar run` puts what the steps took, decided before anything starts; and what it says of that when it is over."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import OptionsError
from .asked import check_file_place
from .outcome import Talk

_FLAG = "--record"


def find_record_place(folder: str, train: str, record: str | None, no_record: bool, say: Talk) -> Path | None:
    """The file to record into; None where nothing is recorded.

    Args:
        folder: of the program.
        train: the text of its train.py, which must take `--record`: people change it, and older ones do not.
        record, no_record: as asked for.
    Raises:
        OptionsError: a file was asked for and cannot be had.
    """
    from ..runtime.folder import RUN

    if no_record:
        if record is not None:
            raise OptionsError(f"--no-record and --record {record}: give one of them")
        return None
    check_file_place(record, _FLAG)
    if _FLAG not in train:
        why = f"{Path(folder) / 'train.py'} takes no --record: emit it again with `autopar emit`, or pass record=FILE to run_training in it"
        if record is not None:
            raise OptionsError(f"--record {record}: {why}")
        say(f"nothing is recorded: {why}")
        return None
    if record is None and not os.access(folder, os.W_OK):
        say(f"nothing is recorded: {folder} cannot be written to; choose a file with --record")
        return None
    return Path(record).resolve() if record is not None else (Path(folder) / RUN).resolve()


def find_trace_place(folder: str, train: str, profile: str | None) -> Path | None:
    """The file for the trace of a step; arguments as of `find_record_place`.

    Raises:
        OptionsError: it cannot be had.
    """
    if profile is None:
        return None
    check_file_place(profile, "--profile")
    if "--profile" not in train:
        raise OptionsError(
            f"--profile {profile}: {Path(folder) / 'train.py'} takes no --profile: emit it again with `autopar emit`, or pass profile=FILE to run_training in it"
        )
    return Path(profile).resolve()


def describe_hidden(path: str) -> list[str]:
    """The line that says how much of a recorded run's communication was hidden; none where it had none.

    Args:
        path: of the run.
    """
    from ..cost.against import measure_hidden
    from ..graph.run_file import load_run
    from ..view.units import print_ms, print_percent

    found = measure_hidden(load_run(path))
    if not found.seconds:
        return []
    share = f"{'at most ' if found.most else ''}{print_percent(found.hidden_s / found.seconds)}"
    return [f"communication took {print_ms(found.seconds)} of a step, {share} of it hidden behind compute (measured, medians)"]


def file_mark(path: Path | None) -> tuple[int, int] | None:
    """Changes when the file is replaced."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns)
