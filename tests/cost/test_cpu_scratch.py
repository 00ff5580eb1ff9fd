"""What convolutions hold on a CPU: the figures that were measured (`cost.cpu_scratch`)."""

from __future__ import annotations

import pytest

from autopar.cost import cpu_scratch
from autopar.cost.cpu_scratch import conv_scratch_bytes
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value, num_elements

MIB = 2**20
AVX2, AVX512 = False, True
BOTH, WEIGHTS, INPUTS = (True, True, False), (False, True, False), (True, False, False)


@pytest.fixture(autouse=True)
def processor(monkeypatch, request):
    """One with AVX2, or what a test asks for."""
    wide = request.node.callspec.params.get("wide", AVX2) if hasattr(request.node, "callspec") else AVX2
    monkeypatch.setattr(cpu_scratch, "processor_has", lambda feature: wide and feature == "avx512f")


def scratch(samples, channels, out, size, window, stride=1, groups=1, dilation=1, mask=None, dtype="float32", transposed=False, strides=None):
    """MiB of one convolution that keeps the size but for its stride; of its gradients with a mask; `strides` of what is a view."""
    dims = len(size)
    shapes = {"x": (samples, channels, *size), "w": (out, channels // groups, *[window] * dims), "y": (samples, out, *((n + 2 * (dilation * (window // 2)) - dilation * (window - 1) - 1) // stride + 1 for n in size))}
    if transposed:
        shapes |= {"w": (channels, out, *[window] * dims), "y": (samples, out, *(n * stride for n in size))}
    values = {name: Value(name, name, 0, shape, dtype, Kind.ACTIVATION) for name, shape in shapes.items()}
    padding = 0 if transposed and stride > 1 else dilation * (window // 2)
    numbers = tuple((key, (n,) * dims) for key, n in (("stride", stride), ("padding", padding), ("dilation", dilation)))
    if mask is None:
        node = Node("conv", "aten.convolution.default", ("x", "w"), (("input", Ref(0)), ("weight", Ref(1)), *numbers, ("transposed", transposed), ("groups", groups)), ("y",), Phase.FORWARD)
    else:
        own = (("grad_output", Ref(0)), ("input", Ref(1)), ("weight", Ref(2)), *numbers, ("transposed", transposed), ("groups", groups), ("output_mask", mask))
        node = Node("conv", "aten.convolution_backward.default", ("y", "x", "w"), own, ("gx", "gw"), Phase.BACKWARD)
    assert num_elements(shapes["y"]) > 0
    return conv_scratch_bytes(node, values, strides or {}) / MIB


@pytest.mark.parametrize(
    "sizes, forward, backward",
    [
        ((8, 16, 32, (64, 64), 3), 4.00, 6.00),
        ((8, 3, 32, (64, 64), 3), 4.00, 4.63),
        ((8, 32, 32, (64, 64), 3), 4.04, 8.00),
        ((8, 32, 64, (64, 64), 3, 2), 4.07, 7.93),
        ((8, 64, 64, (64, 64), 1), 0.0, 0.0),
        ((17, 64, 64, (16, 16), 1), 1.08, 2.12),
        ((8, 64, 64, (64, 64), 3, 1, 64), 8.00, 16.00),
        ((8, 64, 64, (64, 64), 3, 1, 4), 8.04, 16.00),
        ((8, 30, 33, (63, 61), 3), 4.69, 8.45),
        ((8, 32, 32, (64, 64), 3, 1, 1, 2), 4.04, 4.64),
        ((16, 4, 32, (84, 84), 8, 4), 0.945, 4.42),
        ((16, 64, 128, (48, 48), 1, 2), 9.17, 17.97),
        ((2, 16, 16, (32, 32, 32), 3), 4.03, 4.00),
        ((2, 16, 32, (32, 32, 32), 3, 2), 4.05, 7.95),
        ((2, 16, 16, (32, 32, 32), 5), 4.12, 8.30),
        ((1, 16, 16, (32, 32, 32), 3), 54.0, 54.0),
        ((1, 8, 16, (32, 32, 32), 3), 27.0, 27.0),
        ((1, 4, 8, (16, 16), 3), 0.035, 0.035),
        ((1, 8, 16, (96, 96), 3), 0.56, 0.84),
        ((8, 16, 32, (512,), 3), 0.50, 0.75),
        ((8, 64, 64, (512,), 9), 1.14, 2.00),
    ],
)
def test_as_measured(sizes, forward, backward):
    assert scratch(*sizes) == pytest.approx(forward, rel=0.04)
    assert scratch(*sizes, mask=BOTH) == pytest.approx(backward, rel=0.14)


@pytest.mark.parametrize("wide", [AVX512])
@pytest.mark.parametrize(
    "sizes, forward, both, weights, inputs",
    [
        ((8, 16, 32, (64, 64), 3), 4.0, 6.0, 6.0, 4.018),
        ((8, 3, 32, (64, 64), 3), 4.0, 5.639, 4.0, 5.643),
        ((8, 32, 64, (64, 64), 3, 2), 4.07, 7.93, 6.0, 8.0),
        ((17, 64, 64, (16, 16), 1), 1.078, 2.125, 2.125, 1.078),
        ((8, 64, 64, (64, 64), 3, 1, 4), 8.035, 16.0, 16.0, 8.035),
        ((8, 30, 33, (63, 61), 3), 5.629, 9.401, 9.401, 5.917),
        ((8, 32, 32, (64, 64), 3, 1, 1, 2), 4.035, 8.0, 8.0, 4.035),
        ((2, 16, 16, (32, 32, 32), 3), 4.026, 8.0, 8.0, 4.026),
        ((2, 16, 32, (32, 32, 32), 3, 2), 4.053, 7.947, 5.0, 8.0),
        ((1, 16, 16, (32, 32, 32), 3), 54.0, 54.0, 54.0, 54.0),
        ((1, 8, 16, (96, 96), 3), 0.562, 0.848, 0.844, 0.853),
        ((8, 64, 64, (32, 32), 7, 1, 64), 2.012, 2.0, 0.24, 2.012),
        ((8, 64, 64, (32, 32), 3, 1, 64), 2.002, 4.0, 4.0, 2.002),
        ((8, 64, 64, (32, 32), 3, 2, 64), 2.002, 2.5, 2.5, 2.0),
        ((8, 40, 40, (16, 16), 7, 1, 40), 0.446, 0.439, 0.078, 0.446),
        ((8, 20, 20, (32, 32), 3), 1.41, 2.021, 2.021, 1.41),
        ((4, 12, 32, (32, 32), 3), 0.5, 0.754, 0.754, 0.58),
        ((8, 8, 8, (16, 16), 3), 0.125, 0.194, 0.125, 0.196),
        ((2, 8, 16, (16, 16, 16), 3), 0.5, 0.763, 0.264, 0.776),
        ((8, 32, 32, (32, 32), 3, 1, 8), 1.004, 1.0, 0.158, 1.004),
        ((8, 64, 64, (256,), 3, 1, 64), 0.501, 1.0, 1.0, 0.501),
    ],
)
def test_as_measured_with_avx512(wide, sizes, forward, both, weights, inputs):
    assert [scratch(*sizes, mask=mask) for mask in (None, BOTH, WEIGHTS, INPUTS)] == pytest.approx([forward, both, weights, inputs], rel=0.06)


def test_channels_last_copies_the_weight():
    """As measured: 0.078 and 0.105 of a weight of 0.0352; 0.258 and 0.375 of one of 0.125."""
    last = (32 * 4096, 1, 32 * 64, 32)
    assert [scratch(8, 32, 32, (64, 64), 3, mask=mask, strides={"x": last, "y": last}) for mask in (None, BOTH)] == pytest.approx([0.078, 0.105], rel=0.11)
    assert scratch(8, 64, 128, (16, 16), 2, 2, strides={"x": (64 * 256, 1, 64 * 16, 64)}) == pytest.approx(0.258, rel=0.05)
    assert scratch(8, 64, 64, (64, 64), 1, strides={"x": (64 * 4096, 1, 64 * 64, 64)}) == 0.0


def test_pictures_narrower_than_the_window_channels_last():
    """As measured: 98,000 and more of 25,088 by AVX2, 257 times as much by AVX-512."""
    last = (128 * 4, 1, 2 * 128, 128)
    assert MIB * scratch(8, 128, 128, (2, 2), 7, groups=128, mask=BOTH, strides={"x": last, "y": last}) == pytest.approx(101536, rel=0.01)


@pytest.mark.parametrize(
    "wide, gradient, window, backward",
    [
        (AVX512, "last", 7, 3.074), (AVX512, "row", 7, 5.074), (AVX512, "last", 3, 0.004), (AVX512, "row", 3, 2.004),
        (AVX2, "last", 7, 0.778), (AVX2, "row", 7, 2.778), (AVX2, "row", 3, 2.004),
    ],
)  # fmt: skip
def test_channels_last_is_taken_so(wide, gradient, window, backward):
    """As measured."""
    last, row = (64 * 1024, 1, 32 * 64, 64), (64 * 1024, 1024, 32, 1)
    assert scratch(8, 64, 64, (32, 32), window, groups=64, strides={"x": last}) == pytest.approx(0.012 if window == 7 else 0.002, abs=0.0005)
    assert scratch(8, 64, 64, (32, 32), window, groups=64, mask=BOTH, strides={"x": last, "y": last if gradient == "last" else row}) == pytest.approx(backward, abs=0.002)


@pytest.mark.parametrize(
    "sizes, forward, backward", [((8, 32, 16, (32, 32), 2, 2), 4.00, 3.00), ((2, 16, 8, (16, 16, 16), 2, 2), 4.00, 2.50), ((8, 32, 32, (32, 32), 3, 1), 1.0, 2.0), ((1, 16, 8, (16, 16, 16), 2, 2), 1.00, 1.00)]
)
def test_transposed_ones_as_measured(sizes, forward, backward):
    assert scratch(*sizes, transposed=True) == pytest.approx(forward, rel=0.04)
    assert scratch(*sizes, mask=BOTH, transposed=True) == pytest.approx(backward, rel=0.04)


@pytest.mark.parametrize("samples, strided", [(8, 4.00), (1, 0.0)])
def test_a_part_of_a_concatenation_is_copied_but_of_one_sample(samples, strided):
    """The gradient of half of the channels, as measured: of one sample they lie together."""
    pixels = 64 * 64
    assert scratch(samples, 16, 32, (64, 64), 3, mask=BOTH, strides={"y": (64 * pixels, pixels, 64, 1)}) == pytest.approx(scratch(samples, 16, 32, (64, 64), 3, mask=BOTH) + strided)
    assert scratch(samples, 16, 32, (64, 64), 3, mask=BOTH, strides={"y": (32 * pixels, pixels, 64, 1)}) == scratch(samples, 16, 32, (64, 64), 3, mask=BOTH)


def test_one_gradient_alone():
    assert scratch(8, 16, 3, (8, 8, 8), 1, mask=WEIGHTS) == 0.0 and scratch(8, 16, 3, (8, 8, 8), 1) == 0.0
    assert [MIB * scratch(8, 16, 3, (8, 8, 8), 1, mask=mask) for mask in (INPUTS, BOTH)] == [262144, 261952], "as measured"
    assert scratch(8, 32, 32, (64, 64), 3, mask=WEIGHTS) == pytest.approx(8.00, rel=0.01)
    assert scratch(8, 32, 32, (64, 64), 3, mask=INPUTS) == pytest.approx(4.04, rel=0.01)


def test_other_dtypes_are_torchs_own_and_other_ops_hold_nothing():
    assert scratch(4, 16, 32, (32, 32), 3, dtype="float64") == pytest.approx(4.50) and scratch(2, 8, 8, (16, 16, 16), 3, mask=BOTH, dtype="bfloat16") == pytest.approx(3.38, rel=0.01), "as measured"
    assert conv_scratch_bytes(Node("a", "aten.relu.default", ("x",), (("self", Ref(0)),), ("y",), Phase.FORWARD), {}, {}) == 0
