"""What convolutions hold on this CPU beside operands and results: by torch's own counts, and by `autopar.cost.cpu_scratch`.

    python benchmarks/conv_scratch.py                               # 197 convolutions, a minute; those that are more than 6 % off
    ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/conv_scratch.py       # oneDNN kept to AVX2, on a processor that has more
    python benchmarks/conv_scratch.py --all
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import autopar.cost.cpu_scratch as cpu_scratch
from autopar.cost.machine import machine_here
from autopar.graph.node import Node, Phase, Ref
from autopar.graph.tensor import Kind, Value
from autopar.runtime.peak import measure_cpu_peak

MIB = 2**20
MASKS = {"forward": None, "both": (True, True, False), "of weights": (False, True, False), "of x": (True, False, False)}
_CONV, _GRADIENT = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Case:
    """A convolution with windows of one side, padded as if it kept the size."""

    samples: int
    channels: int
    out: int
    size: tuple[int, ...]
    window: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    transposed: bool = False

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of x, of the weight."""
        first = (self.channels, self.out) if self.transposed else (self.out, self.channels // self.groups)
        return (self.samples, self.channels, *self.size), (*first, *[self.window] * len(self.size))

    def numbers(self) -> tuple[tuple[str, object], ...]:
        """Arguments of the op, in its order."""
        dims = len(self.size)
        padding = self.dilation * (self.window // 2)
        return (
            ("stride", (self.stride,) * dims), ("padding", (padding,) * dims), ("dilation", (self.dilation,) * dims), ("transposed", self.transposed), ("output_padding", (0,) * dims), ("groups", self.groups),
        )  # fmt: skip


def cases() -> Iterator[Case]:
    """Pictures, volumes and rows; few channels and many; strides, groups, dilations."""
    yield from (Case(8, i, o, (64, 64), 3) for i, o in ((16, 32), (3, 32), (32, 32), (64, 64)))
    yield from (Case(8, 32, 64, (64, 64), 3, 2), Case(8, 64, 64, (64, 64), 1), Case(17, 64, 64, (16, 16), 1), Case(16, 64, 128, (48, 48), 1, 2), Case(16, 4, 32, (84, 84), 8, 4))
    yield from (Case(8, 64, 64, (64, 64), 3, 1, g) for g in (4, 64))
    yield from (Case(n, c, c, (s, s), w, stride, c) for n, c, s, w, stride in ((8, 64, 32, 7, 1), (8, 128, 16, 7, 1), (8, 40, 16, 7, 1), (4, 64, 64, 5, 1), (8, 64, 32, 5, 2), (8, 64, 32, 3, 2), (8, 24, 32, 3, 1), (8, 24, 32, 3, 2), (8, 40, 32, 3, 2)))
    yield from (Case(8, 32, 32, (32, 32), w, 1, g) for g in (2, 4, 8) for w in (3, 5))
    yield from (Case(8, 30, 33, (63, 61), 3), Case(8, 32, 32, (64, 64), 3, 1, 1, 2), Case(8, 12, 12, (32, 32), 3, 1, 1, 2), Case(8, 64, 128, (56, 56), 3, 2), Case(8, 3, 64, (224, 224), 7, 2))
    yield from (Case(8, c, c, (32, 32), 3) for c in (20, 24, 48))
    yield from (Case(4, i, 32, (32, 32), w, s) for i, (w, s) in itertools.product((1, 2, 3, 4, 5, 8, 12, 15, 16, 17), ((3, 1), (3, 2), (5, 1), (7, 2), (8, 4), (4, 4))))
    yield from (Case(4, 16, o, (32, 32), w) for o in (1, 2, 3, 4, 8, 12) for w in (3, 5))
    yield from (Case(8, i, o, (32, 32), 3) for i, o in ((3, 8), (3, 24), (6, 16), (8, 8), (12, 24)))
    yield from (Case(2, i, o, (12, 12, 12), 3) for i in (1, 2, 4, 8, 12, 16, 24) for o in (2, 8, 16, 24))
    yield from (Case(2, i, o, (16, 16, 16), w, s) for i, o in ((4, 8), (16, 16), (1, 16)) for w, s in ((3, 2), (5, 1)))
    yield from (Case(2, 16, 16, (32, 32, 32), 3), Case(2, 16, 32, (32, 32, 32), 3, 2), Case(1, 16, 16, (32, 32, 32), 3), Case(1, 8, 16, (96, 96), 3))
    yield from (Case(8, i, o, (256,), w, s) for i, o, w, s in ((1, 16, 9, 1), (8, 16, 5, 1), (16, 64, 3, 1), (12, 12, 3, 1), (64, 64, 7, 1), (16, 64, 3, 2), (12, 12, 3, 2)))
    yield from (Case(4, i, o, (16, 16), 4, 2, transposed=True) for i, o in ((16, 8), (8, 8), (32, 16), (24, 12), (64, 3)))
    yield from (Case(8, 32, 32, (32, 32), 3, transposed=True), Case(2, 16, 8, (16, 16, 16), 2, 2, transposed=True), Case(16, 64, 64, (16, 16), 1), Case(16, 12, 20, (16, 16), 1), Case(8, 16, 12, (32, 32), 1, 2))


def measure(case: Case) -> dict[str, int]:
    """Bytes, by `MASKS`."""
    x, weight = (torch.randn(shape) for shape in case.shapes())
    numbers = [value for _, value in case.numbers()]
    gradient = torch.randn_like(_CONV(x, weight, None, *numbers))
    runs = {what: (lambda mask=mask: _GRADIENT(gradient, x, weight, None, *numbers, list(mask))) if mask else lambda: (_CONV(x, weight, None, *numbers),) for what, mask in MASKS.items()}
    found = {}
    for what, run in runs.items():
        run()
        made, peak = measure_cpu_peak(run)
        found[what] = peak - sum(t.nbytes for t in made if t is not None)
    return found


def predict(case: Case) -> dict[str, int]:
    """As `measure`."""
    x, weight = case.shapes()
    y = tuple(_CONV(torch.empty(x, device="meta"), torch.empty(weight, device="meta"), None, *[value for _, value in case.numbers()]).shape)
    values = {name: Value(name, name, 0, shape, "float32", Kind.ACTIVATION) for name, shape in (("x", x), ("w", weight), ("y", y))}
    found = {}
    for what, mask in MASKS.items():
        if mask is None:
            node = Node(what, "aten.convolution.default", ("x", "w"), (("input", Ref(0)), ("weight", Ref(1)), *case.numbers()), ("y",), Phase.FORWARD)
        else:
            args = (("grad_output", Ref(0)), ("input", Ref(1)), ("weight", Ref(2)), *case.numbers(), ("output_mask", mask))
            node = Node(what, "aten.convolution_backward.default", ("y", "x", "w"), args, ("gx", "gw"), Phase.BACKWARD)
        found[what] = cpu_scratch.conv_scratch_bytes(node, values, {})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every figure, not only those that are more than 6 % (and 10 KiB) off")
    every = parser.parse_args().all
    torch.set_num_threads(1)
    if "AVX2" in os.environ.get("ONEDNN_MAX_CPU_ISA", ""):
        cpu_scratch.processor_has = lambda feature: False
    print(f"{machine_here('cpu').processor}, torch {torch.__version__}, one thread; MiB")
    count = off = 0
    for case in cases():
        measured, predicted = measure(case), predict(case)
        for what in MASKS:
            wrong = abs(predicted[what] - measured[what]) > 0.06 * measured[what] + 10_240
            count, off = count + 1, off + wrong
            if wrong or every:
                print(f"{what:10}  predicted {predicted[what] / MIB:8.3f}  measured {measured[what] / MIB:8.3f}  {case}", flush=True)
    print(f"{count - off} of {count} figures within 6 %")


if __name__ == "__main__":
    main()
