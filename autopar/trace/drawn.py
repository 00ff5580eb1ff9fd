"""Random numbers of Python and numpy: drawn while a step is traced, they would be the same in every step.

In: nothing but those generators. Out: an error where a step has drawn from them, unless it seeds them itself and so draws the same numbers
in every step anyway. Torch's own numbers are not meant: they are ops of the step (`random_ops`).
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from ..errors import TraceError
from .place import blame_stack, running_frames


@contextlib.contextmanager
def refuse_drawn_numbers() -> Iterator[None]:
    """Refuse what draws from `random` or `numpy.random` inside.

    Raises:
        TraceError: with the generator's name.
    """
    generators: list[tuple[str, ModuleType, Callable[[], object]]] = [("Python's random", random, random.getstate)]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        generators.append(("numpy.random", numpy.random, lambda: numpy.random.get_state(legacy=False)["state"]["key"].tobytes()))
        generators.append(("numpy.random", numpy.random, lambda: numpy.random.get_state(legacy=False)["state"]["pos"]))
    before = [state() for _, _, state in generators]
    calls: dict[tuple[str, str], str] = {}
    with contextlib.ExitStack() as stack:
        for name, module in {name: module for name, module, _ in generators}.items():
            stack.enter_context(_noticed(name, module, calls))
        yield
    moved = {name for (name, _, state), old in zip(generators, before) if state() != old and (name, "seed") not in calls}
    if moved:
        place = next((line for (name, function), line in calls.items() if name in moved and line), "")
        raise TraceError(
            f"{place + ': ' if place else ''}the step draws random numbers from {' and '.join(sorted(moved))}: drawn while it is traced, "
            "they would be the same in every step. Draw with torch (torch.rand(()) stays a tensor), or outside of the step and pass them "
            "as an input; switch off what a library draws so (transformers: apply_spec_augment=False)."
        )


@contextlib.contextmanager
def _noticed(name: str, module: ModuleType, calls: dict[tuple[str, str], str]) -> Iterator[None]:
    """The line of the first call of each of the module's functions is put into `calls`."""
    before = {key: getattr(module, key) for key in module.__all__ if not isinstance(getattr(module, key, None), type)}
    before = {key: function for key, function in before.items() if callable(function) and not key.startswith("get")}

    def notice(key: str, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            calls.setdefault((name, key), blame_stack(running_frames()))
            return function(*args, **kwargs)

        return call

    vars(module).update({key: notice(key, function) for key, function in before.items()})
    try:
        yield
    finally:
        vars(module).update(before)
