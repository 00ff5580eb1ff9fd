"""Scratch of convolutions on a CPU: what torch's kernels hold beside what they read and return. It counts as any tensor does, for torch's allocator makes it.

In: a convolution with local shapes. Out: bytes. Source: which kernel runs is told by `use_mkldnn` in torch's aten/src/ATen/native/Convolution.cpp; what it holds was measured (torch 2.13.0 with oneDNN 3.12, one thread,
AMD EPYC with AVX2, 2026-11-27; 51 convolutions along one to three dims, forward and backward: 91 of 102 figures within 10 %; what is off are channels that are no multiple of 8, which oneDNN pads, and windows of one element
along three dims). oneDNN works on copies in a layout of its own; MiB of x and y beside what it held:

    8 x 16 x 64 x 64 to 32 channels, 3 x 3     x 2, y 4       forward 4.0    backward 6.0
    8 x 32 x 64 x 64 to 64, 3 x 3, stride 2    x 4, y 2       forward 4.1    backward 7.9
    16 x 64 x 48 x 48 to 64, 3 x 3, stride 2   x 9, y 2.25    forward 9.1    backward 17.9
    2 x 16 x 32 x 32 x 32 to 16, 3 x 3 x 3     x 4, y 4       forward 4.0    backward 4.0
    16 x 4 x 84 x 84 to 32, 8 x 8, stride 4    x 1.7, y 0.95  forward 0.95   backward 4.4
    8 x 64 x 512 to 64, 9                      x 1, y 1       forward 1.0    backward 2.0
    8 x 32 x 32 x 32 to 16, 2 x 2, stride 2, transposed   x 1, y 2   forward 4.0    backward 3.0

An operand that does not lie row by row is copied first: 8 x 16 of the 32 channels of 64 x 64, 2.0 MiB more forward; of the gradient 4.0 more backward (8 cases, each its own bytes; torch's own kernel, too).
One sample of a volume, small pictures one at a time, and other dtypes are torch's own: every window of x laid out, 27 times x for 3 x 3 x 3 (of a transposed one, of y). Other processors' kernels may want other layouts; nobody measured them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..graph.node import Node, Ref, get_arg
from ..graph.tensor import DTYPE_BYTES, Value, size_bytes
from ..graph.view_strides import alike, packed

_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_SMALL = 20_480  # elements of one sample of a picture that torch convolves itself
_CHANNELS = 8  # that oneDNN's layout lays together
_MANY = 16  # samples, from which on oneDNN has windows of one element, too


def conv_scratch_bytes(node: Node, values: Mapping[str, Value], strides: Mapping[str, Sequence[int]]) -> int:
    """Bytes beside operands and results while a convolution, or its gradient, runs; 0 of other ops.

    Args:
        values: of the program: local shapes.
        strides: of its views: torch copies an operand that does not lie row by row (the gradient of one part of a concatenation).
    """
    if node.op not in (_FORWARD, _BACKWARD):
        return 0
    copied = sum(size_bytes(values[name]) for name in set(node.inputs) & strides.keys() if not alike(shape := values[name].shape, strides[name], packed(shape)))
    return copied + _kernel_bytes(node, values)


def _kernel_bytes(node: Node, values: Mapping[str, Value]) -> int:
    """Of operands that lie row by row."""
    x, weight = (values[node.inputs[_place(node, key)]] for key in ("input", "weight"))
    y = values[node.outputs[0] if node.op == _FORWARD else node.inputs[_place(node, "grad_output")]]
    window, strides, dilations = weight.shape[2:], _numbers(node, "stride"), _numbers(node, "dilation")
    moves, spreads, turned = any(n != 1 for n in strides), any(n != 1 for n in dilations), bool(get_arg(node, "transposed", False))
    if not _by_onednn(node, x, window, moves or spreads):
        plain = prod(window) == 1 and not moves and not any(_numbers(node, "padding"))
        small, wide = (x, y) if turned else (y, x)
        return 0 if plain else x.shape[0] * prod((wide.shape[1], *window, *small.shape[2:])) * DTYPE_BYTES[x.dtype]
    into, out, by = size_bytes(x), size_bytes(y), size_bytes(weight)
    if node.op == _FORWARD:
        return (2 if moves else 1) * out if turned else max(into + by, out)
    if turned:
        return into + out
    mask = get_arg(node, "output_mask")
    if spreads or (isinstance(mask, tuple) and not any(mask[1:])):
        return max(into, out) + by
    if len(window) == 3 and max(window) <= 3 and not moves:
        return max(into, out)
    if not moves:
        return into + out
    wide = -(-x.shape[1] // _CHANNELS) * _CHANNELS
    return max(into // x.shape[1] * wide + out, 2 * into)


def _by_onednn(node: Node, x: Value, window: tuple[int, ...], moves: bool) -> bool:
    """Whether torch has oneDNN run it (with one thread); otherwise its own kernel."""
    if x.dtype != "float32":
        return False
    if prod(window[-2:]) == 1 and not moves and x.shape[0] < _MANY:
        return False
    wide = len(window) > 1 and min(window[-2:]) > 3
    return get_arg(node, "groups", 1) != 1 or wide or x.shape[0] > 1 or (len(window) < 3 and prod(x.shape[1:]) > _SMALL)


def _place(node: Node, key: str) -> int:
    found = get_arg(node, key)
    assert isinstance(found, Ref)
    return found.index


def _numbers(node: Node, key: str) -> tuple[int, ...]:
    found = get_arg(node, key, ())
    return tuple(n for n in found if isinstance(n, int)) if isinstance(found, tuple) else ()
