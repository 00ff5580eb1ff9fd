"""Modules of this folder that print their numbers, run in a process of their own: Triton's interpreter is chosen when triton is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def read_numbers(module: str) -> list[dict]:
    """The rows that a module of `tests.codegen` prints as JSON, one a line, in the interpreter; skips where there is no triton."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.codegen.{module}"], cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
