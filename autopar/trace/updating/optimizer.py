"""Optimizers: build one on fake parameters and run its step.

In: a callable from parameters to an optimizer, fake parameters with gradients. Out: the optimizer, its failures explained. Invariant: the
recorded step is the one that every step runs, the first included: an optimizer whose first step differs is refused (`check_steady`),
unless zeros as initial state make it the same (SGD's momentum).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from ...errors import TraceError
from ..place import blame_stack, exception_frames
from ..private import FakeTensor, compiling, without_modes
from ..tape import Record, Slot, Tape, find_slots, replay, returns_views, written_uids
from .carried import held_sgd
from .factors import TensorFactors

_MAKERS = frozenset(
    "zeros zeros_like ones ones_like full full_like empty empty_like new_zeros new_ones new_full empty_strided new_empty "
    "new_empty_strided lift_fresh scalar_tensor detach alias clone".split()
)
_NUMBERS = frozenset(("eye", "full", "ones", "scalar_tensor", "zeros"))  # made of numbers and a shape
_FROM_SHAPES = _MAKERS - {"lift_fresh", "scalar_tensor", "detach", "alias", "clone"}
VIEWS = frozenset({"aten.detach.default", "aten.alias.default"})
EMPTY = frozenset("zeros zeros_like new_zeros empty empty_like new_empty empty_strided new_empty_strided".split())  # filled by a copy next

SCHEDULES = (
    "Leave the schedule out, and work the rate out of a count that is a tensor: `self.count = torch.tensor(0.0)` in the optimizer's __init__, and in step(), before super().step(), "
    "`self.count += 1` and `group[\"lr\"] = 1e-3 * torch.clamp(self.count / 100, max=1.0)` (docs/learning-rates.md)."
)


def describe(factory: object) -> str:
    """The optimizer's name, for messages."""
    return getattr(getattr(factory, "func", factory), "__qualname__", type(factory).__name__)


