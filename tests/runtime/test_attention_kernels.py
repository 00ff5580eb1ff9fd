"""Which kernel of attention a GPU runs, and that each gets what it asks for."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from autopar.graph.layouts import _in_order  # noqa: E402
from autopar.runtime import attention_kernels as kernels  # noqa: E402

pytestmark = pytest.mark.torch


def on_gpu(*shape, dtype=torch.bfloat16):
    """Stands for a tensor there."""
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, shape=torch.Size(shape))


@pytest.fixture
def hopper(monkeypatch):
    """Settings of a GPU whose attention torch leaves to cuDNN, to be changed."""
    settings = {"chip": (9, 0), "version": 91900, "enabled": True}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: settings["chip"])
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: settings["version"])
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: settings["enabled"])
    return settings


def asks(query, key=None, mask=None, causal=True):
    return kernels.is_cudnn(query, key or query, mask, causal)


def test_cudnn_where_torch_prefers_it(hopper):
    square = on_gpu(2, 4, 64, 128)
    assert asks(square) and asks(square, causal=False) and asks(on_gpu(2, 4, 64, 64, dtype=torch.float16)) and asks(on_gpu(2, 4, 64, 8))
    assert asks(square, on_gpu(2, 4, 32, 128), causal=False), "other keys, where no mask has to begin anywhere"


@pytest.mark.parametrize(
    ("query", "key", "causal"),
    [
        (on_gpu(2, 4, 64, 64, dtype=torch.float32), None, True), (on_gpu(2, 4, 64, 256), None, True), (on_gpu(2, 4, 64, 60), None, True),
        (on_gpu(2, 4, 32, 64), on_gpu(2, 4, 64, 64), True), (on_gpu(2, 4, 64, 64), on_gpu(2, 4, 32, 64), True),
        (on_gpu(2, 4, 64, 64), on_gpu(2, 2, 64, 64), True), (on_gpu(2, 4, 1, 64), None, True), (on_gpu(2, 4, 64, 64), on_gpu(2, 4, 1, 64), False),
        (torch.zeros(2, 4, 64, 64, dtype=torch.bfloat16), None, True), (torch.zeros(2, 4, 64, 64, dtype=torch.bfloat16, device="meta"), None, True),
    ],
    ids=["float32", "wide heads", "odd heads", "more keys", "fewer keys", "shared keys", "one row", "one key", "a CPU", "another device"],
)  # fmt: skip
def test_cudnn_not_for_others(hopper, query, key, causal):
    assert not kernels.is_cudnn(query, query if key is None else key, None, causal)


@pytest.mark.parametrize("right", [True, False])
def test_cudnn_with_a_mask_where_it_heeds_masks(hopper, monkeypatch, right):
    monkeypatch.setattr(kernels, "_is_right_with_masks", lambda device, dtype, size: right)
    query = on_gpu(2, 4, 64, 64)
    assert asks(query, mask=torch.zeros(64, 64), causal=False) is right and asks(query)


def test_cudnn_not_where_it_is_old_or_turned_off(hopper):
    query = on_gpu(2, 4, 64, 64)
    assert asks(query)
    for change in ({"chip": (8, 0)}, {"chip": (12, 0)}, {"version": 91400}, {"version": None}, {"enabled": False}):
        before = dict(hopper)
        hopper.update(change)
        assert not asks(query), change
        hopper.update(before)
    hopper["chip"] = (10, 0)
    assert asks(query)


@pytest.mark.parametrize("cudnn", [True, False])
@pytest.mark.parametrize("permuted", [True, False])
def test_a_gpus_kernels_leave_their_results_as_their_query_lies(monkeypatch, cudnn, permuted):
    """On torch's device without memory: cuDNN's and flash's have one form, and lie as `graph.layouts` says."""
    monkeypatch.setattr(kernels, "is_cudnn", lambda query, key, mask, causal: cudnn)
    query = torch.empty(2, 16, 4, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    query = query if permuted else query.contiguous()
    out, logsumexp = kernels.forward(query, query, query, None, True, None)
    grads = kernels.backward(out, query, query, query, out, logsumexp, None, True, None)
    assert logsumexp.shape == (2, 4, 16) and logsumexp.dtype == torch.float32 and all(g.shape == query.shape and g.dtype == query.dtype for g in (out, *grads))
    assert all(t.stride() == _in_order(tuple(query.shape), query.stride()) for t in (out, *grads))


# --- what they ask for


class Gpu:
    """Stands for a GPU's kernels in `torch.ops.aten`: refuses what they refuse, and computes in float64."""

    def __init__(self):
        self.called = []

    def _check(self, name, query, key, value, mask=None, grads=()):
        self.called.append(name)
        halves = query.dtype in (torch.bfloat16, torch.float16)
        row = 16 // query.element_size()
        assert halves or name == "efficient" and query.dtype == torch.float32, "Only fp32, half & bf16 supported at the moment"
        assert all(x.dtype == query.dtype and x.stride(-1) == 1 for x in (query, key, value, *grads)), "rows are dense"
        assert query.shape[-1] % row == 0, "head_size must be a multiple of 8, this is ensured by padding"
        assert key.shape[1] == query.shape[1] or name == "flash", "Expected query.size(2) == key.size(2) to be true"
        if mask is not None:
            assert mask.dtype == query.dtype and mask.shape == (*query.shape[:-1], key.shape[-2]) and mask.stride(-1) == 1
            assert all(step % row == 0 for step in (*mask.stride()[:-1], mask.storage_offset())), "attn_bias is not correctly aligned"

    def _attend(self, query, key, value, mask, causal, scale, ends):
        query, key, value = (x.double() for x in (query, key, value))
        times = query.shape[1] // key.shape[1]
        scores = query @ key.repeat_interleave(times, 1).mT * scale
        scores = scores if mask is None else scores + mask.double()
        if causal:
            behind = key.shape[-2] - query.shape[-2] if ends else 0
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(behind), -math.inf)
        return scores.softmax(-1) @ value.repeat_interleave(times, 1), scores.logsumexp(-1)

    def _grads(self, grad_out, query, key, value, *how):
        leaves = [x.double().requires_grad_() for x in (query, key, value)]
        with torch.enable_grad():
            return [g.to(query.dtype) for g in torch.autograd.grad(self._attend(*leaves, *how)[0], leaves, grad_out.double())]

    def _scaled_dot_product_flash_attention(self, query, key, value, dropout, causal, debug, scale=None):
        self._check("flash", query, key, value)
        out, logsumexp = self._attend(query, key, value, None, causal, scale, True)
        return out.to(query.dtype), logsumexp.float(), None

    def _scaled_dot_product_flash_attention_backward(self, grad_out, query, key, value, out, logsumexp, _, __, queries, keys, dropout, causal, seed, offset, scale=None):
        self._check("flash", query, key, value, grads=(grad_out, out))
        return self._grads(grad_out, query, key, value, None, causal, scale, True)

    def _scaled_dot_product_efficient_attention(self, query, key, value, mask, asks, dropout, causal, scale=None):
        self._check("efficient", query, key, value, mask)
        out, logsumexp = self._attend(query, key, value, mask, causal, scale, False)
        rows = -(-query.shape[-2] // 32) * 32
        return out.to(query.dtype), torch.nn.functional.pad(logsumexp, (0, rows - query.shape[-2]), value=math.inf).float(), None, None

    def _scaled_dot_product_efficient_attention_backward(self, grad_out, query, key, value, mask, out, logsumexp, seed, offset, dropout, wants, causal, scale=None):
        self._check("efficient", query, key, value, mask, (grad_out, out))
        assert logsumexp.shape[-1] % 32 == 0 and wants == [True, True, True, False]
        return (*self._grads(grad_out, query, key, value, mask, causal, scale, False), None)


class Cudnn(Gpu):
    """Stands for cuDNN's, under a mask."""

    wrong = ""

    def _scaled_dot_product_cudnn_attention(self, query, key, value, mask, asks, dropout, causal, debug, scale=None):
        self._check("cudnn", query, key, value)
        assert asks and mask.dim() == 4 and mask.shape[0] == query.shape[0] and mask.shape[1] in (1, query.shape[1]) and mask.shape[2:] == (query.shape[-2], key.shape[-2])
        assert mask.dtype == query.dtype and mask.stride()[2:] == (key.shape[-2], 1)
        if self.wrong == "raises":
            raise RuntimeError("cuDNN Frontend error")
        out, logsumexp = self._attend(query, key, value, None if self.wrong == "ignores" else mask, causal, scale or 1 / math.sqrt(query.shape[-1]), False)
        return out.nan_to_num().to(query.dtype), logsumexp.float()[..., None]

    def _scaled_dot_product_cudnn_attention_backward(self, grad_out, query, key, value, out, logsumexp, seed, offset, mask, cum_q, cum_k, queries, keys, dropout, causal, scale=None):
        self._check("cudnn", query, key, value, grads=(grad_out, out))
        assert logsumexp.shape == (*query.shape[:-1], 1) and (queries, keys, cum_q, cum_k) == (query.shape[-2], key.shape[-2], None, None)
        seen = torch.zeros_like(mask) if self.wrong == "ignores" else mask
        finite = seen.clamp(min=-1e30)
        grads = self._grads(grad_out * (seen > -math.inf).any(-1, keepdim=True), query, key, value, finite, causal, scale or 1 / math.sqrt(query.shape[-1]), False)
        return [math.nan * grads[0], *grads[1:]] if self.wrong == "no numbers" else grads


@pytest.mark.parametrize("wrong", ["", "raises", "ignores", "no numbers"])
def test_cudnn_with_masks_is_tried_on_a_small_one(monkeypatch, wrong):
    found = Cudnn()
    found.wrong = wrong
    monkeypatch.setattr(kernels, "_aten", found)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert kernels._is_right_with_masks.__wrapped__(torch.device("cpu"), torch.bfloat16, 16) is (not wrong) and found.called


@pytest.mark.parametrize("mask", ["padding", "whole", "of a head", "of two dims", "a number per row", "a part of a larger one"])
def test_cudnn_gets_its_mask(monkeypatch, mask):
    torch.manual_seed(0)
    found = Cudnn()
    monkeypatch.setattr(kernels, "_aten", found)
    monkeypatch.setattr(kernels, "_on_cpu", lambda query: False)
    monkeypatch.setattr(kernels, "is_cudnn", lambda query, key, mask, causal: True)
    b, h, s, t, d = 2, 4, 13, 11, 16
    query, key, value, grad = (torch.randn(b, h, rows, d).bfloat16() for rows in (s, t, t, s))
    given = MASKS[mask](b, h, s, t)
    wide = [x.double().requires_grad_() for x in (query, key, value)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=given.double() if given.is_floating_point() else given)
    out, logsumexp = kernels.forward(query, key, value, given, False, None)
    grads = kernels.backward(grad, query, key, value, out, logsumexp, given, False, None)
    for x, want in zip((out, *grads), (wanted, *torch.autograd.grad(wanted, wide, grad.double()))):
        torch.testing.assert_close(x.double(), want, rtol=0, atol=6e-2 * max(1.0, float(want.detach().abs().max())))


@pytest.fixture
def gpu(monkeypatch):
    found = Gpu()
    monkeypatch.setattr(kernels, "_on_cpu", lambda query: False)
    monkeypatch.setattr(kernels, "_aten", found)
    return found


MASKS = {
    "none": lambda b, h, s, t: None,
    "causal": lambda b, h, s, t: None,
    "padding": lambda b, h, s, t: torch.arange(t).expand(b, 1, 1, t) < t - 1,
    "whole": lambda b, h, s, t: torch.randn(b, 1, s, t),
    "of a head": lambda b, h, s, t: torch.randn(1, h, s, t),
    "of two dims": lambda b, h, s, t: torch.rand(s, t) > 0.3,
    "a number per row": lambda b, h, s, t: torch.randn(b, h, s, 1),
    "a part of a larger one": lambda b, h, s, t: torch.randn(b, h, s + 1, t + 3)[:, :, 1:, 3:],
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("size", "groups"), [((2, 4, 13, 13, 16), 4), ((2, 4, 16, 24, 20), 2), ((3, 6, 9, 17, 5), 1)])
@pytest.mark.parametrize(("dtype", "kernel", "tolerance"), [(torch.float32, "efficient", 1e-5), (torch.bfloat16, "flash", 6e-2), (torch.float64, "", 1e-12)])
def test_every_kernel_gets_what_it_asks_for(gpu, mask, size, groups, dtype, kernel, tolerance):
    torch.manual_seed(0)
    b, h, s, t, d = size
    query, key, value = torch.randn(b, h, s, d, dtype=dtype), torch.randn(b, groups, t, d, dtype=dtype), torch.randn(b, groups, d, t, dtype=dtype).mT
    given, causal = MASKS[mask](b, h, s, t), mask == "causal"
    given = given.to(dtype) if given is not None and given.is_floating_point() else given
    if mask == "causal" and dtype == torch.bfloat16:
        query = query[:, :, :1].expand(b, h, t, d)  # as many queries as keys: where it begins is the same
    wide = [x.double().requires_grad_() for x in (query, key, value)]
    shown = given.double() if given is not None and given.is_floating_point() else given
    wanted = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=shown, is_causal=causal, enable_gqa=True)
    grad = torch.randn(wanted.shape, dtype=dtype)
    out, logsumexp = kernels.forward(query, key, value, given, causal, None)
    grads = kernels.backward(grad, query, key, value, out, logsumexp, given, causal, None)
    expected = torch.autograd.grad(wanted, wide, grad.double())
    assert set(gpu.called) == ({kernel} - {""} if given is None or dtype != torch.bfloat16 else {"efficient"})
    for found, want in zip((out, *grads), (wanted, *expected)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), want, rtol=0, atol=tolerance * max(1.0, float(want.detach().abs().max())))


def test_a_row_that_sees_nothing_is_zero(gpu):
    query, mask = torch.randn(1, 2, 3, 8, dtype=torch.float64), torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    out, logsumexp = kernels.forward(query, query, query, mask, False, None)
    grads = kernels.backward(torch.ones_like(out), query, query, query, out, logsumexp, mask, False, None)
    assert not out[:, :, 1].any() and not grads[0][:, :, 1].any() and all(x.isfinite().all() for x in (out, *grads))
    query[0, 0, 0, 0] = math.nan
    assert kernels.forward(query, query, query, mask, False, None)[0].isnan().any(), "what is not a number stays so"


def test_a_mask_that_lies_well_is_not_copied():
    query = torch.zeros(2, 4, 8, 16, dtype=torch.bfloat16)
    mask = torch.zeros(2, 1, 1, 8, dtype=torch.bfloat16)
    assert kernels._aligned_mask(query, query, mask).data_ptr() == mask.data_ptr()
