"""Where in an emitted program a thread is, read off its frames: the function that its step has called, and the line.

In: frames of a running thread, or of an error's traceback. Out: words for errors. Texts that were run from memory (`reading`) are known by their file names.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

from ..errors import ProgramError, RankError

EMITTED = "<autopar "  # how the name of an emitted file begins that was run from memory


@dataclass(frozen=True, slots=True)
class Place:
    """The innermost line of an emitted program.

    Args:
        phase: `backward of microbatch 2`.
        line: `program.py, line 120`.
        text: of the line.
    """

    phase: str
    line: str
    text: str

    def __str__(self) -> str:
        return f"in its {self.phase} ({self.line})"


def find_place(frames: Iterable[tuple[FrameType, int]]) -> Place | None:
    """Where frames are in an emitted program; None: in none.

    Args:
        frames: with the line that each is in, outermost first.
    """
    emitted = [(frame, line) for frame, line in frames if frame.f_code.co_filename.startswith(EMITTED)]
    if not emitted:
        return None
    phase = next((frame for frame, _ in emitted if frame.f_code.co_name != "step"), emitted[0][0])
    turn = phase.f_locals.get("turn") if "turn" in phase.f_code.co_varnames[: phase.f_code.co_argcount] else None
    of = f" of microbatch {turn}" if isinstance(turn, int) and turn >= 0 else ""
    last, line = emitted[-1]
    shown = last.f_code.co_filename
    return Place(f"{phase.f_code.co_name}{of}", f"{shown.split()[1]}, line {line}", linecache.getline(shown, line).strip())


def place_error(error: Exception, rank: int, stage: str = "") -> Exception:
    """An error of a step that says where it arose.

    Args:
        stage: the stage and action, where the program has stages.
    Returns:
        of what ranks raise on each other, and of broken programs, an error of this kind whose text begins with the place; any other error itself, with a note
        (from Python 3.11 on) that says the place and the line: Python's own traceback shows no lines of texts that were run from memory.
    """
    place = find_place(traceback.walk_tb(error.__traceback__))
    if isinstance(error, (RankError, ProgramError)):
        return type(error)(f"{stage or place}: {error}") if stage or place else error
    where = [stage or f"in its {place.phase}" if place else stage, *([place.line, place.text] if place else [])]
    if hasattr(error, "add_note") and any(where):
        error.add_note(f"rank {rank}: {': '.join(word for word in where if word)}")
    return error
