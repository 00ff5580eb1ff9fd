"""Products in two parts, as GPUs have them where columns are no multiple of 16 bytes: the same numbers as in one, however operands lie."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.gpu_matmul import even_columns, input_grad_apart, multiply_apart, rows_apart, weight_grad_apart  # noqa: E402
from autopar.graph.layouts import row_pitch  # noqa: E402
from autopar.runtime import ops  # noqa: E402
from autopar.runtime.pending import Bucket  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
WIDTHS = (1025, 1030, 1039)
LEADING = ((7,), (2, 3), (1,), (0,), ())


def draw(seed, *shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def apart(x):
    """The same numbers, rows at multiples of 16 bytes."""
    pitch = -(-x.shape[-1] // 8) * 8
    return x.new_full((*x.shape[:-1], pitch), float("nan"))[..., : x.shape[-1]].copy_(x)


def close(found, wanted, dtype):
    """To a product in float64, whose largest number rounding is measured by."""
    assert found.dtype == dtype and found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=TOLERANCE[dtype] * float(wanted.abs().max() if wanted.numel() else 1))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@torch.no_grad()
def test_a_product_in_two_parts_is_the_product(dtype, width):
    for leading in LEADING:
        for transposed in (False, True):
            x, bias = draw(0, *leading, 24, dtype=dtype), draw(2, width, dtype=dtype)
            weight = draw(1, 24, width, dtype=dtype).t() if transposed else draw(1, width, 24, dtype=dtype)
            for added in (None, bias):
                found = multiply_apart(torch, x, weight, added, width - width % 8)
                close(found, x.double() @ weight.double().t() + (0 if added is None else added.double()), dtype)
                pitch = row_pitch(width, str(dtype).removeprefix("torch."))
                assert pitch % 8 == 0 or dtype == torch.float32
                assert not leading or found.numel() == 0 or found.stride()[-2:] == (pitch, 1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@torch.no_grad()
def test_gradients_in_two_parts_are_the_gradients(dtype, width):
    """Of dense gradients and of such with rows apart, what is behind which is no number."""
    even = width - width % 8
    for leading in LEADING[:3]:
        x, weight, dense = draw(0, *leading, 24, dtype=dtype), draw(1, width, 24, dtype=dtype), draw(2, *leading, width, dtype=dtype)
        for grad in (dense, apart(dense)):
            close(input_grad_apart(torch, grad, weight, even), grad.double() @ weight.double(), dtype)
            close(input_grad_apart(torch, grad, weight.t().contiguous().t(), even), grad.double() @ weight.double(), dtype)
            flat, wanted = x.reshape(-1, 24), grad.double().reshape(-1, width).t() @ x.double().reshape(-1, 24)
            out = torch.full((width, 24), float("nan"), dtype=dtype)
            assert weight_grad_apart(torch, grad, flat, even, out) is out
            close(out, wanted, dtype)
            turned = torch.full((24, width), float("nan"), dtype=dtype)
            weight_grad_apart(torch, grad, flat, even, turned.t())
            close(turned, wanted.t(), dtype)


def test_rows_that_are_apart_are_not_copied():
    dense = draw(0, 2, 3, 1030, dtype=torch.bfloat16)
    rows = rows_apart(torch, apart(dense))
    assert rows.shape == (6, 1030) and rows.stride() == (1032, 1)
    there = apart(dense)
    assert rows_apart(torch, there).data_ptr() == there.data_ptr()
    even = draw(0, 6, 1032, dtype=torch.bfloat16)
    assert rows_apart(torch, even).data_ptr() == even.data_ptr()


@pytest.mark.parametrize("how", ["dense", "turned", "in the midst of a row", "expanded"])
def test_rows_that_lie_otherwise_are_copied(how):
    grad = {
        "dense": draw(0, 6, 1030, dtype=torch.bfloat16),
        "turned": draw(0, 1030, 6, dtype=torch.bfloat16).t(),
        "in the midst of a row": draw(0, 6, 1040, dtype=torch.bfloat16)[:, 3:1033],
        "expanded": draw(0, 1, 1, dtype=torch.bfloat16).expand(6, 1030),
    }[how]
    rows = rows_apart(torch, grad)
    assert torch.equal(rows, grad) and rows.stride() == (1032, 1) and rows.data_ptr() % 16 == 0 and rows.data_ptr() != grad.data_ptr()


# --- which


def on_gpu(width, size=2):
    """Stands for a tensor there."""
    return SimpleNamespace(device=SimpleNamespace(type="cuda"), element_size=lambda: size, shape=(4, width))


@torch.no_grad()
def test_odd_columns_of_16_bit_numbers_are_apart(monkeypatch):
    assert [even_columns(torch, on_gpu(w), w) for w in (50257, 1030, 1025, 1032, 50264, 1023, 7)] == [50256, 1024, 1024, 0, 0, 0, 0]
    assert even_columns(torch, on_gpu(1030, 4), 1030) == even_columns(torch, on_gpu(1030, 8), 1030) == 0
    assert even_columns(torch, torch.zeros(4, 1030, dtype=torch.bfloat16), 1030) == 0, "on a CPU"
    with torch.enable_grad():
        assert even_columns(torch, on_gpu(1030), 1030) == 0, "autograd goes through what asks for it"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert even_columns(torch, on_gpu(1030), 1030) == 0


@pytest.mark.parametrize("transposed", [False, True])
@torch.no_grad()
def test_the_runtimes_ops_are_the_same_in_two_parts(monkeypatch, transposed):
    dtype, width = torch.bfloat16, 1030
    x, bias, grad = draw(0, 2, 3, 24, dtype=dtype), draw(2, width, dtype=dtype), draw(3, 2, 3, width, dtype=dtype)
    weight = draw(1, 24, width, dtype=dtype) if transposed else draw(1, width, 24, dtype=dtype)

    def made():
        buckets = [Bucket([tuple(weight.shape), (3,)], dtype, (), torch.device("cpu")) for _ in range(2)]
        into = [ops.linear_weight_grad_into(grad, x, bucket, 0, transposed) for bucket in buckets]
        assert all(torch.equal(bucket[0], out) for bucket, out in zip(buckets, into))
        return ops.linear(x, weight, bias, transposed), ops.linear(x, weight, None, transposed), ops.linear_input_grad(grad, weight, transposed), ops.linear_weight_grad(grad, x, transposed), into[0]

    whole, asked = made(), []

    def even(torch, x, width):
        asked.append(width)
        return width - width % 8 if width == 1030 else 0

    monkeypatch.setattr(ops, "even_columns", even)
    parts = made()
    assert asked == [1030, 1030, 1030, 1030, 1030, 1030]
    for a, b in zip(whole, parts, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-1)
    assert parts[0].stride() == (3 * 1032, 1032, 1) and whole[0].is_contiguous() and parts[3].is_contiguous()