def build_optimizer(factory: Callable[..., object], params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Call the user's factory; take the one-tensor-at-a-time code of torch's optimizers.

    Raises:
        TraceError: it raises, or returns something else.
    """
    name = describe(factory)
    try:
        optimizer = factory(params)
    except TraceError:
        raise
    except Exception as error:
        where = blame_stack(exception_frames(error))
        raise TraceError(
            f"optimizer {name}: cannot be built from the model's {len(params)} parameters: {type(error).__name__}: {error}"
            f"{f' ({where})' if where else ''}. Pass a callable that takes the list of parameters and returns an optimizer, "
            "e.g. `lambda params: MyOptimizer([p for p in params if p.ndim == 2], lr=1e-3)`."
        ) from error
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "state") and hasattr(optimizer, "param_groups")):
        raise TraceError(
            f"optimizer {name}: expected a callable that returns a torch.optim.Optimizer, found {type(optimizer).__name__}"
        )
    known = {id(p) for p in params}
    for group in optimizer.param_groups:
        for key, value in (("foreach", False), ("fused", False), ("capturable", True)):
            if key in group:
                group[key] = value
        for param in group["params"]:
            if id(param) not in known:
                raise TraceError(
                    f"optimizer {name}: holds a parameter of shape {list(param.shape)} that is not one of those it was given. "
                    "Build it only from the list of parameters that autopar passes."
                )
    return optimizer


def run_step(optimizer: torch.optim.Optimizer, name: str, numbers: tuple[str, ...] = ()) -> None:
    """One `optimizer.step()`, its failures explained; a gradient that it replaces is there again afterwards. `numbers`: the Python numbers that have become tensors."""
    required = [
        p.name
        for p in [*inspect.signature(type(optimizer).step).parameters.values()][1:]
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if required:
        raise TraceError(
            f"optimizer {name}: its step() needs {', '.join(required)}, so it evaluates the model as often as it likes (a closure), "
            "which no compiled step can do. Choose an optimizer whose step() takes nothing: AdamW, SGD, Muon, ..."
        )
    grads = [(param, param.grad) for group in optimizer.param_groups for param in group["params"]]
    try:
        with compiling(True), TensorFactors():
            optimizer.step()
        for param, grad in grads:
            param.grad = grad
    except TraceError as error:
        changed = f" ({', '.join(dict.fromkeys(numbers))}: a number that every step changes is a tensor here. Of min and math.cos tensors have torch.clamp and torch.cos.)" if numbers else ""
        raise TraceError(f"optimizer {name}: {error}{changed}") from None
    except Exception as error:
        where = blame_stack(exception_frames(error))
        raise TraceError(
            f"optimizer {name}: its step cannot be traced: {type(error).__name__}: {error}{f' ({where})' if where else ''}. "
            "Write the update with tensor operations only."
        ) from error


def settle_options(optimizer: torch.optim.Optimizer, tape: Tape, name: str) -> None:
    """Tensors among the options of a group (a learning rate) become real ones: constants of the step."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, FakeTensor):
                values = replay(tape, [tape.uid(value)], random=False) if tape.knows(value) else None
                if values is None:
                    raise TraceError(f"optimizer {name}: the value of its option {key}, a tensor, is not known. Make it with torch.tensor.")
                group[key] = values[tape.uid(value)]


def core_records(records: list[Record]) -> list[Record]:
    """An update's records without those that make states, and what is made for a state's shape alone."""
    for_shapes, constants = _only_for_shapes(records), _list_constants(records)
    places = [k for k, r in enumerate(records) if k not in for_shapes and str(r.op) not in VIEWS]
    kinds = [_kind(records[k]) for k in places]
    return [records[k] for k, kind, last in zip(places, kinds, ["", *kinds]) if k not in constants and kind not in _MAKERS and not (kind == "copy_" and last in EMPTY)]


def _list_constants(records: list[Record]) -> set[int]:
    """Places of records that write nothing and are made of numbers alone (`0.1 * torch.eye(n)`), which nothing was written to before."""
    found: set[int] = set()
    made: set[int] = set()
    same: dict[int, int] = {}  # a tensor -> the one that it is a view of
    for k, record in enumerate(records):
        read = {same.get(uid, uid) for uid in find_slots(record)}
        if record.op._schema.is_mutable:
            made.difference_update(same.get(uid, uid) for uid in written_uids(record))
        elif made.issuperset(read) and (read or _kind(record) in _NUMBERS):
            found.add(k)
            if returns_views(record.op):
                same.update(dict.fromkeys(record.outs, min(read)))
            else:
                made.update(record.outs)
    return found


def _only_for_shapes(records: list[Record]) -> set[int]:
    """Places of records that write nothing and of whose results only shapes are read: by `zeros_like` and the like."""
    found: set[int] = set()
    readers: dict[int, list[int]] = {}
    for k, record in enumerate(records):
        for uid in find_slots(record):
            readers.setdefault(uid, []).append(k)
    for k in reversed(range(len(records))):
        record = records[k]
        theirs = [reader for uid in record.outs for reader in readers.get(uid, ())]
        if theirs and not record.op._schema.is_mutable and all(reader in found or _kind(records[reader]) in _FROM_SHAPES for reader in theirs):
            found.add(k)
    return found


def _kind(record: Record) -> str:
    return str(record.op).split(".")[1]


def check_steady(first: list[Record], steady: list[Record], optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse an optimizer whose first step computes something else than the later ones.

    Args:
        first: the records of its first step; none where that has been settled.
        steady: those of a later one.

    Raises:
        TraceError: the ops differ, apart from those that make the states.
    """
    if held_sgd(optimizer) is not None or not first:
        return  # `learn_states` has made sure
    before, after = (core_records(records) for records in (first, steady))
    if [r.op for r in before] != [r.op for r in after]:
        at = next((k for k, (a, b) in enumerate(zip(before, after)) if a.op is not b.op), min(len(before), len(after)))
        found, expected = (f"{records[at].op} of {records[at].source}" if at < len(records) else "nothing" for records in (before, after))
        raise TraceError(
            f"optimizer {name}: its first step is not like the later ones (op {at}: {found} at first, {expected} later), so one compiled "
            "step cannot stand for all. Make the states before the first update, with torch.zeros_like(p), torch.full or torch.eye."
        )


def check_same_numbers(steady: list[Record], other: list[Record], tape: Tape, other_tape: Tape, name: str) -> None:
    """Refuse an optimizer that gives its ops other Python numbers in the other of two steps: a count that it keeps where no state is (a schedule in a hook). One
    that changes them later is not found.

    Args:
        steady, other: the records of two steps, of `tape` and of `other_tape`.

    Raises:
        TraceError: the numbers differ.
    """
    for mine, theirs in zip(core_records(steady), core_records(other)):
        found, others = _numbers(mine, tape), _numbers(theirs, other_tape)
        if found != others:
            told = next((f"{b} in one step and {a} in another" for a, b in zip(found, others) if a != b), "other numbers in every step")
            raise TraceError(
                f"optimizer {name}: {mine.op} ({mine.source}) takes {told}. Such a number comes from a count in Python (of a learning-rate schedule?), "
                f"while one compiled step stands for all. {SCHEDULES}"
            )


def _numbers(record: Record, tape: Tape) -> list[object]:
    """The numbers in a record's arguments, as text, and those that single constants hold."""
    found: list[object] = []

    def visit(value: object) -> None:
        if isinstance(value, Slot):
            constant = tape.constants.get(value.uid)
            if constant is not None and constant.numel() == 1:
                with without_modes():
                    found.append(repr(constant.item()))
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, (int, float, complex)):
            found.append(repr(value))

    for value in (*record.args, *record.kwargs.values()):
        visit(value)
    return found
