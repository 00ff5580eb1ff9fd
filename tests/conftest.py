"""`golden(name, text)` compares a text with tests/golden/NAME.txt; `pytest --update-golden` writes it there instead."""

from pathlib import Path

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write what tests print to tests/golden/ instead of comparing")


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
