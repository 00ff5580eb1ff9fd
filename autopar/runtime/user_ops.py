"""The user's ops: an emitted program that calls `torch.ops.mylib.op` loads the file that registers it.

In: op -> where it is defined (`OPS` of program.py), each `import.name` or `path/to/file.py`, or both. Out: nothing; afterwards torch has the ops.
In a process that has them already (the one that planned, ranks as threads) nothing is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..errors import ProgramError


def load_ops(homes: Mapping[str, Sequence[str]], program: str = "") -> None:
    """Make the ops known to torch.

    Args:
        homes: `mylib.op.default` -> where to look for it, in order: import names, or `.py` files relative to the working directory or to
            the program's folder or the folder above it.
        program: the program's own file.
    Raises:
        ProgramError: an op is not there and loading its home does not bring it; says what was tried.
    """
    folder = str(Path(program).parent) if program and not program.startswith("<") else ""
    for op, places in homes.items():
        if has_op(op):
            continue
        tried = []
        for place in places:
            tried.append(f"{place} ({_load(place, folder)})")
            if has_op(op):
                break
        else:
            shown = "; ".join(tried) or "no file is known that does"
            raise ProgramError(
                f"program.py: the program calls torch.ops.{op}, which nothing has registered. Tried: {shown}. Define the op at the top level "
                "of a file, put the file back or its folder on PYTHONPATH, or write where it is now into OPS in program.py"
            )


def has_op(op: str) -> bool:
    """True where torch knows the op."""
    space, packet, overload = op.split(".")
    try:
        return hasattr(getattr(getattr(torch.ops, space), packet), overload)
    except (AttributeError, RuntimeError):
        return False


def _load(place: str, folder: str) -> str:
    """Import one home; says what came of it."""
    try:
        if not place.endswith(".py"):
            importlib.import_module(place)
            return "imported, but it does not register the op"
        file = _find_file(place, folder)
        if file is None:
            return "no such file"
        _run_file(file)
        return "run, but it does not register the op"
    except ImportError as error:
        return f"cannot be imported: {error}"
    except Exception as error:  # the user's file may raise anything at all
        return f"raises {type(error).__name__}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"


def _find_file(place: str, folder: str) -> Path | None:
    bases = [Path(), *((Path(folder), Path(folder).parent) if folder else ())]
    return next((file for file in (base / place for base in bases) if file.is_file()), None)


def _run_file(file: Path) -> None:
    name = f"autopar_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    near = str(file.resolve().parent)
    sys.path.insert(0, near)  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(near)
