"""Scratch of convolutions on a CPU: what torch's kernels hold beside what they read and return. It counts as any tensor does, for torch's allocator makes it.

In: a convolution with local shapes. Out: bytes. Source: which kernel runs is told by `use_mkldnn` in torch's aten/src/ATen/native/Convolution.cpp; what it holds was measured (`benchmarks/conv_scratch.py`; torch 2.13.0 with
oneDNN 3.12, one thread, float32, 2026-11-28, an AMD EPYC with AVX-512, as such and with oneDNN kept to AVX2).

oneDNN works on copies whose channels lie in blocks of 16, with AVX2 of 8, filled up with zeros:

    forward       x and y so, and the weight, until y is copied back. Few channels of x are read as they lie
    of x          the gradient of y, x and the weight so; a strided one 2 x, or of few channels one sample more
    of weights    x and the gradient of y so. 4 to 15 channels of x go by the AVX2 kernel, up to 3 are read as they lie. What no kernel of these takes (groups of few channels,
                  depthwise windows above 3, dilations or padded volumes by AVX2) is a matmul with every window of one image of a group laid out, and four of the weight

    8 x 20 x 32 x 32 to 20, 3 x 3          MiB with AVX-512: forward 1.41, of x 1.41, of weights 2.02; AVX2: 0.90, 0.90, 1.51
    2 x 16 x 32 x 32 x 32 to 16, 3 x 3 x 3                   4.03, 4.03, 8.00;                               4.03, 4.03, 1.79
    8 x 64 x 32 x 32 depthwise, 7 x 7                        2.01, 2.01, 0.24;                               the same

A transposed convolution is one whose x and y have changed places. An operand that does not lie row by row is copied first (of the gradient of one part of a concatenation, torch's own kernel, too); but what lies channels last is taken
so, and one to three copies of the weight are held, but for gradients of depthwise windows above 3, as many for each channel as a block has squared (by AVX2, of pictures narrower than the window, a matmul as above). One sample of a volume, small pictures one at a time, and other dtypes are torch's own: every window of x laid out, 27 times x
for 3 x 3 x 3 (of a transposed one, of y). Other processors' kernels may want other layouts; nobody measured them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..graph.channels_last import lies_last
from ..graph.machine import processor_has
from ..graph.node import Node, Ref, get_arg
from ..graph.tensor import DTYPE_BYTES, Value, size_bytes
from ..graph.view_strides import alike, packed

_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_SMALL = 20_480  # elements of one sample of a picture that torch convolves itself
_MANY = 16  # samples, from which on oneDNN has windows of one element, too
_CHANNELS_AVX512, _CHANNELS_AVX2 = 16, 8  # that oneDNN's layout lays together
_AS_THEY_LIE = 3  # channels, those of a picture
_COPIES = 4  # of a weight's gradient, by matmul


def conv_scratch_bytes(node: Node, values: Mapping[str, Value], strides: Mapping[str, Sequence[int]]) -> int:
    """Bytes beside operands and results while a convolution, or its gradient, runs; 0 of other ops.

    Args:
        values: of the program: local shapes.
        strides: of what does not lie row by row (`graph.channels_last.list_lying`): torch copies such an operand (the gradient of one part of a concatenation), but for channels last.
    """
    if node.op not in (_FORWARD, _BACKWARD):
        return 0
    conv = _read(node, values)
    if _lies_last(conv.x, strides):
        turned = 0 if conv.mask is None or _lies_last(conv.y, strides) else size_bytes(conv.y)
        return turned + (_last_bytes(conv) if conv.by_onednn() else _plain_bytes(conv))
    copied = sum(size_bytes(values[name]) for name in set(node.inputs) & strides.keys() if not alike(shape := values[name].shape, strides[name], packed(shape)))
    return copied + (_blocked_bytes(conv) if conv.by_onednn() else _plain_bytes(conv))


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution or, with `mask`, its gradient.

    Args:
        x, y: what it reads and makes, or the gradients of these; a transposed one as it is written.
        mask: which gradients: of x, of the weight.
    """

    x: Value
    weight: Value
    y: Value
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    transposed: bool
    mask: tuple[bool, bool] | None

    @property
    def window(self) -> tuple[int, ...]:
        return self.weight.shape[2:]

    @property
    def moves(self) -> bool:
        return any(n != 1 for n in self.stride)

    @property
    def spreads(self) -> bool:
        return any(n != 1 for n in self.dilation)

    @property
    def straight(self) -> tuple[Value, Value]:
        """x and y of the convolution that is transposed, or of this one."""
        return (self.y, self.x) if self.transposed else (self.x, self.y)

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.x.shape[1] == self.y.shape[1]

    def by_onednn(self) -> bool:
        """Whether torch has oneDNN run it (with one thread); otherwise its own kernel."""
        samples, window = self.x.shape[0], self.window
        if self.x.dtype != "float32" or (prod(window[-2:]) == 1 and not self.moves and not self.spreads and samples < _MANY):
            return False
        wide = len(window) > 1 and min(window[-2:]) > 3
        return self.groups != 1 or wide or samples > 1 or (len(window) < 3 and prod(self.x.shape[1:]) > _SMALL)


def _read(node: Node, values: Mapping[str, Value]) -> _Conv:
    x, weight = (values[node.inputs[_place(node, key)]] for key in ("input", "weight"))
    y = values[node.outputs[0] if node.op == _FORWARD else node.inputs[_place(node, "grad_output")]]
    mask = None
    if node.op == _BACKWARD:
        given = get_arg(node, "output_mask")
        mask = (bool(given[0]), any(given[1:])) if isinstance(given, tuple) else (True, True)
    stride, dilation, padding = (_numbers(node, key) for key in ("stride", "dilation", "padding"))
    return _Conv(x, weight, y, stride, dilation, padding, get_arg(node, "groups", 1), bool(get_arg(node, "transposed", False)), mask)


