"""States of an optimizer: which tensors and numbers it carries from step to step, and what they are before the first.

In: a callable from parameters to an optimizer, fake parameters with gradients. Out: the optimizer, and each state with its first value.
Invariant: with these first values every step, the first included, runs the same ops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import torch

from ...errors import TraceError
from ...graph.node import Phase
from ..private import FakeTensor, forget_constant, storage_key, without_modes
from ..tape import Slot, Tape, find_slots, replay, written_uids
from .carried import Place, find_tables, held_sgd, read_numbers, read_schedules
from .data_writes import DataWrites
from .optimizer import EMPTY, SCHEDULES, VIEWS, build_optimizer, check_steady, core_records, describe, run_step, settle_options

Init = tuple[str, object]  # ("fill", number), ("eye", number), ("param", parameter name), or ("unknown", why)


@dataclass(frozen=True)
class OptimState:
    """One state tensor.

    Args:
        storage: its name: `exp_avg:h.0.weight`; `group.k:0.weight` and `self.k:0.weight` of what a group or the optimizer itself carries,
            named after its first parameter.
        tensor: that enters.
        init: ("fill", number), ("eye", number) for so many times the identity, ("param", parameter name), or ("unknown", why): allowed where no step reads it.
        place, key: where it is kept (see `carried`).
        was_number: the optimizer keeps a Python number.
    """

    storage: str
    tensor: torch.Tensor
    init: Init
    place: Place
    key: str
    was_number: bool = False


def learn_states(
    factory: Callable[..., object], params: dict[str, torch.Tensor]
) -> tuple[torch.optim.Optimizer, list[OptimState], Tape]:
    """Build the optimizer and run a first step off the main tape.

    Args:
        factory: the user's.
        params: fake parameters by name, with `.grad` set where they have one.

    Returns:
        The optimizer, its state tensors replaced by fresh fake ones that stand for any step; the states; and the tape of the first
        step, for `check_steady` (empty where that is settled here, because Python numbers became tensors).
    """
    learner = _Learner(factory, params)
    states = learner.states()
    learner.tape.records = [] if learner.moving else learner.first
    return learner.optimizer, states, learner.tape


class _Learner:
    """The first step of an optimizer, and where it takes that the second. Lives for one call of `learn_states`."""

    def __init__(self, factory: Callable[..., object], params: dict[str, torch.Tensor]) -> None:
        self.name, self.params = describe(factory), params
        self.tape, self.scratch = Tape(what=f"optimizer {self.name}"), Tape(what=f"optimizer {self.name}")
        with self._on(self.tape):
            self.optimizer = build_optimizer(factory, list(params.values()))
            built = len(self.tape.records)
            settle_options(self.optimizer, self.tape, self.name)
            self.held = {place for place, table in find_tables(self.optimizer).items() if table.is_entry}  # what a step puts into a list for itself is no state
            before, schedules = read_numbers(self.optimizer), read_schedules(self.optimizer)
            run_step(self.optimizer, self.name)
        if read_schedules(self.optimizer) != schedules:
            raise TraceError(
                f"optimizer {self.name}: its step() steps a learning-rate schedule, which counts in Python, while one compiled step stands "
                f"for all. {SCHEDULES}"
            )
        self.first = self.tape.records[built:]
        self.makers = _first_makers(self.tape)
        self.param_keys = {storage_key(p): n for n, p in params.items()}
        self.found = self._first_values()
        self.moving: dict[tuple[Place, str], float] = {}  # numbers that every step changes: their first values
        numbers = read_numbers(self.optimizer)
        changed = any(before.get(k) != v for k, v in numbers.items())
        if changed or any(init[0] == "unknown" for _, _, init in self.found.values()):
            with self._on(self.scratch):
                run_step(self.optimizer, self.name)
        if changed:
            check_steady(self.first, self.scratch.records, self.optimizer, self.name)
            now = read_numbers(self.optimizer)
            moves = {k for k, v in numbers.items() if k in now and (now[k] != v or before.get(k, v) != v)}
            self.moving = {k: float(before.get(k, 2 * numbers[k] - now[k])) for k in moves}

    @contextlib.contextmanager
    def _on(self, tape: Tape) -> Iterator[None]:
        tape.phase = Phase.UPDATE
        for param in self.params.values():
            tape.add_input(param)
            if param.grad is not None:
                tape.add_input(param.grad)
        with tape, DataWrites(tape.input_storages):
            yield

    def _first_values(self) -> dict[str, tuple[tuple[Place, str], torch.Tensor, Init]]:
        """Place, tensor and first value of every state tensor, by the state's name."""
        names = {id(p): n for n, p in self.params.items()}
        found: dict[str, tuple[tuple[Place, str], torch.Tensor, Init]] = {}
        for place, table in find_tables(self.optimizer).items():
            if table.is_entry and place not in self.held:
                continue
            for key, value in table.entries.items():
                is_carried = isinstance(value, FakeTensor) and storage_key(value) not in self.param_keys if place[1] else True
                if isinstance(value, torch.Tensor) and is_carried:
                    storage = _unused(_name(place, str(key), names[id(table.owner)]), place, found)
                    found[storage] = (place, str(key)), value, self._value_of(value, storage)
        return found

    def _value_of(self, tensor: torch.Tensor, storage: str) -> Init:
        return _initial_value(self.tape, self.makers, tensor, self.params, self.param_keys, self.optimizer, storage, self.name)

    def _read_instead(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What the first step read where the second reads this state: `state["m"] = 0.9 * state["m"] + grad` makes it anew each time."""
        for one, other in zip(core_records(self.first), core_records(self.scratch.records)):
            if one.op is not other.op:
                return None
            for mine, theirs in zip(find_slots(one), find_slots(other)):
                there = self.scratch.tensors[theirs]
                if storage_key(there) == storage_key(tensor) and there.shape == tensor.shape:
                    return self.tape.tensors[mine]
        return None

    def states(self) -> list[OptimState]:
        """The states; fresh tensors and numbers take their places in the optimizer."""
        tables, states = find_tables(self.optimizer), []
        names = {id(p): n for n, p in self.params.items()}
        for storage, ((place, key), value, init) in self.found.items():
            began = self._read_instead(value) if init[0] == "unknown" else None
            init = init if began is None else self._value_of(began, storage)
            param = tables[place].owner
            counts = value.ndim == 0 and (param.ndim > 0 or key == "step")  # a moment of a scalar parameter is a scalar too
            dtype = torch.float64 if counts and value.dtype == torch.float32 else value.dtype
            states.append(OptimState(storage, torch.empty(value.shape, dtype=dtype), init, place, key))
        for (place, key), first in self.moving.items():
            storage = _unused(_name(place, key, names[id(tables[place].owner)]), place, self.found)
            states.append(OptimState(storage, torch.empty((), dtype=torch.float64), ("fill", first), place, key, was_number=True))
        order = {place: k for k, place in enumerate(tables)}
        states.sort(key=lambda s: order[s.place])
        for state in states:
            forget_constant(state.tensor)
            tables[state.place].entries[state.key] = state.tensor
        return states


def _name(place: Place, key: str, param: str) -> str:
    return f"{place[1]}.{key}:{param}" if place[1] else f"{key}:{param}"


def _unused(name: str, place: Place, taken: Container[str]) -> str:
    return name if name not in taken else f"{place[0]}.{name}"


def _first_makers(tape: Tape) -> dict[int, int]:
    """For each storage: index of the record that first returned a tensor of it."""
    makers: dict[int, int] = {}
    for k, record in enumerate(tape.records):
        for uid in record.outs:
            if uid >= 0:
                makers.setdefault(storage_key(tape.tensors[uid]), k)
    return makers


def _initial_value(tape, makers, state, params, param_keys, optimizer, storage, name) -> Init:
    """What a state held when it was made."""
    if storage_key(state) in param_keys:
        shared = param_keys[storage_key(state)]
        raise TraceError(f"optimizer {name}: state {storage} shares memory with parameter {shared}; clone it")
    k = makers.get(storage_key(state))
    record = tape.records[k] if k is not None else None
    op = record.op._schema.name.removeprefix("aten::") if record is not None else ""
    after = next((r for r in tape.records[k + 1 :] if str(r.op) not in VIEWS), None) if k is not None else None
    if op in EMPTY and after is not None and str(after.op) == "aten.copy_.default":
        if storage_key(tape.tensors[after.args[0].uid]) == storage_key(state):
            record, op = after, "copy_"
    if op in ("zeros", "zeros_like", "new_zeros"):
        return "fill", 0.0
    if op in ("ones", "ones_like", "new_ones"):
        return "fill", 1.0
    if op in ("full", "full_like"):
        return "fill", float(record.args[1])
    if op == "new_full":
        return "fill", float(record.args[2])
    if op in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided") and k + 1 < len(tape.records):
        filled = tape.records[k + 1]
        if str(filled.op) == "aten.zero_.default":
            return "fill", 0.0
        if str(filled.op) == "aten.fill_.Scalar":
            return "fill", float(filled.args[1])
        record, op = filled, filled.op._schema.name.removeprefix("aten::")
    if op in ("clone", "detach", "_to_copy", "copy_"):
        source = record.args[1 if op == "copy_" else 0]
        key = storage_key(tape.tensors[source.uid]) if isinstance(source, Slot) else None
        if key in param_keys:
            earlier = tape.records[: next(n for n, r in enumerate(tape.records) if r is record)]
            if any(key == storage_key(tape.tensors[u]) for r in earlier for u in written_uids(r)):
                return "unknown", (
                    f"optimizer {name}: state {storage} starts as a copy of its parameter after the first update ({record.source}), so the "
                    "first step is not like the later ones. Copy it before the parameter is written."
                )
            return "param", param_keys[key]
        sgd = held_sgd(optimizer) if storage.startswith("momentum_buffer:") else None
        if sgd is not None:
            owner = params[storage.partition(":")[2]]
            group = next(g for g in sgd.param_groups if any(p is owner for p in g["params"]))
            if group["dampening"] == 0:
                return "fill", 0.0  # 0 * momentum + grad is what the first step makes
            raise TraceError(
                f"optimizer SGD: dampening={group['dampening']} makes its first step different from all others (momentum starts as "
                "the undamped gradient). Use dampening=0."
            )
    uid = tape.uid(state) if tape.knows(state) else -1
    if record is not None and op == "lift_fresh" and uid >= 0:
        number = _one_number(tape.constants[record.args[0].uid])
        if number is not None:
            return "fill", number
    if uid >= 0 and k is not None:
        before, tape.records = tape.records, tape.records[: k + 1]
        made = replay(tape, [record.outs[0]], random=False)
        tape.records = before
        number = _one_number(made[record.outs[0]]) if made is not None else None
        if number is not None:
            return "fill", number
        diagonal = _diagonal_number(made[record.outs[0]]) if made is not None else None
        if diagonal is not None:
            return "eye", diagonal
    return "unknown", (
        f"optimizer {name}: state {storage} starts as something else than a constant, a multiple of the identity or a copy of its parameter"
        f"{f' ({record.op}, {record.source})' if record is not None else ''}; each rank must be able to make its shard alone. "
        "Start it with torch.zeros, torch.full, torch.eye or p.clone()."
    )


def _one_number(value: torch.Tensor) -> float | None:
    """The number that a real tensor holds everywhere, None where it holds several."""
    with without_modes():
        flat = value.flatten()
        return _as_written(flat[0]) if flat.numel() and bool((flat == flat[0]).all()) else None


def _diagonal_number(value: torch.Tensor) -> float | None:
    """The number on the diagonal of a matrix that has zeros elsewhere (`torch.eye`, or times a number), None of any other."""
    with without_modes():
        if value.ndim != 2 or not value.numel():
            return None
        alike = bool((value == value[0, 0] * torch.eye(*value.shape, dtype=value.dtype)).all())
        return _as_written(value[0, 0]) if alike else None


def _as_written(value: torch.Tensor) -> float:
    """The shortest number that is this one in its dtype: `0.1`, not what float32 makes of it, for a step in float64."""
    exact = float(value)
    return next((near for digits in range(1, 10) if float(torch.tensor(near := float(f"{exact:.{digits}g}"), dtype=value.dtype)) == exact), exact)
