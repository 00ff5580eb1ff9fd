"""Random numbers of Python and numpy: drawn while a step is traced, they would be the same in every step.

In: nothing but those generators. Out: an error where a step has drawn from them, unless it seeds them itself and so draws the same numbers
in every step anyway. Torch's own numbers are not meant: they are ops of the step (`random_ops`).
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from ..errors import TraceError


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
    seeded: set[str] = set()
    with contextlib.ExitStack() as stack:
        for name, module in {name: module for name, module, _ in generators}.items():
            stack.enter_context(_noticed(name, module, seeded))
        yield
    moved = {name for (name, _, state), old in zip(generators, before) if state() != old} - seeded
    if moved:
        raise TraceError(
            f"the step draws random numbers from {' and '.join(sorted(moved))}: drawn while it is traced, they would be the same in every step. "
            "Draw with torch (torch.rand(()) stays a tensor), or outside of the step and pass them as an input; switch off what a library "
            "draws so (transformers: apply_spec_augment=False)."
        )


@contextlib.contextmanager
def _noticed(name: str, module: ModuleType, seeded: set[str]) -> Iterator[None]:
    """A call of the module's `seed` puts `name` into `seeded`."""
    before = module.seed

    def seed(*args: object, **kwargs: object) -> object:
        seeded.add(name)
        return before(*args, **kwargs)

    module.seed = seed  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.seed = before  # type: ignore[attr-defined]
