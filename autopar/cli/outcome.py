"""How a command ends: what goes to stdout, what to stderr, and the exit code.

Law: stdout holds the result and nothing else; with `--json` that is one JSON object, also when the command fails. What people are told on the
way, and every error's text, goes to stderr. Exit codes: 0 done, 1 infeasible or verification failed, 2 bad input, 3 a fault in autopar itself
(with its traceback), 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import AutoparError, InfeasibleError, VerificationError

if TYPE_CHECKING:
    from rich.console import Console

DONE, NEGATIVE, BAD_INPUT, FAULT, INTERRUPTED = 0, 1, 2, 3, 130
_FIGURES = ("limit_bytes", "minimum_bytes", "missing_bytes")  # of an InfeasibleError



class Talk:
    """What a command may say while it works: lines for people on stderr, and parts of its answer on stdout as soon as they are known."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out  # None: the answer is one JSON object

    def __call__(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def show(self, part: Callable[[Console], None]) -> None:
        """Print a part of the answer now."""
        if self._out is not None:
            part(_console(self._out))
            self._out.flush()


def _console(out: TextIO) -> Console:
    from rich.console import Console

    return Console(file=out, highlight=False)


@dataclass(frozen=True)
class Outcome:
    """What a command found.

    Args:
        data: the JSON object.
        show: prints it for people.
        error: where the answer is no (verification): told after the answer, and decides the exit code.
        code: exit code where there is no error (a program that ran has its own).
    """

    data: Callable[[], dict[str, Any]]
    show: Callable[[Console], None]
    error: AutoparError | None = None
    code: int = DONE


@dataclass
class Ending:
    """Remembers whether stdout already has its JSON object. Lives for one run of the command line."""

    as_json: bool
    printed: bool = field(default=False)

    def answer(self, work: Callable[[Talk], Outcome]) -> int:
        """Do the work of a command and print what it found.

        Args:
            work: gets the means to say what is going on.
        Returns:
            the exit code.
        """
        talk = Talk(None if self.as_json else sys.stdout)
        with contextlib.redirect_stdout(sys.stderr):  # whatever the user's model prints while it is built
            outcome = work(talk)
        if self.as_json:
            self._print_json({**outcome.data(), **(_error_data(outcome.error) if outcome.error else {})})
        else:
            outcome.show(_console(sys.stdout))
        sys.stdout.flush()
        if outcome.error is not None:
            _print_error(outcome.error)
            return exit_code(outcome.error)
        return outcome.code

    def fail(self, error: BaseException) -> int:
        """Tell why a command ended early.

        Returns:
            the exit code.
        """
        if self.as_json and not self.printed:
            self._print_json(_error_data(error))
        _print_error(error)
        return exit_code(error)

    def _print_json(self, data: dict[str, Any]) -> None:
        text = json.dumps(data, allow_nan=False)
        self.printed = True
        print(text, flush=True)


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(error, (InfeasibleError, VerificationError)):
        return NEGATIVE
    return BAD_INPUT if isinstance(error, AutoparError) or is_usage_error(error) else FAULT


def is_usage_error(error: BaseException) -> bool:
    """True for what typer raises on words that it cannot read (its classes moved between its versions)."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _name(error: BaseException) -> str:
    return "UsageError" if is_usage_error(error) else type(error).__mro__[_public(error)].__name__


def _public(error: BaseException) -> int:
    """Errors with figures are subclasses (`MemoryShortage`); people know them by the name in `errors`."""
    return next((k for k, kind in enumerate(type(error).__mro__) if kind.__module__ == AutoparError.__module__), 0)


def _text(error: BaseException) -> str:
    if not is_usage_error(error):
        return str(error)
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "autopar"
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    return f"{message}{'' if message.endswith(('?', '!')) else '.'} `{where} --help` shows what it takes."


def _error_data(error: BaseException) -> dict[str, Any]:
    data: dict[str, Any] = {"type": _name(error), "message": _text(error), "exit_code": exit_code(error)}
    data |= {name: getattr(error, name) for name in _FIGURES if hasattr(error, name)}
    if hasattr(error, "holders"):
        data["holders"] = dict(error.holders)
    if hasattr(error, "changes"):
        data["changes"] = [asdict(change) for change in error.changes]
    return {"error": data}


def _print_error(error: BaseException) -> None:
    if exit_code(error) == FAULT:
        traceback.print_exception(error, file=sys.stderr)
        print("This is a fault in autopar, not in what you gave it: please report it with the lines above.", file=sys.stderr, flush=True)
    elif not is_usage_error(error) or error.format_message():  # type: ignore[attr-defined]  # no words at all: the help is printed already
        print(f"{_name(error)}: {_text(error)}", file=sys.stderr, flush=True)

