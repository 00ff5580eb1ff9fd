"""Every model of the zoo's own and user files: its traced graph, run node by node in float64, equals eager PyTorch over two steps."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compare import worst_differences

from autopar.trace import Workload

# torch.compile imports parts of torch that torch itself calls deprecated
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")]
TOLERANCE = 1e-10
ZOO = Path(__file__).parent.parent / "zoo"
FILES = ("own", "user_code", "user_layers", "user_optimizers")


def find_models(file: str) -> dict[str, Callable[[], Workload]]:
    """The factories of one file of the zoo."""
    spec = importlib.util.spec_from_file_location(f"zoo_{file}", ZOO / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    own = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == spec.name}
    return {f"{file}:{n}": f for n, f in own.items() if not n.startswith("_")}


MODELS = {name: factory for file in FILES for name, factory in find_models(file).items()}


@pytest.mark.parametrize("name", MODELS)
def test_model_equals_eager(name):
    torch.manual_seed(0)
    worst, _ = worst_differences(MODELS[name]())
    assert all(w <= TOLERANCE for w in worst.values()), worst
