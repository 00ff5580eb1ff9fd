"""Launches that go straight to what Triton compiled, beside stand-ins for Triton's function and for what it compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime.straight import straight  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CUDA = torch.device("cuda", 1)
SIZES = {"COLS": 64, "ROWS": 4, "num_warps": 2}


class Compiled:
    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *args, stream: self.calls.append(("straight", grid, args, stream))


class Kernel:
    """Of arguments x, out, SIZE, ROWS, COLS."""

    arg_names = ["x_ptr", "out_ptr", "SIZE", "ROWS", "COLS"]

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def through(*args, **sizes):
            self.calls.append(("through", grid, args, sizes))
            return Compiled(self.calls)

        return through


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False)
    return Kernel()


def ways(kernel):
    return [call[0] for call in kernel.calls]


def test_the_first_launch_goes_through_triton_and_the_next_ones_straight(kernel):
    launch, x, out = straight(kernel, (7,), [9], SIZES, CUDA), torch.zeros(64), torch.zeros(64)
    for _ in range(3):
        launch(x, out)
    assert kernel.calls[0] == ("through", (7,), (x, out, 9), SIZES)
    assert kernel.calls[1:] == [("straight", (7, 1, 1), (x, out, 9, 4, 64), 101)] * 2  # constants in the order of the text, and no option of Triton's


def test_other_addresses_and_dtypes_go_through_triton(kernel):
    launch, x, out = straight(kernel, (7, 2), [9], SIZES, CUDA), torch.zeros(64), torch.zeros(64)
    launch(x[1:], out)
    assert ways(kernel) == ["through"]
    launch(x, out)
    launch(x, out)
    launch(x[1:], out)
    launch(x.double(), out)
    launch(x, out)
    assert ways(kernel) == ["through", "through", "straight", "through", "through", "straight"]


@pytest.mark.parametrize("device", [torch.device("cpu"), CUDA])
def test_elsewhere_all_go_through_triton(kernel, monkeypatch, device):
    monkeypatch.setattr(torch.version, "hip", "6.4" if device.type == "cuda" else None)
    launch, x = straight(kernel, (7,), [9], SIZES, device), torch.zeros(64)
    launch(x, x)
    launch(x, x)
    assert ways(kernel) == ["through", "through"]


STAND_IN = '''
"""A launch through Triton and one straight to what it compiled, by Triton itself, on a stand-in for a GPU's driver: prints what each gave the driver."""

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

given = []


class Launcher:
    def __init__(self, src, metadata):
        pass

    def __call__(self, *words):
        given.append([x.data_ptr() if isinstance(x, torch.Tensor) else str(x).partition(" object at ")[0] for x in words])


class Utils:
    def load_binary(self, *words):
        return 1, 2, 32, 0, 1024

    def unload_module(self, *words):
        pass

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32}


class Driver:
    utils, launcher_cls = Utils(), Launcher

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 5


driver.set_active(Driver())
torch._C._cuda_getCurrentRawStream = lambda index: 5
from autopar.runtime import fused
from autopar.runtime.straight import straight

x, out = torch.zeros(64), torch.zeros(64)
launch = straight(fused.add_parts, (3, 2), [4, 48, 48], {"ROWS": 4, "COLS": 8, "WAITS": False, "KIND": "sum", "NONE": 0.0, "num_warps": 2}, torch.device("cuda", 0))
straightly = fused.triton.compiler.CompiledKernel.__getitem__
ways = []
fused.triton.compiler.CompiledKernel.__getitem__ = lambda self, grid: ways.append(grid) or straightly(self, grid)
for _ in range(3):
    launch(x, out)
print(len(given), given[0] == given[1] == given[2], ways)
'''


def test_triton_and_the_straight_way_give_the_driver_the_same(tmp_path):
    """By Triton's own classes: what a driver is given holds the same grid, stream, function and arguments."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", STAND_IN], capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert ended.stdout.split("\n", 1)[0] == "3 True [(3, 2, 1)]", ended.stderr[-2000:]
