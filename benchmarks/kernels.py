"""The bandwidth of fused kernels, beside that of a copy.

In: a module of kernels (`kernels.py` beside an emitted `program.py`) and a step that calls them. Out: of each kind of kernel that was looked for, the largest call of
the step, run again alone. A kernel is known by its name alone: what it takes is what the step gave it. It moves the bytes of its tensors: those that it reads, those that
it writes, and those that it returns. Bytes per second over those of a copy say how near it is to the memory's limit.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from types import ModuleType
from typing import Any

import torch

from autopar.runtime.clock import clock_of

KINDS = ("norm", "cross_entropy", "update_param")
ASKING_S = 5e-4  # longer than a call of a kernel takes the host
_NOT_OURS = ("torch", "triton")


@dataclass(frozen=True)
class Measured:
    """One kernel on one call's tensors. `copy_s`: of a copy that moves as many bytes."""

    kind: str
    name: str
    num_bytes: int
    seconds: float
    copy_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds


@dataclass(frozen=True)
class _Call:
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    size: int  # bytes of all that it takes


def measure_kernels(kernels: ModuleType, program: dict[str, Any], step: Callable[[], object], device: torch.device) -> tuple[list[Measured], list[str]]:
    """Time the kernels whose names have a word of `KINDS`.

    Args:
        kernels: functions by name; names that begin with `_` are its own affair.
        program: the namespace that calls them, which may hold them under names of its own.
        step: calls them.
    Returns:
        the kernels; and a line for each kind that has no function, or whose functions the step did not call.
    """
    all_names = _functions(kernels)
    names = {name: kind for kind in KINDS for name in all_names if kind in name.lower() and not _is_helper(name, all_names)}
    calls = _record_calls(names, (vars(kernels), program), step)
    found = [_measure(names[name], name, vars(kernels)[name], call, _find_unread(kernels, name), device) for name, call in calls.items()]
    missing = [f"no kernel with {kind!r} in its name" for kind in KINDS if kind not in names.values()]
    missing += [f"{name} was not called by the step" for name in names if name not in calls]
    return found, missing


def measure_copy(num_bytes: int, device: torch.device) -> float:
    """Bytes per second, read and written, of copying so many."""
    source, target = (torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * num_bytes / _seconds(lambda: target.copy_(source), device)


def _functions(kernels: ModuleType) -> list[str]:
    """Names of what can be called from outside: no classes, and no kernels that want a grid."""
    return [
        name for name, f in vars(kernels).items()
        if callable(f) and not name.startswith("_") and not isinstance(f, type)
        and not (type(f).__module__ or "").startswith("triton") and not (getattr(f, "__module__", "") or "").startswith(_NOT_OURS)
    ]  # fmt: skip


def _is_helper(name: str, names: Sequence[str]) -> bool:
    """True for what another function calls where no Triton runs: `NAME_ops` beside `NAME`."""
    return any(name == f"{other}_{kind}" for other in names for kind in ("ops", "adam", "seen", "together"))


def _record_calls(names: dict[str, str], holders: Sequence[dict[str, Any]], step: Callable[[], object]) -> dict[str, _Call]:
    """The largest call of each function during a step."""
    calls: dict[str, _Call] = {}
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for name in names:
        function = holders[0][name]

        @functools.wraps(function)
        def recorded(*args: Any, _name: str = name, _function: Any = function, **keywords: Any) -> Any:
            size = sum(t.nbytes for t in _tensors((args, keywords)))
            if _name not in calls or size > calls[_name].size:
                calls[_name] = _Call(args, keywords, size)
            return _function(*args, **keywords)

        for holder in holders:
            for key in [key for key, value in holder.items() if value is function]:
                replaced.append((holder, key, function))
                holder[key] = recorded
    try:
        step()
    finally:
        for holder, key, function in replaced:
            holder[key] = function
    return calls


def _find_unread(kernels: ModuleType, name: str) -> set[int]:
    """Numbers of the arguments that a kernel's Triton function never loads: it writes them, or knows them."""
    text = str(getattr(vars(kernels).get(f"{name}_kernel"), "src", ""))
    taken = list(inspect.signature(vars(kernels)[name]).parameters)
    return {k for k, key in enumerate(taken) if text and not re.search(rf"tl\.load\({key}_ptr\b", text)}


def _measure(kind: str, name: str, kernel: Callable[..., Any], call: _Call, unread: set[int], device: torch.device) -> Measured:
    def run() -> Any:
        return kernel(*call.args, **call.keywords)

    taken = list(_tensors((call.args, call.keywords)))
    before = [t.clone() for t in taken]
    with torch.no_grad():
        made = run()
        written = sum(t.nbytes for t, old in zip(taken, before) if not torch.equal(t, old))
        del before
        own = {t.data_ptr() for t in taken}
        returned = sum(t.nbytes for t in _tensors(made) if t.data_ptr() not in own)
        del made
        read = sum(t.nbytes for k, arg in enumerate(call.args) if k not in unread for t in _tensors(arg)) + sum(t.nbytes for t in _tensors(call.keywords))
        moved, seconds = read + written + returned, _seconds(run, device)
    return Measured(kind, name, moved, seconds, moved / measure_copy(max(1, moved // 2), device))


def _seconds(run: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """The median, after a few to warm up; of what the device does, while it does not wait for the host."""
    clock = clock_of(device)
    for _ in range(3):
        run()
    clock.hold(ASKING_S * repeats)
    stamps = [clock.stamp()]
    for _ in range(repeats):
        run()
        stamps.append(clock.stamp())
    return median(clock.seconds(a, b) for a, b in zip(stamps, stamps[1:]))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
