"""The tape: every op that torch runs while it is on, in order, below autograd.

In: whatever runs inside `with tape:`, on fake tensors. Out: `records`, each an ATen op whose tensors are `Slot(uid)`; `tensors[uid]` is
the fake tensor itself, kept alive so that identity is identity. Invariant: replaying the records on real tensors computes what the
program would have computed (`replay`). Used twice: for the step, and for the making of the model (`build.py`).

Values that depend on shapes alone may decide control flow: their history is replayed for real. Values that depend on data may not:
`TraceError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import TraceError
from ..graph.node import Phase
from .demands import explain_demand
from .masks import by_places
from .place import Places, blame_stack, passed_check, running_frames
from .private import NOT_STATIC, UNSUPPORTED, FakeTensor, autograd_position, storage_key, without_modes
from .updating.foreach import is_foreach, run_apart

_MAX_REPLAY_ELEMENTS = 2**26  # a replayed value larger than this (256 MiB of float32) is not a constant that decides anything
SEQ_UNPAIRED = 1 << 62  # sequence numbers from here on belong to no op of the forward pass
_SKIP = frozenset({"profiler", "prim", "_c10d_functional"})
_ATEN = torch.ops.aten
_RESHAPES_SELF = {
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default, _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim, _ATEN.squeeze_.dims: _ATEN.squeeze.dims, _ATEN.transpose_.default: _ATEN.transpose.int,
    _ATEN.t_.default: _ATEN.t.default,
}  # fmt: skip
_ONE_DTYPE = frozenset({
    _ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default, _ATEN.mv.default, _ATEN.addmv.default,
    _ATEN.dot.default,
})  # fmt: skip
_MOVES_STORAGE = frozenset({
    _ATEN.resize_.default, _ATEN.resize_as_.default, _ATEN.set_.default, _ATEN.set_.source_Tensor, _ATEN.set_.source_Storage,
    _ATEN.set_.source_Storage_storage_offset,
})  # fmt: skip
_READS_VALUE = frozenset({"aten._local_scalar_dense.default", "aten.item.default", "aten.equal.default", "aten.is_nonzero.default"})


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for the tensor `tape.tensors[uid]` in a record's arguments."""

    uid: int


@dataclass(frozen=True, slots=True)
class Record:
    """One op that ran.

    Args:
        op: the torch op overload.
        args, kwargs: as it was called, tensors replaced by `Slot`.
        outs: uids of the tensors that it returned, -1 where it returned None.
        phase, path, source: see `Node`.
        seq: autograd's sequence number, which pairs a backward op with its forward op.
        in_autograd: True where autograd ran it.
    """

    op: torch._ops.OpOverload
    args: tuple
    kwargs: dict
    outs: tuple[int, ...]
    phase: Phase
    path: str
    source: str
    seq: int
    in_autograd: bool


def map_slots(value: object, change: Callable[[Slot], object]) -> object:
    """`value` with each `Slot` in it replaced, lists and tuples opened."""
    if isinstance(value, Slot):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [map_slots(v, change) for v in value]
    return value


def find_slots(record: Record) -> list[int]:
    """Uids of the tensors that a record reads, in order."""
    found: list[int] = []

    def visit(value: object) -> None:
        if isinstance(value, Slot):
            found.append(value.uid)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)

    for value in (*record.args, *record.kwargs.values()):
        visit(value)
    return found


def _keeps_elements(tensor: torch.Tensor, size: list[int], stride: list[int], offset: int | None = None) -> bool:
    """True where `as_strided_` only changes strides of dims of size 1 (`adaptive_avg_pool2d` does so for channels last)."""
    same = [s == old for n, s, old in zip(size, stride, tensor.stride()) if n > 1]
    return tuple(size) == tuple(tensor.shape) and all(same) and offset in (None, tensor.storage_offset())


def first_tensors(value: object) -> list[torch.Tensor | None]:
    """The tensors (and Nones) that an op returned, in order."""
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in first_tensors(item)]
    return [value if isinstance(value, torch.Tensor) else None]


