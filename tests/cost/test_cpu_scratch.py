"""What convolutions hold on a CPU: the figures that were measured (`cost.cpu_scratch`)."""

from __future__ import annotations

import pytest

from autopar.cost.cpu_scratch import conv_scratch_bytes
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value, num_elements

MIB = 2**20
BOTH, WEIGHTS, INPUTS = (True, True, False), (False, True, False), (True, False, False)


def scratch(samples, channels, out, size, window, stride=1, groups=1, dilation=1, mask=None, dtype="float32", transposed=False, strides=None):
    """MiB of one convolution that keeps the size but for its stride; of its gradients with a mask; `strides` of what is a view."""
    dims = len(size)
    shapes = {"x": (samples, channels, *size), "w": (out, channels // groups, *[window] * dims), "y": (samples, out, *(-(-n // stride) for n in size))}
    if transposed:
        shapes |= {"w": (channels, out, *[window] * dims), "y": (samples, out, *(n * stride for n in size))}
    values = {name: Value(name, name, 0, shape, dtype, Kind.ACTIVATION) for name, shape in shapes.items()}
    numbers = tuple((key, (n,) * dims) for key, n in (("stride", stride), ("padding", dilation * (window // 2)), ("dilation", dilation)))
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
        ((8, 30, 33, (63, 61), 3), 3.87, 7.4),
        ((8, 32, 32, (64, 64), 3, 1, 1, 2), 4.04, 4.64),
        ((16, 4, 32, (84, 84), 8, 4), 1.75, 4.42),
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
    assert scratch(8, 32, 32, (64, 64), 3, mask=WEIGHTS) == pytest.approx(8.00, rel=0.01)
    assert scratch(8, 32, 32, (64, 64), 3, mask=INPUTS) == pytest.approx(4.04, rel=0.01)


def test_other_dtypes_are_torchs_own_and_other_ops_hold_nothing():
    assert scratch(4, 16, 32, (32, 32), 3, dtype="float64") == pytest.approx(4.50) and scratch(2, 8, 8, (16, 16, 16), 3, mask=BOTH, dtype="bfloat16") == pytest.approx(3.38, rel=0.01), "as measured"
    assert conv_scratch_bytes(Node("a", "aten.relu.default", ("x",), (("self", Ref(0)),), ("y",), Phase.FORWARD), {}, {}) == 0
