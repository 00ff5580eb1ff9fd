"""`pytest --rest` leaves out what the fast tier runs (`make test` runs one after the other).

Tests have a home of their own, for what `autopar profile` left in the user's would change what a search finds.

Files that take longest come first, so that no core is left with one at the end (xdist keeps their order where it is told not to have its own).

`golden(name, text)` compares a text with tests/golden/NAME.txt; `pytest --update-golden` writes it there instead."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

_HOME = "AUTOPAR_TEST_HOME"
if _HOME not in os.environ:  # workers and processes that tests start have that of the first
    os.environ[_HOME] = os.environ["HOME"] = tempfile.mkdtemp(prefix="autopar-tests-")
    os.environ.pop("XDG_CACHE_HOME", None)
    atexit.register(shutil.rmtree, os.environ[_HOME], ignore_errors=True)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write what tests print to tests/golden/ instead of comparing")
    parser.addoption("--rest", action="store_true", help="leave out the fast tier: tests without torch, gloo or browser of its folders")


LONGEST = (  # each takes minutes, the first ones most
    "codegen/test_kernels.py", "codegen/test_update.py", "end_to_end/test_pipeline.py", "end_to_end/test_processes.py", "codegen/test_turns.py", "solver/test_stage_answers.py",
    "zoo/test_zoo.py", "end_to_end/test_spelling.py", "cost/test_published_models.py", "codegen/test_models.py", "end_to_end/test_plans.py", "solver/test_constraints.py",
    "end_to_end/test_mixed_blocks.py", "view/test_alternatives.py",
)  # fmt: skip
FAST = {"laws", "graph", "cost", "errors"}


def pytest_collection_modifyitems(config, items):
    if config.getoption("--rest"):
        here = Path(__file__).parent
        fast = [i for i in items if i.path.relative_to(here).parts[0] in FAST and not any(map(i.get_closest_marker, ("torch", "gloo", "browser")))]
        items[:] = [i for i in items if i not in set(fast)]
        config.hook.pytest_deselected(items=fast)
    first = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


@pytest.fixture
def golden(request):
    def compare(name, text):
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest --update-golden and read what it wrote"
        assert text == path.read_text(), f"{path.name} changed: if that is right, pytest --update-golden"

    return compare
