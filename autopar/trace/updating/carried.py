"""What an optimizer carries from step to step: states of parameters, options of groups, attributes of its own; and the same of optimizers
inside of it (SAM, Lookahead).

In: an optimizer, before and after a step. Out: its tables by place, and the Python numbers in them. A number that a step changes becomes
a tensor (`optimizer.learn_states`), so that a compiled step can carry it; Python that decides on it is then an error of its own.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

Place = tuple[int, str, int]  # number of the optimizer; "", "group" or "self"; which parameter or group
Numbers = dict[tuple[Place, str], float]


@dataclass(frozen=True)
class Table:
    """One mutable table and the parameter after which its tensors are named."""

    owner: torch.Tensor
    entries: MutableMapping[str, object]


def all_optimizers(optimizer: object) -> list[object]:
    """The optimizer and those that it holds as attributes, or in lists and dicts of attributes."""
    found: list[object] = [optimizer]
    for outer in found:
        for held in list(getattr(outer, "__dict__", {}).values()):
            items = held if isinstance(held, (list, tuple)) else held.values() if type(held) is dict else (held,)
            found += [o for o in items if isinstance(o, torch.optim.Optimizer) and not any(o is f for f in found)]
    return found


def find_tables(optimizer: object) -> dict[Place, Table]:
    """Every table, states first, in the order of parameters and groups."""
    found: dict[Place, Table] = {}
    for number, held in enumerate(all_optimizers(optimizer)):
        params = [p for g in held.param_groups for p in g["params"]]  # type: ignore[attr-defined]
        for param in params:
            entries = held.state.get(param)  # type: ignore[attr-defined]
            if isinstance(entries, MutableMapping):
                found[number, "", id(param)] = Table(param, entries)
        for k, group in enumerate(held.param_groups):  # type: ignore[attr-defined]
            if group["params"]:
                found[number, "group", k] = Table(group["params"][0], group)
        if params and hasattr(held, "__dict__"):
            found[number, "self", 0] = Table(params[0], vars(held))
    once: dict[int, Place] = {}
    for place in sorted(found, key=lambda p: p[1] != ""):
        once.setdefault(id(found[place].entries), place)
    return {place: found[place] for place in once.values()}


def read_numbers(optimizer: object) -> Numbers:
    """The Python numbers in all tables."""
    return {
        (place, key): value
        for place, table in find_tables(optimizer).items()
        for key, value in table.entries.items()
        if isinstance(key, str) and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def read_schedules(optimizer: object) -> list[int]:
    """How far the learning-rate schedules are that the optimizer steps by itself."""
    held = [value for o in all_optimizers(optimizer) for value in vars(o).values() if hasattr(o, "__dict__")]
    return [s.last_epoch for s in held if isinstance(s, torch.optim.lr_scheduler.LRScheduler)]


def held_sgd(optimizer: object) -> torch.optim.SGD | None:
    """torch's SGD, the optimizer itself or one inside of it; None where there is none."""
    return next((o for o in all_optimizers(optimizer) if isinstance(o, torch.optim.SGD)), None)