def _lies_last(value: Value, strides: Mapping[str, Sequence[int]]) -> bool:
    return value.name in strides and lies_last(value.shape, strides[value.name])


def _last_bytes(conv: _Conv) -> int:
    """By oneDNN, of operands that lie channels last: copies of the weight, mostly."""
    if conv.mask is None or not conv.mask[1] or not conv.depthwise or max(conv.window) <= 3:
        copies = (1 if conv.mask is None else 2) if conv.depthwise else (2 if conv.mask is None else 3)
        return 0 if prod(conv.window) == 1 else copies * size_bytes(conv.weight)
    narrow = _block() == _CHANNELS_AVX2 and min(conv.x.shape[2:]) < max(conv.window)
    return _laid_out(conv) if narrow else (_block() ** 2 + 1) * size_bytes(conv.weight)


def _plain_bytes(conv: _Conv) -> int:
    """By torch's own kernel: every window laid out; of windows of one element only for the gradient of a volume."""
    if prod(conv.window) == 1 and not conv.moves and not conv.spreads and not any(conv.padding):
        of_x, of_weight = conv.mask or (False, False)
        return size_bytes(conv.x) - of_weight * size_bytes(conv.weight) if of_x and len(conv.window) == 3 else 0
    small, wide = (conv.x, conv.y) if conv.transposed else (conv.y, conv.x)
    return conv.x.shape[0] * prod((wide.shape[1], *conv.window, *small.shape[2:])) * DTYPE_BYTES[conv.x.dtype]


def _blocked_bytes(conv: _Conv) -> int:
    """By oneDNN, of operands that lie row by row."""
    if conv.mask is None:
        return _of_x(conv) if conv.transposed else _forward(conv)
    of_x, of_weight = _forward(conv) if conv.transposed else _of_x(conv), _of_weight(conv)
    if not conv.mask[0]:
        return of_weight
    return max(of_x - size_bytes(conv.weight), of_weight) if conv.mask[1] else of_x


def _forward(conv: _Conv) -> int:
    (x, y), block = conv.straight, _block()
    few = x.shape[1] < block and conv.groups == 1
    copied, made = 0 if few else _filled(x, block), _filled(y, block)
    return max(copied + made + _weight_bytes(conv, block, few) - size_bytes(y), made)


def _of_x(conv: _Conv) -> int:
    (x, y), block = conv.straight, _block()
    made = _filled(x, block)
    if not conv.moves:
        return max(_filled(y, block) + made + _weight_bytes(conv, block) - size_bytes(x), made)
    if conv.depthwise:
        return made
    sample = _CHANNELS_AVX512 * prod(x.shape[2:]) * DTYPE_BYTES[x.dtype] if x.shape[1] <= _CHANNELS_AVX2 else 0
    return max(2 * size_bytes(x), _filled(y, block) + _weight_bytes(conv, block) + sample if sample else 0)


def _of_weight(conv: _Conv) -> int:
    (x, y), weight = conv.straight, size_bytes(conv.weight)
    channels, pointwise = x.shape[1], prod(conv.window) == 1
    by_avx2 = _block() == _CHANNELS_AVX2 or (_AS_THEY_LIE < channels < _block() and not pointwise and not conv.depthwise)
    odd = conv.groups > 1 and (max(conv.window) > 3 if conv.depthwise else channels // conv.groups % _CHANNELS_AVX2 != 0)
    if odd or (by_avx2 and not pointwise and (conv.spreads or (len(conv.window) == 3 and any(conv.padding)))):
        return _laid_out(conv)
    block = _CHANNELS_AVX2 if by_avx2 else _block()
    as_it_lies = channels <= _AS_THEY_LIE and conv.groups == 1 and (block > _CHANNELS_AVX2 or channels == _AS_THEY_LIE)
    return (0 if as_it_lies else _filled(x, block)) + _filled(y, block) + _weight_bytes(conv, block, as_it_lies) - weight


def _laid_out(conv: _Conv) -> int:
    """Every window of one image of a group, or of one slice of its volume, and what the weight's gradient is added up in."""
    x, y = conv.straight
    return x.shape[1] // conv.groups * prod(conv.window) * prod(y.shape[2:][-2:]) * DTYPE_BYTES[x.dtype] + _COPIES * size_bytes(conv.weight)


def _filled(value: Value, block: int) -> int:
    channels = value.shape[1]
    return size_bytes(value) // channels * -(-channels // block) * block


def _weight_bytes(conv: _Conv, block: int, few: bool = False) -> int:
    (x, y), weight = conv.straight, size_bytes(conv.weight)
    if conv.depthwise:
        return weight // conv.groups * -(-conv.groups // block) * block
    if conv.groups > 1:
        return weight
    ins, outs = x.shape[1], y.shape[1]
    return weight // (ins * outs) * (ins if few else -(-ins // block) * block) * -(-outs // block) * block


def _block() -> int:
    """Channels that oneDNN's layout lays together on this machine."""
    return _CHANNELS_AVX512 if processor_has("avx512f") else _CHANNELS_AVX2


def _place(node: Node, key: str) -> int:
    found = get_arg(node, key)
    assert isinstance(found, Ref)
    return found.index


def _numbers(node: Node, key: str) -> tuple[int, ...]:
    found = get_arg(node, key, ())
    return tuple(n for n in found if isinstance(n, int)) if isinstance(found, tuple) else ()
