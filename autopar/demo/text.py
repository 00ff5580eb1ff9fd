"""Real English text that every Python installation has: the help topics of `pydoc`, and docstrings of the standard library."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError

_LEAST_BYTES = 100_000


def load_text() -> bytes:
    """The text.

    Raises:
        InputError: this Python came without both.
    """
    try:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    except ImportError:
        text = "\n\n".join(_docstrings())
    if len(text) < _LEAST_BYTES:
        raise InputError(f"the demo reads Python's own documentation and found only {len(text)} bytes of it; use a complete Python")
    return text.encode()


def _docstrings() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield ast.get_docstring(node) or ""


def draw_batches(text: bytes, batch: int, seq: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the text, without end: (bytes, the bytes that follow them), each int64[batch, seq]; equal seeds give equal batches."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, data.numel() - seq - 1, (batch,), generator=generator)
        rows = torch.stack([data[s : s + seq + 1] for s in starts.tolist()])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
