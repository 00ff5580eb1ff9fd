"""Random numbers that a program would not draw as the step does.

In: generators of Python and numpy, and torch's where a step seeds it or makes one. Out: an error where a step depends on them. What Python and numpy draw while a step is traced
would be the same in every step, unless it seeds them itself and so draws the same numbers in every step anyway. A uniform number may be compared with what it can never reach (LayerDrop with
probability 0). Torch's own numbers are ops of the step (`random_ops`), which draw anew in every step: so a seed within the step, or a generator that it makes, would mean nothing.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch.overrides import TorchFunctionMode

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
        stack.enter_context(_seeds_refused())
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
def _seeds_refused() -> Iterator[None]:
    """Refuse `torch.manual_seed` with a number that is the same in every step (one that `torch.seed` has drawn before is not), and draws from generators that the step makes."""
    drawn: list[int] = []

    def manual_seed(seed: object) -> object:
        if not drawn:
            raise _refuse_seed(f"torch.manual_seed({seed})")
        return kept["manual_seed"](seed)

    def draw_seed() -> int:
        drawn.append(kept["seed"]())
        return drawn[-1]

    kept: dict[str, Callable] = {"manual_seed": torch.manual_seed, "seed": torch.seed}
    generator = torch.Generator
    for module in (torch, torch.random):
        module.manual_seed, module.seed = manual_seed, draw_seed
    torch.Generator = _MadeHere  # type: ignore[misc]
    try:
        with _RefusesMadeHere():
            yield
    finally:
        torch.Generator = generator  # type: ignore[misc]
        for module in (torch, torch.random):
            module.manual_seed, module.seed = kept["manual_seed"], kept["seed"]


class _AnyGenerator(type(torch.Generator)):
    """So that every generator is an instance of what stands for the class meanwhile."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _MadeHere.__base__)  # type: ignore[arg-type]


class _MadeHere(torch.Generator, metaclass=_AnyGenerator):
    """A generator that a step makes."""


class _RefusesMadeHere(TorchFunctionMode):
    """Refuses draws from them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if any(type(a) is _MadeHere for a in (*args, *(kwargs or {}).values())):
            raise _refuse_seed(f"{getattr(func, '__name__', func)} draws from a torch.Generator that the step makes")
        return func(*args, **(kwargs or {}))


def _refuse_seed(what: str) -> TraceError:
    """The error for a draw whose numbers the step fixes."""
    place = blame_stack(running_frames())
    return TraceError(
        f"{place + ': ' if place else ''}{what}: the program draws its own numbers, anew in every step, so a seed within the step would mean nothing. Numbers that are to be the same "
        "in every step belong in a buffer (register_buffer in __init__); for others leave the seed or the generator out."
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
