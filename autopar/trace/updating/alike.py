"""Alike: parameters whose updates are the same computation. A few are traced as samples, the others become copies of one.

In: an optimizer with its groups; later the tape of an update in which only samples took part. Out: which parameter is a copy of which, and
whether the tape allows it. Invariant: copies are made only where no op of the update touches two parameters, and where the first and the
last parameter of each class ran the same ops on the same numbers. Otherwise the whole update is traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from ..private import storage_key, without_modes
from ..tape import Record, Slot, Tape, find_slots

_FEWEST = 4  # members of a class that is worth copying
_LARGEST_CONSTANT = 64  # elements


def choose_samples(params: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> dict[str, tuple[str, str]]:
    """Which parameters need no trace of their own.

    Args:
        params: by name, with `.grad` where they have one.
        optimizer: holds them in its groups.

    Returns:
        For each parameter that may be a copy: the first and the last of its class (same group, shape, dtype), which are traced.
    """
    names = {id(p): n for n, p in params.items()}
    classes: dict[tuple, list[str]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.grad is not None:
                classes.setdefault((number, tuple(p.shape), p.dtype, p.grad.dtype), []).append(names[id(p)])
    return {n: (many[0], many[-1]) for many in classes.values() if len(many) >= _FEWEST for n in many[1:-1]}


def why_not_alike(tape: Tape, start: int, roles: Mapping[str, Mapping[str, torch.Tensor]], pairs: Iterable[tuple[str, str]]) -> str:
    """Whether the update on tape may be copied from parameter to parameter.

    Args:
        tape: what ran; the update begins at record `start`.
        roles: for each parameter that was traced, its tensors by role: param, grad, each state.
        pairs: (first, last) of each class.

    Returns:
        "" if so, else the reason.
    """
    owner = {storage_key(t): name for name, tensors in roles.items() for t in tensors.values()}
    steps: dict[str, list[Record]] = {name: [] for name in roles}
    makers: dict[int, Record] = {}
    for record in tape.records[start:]:
        if torch.Tag.nondeterministic_seeded in record.op.tags:
            return f"{record.op} ({record.source}) draws random numbers, others for each parameter"
        touched = [storage_key(tape.tensors[u]) for u in (*find_slots(record), *(u for u in record.outs if u >= 0))]
        owners = {owner[k] for k in touched if k in owner}
        if len(owners) > 1:
            return f"{record.op} ({record.source}) mixes parameters {' and '.join(sorted(owners)[:2])}"
        if owners:
            name = owners.pop()
            steps[name].append(record)
            owner.update((k, name) for k in touched[len(find_slots(record)) :])
        else:
            makers.update((u, record) for u in record.outs if u >= 0)
    printed = {name: _print_steps(tape, steps[name], roles[name], makers) for pair in pairs for name in pair}
    for first, last in pairs:
        if printed[first] != printed[last]:
            return f"{first} and {last} are not updated in the same way"
    return ""


def _print_steps(tape: Tape, steps: list[Record], roles: Mapping[str, torch.Tensor], makers: Mapping[int, Record]) -> list[tuple]:
    """A parameter's records without the names of its tensors."""
    names: dict[int, object] = {tape.uid(t): role for role, t in roles.items()}
    printed = []
    for record in steps:
        printed.append(_print_record(tape, record, names, makers))
        for k, uid in enumerate(record.outs):
            names.setdefault(uid, (len(printed), k))
    return printed


def _print_record(tape: Tape, record: Record, names: dict[int, object], makers: Mapping[int, Record]) -> tuple:
    def show(value: object) -> object:
        if isinstance(value, Slot):
            if value.uid not in names and value.uid in makers:
                maker = makers[value.uid]
                names[value.uid] = (_print_record(tape, maker, names, makers), maker.outs.index(value.uid))
            if value.uid not in names:
                names[value.uid] = _print_constant(tape, value.uid)
            return ("tensor", names[value.uid])
        if isinstance(value, (list, tuple)):
            return tuple(show(v) for v in value)
        return repr(value)

    return (str(record.op), *(show(a) for a in record.args), *((k, show(v)) for k, v in record.kwargs.items()))


def _print_constant(tape: Tape, uid: int) -> object:
    constant = tape.constants.get(uid)
    if constant is None or constant.numel() > _LARGEST_CONSTANT:
        return uid
    with without_modes():
        return (str(constant.dtype), tuple(constant.shape), repr(constant.flatten().tolist()))
