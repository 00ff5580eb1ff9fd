"""Homes: in which file the user's ops are registered, so that an emitted program can load them.

In: a graph and its model. Out: op -> import names and files, the likeliest first (`runtime.load_ops` tries them in order).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from ...graph.graph import Graph
from ..place import LIBRARY, USER, classify_file
from ..private import source_file

_KNOWN = frozenset({"aten", "autopar", "comm", "state", "prims", "quantized", "torch_attn"})  # registered by torch and by us


def find_homes(graph: Graph, model: torch.nn.Module) -> dict[str, tuple[str, ...]]:
    """Where each op of the graph that is neither torch's nor ours is registered.

    An op of which torch does not know the file is looked for where the model's class is defined.
    """
    ops = dict.fromkeys(node.op for node in graph.nodes if node.op.split(".")[0] not in _KNOWN)
    fallback = getattr(sys.modules.get(type(model).__module__), "__file__", None)
    homes = {}
    for op in ops:
        file = source_file(op)
        if file is None or not file.is_file():
            file = Path(fallback) if fallback and classify_file(fallback) in (USER, LIBRARY) else None
        homes[op] = _places(file) if file is not None else ()
    return homes


def _places(file: Path) -> tuple[str, ...]:
    whole = file.resolve()
    names = [name for name, module in list(sys.modules.items()) if _is_of(module, whole) and not name.startswith(("autopar_user_", "__main__"))]
    cwd = Path(os.getcwd()).resolve()
    paths = [str(whole.relative_to(cwd))] if whole.is_relative_to(cwd) else []
    if classify_file(str(whole)) == LIBRARY:
        return tuple(names) or (str(whole),)
    packaged = [name for name in names if "." in name]
    return (*packaged, *paths, *(name for name in names if name not in packaged), str(whole))


def _is_of(module: object, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return isinstance(found, str) and os.path.basename(found) == file.name and Path(found).resolve() == file
