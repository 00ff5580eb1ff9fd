"""Optimizers: build one on fake parameters, learn the states that it makes, and record one steady step.

In: a callable from parameters to an optimizer, fake parameters with gradients. Out: the states with their initial values, and the
records of the step on the tape. Invariant: the recorded step is the one that every step runs, the first included: an optimizer whose
first step differs is refused, unless zeros as initial state make it the same (SGD's momentum).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..errors import TraceError
from ..graph.node import Phase
from .carried import Place, find_tables, held_sgd, read_numbers, read_schedules
from .factors import TensorFactors
from .place import blame_stack, exception_frames
from .private import FakeTensor, compiling, forget_constant, storage_key, without_modes
from .tape import Slot, Tape, replay, written_uids

_MAKERS = frozenset(
    "zeros zeros_like ones ones_like full full_like empty empty_like new_zeros new_ones new_full empty_strided new_empty "
    "new_empty_strided lift_fresh scalar_tensor detach alias clone".split()
)

_VIEWS = frozenset({"aten.detach.default", "aten.alias.default"})
_EMPTY = frozenset("zeros zeros_like new_zeros empty empty_like new_empty empty_strided new_empty_strided".split())  # filled by a copy next


@dataclass(frozen=True)
class OptimState:
    """One state tensor.

    Args:
        storage: its name: `exp_avg:h.0.weight`; `group.k:0.weight` and `self.k:0.weight` of what a group or the optimizer itself carries,
            named after its first parameter.
        tensor: that enters.
        init: ("fill", number), ("param", parameter name), or ("unknown", why): allowed where no step reads it.
        place, key: where it is kept (see `carried`).
        was_number: the optimizer keeps a Python number.
    """

    storage: str
    tensor: torch.Tensor
    init: tuple[str, object]
    place: Place
    key: str
    was_number: bool = False


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
    """One `optimizer.step()`, its failures explained. `numbers`: the Python numbers that have become tensors."""
    required = [
        p.name
        for p in inspect.signature(type(optimizer).step).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    ]
    if required:
        raise TraceError(
            f"optimizer {name}: its step() needs {', '.join(required)}, so it evaluates the model as often as it likes (a closure), "
            "which no compiled step can do. Choose an optimizer whose step() takes nothing: AdamW, SGD, Muon, ..."
        )
    try:
        with compiling(True), TensorFactors():
            optimizer.step()
    except TraceError as error:
        changed = f" ({', '.join(dict.fromkeys(numbers))}: a number that every step changes is a tensor here.)" if numbers else ""
        raise TraceError(f"optimizer {name}: {error}{changed}") from None
    except Exception as error:
        where = blame_stack(exception_frames(error))
        raise TraceError(
            f"optimizer {name}: its step cannot be traced: {type(error).__name__}: {error}{f' ({where})' if where else ''}. "
            "Write the update with tensor operations only."
        ) from error


def learn_states(
    factory: Callable[..., object], params: dict[str, torch.Tensor]
) -> tuple[torch.optim.Optimizer, list[OptimState], list[str]]:
    """Build the optimizer and run a first step off the main tape.

    Args:
        factory: the user's.
        params: fake parameters by name, with `.grad` set where they have one.

    Returns:
        The optimizer, its state tensors replaced by fresh fake ones that stand for any step; the states; and the names of the ops of
        the first step, for `check_steady` (none where that is settled here, because Python numbers became tensors).
    """
    name = describe(factory)
    tape = Tape(what=f"optimizer {name}")
    tape.phase = Phase.UPDATE
    names = {id(p): n for n, p in params.items()}
    for param in params.values():
        tape.add_input(param)
        if param.grad is not None:
            tape.add_input(param.grad)
    with tape:
        optimizer = build_optimizer(factory, list(params.values()))
        built = len(tape.records)
        _settle_options(optimizer, tape, name)
        before, schedules = read_numbers(optimizer), read_schedules(optimizer)
        run_step(optimizer, name)
    if read_schedules(optimizer) != schedules:
        raise TraceError(
            f"optimizer {name}: its step() steps a learning-rate schedule, which counts in Python, while one compiled step stands for all. "
            "Leave the schedule out of the optimizer."
        )
    first_ops = [str(r.op) for r in tape.records[built:]]
    numbers = read_numbers(optimizer)
    moving: dict[tuple[Place, str], float] = {}  # first values
    if any(before.get(k) != v for k, v in numbers.items()):
        with Tape(what=f"optimizer {name}") as scratch:
            scratch.phase = Phase.UPDATE
            for param in params.values():
                scratch.add_input(param)
            run_step(optimizer, name)
        check_steady(first_ops, [str(r.op) for r in scratch.records], optimizer, name)
        now = read_numbers(optimizer)
        moving = {k: float(before.get(k, 2 * v - now[k])) for k, v in numbers.items() if k in now and (now[k] != v or before.get(k, v) != v)}
    states: list[OptimState] = []
    makers = _first_makers(tape)
    param_keys = {storage_key(p): n for n, p in params.items()}
    for place, table in find_tables(optimizer).items():
        kind, owner = place[1], names[id(table.owner)]
        for key, value in list(table.entries.items()):
            storage = f"{kind}.{key}:{owner}" if kind else f"{key}:{owner}"
            if any(s.storage == storage for s in states):
                storage = f"{place[0]}.{storage}"
            if isinstance(value, torch.Tensor) and (not kind or isinstance(value, FakeTensor) and storage_key(value) not in param_keys):
                init = _initial_value(tape, makers, value, params, param_keys, optimizer, storage, name)
                counts = value.ndim == 0 and (table.owner.ndim > 0 or key == "step")  # a moment of a scalar parameter is a scalar too
                dtype = torch.float64 if counts and value.dtype == torch.float32 else value.dtype
                fresh = torch.empty(value.shape, dtype=dtype)
            elif (place, str(key)) in moving:
                init = ("fill", moving[place, str(key)])
                fresh = torch.empty((), dtype=torch.float64)
            else:
                continue
            forget_constant(fresh)
            table.entries[key] = fresh
            states.append(OptimState(storage, fresh, init, place, str(key), not isinstance(value, torch.Tensor)))
    return optimizer, states, [] if moving else first_ops


def _settle_options(optimizer: torch.optim.Optimizer, tape: Tape, name: str) -> None:
    """Tensors among the options of a group (a learning rate) become real ones: constants of the step."""
    for group in optimizer.param_groups:
        for key, value in group.items():
            if isinstance(value, FakeTensor):
                values = replay(tape, [tape.uid(value)], random=False) if tape.knows(value) else None
                if values is None:
                    raise TraceError(f"optimizer {name}: the value of its option {key}, a tensor, is not known. Make it with torch.tensor.")
                group[key] = values[tape.uid(value)]


def _first_makers(tape: Tape) -> dict[int, int]:
    """For each storage: index of the record that first returned a tensor of it."""
    makers: dict[int, int] = {}
    for k, record in enumerate(tape.records):
        for uid in record.outs:
            if uid >= 0:
                makers.setdefault(storage_key(tape.tensors[uid]), k)
    return makers


def _initial_value(tape, makers, state, params, param_keys, optimizer, storage, name) -> tuple[str, object]:
    """What a state held when it was made."""
    if storage_key(state) in param_keys:
        shared = param_keys[storage_key(state)]
        raise TraceError(f"optimizer {name}: state {storage} shares memory with parameter {shared}; clone it")
    k = makers.get(storage_key(state))
    record = tape.records[k] if k is not None else None
    op = record.op._schema.name.removeprefix("aten::") if record is not None else ""
    after = next((r for r in tape.records[k + 1 :] if str(r.op) not in _VIEWS), None) if k is not None else None
    if op in _EMPTY and after is not None and str(after.op) == "aten.copy_.default" and after.args[0] == Slot(record.outs[0]):
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
                    f"optimizer {name}: state {storage} starts as a copy of its parameter after the first update ({record.source}), so the first "
                    "step is not like the later ones. Copy it before the parameter is written."
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
    return "unknown", (
        f"optimizer {name}: state {storage} starts as something else than a constant or a copy of its parameter"
        f"{f' ({record.op}, {record.source})' if record is not None else ''}; each rank must be able to make its shard alone. "
        "Start it with torch.zeros_like(p) or p.clone()."
    )


def _one_number(value: torch.Tensor) -> float | None:
    """The number that a real tensor holds everywhere, None where it holds several."""
    with without_modes():
        flat = value.flatten()
        return float(flat[0]) if flat.numel() and bool((flat == flat[0]).all()) else None


def check_steady(first_ops: list[str], steady_ops: list[str], optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse an optimizer whose first step computes something else than the later ones.

    Raises:
        TraceError: the ops differ, apart from those that make the states.
    """
    if held_sgd(optimizer) is not None or not first_ops:
        return  # `_initial_value` has made sure, `learn_states` has

    def core(ops: list[str]) -> list[str]:
        ops = [o for o in ops if o not in _VIEWS]
        kinds = ["", *(o.split(".")[1] for o in ops)]
        return [o for o, kind, last in zip(ops, kinds[1:], kinds) if kind not in _MAKERS and not (kind == "copy_" and last in _EMPTY)]

    first, steady = core(first_ops), core(steady_ops)
    if first != steady:
        at = next((k for k, (a, b) in enumerate(zip(first, steady)) if a != b), min(len(first), len(steady)))
        found = first[at] if at < len(first) else "nothing"
        expected = steady[at] if at < len(steady) else "nothing"
        raise TraceError(
            f"optimizer {name}: its first step is not like the later ones (op {at}: {found} at first, {expected} later), so one compiled "
            "step cannot stand for all. Make the states before the first update, with torch.zeros_like(p)."
        )
