"""Linears and their gradients by either library, whatever the strides of what they read."""

import random

import pytest

torch = pytest.importorskip("torch")

from autopar.graph import cpu_matmul, machine  # noqa: E402
from autopar.runtime.ops import accumulate_weight_grad, linear, linear_input_grad, linear_weight_grad, linear_weight_grad_into  # noqa: E402
from autopar.runtime.peak import measure_cpu_peak  # noqa: E402
from autopar.runtime.pending import Bucket  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def by_onednn(monkeypatch):
    """All products of float32, and how many there were."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    counted = []
    kernel = torch.ops.mkldnn._linear_pointwise

    def counting(x, weight, bias, *others):
        assert weight.is_contiguous() or weight.t().is_contiguous(), "else oneDNN takes a thousand times as long"
        counted.append(1)
        return kernel(x, weight, bias, *others)

    for name in ("LEAST_FLOPS", "LEAST_WIDE_FLOPS", "LEAST_GRAD_FLOPS", "LEAST_DIM", "LEAST_SUMMED"):
        monkeypatch.setattr(cpu_matmul, name, 1)
    for name, least in (("BLOCK_BYTES", 256), ("AT_ONCE", 7), ("LEAST_BLOCK", 2)):
        monkeypatch.setattr(cpu_matmul, name, least)
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "AuthenticAMD")
    monkeypatch.setattr(cpu_matmul, "processor_has", lambda feature: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counting)
    return counted


def draw(rng, *shape):
    """Packed, with gaps, from the midst of another, swapped or expanded."""
    kind = rng.choice(("packed", "gaps", "midst", "swapped", "expanded"))
    if kind == "gaps":
        return torch.randn(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    if kind == "midst":
        return torch.randn(*shape[:-1], shape[-1] + 3)[..., 3:]
    if kind == "swapped":
        return torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    return torch.randn(1, *shape[1:]).expand(shape) if kind == "expanded" else torch.randn(shape)


@pytest.mark.parametrize("sizes", [(256, 512, 128), (512, 384, 384), (512, 1536, 384), (300, 200, 1000), (4096, 256, 256), (8192, 96, 384), (64, 1024, 1024), (1024, 96, 384), (16, 8, 8)])
@pytest.mark.parametrize("given", [False, True])
@torch.no_grad()
def test_what_a_gradient_by_onednn_holds(monkeypatch, sizes, given):
    """But for buffers of oneDNN's own, up to 65 KiB where they were measured."""
    if not torch.backends.mkldnn.is_available() or not machine.processor_has("avx512f"):
        pytest.skip("oneDNN is not asked here")
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "AuthenticAMD")
    monkeypatch.setattr(cpu_matmul, "processor_has", lambda feature: True)
    rows, inner, cols = sizes
    left, right, out = torch.randn(rows, inner), torch.randn(rows, cols), torch.empty(inner, cols) if given else None

    def run():
        return cpu_matmul.multiply_rows(torch, left, right, out)

    run()
    made, peak = measure_cpu_peak(run)
    held, told = peak - (0 if given else made.nbytes), cpu_matmul.rows_scratch_bytes("float32", *sizes, given)
    assert told <= held + 4096 and held <= told + (1 << 17), (told, held)
    assert (told > 0) == (sizes != (16, 8, 8))


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_as_in_float64_whatever_the_strides(by_onednn, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(60):
        rows, inner, cols = [rng.randint(1, 5) for _ in range(rng.randint(0, 3))], rng.randint(1, 40), rng.randint(1, 40)
        transposed = rng.random() < 0.5
        x, weight, bias = draw(rng, *rows, inner), draw(rng, *((inner, cols) if transposed else (cols, inner))), rng.choice((None, draw(rng, cols)))
        found, wanted = linear(x, weight, bias, transposed), linear(x.double(), weight.double(), None if bias is None else bias.double(), transposed)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)
        grad = draw(rng, *rows, cols)
        back, wanted = linear_input_grad(grad, weight, transposed), linear_input_grad(grad.double(), weight.double(), transposed)
        torch.testing.assert_close(back.double(), wanted, rtol=1e-5, atol=1e-4)
        assert found.is_contiguous() and back.is_contiguous()
    assert len(by_onednn) == 120, "float64 is torch's"


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_weights_gradients_wherever_they_are_wanted(by_onednn, seed):
    """In memory of their own, at a place of a bucket, and added to a sum, in blocks of some rows and in one."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(40):
        rows, inner, cols = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))], rng.randint(1, 40), rng.randint(1, 40)
        transposed = rng.random() < 0.5
        grad, x = draw(rng, *rows, cols), draw(rng, *rows, inner)
        wanted = linear_weight_grad(grad.double(), x.double(), transposed)
        before = len(by_onednn)
        found = linear_weight_grad(grad, x, transposed)
        blocks = len(by_onednn) - before
        assert found.is_contiguous() and blocks > (wanted.numel() > 64 and max(wanted.shape) > 1), "of 64 numbers"
        bucket = Bucket([wanted.shape, wanted.shape], torch.float32, (), torch.device("cpu"))
        bucket[0].fill_(7.0)
        linear_weight_grad_into(grad, x, bucket, 1, transposed)
        sums = {}
        accumulate_weight_grad(sums, "w", grad, x, transposed)
        accumulate_weight_grad(sums, "w", grad, x, transposed)
        assert len(by_onednn) - before == 4 * blocks
        for made, times in ((found, 1), (bucket[1], 1), (sums["w"], 2)):
            torch.testing.assert_close(made.double(), times * wanted, rtol=1e-5, atol=1e-4)
        assert (bucket[0] == 7.0).all()


def test_weights_gradients_are_onednns_where_units_are_wide(monkeypatch):
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "AuthenticAMD")
    for flags, forward, small, gradient in (({"avx512f", "avx_vnni"}, True, True, True), ({"avx512f"}, True, False, False), ({"avx_vnni"}, False, False, False)):
        monkeypatch.setattr(cpu_matmul, "processor_has", flags.__contains__)
        asked = cpu_matmul.runs_onednn("float32", 512, 512, 512), cpu_matmul.runs_onednn("float32", 256, 256, 256), cpu_matmul.grads_by_onednn("float32", 512, 512, 512)
        assert asked == (forward, small, gradient)
    monkeypatch.setattr(cpu_matmul, "processor_has", lambda feature: True)
    assert not cpu_matmul.grads_by_onednn("float32", 16, 4096, 4096), "few rows to sum over"
    assert not cpu_matmul.grads_by_onednn("float64", 512, 512, 512) and not cpu_matmul.grads_by_onednn("float32", 64, 64, 64)


def test_small_products_other_dtypes_and_other_makers_are_torchs(monkeypatch):
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "AuthenticAMD")
    monkeypatch.setattr(cpu_matmul, "processor_has", lambda feature: True)
    large = (512, 512, 512)
    assert cpu_matmul.runs_onednn("float32", *large) and not cpu_matmul.runs_onednn("float64", *large) and not cpu_matmul.runs_onednn("bfloat16", *large)
    assert not cpu_matmul.runs_onednn("float32", 64, 64, 64) and not cpu_matmul.runs_onednn("float32", 1, 8192, 8192)
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "GenuineIntel")
    assert not cpu_matmul.runs_onednn("float32", *large)


def test_without_its_widest_kernels_it_is_not_asked(monkeypatch):
    monkeypatch.setattr(cpu_matmul, "processor_maker", lambda: "AuthenticAMD")
    for flags, asked in (("fpu sse2 avx2 avx512f", True), ("fpu sse2 avx2", False), ("", False)):
        machine.processor_has.cache_clear()
        monkeypatch.setattr(machine, "_read_info", {"flags": flags}.__getitem__)
        assert cpu_matmul.runs_onednn("float32", 512, 512, 512) is asked
    machine.processor_has.cache_clear()


def test_a_compiled_segment_has_none(by_onednn):
    x, weight = torch.randn(8, 8), torch.randn(8, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(linear, backend="eager")(x, weight), x @ weight.t())
    assert not by_onednn


def test_autograd_goes_through_what_asks_for_it(by_onednn):
    x, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(5, 4))
