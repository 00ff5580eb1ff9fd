"""Loading the user's ops: the file or module that registers them, and what is said when it is gone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import ProgramError  # noqa: E402
from autopar.runtime.user_ops import has_op, load_ops  # noqa: E402

pytestmark = pytest.mark.torch

FILE = """
import torch
from torch import library
import {neighbour}

@library.custom_op("{space}::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""


def write(folder, space: str) -> None:
    (folder / "ops.py").write_text(FILE.format(neighbour=f"{space}_neighbour", space=space))
    (folder / f"{space}_neighbour.py").write_text("VALUE = 1\n")


def test_what_is_there_is_not_loaded() -> None:
    load_ops({"aten.mm.default": ("nowhere.py",)})


def test_a_file_beside_the_working_directory_the_program_or_anywhere(tmp_path, monkeypatch) -> None:
    here, out = tmp_path / "here", tmp_path / "here" / "out"
    out.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for space, place in (("loadtest_a", "here/ops.py"), ("loadtest_b", "ops.py"), ("loadtest_c", str(here / "ops.py"))):
        write(here, space)
        assert not has_op(f"{space}.double.default")
        load_ops({f"{space}.double.default": ("no_such_module_at_all", place)}, str(out / "program.py"))
        assert torch.ops.__getattr__(space).double(torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_is_gone_is_an_error_that_says_what_was_tried(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    with pytest.raises(ProgramError) as error:
        load_ops({"loadtest_z.double.default": ("no_such_module_at_all", "gone.py", "other.py", "broken.py")}, "program.py")
    text = str(error.value)
    assert text.startswith("program.py: the program calls torch.ops.loadtest_z.double.default, which nothing has registered. Tried: ")
    assert "no_such_module_at_all (cannot be imported: No module named 'no_such_module_at_all')" in text
    assert "gone.py (no such file); other.py (run, but it does not register the op); broken.py (raises RuntimeError: not today)" in text
    assert "write where it is now into OPS in program.py" in text
