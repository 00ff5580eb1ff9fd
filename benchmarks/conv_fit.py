"""Fits the rates of convolutions to published kernel tables, and prints the error on shapes that were held out.

    python benchmarks/conv_fit.py [--refit] [--rows]

Reads `benchmarks/data/convolutions.csv`, whose header says where each row is from. Every third shape of its two large tables (A100, V100; float16) is held out of the fit, on both devices, in both
layouts and passes. Left out everywhere: rows within half of the least of their device, layout and pass (0.07 to 0.24 ms, whatever the shape): they measure the host. The few rows of float32 and of
groups are printed by themselves: their one constant each is set, not fitted.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autopar.cost.convolution import ConvolutionRates, Sizes, Windows, convolution_seconds, find_convolution_rates, make_convolution_tiles, make_windows  # noqa: E402
from autopar.cost.matmul import find_matmul_rates  # noqa: E402
from benchmarks.kernel_fit import descend  # noqa: E402

DATA = Path(__file__).parent / "data" / "convolutions.csv"
_OF_HOST = 1.5  # times the least of a device, layout and pass
_FITTED = ("a", "v")
_PARTS = {"forward": ("gather",), "backward": ("scatter", "weight"), "forward and weight": ("gather", "weight")}
_START = (1.0, 1.0, 0.86, 0.7, 0.6, 0.66, 9.0)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One row; `shape`: what the two passes of a convolution share."""

    source: str
    device: str
    dtype: str
    layout: str
    passes: str
    shape: tuple[int, ...]
    windows: Windows
    sizes: Sizes
    seconds: float


def read_rows(path: Path = DATA) -> tuple[KernelRow, ...]:
    with path.open() as file:
        found = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple(map(_read_row, found))


def _read_row(row: dict[str, str]) -> KernelRow:
    dims, batch, inside, side, outside, kernel, padding, stride, dilation, groups = (
        int(row[name]) for name in ("dims", "batch", "channels_in", "side", "channels_out", "kernel", "padding", "stride", "dilation", "groups")
    )  # fmt: skip
    after = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    windows = make_windows(_PARTS[row["pass"]], kernel**dims, stride**dims, side**dims, after**dims, groups)
    sizes = Sizes(batch * side**dims, batch * after**dims, inside / groups, outside / groups, groups)
    shape = (dims, batch, inside, side, outside, kernel, padding, stride, dilation, groups)
    return KernelRow(row["source"], row["device"], row["dtype"], row["layout"], row["pass"], shape, windows, sizes, float(row["ms"]) / 1e3)


def judged_rows(rows: Sequence[KernelRow]) -> tuple[KernelRow, ...]:
    """The rows of the two large tables that measure a kernel, not the host."""
    kept = [row for row in rows if row.source in _FITTED]
    least: dict[tuple[str, ...], float] = {}
    for row in kept:
        key = (row.device, row.layout, row.passes)
        least[key] = min(least.get(key, np.inf), row.seconds)
    return tuple(row for row in kept if row.seconds > _OF_HOST * least[row.device, row.layout, row.passes])


def held_out(rows: Sequence[KernelRow]) -> frozenset[tuple[int, ...]]:
    """Every third shape."""
    return frozenset(sorted({row.shape for row in rows})[2::3])


def predict(row: KernelRow, own: ConvolutionRates | None = None) -> float:
    """Seconds by the law; own: None: of the package."""
    rates = find_matmul_rates(row.device)
    return float(convolution_seconds(rates, row.windows, row.sizes, row.dtype, channels_last=row.layout == "channels_last", own=own))


def errors_of(rows: Sequence[KernelRow], own: dict[str, ConvolutionRates] | None = None) -> np.ndarray:
    """Predicted over measured less one."""
    return np.array([predict(row, own[row.device] if own else None) / row.seconds - 1 for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refit", action="store_true", help="fit again and print the constants")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    whole = read_rows()
    rows = judged_rows(whole)
    held = held_out([row for row in whole if row.source in _FITTED])
    print(f"{len(rows)} rows of {len(held)} held-out and {len({r.shape for r in whole if r.source in _FITTED}) - len(held)} fitted shapes")
    print_errors("package", rows, held, None)
    if options.refit:
        fitted = fit_rates([row for row in rows if row.shape not in held])
        print_errors("refit", rows, held, fitted)
        for device, own in fitted.items():
            print_rates(device, own)
    for row in whole:
        if options.rows or row.source not in _FITTED:
            predicted = predict(row)
            print(f"  {row.device:10s} {row.dtype} {row.layout:13s} {row.passes:18s} {row.shape}: {row.seconds * 1e3:.3f} ms, predicted {predicted * 1e3:.3f}", end="")
            print(f" ({predicted / row.seconds - 1:+.0%}){'' if row in rows or row.source not in _FITTED else ', the host'}")


def print_errors(title: str, rows: Sequence[KernelRow], held: frozenset[tuple[int, ...]], own: dict[str, ConvolutionRates] | None) -> None:
    groups = {
        "all": lambda r: True, "fitted shapes": lambda r: r.shape not in held, "held-out shapes": lambda r: r.shape in held,
        "forward": lambda r: r.passes == "forward", "backward": lambda r: r.passes == "backward", "A100": lambda r: r.device == "A100-40GB", "V100": lambda r: r.device == "V100",
        "contiguous": lambda r: r.layout == "contiguous", "channels last": lambda r: r.layout == "channels_last", "held-out, contiguous": lambda r: r.shape in held and r.layout == "contiguous",
    }  # fmt: skip
    for name, belongs in groups.items():
        some = [row for row in rows if belongs(row)]
        error = errors_of(some, own)
        median, high = np.percentile(abs(error), [50, 90])
        total = sum((1 + e) * row.seconds for e, row in zip(error, some)) / sum(row.seconds for row in some) - 1
        print(f"  {title:8s} {name:20s} median {median:6.1%}  90th {high:6.1%}  bias {np.median(error):+6.1%}  all seconds {total:+6.1%}  ({len(some)})")


# --- fitting ----------------------------------------------------------------------------------------------------------------------


def fit_rates(rows: Sequence[KernelRow]) -> dict[str, ConvolutionRates]:
    """Coordinate descent on the mean |log ratio|; both devices share all but the level."""

    def loss(point: np.ndarray) -> float:
        return float(np.mean(abs(np.log1p(errors_of(rows, unpack(point))))))

    return unpack(descend(loss, np.log(_START)))


def unpack(point: np.ndarray) -> dict[str, ConvolutionRates]:
    """The logarithms of the levels of A100 and V100, the efficiency of narrow tiles, the shares of weights, memory and transposes, and the passes of a strided scatter."""
    ampere, volta, narrow, weight, memory, transpose, passes = np.exp(point).tolist()
    own = replace(
        find_convolution_rates("A100-40GB"), level_share=min(1.0, ampere), tiles=make_convolution_tiles(min(1.0, narrow)), weight_share=min(1.0, weight),
        memory_share=min(1.0, memory), transpose_share=min(1.0, transpose), scatter_passes=passes,
    )  # fmt: skip
    return {"A100-40GB": own, "V100": replace(own, level_share=min(1.0, volta))}


def print_rates(device: str, own: ConvolutionRates) -> None:
    print(f"  fitted {device}: level share {own.level_share:.3f}, make_convolution_tiles({own.tiles[3][2]:.3f}), weight {own.weight_share:.3f}", end=", ")
    print(f"memory {own.memory_share:.3f}, transpose {own.transpose_share:.3f}, scatter passes {own.scatter_passes:.2f}")


if __name__ == "__main__":
    main()
