"""Where an op comes from: the module that is running, and the line of Python that asked for it.

In: nothing but the interpreter's own stack and the hooks that every `nn.Module` calls. Out: a module path and a `file.py:91`.
Invariant: looking never changes what runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import AutoparError, InputError, TraceError
from .demands import explain_raised

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
# on the inside of every op
_INSIDE = ("place.py", "tape.py", "precision.py", "drawn.py", "attention.py", "updating/factors.py", "updating/foreach.py", "updating/data_writes.py")
_DISPATCH = tuple(_OURS + name.replace("/", os.sep) for name in _INSIDE)
_LAYERS = tuple(_TORCH + part + os.sep for part in ("nn", "optim"))

USER, LIBRARY, LAYER, TORCH, OURS, OTHER = range(6)


def classify_file(filename: str) -> int:
    """USER code, LIBRARY (site-packages), torch's LAYERs and optimizers, other TORCH (and our own dispatchers, which sit on the inside of
    every op), OURS (what drives the trace), or OTHER (standard library, no file)."""
    if filename.startswith(_TORCH):
        return LAYER if filename.startswith(_LAYERS) else TORCH
    if filename.startswith(_OURS):
        return TORCH if filename in _DISPATCH else OURS
    if "site-packages" in filename or "dist-packages" in filename:
        return LIBRARY
    if filename.startswith((_STDLIB, "<")):
        return OTHER
    return USER


def print_place(filename: str, line: int) -> str:
    """`models/gpt.py:91`: relative to the working directory or to site-packages, else the bare file name."""
    for mark in ("site-packages" + os.sep, "dist-packages" + os.sep):
        if mark in filename:
            return f"{filename.split(mark, 1)[1]}:{line}"
    cwd = os.getcwd() + os.sep
    return f"{filename[len(cwd):] if filename.startswith(cwd) else os.path.basename(filename)}:{line}"


class Places:
    """Answers "who is running?" for one trace: holds the stack of modules and what it learned of code objects."""

    def __init__(self, root: torch.nn.Module | None = None) -> None:
        self._names: dict[int, str] = {}
        if root is not None:
            for name, module in root.named_modules():
                self._names.setdefault(id(module), name)
        self._stack: list[str] = [""]
        self._kinds: dict[CodeType, int] = {}
        self._printed: dict[tuple[CodeType, int], str] = {}

    @contextlib.contextmanager
    def watch_modules(self) -> Iterator[None]:
        """Follow every module call inside."""

        def enter(module: torch.nn.Module, _inputs: object) -> None:
            self._stack.append(self._names.get(id(module), self._stack[-1]))

        def leave(module: torch.nn.Module, _inputs: object, _output: object) -> None:
            self._stack.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            del self._stack[1:]

    @property
    def path(self) -> str:
        """Path of the innermost module that is running, "" for the root."""
        return self._stack[-1]

    def source(self) -> str:
        """`file.py:91` of the innermost line outside torch; where there is none, torch's own layer or optimizer; else our own line."""
        frame: FrameType | None = sys._getframe(1)
        layer: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = classify_file(code.co_filename)
            if kind == OURS:
                layer = layer or frame
                break
            if kind in (USER, LIBRARY):
                return self._print(frame)
            if kind == LAYER and layer is None:
                layer = frame
            frame = frame.f_back
        return self._print(layer) if layer is not None else ""

    def _print(self, frame: FrameType) -> str:
        key = frame.f_code, frame.f_lineno
        if key not in self._printed:
            self._printed[key] = print_place(frame.f_code.co_filename, frame.f_lineno)
        return self._printed[key]


def blame_stack(frames: list[tuple[str, int]]) -> str:
    """Whose line to name in an error.

    Args:
        frames: (file name, line) from the outermost call to the innermost.

    Returns:
        The innermost line of the user's own, with the library line below it where the user's code only calls a library; else the
        innermost library line; else torch's own layer; "" where there is nothing to name.
    """
    outer = max((k + 1 for k, f in enumerate(frames) if classify_file(f[0]) == OURS), default=0)
    span = frames[outer:]
    user = [f for f in span if classify_file(f[0]) == USER]
    library = [f for f in span if classify_file(f[0]) == LIBRARY]
    layer = [f for f in span if classify_file(f[0]) == LAYER]
    if user:
        text = print_place(*user[-1])
        behind = [f for f in span[span.index(user[-1]) + 1 :] if classify_file(f[0]) == LIBRARY]
        return f"{text} (in {print_place(*behind[-1])})" if behind else text
    if library:
        return print_place(*library[-1])
    return print_place(*layer[-1]) if layer else ""


# torch's own checks of values: (file, function) -> what they find when all is well
_CHECKS = {
    ("nn/functional.py", "gaussian_nll_loss"): False, ("nn/utils/clip_grad.py", "_get_total_norm"): False,
    ("distributions/distribution.py", "__init__"): True, ("distributions/distribution.py", "_validate_sample"): True,
}  # fmt: skip
# the same of transformers 5, which leaves them out where it knows that it is traced
_LIBRARY_CHECKS = {
    ("transformers/modeling_utils.py", "warn_if_padding_and_no_attention_mask"): False,
    ("transformers/utils/import_utils.py", "torch_compilable_check"): True,
}  # fmt: skip


def passed_check() -> bool | None:
    """What a check of values finds when all is well, where one of torch's own or of a library's is running; None where somebody else is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _OURS)):
            return _LIBRARY_CHECKS.get((name.replace(os.sep, "/").rpartition("site-packages/")[2], frame.f_code.co_name))
        found = _CHECKS.get((name.removeprefix(_TORCH).replace(os.sep, "/"), frame.f_code.co_name))
        if found is not None:
            return found
        frame = frame.f_back
    return None


def running_frames() -> list[tuple[str, int]]:
    """The frames of the running call, outermost first."""
    frames: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames[::-1]


def exception_frames(error: BaseException) -> list[tuple[str, int]]:
    """The frames through which an exception came, outermost first."""
    frames: list[tuple[str, int]] = []
    step = error.__traceback__
    while step is not None:
        frames.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
        step = step.tb_next
    return frames


CHECK_INPUTS = " Check the example inputs' shapes and dtypes against what the line expects."


@contextlib.contextmanager
def explain_errors(what: str, inputs: str) -> Iterator[None]:
    """Turn whatever the user's code raises into an error that names the user's line."""
    try:
        yield
    except AutoparError:
        raise
    except (Exception, SystemExit) as error:
        where = blame_stack(exception_frames(error))
        demand = explain_raised(error)
        if demand:
            raise TraceError(f"{where or what}: {demand}") from error
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        message = f"{where + ': ' if where else ''}{what} raises {type(error).__name__}: {text}"
        if inputs:
            message += f". It was called with {inputs}"
        wrong_input = isinstance(error, (TypeError, RuntimeError, ValueError, IndexError)) and what != "the backward pass"
        cure = CHECK_INPUTS if inputs else ""
        raise (InputError if wrong_input else TraceError)(message + "." + cure) from error
