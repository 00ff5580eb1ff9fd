"""Launches that go straight to what Triton compiled, beside stand-ins for Triton's function and for what it compiles."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autopar.runtime.straight import straight  # noqa: E402

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
