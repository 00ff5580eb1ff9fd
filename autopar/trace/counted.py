"""Counted: Python numbers that a module changes while a step runs (a count of calls, a flag that says it was initialised).

In: the model, before and after a traced step. Out: what changed, and an error where the step computes with it: one compiled step stands for
all steps, so such a number would silently stay as it was. Whether the step computes with it is found by tracing once more with the later
value and comparing; most such numbers are bookkeeping, and then nothing happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..errors import AutoparError, TraceError
from ..graph.graph import graph_hash

if TYPE_CHECKING:
    from . import Traced

_NUMBERS = (bool, int, float)
_NUM_TOLD = 3
_Held = dict[tuple[str, str], object]  # (module path, attribute) -> value


@dataclass(frozen=True)
class Counted:
    """A number of a module, as it was before the step and as it was afterwards."""

    path: str
    module: torch.nn.Module
    key: str
    before: object
    after: object


def plain_numbers(model: torch.nn.Module) -> _Held:
    """Every number that a module holds as a plain attribute; torch's own, such as `training`, are the user's to set."""
    own = vars(torch.nn.Module())
    return {(path, k): v for path, m in model.named_modules() for k, v in vars(m).items() if isinstance(v, _NUMBERS) and k not in own}


def moved_numbers(model: torch.nn.Module, before: _Held) -> tuple[Counted, ...]:
    """The numbers that are others now. Those of a module that also keeps other tensors than before are left out: they speak of those
    (the length of a cached table), and no second trace can have the tensors."""
    found = []
    for (path, key), value in before.items():
        module = model.get_submodule(path)
        now = vars(module).get(key)
        if isinstance(now, _NUMBERS) and now != value and not any(isinstance(held, torch.Tensor) for held in vars(module).values()):
            found.append(Counted(f"{path}.{key}".lstrip("."), module, key, value, now))
    return tuple(found)


def check_counted(counted: tuple[Counted, ...], first: Traced, trace_again: Callable[[], Traced]) -> None:
    """Refuse numbers that the step changes and computes with.

    Args:
        trace_again: traces the same workload; it is called with the later values in place.
    Raises:
        TraceError: with the attribute's name, what it was and became, and the cure.
    """
    if not counted:
        return
    try:
        with _later(counted):
            second = trace_again()
    except AutoparError:  # it runs into something else: the second step is another program in any case
        second = None
    if second is not None and graph_hash(second.graph) == graph_hash(first.graph) and _same_constants(first, second):
        return
    told = ", ".join(f"{c.path} (from {c.before} to {c.after})" for c in counted[:_NUM_TOLD])
    more = f" and {len(counted) - _NUM_TOLD} more" if len(counted) > _NUM_TOLD else ""
    key, value = counted[0].key, counted[0].before
    raise TraceError(
        f"attribute {told}{more}: the step changes this number and computes with it, but a number is no state of the step: the program would use "
        f"{value} in every step. Keep it in a buffer and count there: self.register_buffer({key!r}, torch.tensor({value})), then "
        f"self.{key} += 1, and torch.where instead of `if`; or set it outside of the model's forward."
    )


@contextlib.contextmanager
def _later(counted: tuple[Counted, ...]) -> Iterator[None]:
    try:
        for c in counted:
            vars(c.module)[c.key] = c.after
        yield
    finally:
        for c in counted:
            vars(c.module)[c.key] = c.before


def _same_constants(first: Traced, second: Traced) -> bool:
    return first.constants.keys() == second.constants.keys() and all(torch.equal(t, second.constants[name]) for name, t in first.constants.items())
