"""`pytest --rest` leaves out what the fast tier runs (`make test` runs one after the other).

`golden(name, text)` compares a text with tests/golden/NAME.txt; `pytest --update-golden` writes it there instead."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write what tests print to tests/golden/ instead of comparing")
    parser.addoption("--rest", action="store_true", help="leave out the fast tier: tests without torch, gloo or browser of its folders")


FAST = {"laws", "graph", "cost", "errors"}


def pytest_collection_modifyitems(config, items):
    if config.getoption("--rest"):
        here = Path(__file__).parent
        fast = [i for i in items if i.path.relative_to(here).parts[0] in FAST and not any(map(i.get_closest_marker, ("torch", "gloo", "browser")))]
        items[:] = [i for i in items if i not in set(fast)]
        config.hook.pytest_deselected(items=fast)


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
