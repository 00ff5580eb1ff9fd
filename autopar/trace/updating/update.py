"""The update: the optimizer's steady step, recorded on the tape behind forward and backward.

In: fake parameters with gradients, the user's optimizer factory. Out: `Update`: the states that enter, which tensor holds each state when
the step ends, first values, and which parameters are copies of one that was traced. Invariant: what is copied has been checked (`alike`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import torch

from ...errors import TraceError
from ...graph.node import Phase
from ...graph.tensor import Kind
from ..precision import HALVES, float64_everywhere
from ..private import FakeTensor, storage_key
from ..tape import Record, Tape, find_slots, written_uids
from ..workload import Workload
from .alike import choose_samples, why_not_alike
from .carried import find_tables, held_sgd
from .data_writes import DataWrites
from .optimizer import build_optimizer, check_same_numbers, check_steady, describe, run_step
from .states import OptimState, learn_states


@dataclass(frozen=True)
class Entry:
    """A tensor that enters the step: its storage (name without version), kind, uid on the tape; a copy has no uid, but whom it is like."""

    storage: str
    kind: Kind
    uid: int
    like: str = ""


@dataclass(frozen=True)
class Update:
    """A recorded update.

    Args:
        entries: optimizer states, in the order of the parameters.
        finals: (storage, uid of the tensor that holds it when the step ends), copies left out.
        init: initial value of each state: ("fill", number), ("eye", number) or ("param", parameter name).
        copies: parameter -> the traced parameter whose update it repeats.
    """

    entries: tuple[Entry, ...]
    finals: tuple[tuple[str, int], ...]
    init: dict[str, tuple[str, object]]
    copies: dict[str, str]


def record_update(tape: Tape, workload: Workload, params: dict[str, torch.Tensor], precision: str) -> Update:
    """Run the optimizer on the tape.

    Args:
        params: fake parameters, with `.grad` where they have one.
        precision: `bf16` and `fp16` keep fp32 masters, `fp64` everything in float64.

    Raises:
        TraceError: see `learn_states`.
    """
    grads = {n: p.grad for n, p in params.items()}
    start = len(tape.records)
    try:
        found = _Recording(tape, workload, params, precision, sampling=True).run()
    except TraceError:
        found = None  # an optimizer that expects a gradient everywhere, or a plain failure, which comes again below
    if found is None:
        del tape.records[start:]
        for n, p in params.items():
            p.grad = grads[n]
        found = _Recording(tape, workload, params, precision, sampling=False).run()
    assert found is not None
    return found


class _Recording:
    """One try at the update. Lives for one call of `run`."""

    def __init__(self, tape: Tape, workload: Workload, params: dict[str, torch.Tensor], precision: str, sampling: bool) -> None:
        self.tape, self.workload, self.params, self.precision, self.sampling = tape, workload, params, precision, sampling
        self.name = describe(workload.optimizer)
        self.cast = float64_everywhere if precision == "fp64" else contextlib.nullcontext

    def run(self) -> Update | None:
        """None where copies were asked for and are not allowed."""
        tape, params = self.tape, self.params
        tape.phase = Phase.UPDATE
        begin = len(tape.records)
        pairs: dict[str, tuple[str, str]] = {}
        if self.sampling:
            with self.cast():
                pairs = choose_samples(params, build_optimizer(self.workload.optimizer, list(params.values())))
            if not pairs:
                return None
        traced = {n: p for n, p in params.items() if n not in pairs}
        owned = self._masters(traced)
        for n in pairs:
            params[n].grad = None  # an optimizer does not update a parameter without a gradient
        everything = {n: params[n] if n in pairs else owned[n] for n in params}
        with self.cast():
            optimizer, states, first = learn_states(self.workload.optimizer, everything)
        states = [s for s in states if s.storage.partition(":")[2] not in pairs]
        for state in states:
            tape.add_input(state.tensor)
        for n, p in owned.items():
            if p is not params[n]:
                tape.add_input(p)
        start = len(tape.records)
        with tape, self.cast(), DataWrites(tape.input_storages):
            run_step(optimizer, self.name, tuple(s.key for s in states if s.was_number))
            steady = tape.records[start:]
            check_steady(first.records, steady, optimizer, self.name)
            states = [self._with_known_start(state, start) for state in states]
            finals = self._param_finals(traced, owned, start)
        finals += self._state_finals(optimizer, states)
        self._check_numbers(optimizer, steady, first, owned)
        if pairs and any(state.place[1] for state in states):
            return None
        if pairs and self._why_not(begin, traced, owned, states, set(pairs.values())):
            return None
        return self._collect(owned, states, finals, {n: pair[0] for n, pair in pairs.items()})

    def _check_numbers(self, optimizer: torch.optim.Optimizer, steady: list[Record], first: Tape, owned: dict[str, torch.Tensor]) -> None:
        """The ops of any other step must take the same Python numbers: those of the first, or of one more where that ran other ops."""
        other = first
        if not first.records or held_sgd(optimizer) is not None:
            other = Tape(what=f"optimizer {self.name}")
            other.phase = Phase.UPDATE
            entering = [t for table in find_tables(optimizer).values() for t in table.entries.values() if isinstance(t, FakeTensor)]
            for tensor in (*owned.values(), *(p.grad for p in owned.values() if p.grad is not None), *entering):
                other.add_input(tensor)
            with other, self.cast(), DataWrites(other.input_storages):
                run_step(optimizer, self.name)
        check_same_numbers(steady, other.records, self.tape, other, self.name)

    def _masters(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the optimizer updates: the parameters, or with bf16 and fp16 their fp32 masters."""
        if self.precision not in HALVES:
            return dict(params)
        owned = {n: _make_master(p) if p.dtype is HALVES[self.precision] and p.grad is not None else p for n, p in params.items()}
        with self.tape:
            for n, p in params.items():
                if owned[n] is not p:
                    owned[n].grad = p.grad.float()
        return owned

    def _param_finals(self, traced: dict[str, torch.Tensor], owned: dict[str, torch.Tensor], start: int) -> list[tuple[str, int]]:
        tape, finals = self.tape, []
        written = {storage_key(tape.tensors[u]) for r in tape.records[start:] for u in written_uids(r)}
        for n, p in traced.items():
            new = p
            if owned[n] is not p:
                finals.append((f"master:{n}", tape.uid(owned[n])))
                with torch.no_grad():
                    new = owned[n].to(p.dtype) if storage_key(owned[n]) in written else p
            finals.append((n, tape.uid(new)))
        return finals

    def _state_finals(self, optimizer: torch.optim.Optimizer, states: list[OptimState]) -> list[tuple[str, int]]:
        finals, tables = [], find_tables(optimizer)
        for state in states:
            now = tables[state.place].entries.get(state.key)
            if not isinstance(now, torch.Tensor):
                raise TraceError(
                    f"optimizer {self.name}: {state.storage.partition(':')[0]} becomes a Python number in every step, which a compiled "
                    "step cannot make. Compute it with tensors, or leave it as it is."
                    if state.was_number
                    else f"optimizer {self.name}: state {state.storage} is a tensor before a step and {type(now).__name__} after it"
                )
            finals.append((state.storage, self.tape.uid(now)))
        return finals

    def _with_known_start(self, state: OptimState, start: int) -> OptimState:
        """A state that a step makes anew without reading it may start as anything."""
        if state.init[0] != "unknown":
            return state
        uid = self.tape.uid(state.tensor)
        if any(uid in find_slots(record) for record in self.tape.records[start:]):
            raise TraceError(str(state.init[1]))
        return replace(state, init=("fill", 0.0))

    def _why_not(self, begin: int, traced, owned, states: list[OptimState], pairs: set[tuple[str, str]]) -> str:
        roles: dict[str, dict[str, torch.Tensor]] = {n: {"param": p, "master": owned[n]} for n, p in traced.items()}
        for n, p in traced.items():
            if p.grad is not None:
                roles[n]["grad"] = p.grad
        for state in states:
            roles[state.storage.partition(":")[2]][f"state {state.key}"] = state.tensor
        return why_not_alike(self.tape, begin, roles, sorted(pairs))

    def _collect(self, owned, states: list[OptimState], finals: list[tuple[str, int]], copies: dict[str, str]) -> Update:
        entries: list[Entry] = []
        init: dict[str, tuple[str, object]] = {}
        kept: dict[str, list[OptimState]] = {}
        for state in states:
            kept.setdefault(state.storage.partition(":")[2], []).append(state)
        for n in self.params:
            p = copies.get(n, n)
            if owned[p] is not self.params[p]:
                entries.append(self._entry(f"master:{n}", f"master:{p}", owned[p]))
                init[f"master:{n}"] = ("param", n)
        for n in self.params:
            p = copies.get(n, n)
            for state in kept.get(p, ()):
                storage = state.storage if n == p else f"{state.key}:{n}"
                entries.append(self._entry(storage, state.storage, state.tensor))
                init[storage] = ("param", n) if state.init == ("param", p) else state.init
        return Update(tuple(entries), tuple(finals), init, copies)

    def _entry(self, storage: str, traced: str, tensor: torch.Tensor) -> Entry:
        own = storage == traced
        return Entry(storage, Kind.OPTIM, self.tape.uid(tensor) if own else -1, "" if own else traced)


def _make_master(param: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(param.shape, dtype=torch.float32), requires_grad=param.requires_grad)
