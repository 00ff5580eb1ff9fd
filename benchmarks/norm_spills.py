"""Registers that norms of many widths need: how many blocks of two norms have a kernel that spills, compiled ahead of time, without a GPU.

    python benchmarks/norm_spills.py [--widths 768 4096 8192] [--norms LlamaNorm] [--places after sandwich] [--precision bf16] [--arch 90] [--each]

A block is two norms, layer norm or RMS norm (torch's own, or written out as Llama and Gemma do), with linears, with and without biases and dropout, and residuals; norms stand before the linears, after the
residuals, on both sides of the linears, or two in a row after a residual; bfloat16, float16 and float32. Torch's own norms before linears and two in a row with and without dropout, all others with.
`--each` prints a line for each block that spills.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from autopar import Workload  # noqa: E402
from benchmarks.kernel_compile import compile_kernels, workload_kernels  # noqa: E402

WIDTHS = (768, 1024, 2048, 4096, 5120, 7168, 8192)
ROWS = 512


@dataclass(frozen=True)
class Kind:
    """A block.

    Args:
        width: columns of a row.
        norm: one of `NORMS`.
        place: of the norms: `before` each pair of linears, `after` its residual, `sandwich` (before and after it, within the residual), or `twice` in a row after a residual.
        biased: linears have biases.
        dropout: its share.
        precision: `bf16`, `fp16` or `fp32`.
    """

    width: int
    norm: str
    place: str
    biased: bool
    dropout: float
    precision: str


class LlamaNorm(nn.Module):
    """An RMS norm in float32, written out; the weight after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class GemmaNorm(LlamaNorm):
    """One of which the weight is a difference from 1, in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight.float())).to(x.dtype)


NORMS = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm, "LlamaNorm": LlamaNorm, "GemmaNorm": GemmaNorm}
PLACES = ("before", "after", "sandwich", "twice")


class Block(nn.Module):
    """Two norms, or four, and linears through 64 columns."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.norms = nn.ModuleList(NORMS[kind.norm](kind.width) for _ in range(4 if kind.place == "sandwich" else 2))
        self.downs = nn.ModuleList(nn.Linear(kind.width, 64, bias=kind.biased) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(64, kind.width, bias=kind.biased) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k, (norm, down, up) in enumerate(zip(self.norms, self.downs, self.ups)):
            if self.kind.place == "before":
                x = x + self._dropped(up(F.relu(down(norm(x)))))
            elif self.kind.place == "sandwich":
                x = x + self._dropped(self.norms[k + 2](up(F.relu(down(norm(x))))))
            elif self.kind.place == "after" or k == 0:
                x = norm(x + self._dropped(up(F.relu(down(x)))))
            else:
                x = norm(x)
        return x

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.kind.dropout)


class Net(nn.Module):
    """Two blocks between linears."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, kind.width), NORMS[kind.norm](kind.width), nn.Linear(kind.width, 32)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def list_spills(kind: Kind, archs: Sequence[int]) -> dict[int, dict[str, int]]:
    """architecture -> the kernels of norms that spill, and bytes of a thread."""
    with torch.device("meta"):
        net, x, y = Net(kind), torch.empty(ROWS, 16), torch.empty(ROWS, dtype=torch.long)
    kernels = [k for k in workload_kernels(Workload(net, (x,), (y,), F.cross_entropy, torch.optim.AdamW), kind.precision) if "norm" in k.name]
    rows = compile_kernels(kernels, archs)
    return {arch: {row.name: row.spilled_bytes for row in rows if row.arch == arch and row.spilled_bytes} for arch in archs}


def list_kinds(widths: Sequence[int], norms: Sequence[str], places: Sequence[str], precisions: Sequence[str]) -> Iterator[Kind]:
    """All blocks of these."""
    for norm, place, width, biased, dropout, precision in itertools.product(norms, places, widths, (False, True), (0.0, 0.1), precisions):
        if dropout or norm in ("LayerNorm", "RMSNorm") and place in ("before", "twice"):
            yield Kind(width, norm, place, biased, dropout, precision)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--places", nargs="+", choices=PLACES, default=PLACES)
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), nargs="+", default=("bf16", "fp32"))
    parser.add_argument("--arch", type=int, action="append", default=None, help="80, 90; repeatable")
    parser.add_argument("--each", action="store_true", help="a line for each block that spills")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    archs = asked.arch or [80, 90]
    table: dict[tuple[str, str, str, str], list[int]] = {}
    for kind in list_kinds(asked.widths, asked.norms, asked.places, asked.precision):
        for arch, spilled in list_spills(kind, archs).items():
            columns = "4,096 and less" if kind.width <= 4096 else "more than 4,096"
            table.setdefault((columns, kind.norm, kind.place, kind.precision), []).append(max(spilled.values(), default=0))
            if asked.each and spilled:
                print(f"{kind} sm_{arch}: {spilled}", flush=True)
    print(f"{'columns':16} {'norms':28} {'precision':10} {'blocks':>6} {'of them spill':>13} {'most bytes':>10}")
    for (columns, norm, place, precision), found in sorted(table.items()):
        print(f"{columns:16} {f'{norm}, {place}':28} {precision:10} {len(found):6} {sum(map(bool, found)):13} {max(found):10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
