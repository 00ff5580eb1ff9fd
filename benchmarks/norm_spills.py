"""Registers that norms of many widths need: how many blocks of two norms have a kernel that spills, compiled ahead of time, without a GPU.

    python benchmarks/norm_spills.py [--widths 768 4096 8192] [--arch 90] [--each]

A block is two norms, layer norm or RMS norm, with linears, with and without biases and dropout, and residuals; norms stand before the linears, or two in a row after a residual; bfloat16 and float32.
8 blocks for each row and precision of the table, each at every width and architecture. `--each` prints a line for each block that spills.
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
        norm: `LayerNorm` or `RMSNorm`.
        twice: two norms in a row after a residual; else one before each pair of linears.
        biased: linears have biases.
        dropout: its share.
        precision: `bf16` or `fp32`.
    """

    width: int
    norm: str
    twice: bool
    biased: bool
    dropout: float
    precision: str


class Block(nn.Module):
    """Two norms, and linears through 64 columns."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind, norm = kind, getattr(nn, kind.norm)
        self.first, self.second = norm(kind.width), norm(kind.width)
        self.downs = nn.ModuleList(nn.Linear(kind.width, 64, bias=kind.biased) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(64, kind.width, bias=kind.biased) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind.twice:
            return self.second(self.first(x + F.dropout(self.ups[0](F.relu(self.downs[0](x))), self.kind.dropout)))
        for norm, down, up in zip((self.first, self.second), self.downs, self.ups):
            x = x + F.dropout(up(F.relu(down(norm(x)))), self.kind.dropout)
        return x


class Net(nn.Module):
    """Two blocks between linears."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(16, kind.width), getattr(nn, kind.norm)(kind.width), nn.Linear(kind.width, 32)
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


def list_kinds(widths: Sequence[int]) -> Iterator[Kind]:
    """All blocks of these widths."""
    for norm, twice, width, biased, dropout, precision in itertools.product(("LayerNorm", "RMSNorm"), (False, True), widths, (False, True), (0.0, 0.1), ("bf16", "fp32")):
        yield Kind(width, norm, twice, biased, dropout, precision)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--arch", type=int, action="append", default=None, help="80, 90; repeatable")
    parser.add_argument("--each", action="store_true", help="a line for each block that spills")
    asked = parser.parse_args(words)
    warnings.simplefilter("ignore", UserWarning)  # Triton 3.9 tells of a default of 3.10
    archs = asked.arch or [80, 90]
    table: dict[tuple[str, str, bool, str], list[int]] = {}
    for kind in list_kinds(asked.widths):
        for arch, spilled in list_spills(kind, archs).items():
            columns = "4,096 and less" if kind.width <= 4096 else "more than 4,096"
            table.setdefault((columns, kind.norm, kind.twice, kind.precision), []).append(max(spilled.values(), default=0))
            if asked.each and spilled:
                print(f"{kind} sm_{arch}: {spilled}", flush=True)
    print(f"{'columns':16} {'norms':28} {'precision':10} {'blocks':>6} {'of them spill':>13} {'most bytes':>10}")
    for (columns, norm, twice, precision), found in sorted(table.items()):
        print(f"{columns:16} {norm + (', two in a row' if twice else ', before linears'):28} {precision:10} {len(found):6} {sum(map(bool, found)):13} {max(found):10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
