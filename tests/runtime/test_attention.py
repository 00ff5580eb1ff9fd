"""Causal attention of a run of rows that begins anywhere, against plain arithmetic; what lies behind the last row is not read."""

from __future__ import annotations

import math
import pytest

torch = pytest.importorskip("torch")

from autopar.runtime import attention_kernels as kernels  # noqa: E402
from autopar.runtime.ops import attention, attention_backward, row_numbers  # noqa: E402

pytestmark = pytest.mark.torch


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(query, key, value, rows, scale=None):
    """(out, logsumexp) with nothing but a softmax."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scores = query @ key.transpose(-1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = scores.masked_fill(rows[:, None] < torch.arange(key.shape[-2]), -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


CASES = [  # rows of the whole sequence, keys, runs, heads of keys
    (12, 12, 1, 2), (12, 12, 2, 2), (12, 12, 3, 4), (12, 12, 12, 4), (600, 600, 4, 2), (6, 9, 3, 2), (12, 5, 4, 2), (12, 4, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("size", "keys", "runs", "groups"), CASES)
def test_every_run_is_its_part_of_the_whole(size, keys, runs, groups):
    query, key, value = draw(2, 4, size, 8, seed=0), draw(2, groups, keys, 8, seed=1), draw(2, groups, keys, 8, seed=2)
    grad = draw(2, 4, size, 8, seed=3)
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    whole = plain(*leaves, torch.arange(size), scale=0.3)
    wanted = torch.autograd.grad(whole[0], leaves, grad)
    sums = [torch.zeros_like(t) for t in (key, value)]
    for rows in row_numbers(size).chunk(runs):
        mine = (query[:, :, rows], key, value)
        out, logsumexp = attention(*mine, is_causal=True, scale=0.3, rows=rows)
        torch.testing.assert_close((out, logsumexp), (whole[0][:, :, rows], whole[1][:, :, rows]), rtol=0, atol=1e-12)
        made = attention_backward(grad[:, :, rows], *mine, out, logsumexp, is_causal=True, scale=0.3, rows=rows)
        torch.testing.assert_close(made[0], wanted[0][:, :, rows], rtol=0, atol=1e-12)
        sums = [total + part for total, part in zip(sums, made[1:])]
    torch.testing.assert_close(sums, list(wanted[1:]), rtol=0, atol=1e-12)


def test_keys_behind_the_last_row_are_not_read():
    query, key, value = draw(1, 2, 4, 8, seed=0), draw(1, 2, 16, 8, seed=1), draw(1, 2, 16, 8, seed=2)
    key[:, :, 12:], value[:, :, 12:] = math.nan, math.nan
    rows = row_numbers(16)[8:12]
    out, logsumexp = attention(query, key, value, is_causal=True, rows=rows)
    grads = attention_backward(torch.ones_like(out), query, key, value, out, logsumexp, is_causal=True, rows=rows)
    assert all(t.isfinite().all() for t in (out, logsumexp, *grads))
    assert not grads[1][:, :, 12:].any() and not grads[2][:, :, 12:].any() and grads[2][:, :, 11].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_stay(dtype):
    query, key = draw(1, 2, 64, 8, seed=0).to(dtype), draw(1, 2, 256, 8, seed=1).to(dtype)
    rows = row_numbers(256)[128:192]
    out, logsumexp = attention(query, key, key, is_causal=True, rows=rows)
    grads = attention_backward(out, query, key, key, out, logsumexp, is_causal=True, rows=rows)
    assert out.dtype == dtype and logsumexp.dtype == torch.float32 and {g.dtype for g in grads} == {dtype}
    wanted = plain(query.double(), key.double(), key.double(), rows)
    torch.testing.assert_close(out.double(), wanted[0], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-2)
    torch.testing.assert_close(logsumexp.double(), wanted[1], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-2)


class BottomRight:
    """Stands for a GPU's flash kernels, whose causal mask ends at the bottom right; counts calls."""

    def __init__(self):
        self.calls = 0

    def scores(self, query, key, causal):
        offset = key.shape[-2] - query.shape[-2]
        assert not causal or offset >= 0, "it would hide all keys from the first rows"
        return torch.arange(query.shape[-2]) + offset if causal else torch.full((query.shape[-2],), key.shape[-2])

    def forward(self, query, key, value, mask, causal, scale):
        self.calls += 1
        return plain(query, key, value, self.scores(query, key, causal), scale)

    def backward(self, grad_out, query, key, value, out, logsumexp, mask, causal, scale):
        self.calls += 1
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        return torch.autograd.grad(plain(*leaves, self.scores(query, key, causal), scale)[0], leaves, grad_out)


def test_one_call_where_the_mask_ends_at_the_bottom_right(monkeypatch):
    flash = BottomRight()
    monkeypatch.setattr(kernels, "ends_below", lambda query, key, mask, causal: not causal or query.shape[-2] <= key.shape[-2])
    monkeypatch.setattr(kernels, "forward", flash.forward)
    monkeypatch.setattr(kernels, "backward", flash.backward)
    test_every_run_is_its_part_of_the_whole(12, 12, 3, 4)
    assert flash.calls == 2 * 3
    test_every_run_is_its_part_of_the_whole(6, 9, 3, 2)
    assert flash.calls == 2 * 3 + 2 * 3
