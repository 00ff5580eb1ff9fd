"""The floors of DESIGN section 3 are one-way, counting imports inside functions."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "autopar"
FLOOR = {
    "errors": -2, "collector": -2, "cache": -2, "constraints": -1, "options": 0, "cluster": 0, "graph": 1, "trace": 2, "cost": 2, "solver": 3, "codegen": 3, "runtime": 3,
    "api": 4, "alternatives": 4, "nearest": 4, "cli": 4, "view": 4, "demo": 4, "verify": 4, "zoo": 4,
}  # fmt: skip
TORCH_FREE = {"errors", "collector", "cache", "constraints", "options", "cluster", "graph", "solver"}
STANDARD_ONLY = {"errors", "collector", "cache", "constraints", "options", "cluster"}


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module name) of every import in a file."""
    package = ("autopar", *path.relative_to(ROOT).parts[:-1])
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found += [(node.lineno, module if module.count(".") or module != "autopar" else f"autopar.{a.name}") for a in node.names]
    return found


FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("path", [f for f in FILES if room_of(f) in FLOOR], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    room = room_of(path)
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "torch":
            assert room not in TORCH_FREE, f"{path}:{line}: {room} is torch-free and imports {name}"
        if parts[0] == "ortools":
            assert path.relative_to(ROOT).as_posix() == "solver/ilp.py", f"{path}:{line}: ortools lives in solver/ilp.py"
        if parts[0] != "autopar" or len(parts) < 2 or parts[1] in (room, "__version__"):
            continue
        below = FLOOR[parts[1]] < FLOOR[room] or (room, parts[1]) == ("solver", "cost") or FLOOR[room] == FLOOR[parts[1]] == 4
        assert below, f"{path}:{line}: {room} (floor {FLOOR[room]}) imports {name} (floor {FLOOR[parts[1]]})"


def test_every_file_has_a_floor():
    assert {room_of(f) for f in FILES} <= {*FLOOR, "__init__", "__main__"}


@pytest.mark.parametrize("path", [f for f in FILES if room_of(f) in FLOOR], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_small_and_say_what_they_are(path):
    text = path.read_text()
    assert text.count("\n") <= 600, f"{path}: past 600 lines, look for the second subject"
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path}: a module says what comes in and what goes out"


def test_private_torch_lives_in_one_file_per_floor():
    for path in FILES:
        for line, name in imports_of(path):
            if name.startswith("torch._"):
                assert path.stem == "private", f"{path}:{line}: {name} belongs into {room_of(path)}/private.py"


def test_nouns_are_frozen():
    for path in sorted((ROOT / "graph").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    text = ast.unparse(decorator)
                    if text.startswith("dataclass"):
                        assert "frozen=True" in text, f"{path}:{node.lineno}: {node.name} is not frozen"
