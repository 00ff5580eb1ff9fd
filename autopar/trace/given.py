"""Given: whether a call fits a function's parameters, told with the function's own line.

In: the function that the trace has called (a model's forward, a loss) and what it was given. Out: nothing, or an `InputError`. It looks only where the call has
raised, because hooks may change what a forward is given.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import InputError
from .place import LIBRARY, USER, classify_file, print_place


@contextlib.contextmanager
def explain_misfit(what: str, function: Callable, given: Sequence | Mapping, words: str, printed: str, leading: int = 0) -> Iterator[None]:
    """A TypeError of a call whose arguments do not fit the function's parameters names the function's line, its parameters and what to give.

    Args:
        what: the function, for people.
        given: the arguments, in order or by name.
        words: the parameter of a workload by which they are given.
        printed: them, for people; "" for none.
        leading: of the arguments so many are not given by `words` (what a model returns, of a loss).
    """
    try:
        yield
    except TypeError as error:
        if _fits(function, given):
            raise
        raise InputError(_text(what, function, error, words, printed, leading)) from error


def _fits(function: Callable, given: Sequence | Mapping) -> bool:
    """Whether a call takes these arguments; True where nothing is known of the function's parameters."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(**given) if isinstance(given, Mapping) else signature.bind(*given)
    except TypeError:
        return False
    return True


def _text(what: str, function: Callable, error: TypeError, words: str, printed: str, leading: int) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    takes = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
    asked = [p.name for p in parameters[leading:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    example = f", as in {words}=({asked[0]},)" if len(asked) == 1 else f", as in {words}=({', '.join(asked)})" if asked else ""
    by_name = ", or as a dict by name" if words == "example_inputs" else ""
    return (
        f"{_line_of(function)}{what} raises TypeError: {error}. It takes ({takes}), and {words} gives {printed or 'nothing'}. "
        f"Give {words} as a tuple of what it takes{' after the output' if leading else ''}, in order{example}{by_name}."
    )


def _line_of(function: Callable) -> str:
    """`net.py:12: ` where a function that is not torch's own begins; "" of any other."""
    code = getattr(getattr(inspect.unwrap(function), "__func__", inspect.unwrap(function)), "__code__", None)
    if code is None or classify_file(code.co_filename) not in (USER, LIBRARY):
        return ""
    return f"{print_place(code.co_filename, code.co_firstlineno)}: "