class Tape(TorchDispatchMode):
    """Records ops. `phase` is set by whoever drives the step."""

    def __init__(self, places: Places | None = None, what: str = "the step") -> None:
        super().__init__()
        self.records: list[Record] = []
        self.tensors: list[torch.Tensor] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.inputs: set[int] = set()
        self.settled: dict[int, int] = {}  # storages of inputs whose value may decide, and their uids
        self.relied: set[int] = set()  # those whose value has decided
        self.phase = Phase.FORWARD
        self.is_recording = True
        self._uids: dict[int, int] = {}
        self._places = places or Places()
        self._what = what

    def uid(self, tensor: torch.Tensor) -> int:
        """The tensor's number; a new one for a tensor that the tape has not seen."""
        found = self._uids.get(id(tensor))
        if found is None:
            found = self._uids[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return found

    def knows(self, tensor: torch.Tensor) -> bool:
        """True where the tensor has passed over the tape."""
        return id(tensor) in self._uids

    def add_input(self, tensor: torch.Tensor) -> int:
        """Declare a tensor whose value comes from outside and may differ from step to step."""
        uid = self.uid(tensor)
        self.inputs.add(uid)
        return uid

    def settle(self, uid: int, value: torch.Tensor) -> None:
        """An input has this value in every step (a buffer that no checkpoint holds), if no op writes to it: see `relied`."""
        self.settled[storage_key(self.tensors[uid])] = uid
        self.constants[uid] = value

    def input_storages(self) -> set[int]:
        """The storages of all inputs."""
        return {storage_key(self.tensors[u]) for u in self.inputs}

    def branch(self) -> Tape:
        """An empty tape that looks for places where this one does."""
        return Tape(self._places, self._what)

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Nothing is recorded inside."""
        before, self.is_recording = self.is_recording, False
        try:
            yield
        finally:
            self.is_recording = before

    def adopt(self, source: Tape, uid: int) -> int:
        """A new uid for a tensor that is like number `uid` of another tape; nobody holds the tensor itself."""
        self.tensors.append(source.tensors[uid])
        if uid in source.constants:
            self.constants[len(self.tensors) - 1] = source.constants[uid]
        return len(self.tensors) - 1

    def rename(self, uid: int, tensor: torch.Tensor) -> None:
        """From now on `tensor` is the one that is meant by `uid`."""
        self.tensors[uid] = tensor
        self._uids[id(tensor)] = uid

    def _slot(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            known = id(value) in self._uids
            uid = self.uid(value)
            if not known and not isinstance(value, FakeTensor):
                if value.device.type == "meta":
                    raise TraceError(
                        f"{blame_stack(running_frames()) or self._what}: a tensor of shape {list(value.shape)} on the meta device that "
                        "is neither a parameter nor a buffer of the model takes part. Its value is not known. Register it with "
                        "register_buffer, or build the model through `file.py:factory`, which keeps such values."
                    )
                with without_modes():
                    self.constants[uid] = value.detach().clone()
            return Slot(uid)
        if isinstance(value, (list, tuple)):
            return [self._slot(v) for v in value]
        return value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105
        if func is torch.ops.prim.device.default:
            return args[0].device
        kwargs = kwargs or {}
        if not self.is_recording:
            return func(*args, **kwargs)
        if func.namespace in _SKIP or (func is torch.ops.aten.as_strided_.default and _keeps_elements(*args)):
            return func(*args, **kwargs)
        if is_foreach(func):
            with self:
                return run_apart(func, args, kwargs)
        if func in _RESHAPES_SELF:
            return self._reshape_self(func, args, kwargs)
        if func in _ONE_DTYPE and len({a.dtype for a in args if isinstance(a, torch.Tensor)}) > 1:
            found = ", ".join(str(a.dtype).removeprefix("torch.") for a in args if isinstance(a, torch.Tensor))
            raise RuntimeError(f"{func}: expected matrices of one dtype, found {found}")  # fake tensors would not mind, real ones do
        if func in _MOVES_STORAGE:
            raise TraceError(
                f"{blame_stack(running_frames()) or self._what}: {func} gives a tensor another storage or size in place, which "
                "a compiled step cannot follow. Make a new tensor."
            )
        slots = tuple([self._slot(a) for a in args])
        kwslots = {k: self._slot(v) for k, v in kwargs.items()} if kwargs else kwargs
        if str(func) in _READS_VALUE:
            return self._decide(func, slots, kwslots)
        seq, in_autograd = autograd_position()
        try:
            out = func(*args, **kwargs)
        except NOT_STATIC:
            with self:
                places = by_places(func, args, self._shape_value)
                if places is not None:
                    return _ATEN.index.Tensor(*places)
            out = self._decide(func, slots, kwslots)
            for tensor in first_tensors(out):
                if tensor is not None:
                    self.constants[self.uid(tensor)] = tensor
            return out
        except UNSUPPORTED as error:
            raise TraceError(
                f"{blame_stack(running_frames()) or self._what}: {func} has no fake (shape-only) form, so the step cannot be traced "
                f"({str(error).splitlines()[0]}). Register one with library.register_fake (from torch import library), or use ATen ops."
            ) from None
        made = first_tensors(out)
        if any(t is not None and t.layout != torch.strided for t in made):
            raise TraceError(
                f"{self._forward_place() or blame_stack(running_frames()) or self._what}: {func} makes a sparse tensor, which cannot be "
                "split. Use dense ones: sparse=False for an embedding, index_add or scatter for a sparse product."
            )
        outs = tuple([-1 if t is None else self.uid(t) for t in made])
        self.records.append(Record(func, slots, kwslots, outs, self.phase, self._places.path, self._places.source(), seq, in_autograd))
        return out

    def _reshape_self(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> torch.Tensor:
        """`x.unsqueeze_(0)`: the tensor as it was keeps its number, and from now on is a view of that."""
        tensor = args[0]
        self._slot(tensor)
        before, view = tensor.detach(), _RESHAPES_SELF[func]
        uid = self._uids.pop(id(tensor))
        self.tensors[uid], self._uids[id(before)] = before, uid
        out = func(*args, **kwargs)
        seq, in_autograd = autograd_position()
        path, source = self._places.path, self._places.source()
        self.records.append(Record(view, (Slot(uid), *args[1:]), kwargs, (self.uid(out),), self.phase, path, source, seq, in_autograd))
        return out

    def _shape_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The real value of a tensor that depends on shapes alone, None of any other."""
        values = replay(self, [self.uid(tensor)], random=False)
        return None if values is None else values[self.uid(tensor)]

    def _decide(self, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
        """What an op that needs real values returns: replayed where they depend on shapes alone."""
        wanted = find_slots(Record(func, args, kwargs, (), self.phase, "", "", 0, False))
        values = replay(self, wanted, random=False)
        if values is None and passed_check() is not None:
            return passed_check()
        if values is None:
            where = self._forward_place() or blame_stack(running_frames()) or self._what
            tensors = [self.tensors[u] for u in wanted]
            raise TraceError(f"{where}: {explain_demand(func, tensors, self.phase, is_drawn=not self._inputs_behind(wanted))}")
        with without_modes():
            real = map_slots(list(args), lambda s: values[s.uid])
            return func(*real, **{k: map_slots(v, lambda s: values[s.uid]) for k, v in kwargs.items()})

    def _inputs_behind(self, uids: list[int]) -> bool:
        """True where an input is among what these tensors were made of."""
        keys = self.input_storages()
        touched = {*uids, *(u for record in history(self, uids) for u in (*find_slots(record), *record.outs) if u >= 0)}
        return any(storage_key(self.tensors[u]) in keys for u in touched)

    def _forward_place(self) -> str:
        """The line in forward whose gradient autograd is computing; "" outside of autograd."""
        seq, in_autograd = autograd_position()
        if not in_autograd:
            return ""
        return next((r.source for r in self.records if seq <= r.seq < SEQ_UNPAIRED and not r.in_autograd), "")


def history(tape: Tape, uids: Iterable[int]) -> list[Record]:
    """The records that made these tensors what they are now, in order (writes through views included)."""
    needed = {storage_key(tape.tensors[u]) for u in uids}
    found: list[Record] = []
    for record in reversed(tape.records):
        touched = {storage_key(tape.tensors[u]) for u in record.outs if u >= 0}
        touched |= {storage_key(tape.tensors[u]) for u in written_uids(record)}
        if touched & needed:
            needed |= {storage_key(tape.tensors[u]) for u in find_slots(record)}
            found.append(record)
    return found[::-1]


def returns_views(op: torch._ops.OpOverload) -> bool:
    """True for an op that returns what shares memory with what it reads, and writes nothing."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def written_uids(record: Record) -> list[int]:
    """Uids of the tensors that a record writes in place."""
    found = []
    for k, name in _written_arguments(record.op):
        value = record.args[k] if k < len(record.args) else record.kwargs.get(name)
        if isinstance(value, Slot):
            found.append(value.uid)
        elif isinstance(value, list):
            found += [v.uid for v in value if isinstance(v, Slot)]
    return found


@lru_cache(maxsize=None)
def _written_arguments(op: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    return tuple((k, a.name) for k, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


def replay(tape: Tape, uids: list[int], random: bool = True) -> dict[int, torch.Tensor] | None:
    """Compute tensors for real by running their history on the CPU.

    Args:
        tape: what ran.
        uids: the tensors wanted.
        random: False: random values do not count as known.

    Returns:
        Value by uid; None where a value depends on an input, is random (if not allowed), or is too large.
    """
    records = history(tape, uids)
    keys_of_inputs = tape.input_storages() - set(tape.settled)
    known: dict[int, torch.Tensor] = {}
    for record in records:
        for uid in (*find_slots(record), *record.outs):
            if uid < 0:
                continue
            if storage_key(tape.tensors[uid]) in keys_of_inputs or tape.tensors[uid].numel() > _MAX_REPLAY_ELEMENTS:
                return None
        if not random and torch.Tag.nondeterministic_seeded in record.op.tags:
            return None
    for uid in uids:
        if storage_key(tape.tensors[uid]) in keys_of_inputs:
            return None

    def real(slot: Slot) -> torch.Tensor:
        if slot.uid not in known:
            known[slot.uid] = tape.constants[slot.uid].detach().clone()
        return known[slot.uid]

    cpu = torch.device("cpu")
    with without_modes(), torch.no_grad():
        try:
            for record in records:
                kwargs = {k: cpu if isinstance(v, torch.device) else map_slots(v, real) for k, v in record.kwargs.items()}
                args = [cpu if isinstance(a, torch.device) else map_slots(a, real) for a in record.args]
                out = record.op(*args, **kwargs)
                for uid, tensor in zip(record.outs, first_tensors(out)):
                    if uid >= 0 and tensor is not None:
                        known[uid] = tensor
            found = {uid: real(Slot(uid)) for uid in uids}
        except KeyError:
            return None
    tape.relied |= {key for key, uid in tape.settled.items() if uid in known}
    return found
