"""Random numbers of Python and numpy: drawn while a step is traced, they would be the same in every step.

In: nothing but those generators. Out: an error where a step depends on them, unless it seeds them itself and so draws the same numbers
in every step anyway. A uniform number may be compared with what it can never reach (LayerDrop with probability 0). Torch's own numbers are
not meant: they are ops of the step (`random_ops`).
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
    """Refuse what depends on `random` or `numpy.random` inside.

    Raises:
        TraceError: with the generator's name, and the line that drew first or that needs the number.
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
        place = next((line for (name, _), line in calls.items() if name in moved and line), "")
        raise _refusal(" and ".join(sorted(moved)), place)


def _refusal(names: str, place: str) -> TraceError:
    return TraceError(
        f"{place + ': ' if place else ''}the step draws random numbers from {names}: drawn while it is traced, they would be the same in "
        "every step. Draw with torch (torch.rand(()) stays a tensor), or outside of the step and pass them as an input; switch off what a "
        "library draws so (transformers: apply_spec_augment=False, layerdrop=0.0)."
    )


@contextlib.contextmanager
def _noticed(name: str, module: ModuleType, calls: dict[tuple[str, str], str]) -> Iterator[None]:
    """The line of the first call of each of the module's functions is put into `calls`; uniform numbers are `Uniform`."""
    before = {key: getattr(module, key) for key in module.__all__ if not isinstance(getattr(module, key, None), type)}
    before = {key: function for key, function in before.items() if callable(function) and not key.startswith("get")}

    def notice(key: str, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            calls.setdefault((name, key), blame_stack(running_frames()))
            bounds = _bounds(key, args, kwargs) if (name, "seed") not in calls else None
            return Uniform(name, *bounds) if bounds else function(*args, **kwargs)

        return call

    vars(module).update({key: notice(key, function) for key, function in before.items()})
    try:
        yield
    finally:
        vars(module).update(before)


def _bounds(key: str, args: tuple, kwargs: dict) -> tuple[float, float] | None:
    """Between what one uniform number lies; None for anything else that is drawn."""
    if key in ("random", "rand", "random_sample") and not args and not kwargs:
        return 0.0, 1.0
    if key == "uniform" and len(args) == 2 and not kwargs and all(isinstance(a, (int, float)) for a in args):
        return float(min(args)), float(max(args))
    return None


class Uniform:
    """A number of [low, high] that differs from step to step: comparisons that come out the same for all of them are answered.

    Args:
        name: of the generator.
        low, high: the bounds.
    """

    def __init__(self, name: str, low: float, high: float) -> None:
        self._name, self._low, self._high = name, low, high

    def _refuse(self, *_args: object) -> object:
        raise _refusal(self._name, blame_stack(running_frames()))

    def _compare(self, other: object, at_low: bool, at_high: bool) -> bool:
        """`at_low`, `at_high`: whether the number's being below `other` is settled where `other` is the bound itself."""
        if isinstance(other, (int, float)):
            if other < self._low or (at_low and other == self._low):
                return False
            if other > self._high or (at_high and other == self._high):
                return True
        return bool(self._refuse())

    def __lt__(self, other: object) -> bool:
        return self._compare(other, at_low=True, at_high=False)

    def __le__(self, other: object) -> bool:
        return self._compare(other, at_low=False, at_high=True)

    def __ge__(self, other: object) -> bool:
        return not self < other

    def __gt__(self, other: object) -> bool:
        return not self <= other

    __hash__ = None  # type: ignore[assignment]
    __eq__ = __ne__ = __bool__ = __float__ = __int__ = __index__ = __neg__ = __abs__ = __round__ = _refuse  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __format__ = _refuse  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # noqa: D105
        next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, cls))._refuse()
