"""A trace of one step with the program's own names: for each function, kernel and collective of the emitted text a span in a file for Perfetto.

In: an executable, a batch. Out: torch's profiler's trace of one step on this rank, with a span for each call of a function of `program.py`, `stage_N.py` and `kernels.py`
(`blocks_forward`, `kernels.add_layer_norm`), and for each collective (`all_reduce along a of float32[8, 64, 256]`); kernels of a device lie under them. The program is as it was
afterwards. What is traced is not timed: the spans cost time themselves.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from ..errors import ProgramError
from .comm import Comm
from .executable import Executable
from .pending import Pending
from .place import EMITTED
from .stages import STAGES

COLLECTIVES = frozenset((
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "start_all_gather", "start_reduce_scatter", "start_all_reduce", "send", "receive",
))  # fmt: skip


class NamedComm:
    """Does what `comm` does, each collective in a span, and each wait for one that was started."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if name not in COLLECTIVES:
            return found

        def named(*args: Any, **keywords: Any) -> Any:
            text = _describe(name, args)
            with record_function(text):
                result = found(*args, **keywords)
            return [_named_wait(pending, text) for pending in result] if name.startswith("start_") else result

        return named


def _named_wait(pending: Pending, text: str) -> Pending:
    """The same, whose wait is a span: `wait for all_gather along a of ...`."""

    def bring() -> Tensor:
        with record_function(f"wait for {text.removeprefix('start_')}"):
            return pending.wait()

    return Pending(bring, pending.flight)


def trace_step(executable: Executable, batch: Sequence[Tensor], path: str | os.PathLike) -> Any:
    """Run a step and write its trace.

    Args:
        batch: as `Executable.step` takes it.
    Returns:
        what the step returns.
    Raises:
        ProgramError: the file cannot be written.
    """
    assert executable.comm is not None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if executable.comm.device.type == "cuda" else [])]
    comm = executable.comm
    with _named(_namespace(executable)), profile(activities=activities) as profiler:
        executable.comm = NamedComm(comm)  # type: ignore[assignment]
        try:
            result = executable.step(*batch)
        finally:
            executable.comm = comm
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
    try:
        profiler.export_chrome_trace(os.fspath(path))
    except (OSError, RuntimeError) as error:
        raise ProgramError(f"cannot write the trace {os.fspath(path)}: {error}") from None
    return result


def _namespace(executable: Executable) -> dict[str, Any]:
    """Where this rank's step looks up its functions."""
    program, comm = executable.program, executable.comm
    assert comm is not None
    return program.step.__globals__ if program.pipeline is None else vars(program.pipeline.stages[comm.coordinate(STAGES)].module)


@contextmanager
def _named(namespace: dict[str, Any]) -> Iterator[None]:
    """Inside, every function of the program and of the files beside it runs in a span."""
    undo: list[tuple[dict[str, Any], str, Any]] = []
    seen: set[int] = set()

    def walk(table: dict[str, Any], prefix: str) -> None:
        if id(table) in seen:
            return
        seen.add(id(table))
        for name, value in list(table.items()):
            if isinstance(value, ModuleType) and getattr(value, "__file__", "").startswith(EMITTED):
                walk(vars(value), f"{name}.")
            elif isinstance(value, FunctionType) and getattr(value, "__wrapped__", value).__globals__ is table and not name.startswith("__"):  # where a compiled segment resumes is torch's own
                undo.append((table, name, value))
                table[name] = _spanned(value, f"{prefix}{name}")
            elif name == "SECTIONS":
                for section, function in list(value.items()):
                    undo.append((value, section, function))
                    value[section] = _spanned(function, f"{prefix}{section}")

    walk(namespace, "")
    try:
        yield
    finally:
        for table, name, value in reversed(undo):
            table[name] = value


def _spanned(function: Callable, name: str) -> Callable:
    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        with record_function(name):
            return function(*args, **keywords)

    return run


def _describe(name: str, args: Sequence[Any]) -> str:
    tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    shown = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in tensors[:3] if isinstance(x, Tensor))
    more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
    if name == "receive":
        return f"receive from rank {args[0]}"
    axes = args[1] if len(args) > 1 else ""
    along = f" to rank {axes}" if name == "send" else f" along {axes if isinstance(axes, str) else '+'.join(axes)}" if axes else ""
    return f"{name}{along}{f' of {shown}{more}' if shown else ''}"
