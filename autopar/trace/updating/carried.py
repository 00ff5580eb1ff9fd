"""What an optimizer carries from step to step: states of parameters, options of groups, attributes of its own, tensors in lists, tuples and dicts of these (averages of the weights); and the same of
optimizers inside of it (SAM, Lookahead).

In: an optimizer, before and after a step. Out: its tables by place, and the Python numbers in them. A number that a step changes becomes
a tensor (`optimizer.learn_states`), so that a compiled step can carry it; Python that decides on it is then an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Union

import torch

Place = tuple[int, str, Union[int, str]]  # number of the optimizer; "", "group" or "self"; which parameter or group, or which entry of a list
Numbers = dict[tuple[Place, str], float]


@dataclass(frozen=True)
class Table:
    """One mutable table and the parameter after which its tensors are named.

    Args:
        is_entry: it is one entry of a list, tuple or dict.
    """

    owner: torch.Tensor
    entries: MutableMapping[str, object]
    is_entry: bool = False


class _Entry(MutableMapping):
    """One entry of a list, tuple or dict in a table, as a table of its own under one key."""

    def __init__(self, table: MutableMapping[str, object], name: str, number: int, key: str) -> None:
        self._table, self._name, self._number, self._key = table, name, number, key

    def __getitem__(self, key: str) -> object:
        if key != self._key:
            raise KeyError(key)
        return list(_values(self._table[self._name]))[self._number]

    def __setitem__(self, key: str, value: object) -> None:
        held = self._table[self._name]
        if isinstance(held, dict):
            held[list(held)[self._number]] = value
        elif isinstance(held, list):
            held[self._number] = value
        else:
            self._table[self._name] = (*held[: self._number], value, *held[self._number + 1 :])  # type: ignore[index]

    def __delitem__(self, key: str) -> None:
        raise TypeError("an entry stays where it is")

    def __iter__(self) -> Iterator[str]:
        return iter((self._key,))

    def __len__(self) -> int:
        return 1


def _values(held: object) -> Iterable[object]:
    """What a list, tuple or dict holds; nothing of anything else."""
    return held.values() if type(held) is dict else held if type(held) in (list, tuple) else ()


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
                found.update(_list_entries(number, "group", k, group, group["params"]))
        if params and hasattr(held, "__dict__"):
            found[number, "self", 0] = Table(params[0], vars(held))
            found.update(_list_entries(number, "self", 0, vars(held), params))
    once: dict[int, Place] = {}
    for place in sorted(found, key=lambda p: p[1] != ""):
        once.setdefault(id(found[place].entries), place)
    return {place: found[place] for place in once.values()}


def _list_entries(number: int, kind: str, k: int, table: MutableMapping[str, object], params: Sequence[torch.Tensor]) -> Iterator[tuple[Place, Table]]:
    """Tensors in the lists, tuples and dicts of a table, each named after the parameter that it stands beside; after the first where there are not as many."""
    for name, held in list(table.items()):
        if not isinstance(name, str) or name in ("params", "param_groups"):
            continue
        values = list(_values(held))
        keys = list(held) if type(held) is dict else []
        for at, value in enumerate(values):
            if isinstance(value, torch.Tensor) and not any(value is p for p in params):
                by_key = next((p for p in params if keys and p is keys[at]), None)
                owner = by_key if by_key is not None else params[at] if len(values) == len(params) else None
                key = name if owner is not None else f"{name}_{at}"
                yield (number, kind, f"{k}.{name}.{at}"), Table(params[0] if owner is None else owner, _Entry(table, name, at, key), is_entry=True)


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
