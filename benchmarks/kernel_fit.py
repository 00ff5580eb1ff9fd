"""Fits the matmul rates of A100 and H100 to published kernel tables, and prints the error on shapes that were held out.

    python benchmarks/kernel_fit.py [--data ../shared/data] [--refit]

Reads `kernels/matmul_{a100,h100}_fp16.csv` (M, N, K, seconds: microsoft/vidur, forward projections of eight transformers at tensor
parallel 1 to 8). Every third (N, K) family is held out: no shape of it is seen by the fit. Without `--refit` it prints the error of the
rates in the package; with it, also a new fit and its error. Then the level of large shapes. Training-like: M >= 1024.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from autopar.cost.matmul import MatmulRates, find_matmul_rates, make_tiles, matmul_seconds

_TABLES = (("A100-80GB", "matmul_a100_fp16.csv", 271.2), ("H100-80GB", "matmul_h100_fp16.csv", 794.5))
_TRAINING_M = 1024
_SAMPLE = 4000  # shapes that a fit looks at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default, help="the folder that holds kernels/")
    parser.add_argument("--refit", action="store_true", help="fit again and print the constants")
    options = parser.parse_args()
    for device, file, measured_max in _TABLES:
        table = np.loadtxt(options.data / "kernels" / file, delimiter=",", skiprows=1)
        held = held_out(table)
        rates = find_matmul_rates(device)
        print(f"{device}: {len(table)} shapes, {held.sum()} held out")
        print_errors("package", rates, table, held)
        if options.refit:
            fitted = fit_rates(rates, table[~held])
            print_errors("refit", fitted, table, held)
            print_rates(fitted)
        print_level(table, measured_max)


def held_out(table: np.ndarray) -> np.ndarray:
    """True for the shapes of every third (N, K) family."""
    families = sorted({(n, k) for n, k in table[:, 1:3]})
    held = set(families[2::3])
    return np.array([(n, k) in held for n, k in table[:, 1:3]])


def print_errors(title: str, rates: MatmulRates, table: np.ndarray, held: np.ndarray) -> None:
    for name, group in (("fitted families", ~held), ("held-out families", held)):
        for kind, least in (("all", 0), (f"M >= {_TRAINING_M}", _TRAINING_M)):
            rows = table[group & (table[:, 0] >= least)]
            predicted = matmul_seconds(rates, 1, *rows[:, :3].T, "float16")
            ratio, total = predicted / rows[:, 3] - 1, predicted.sum() / rows[:, 3].sum() - 1
            median, high = np.percentile(abs(ratio), [50, 90])
            print(f"  {title:8s} {name:18s} {kind:10s} median {median:6.1%}  90th {high:6.1%}", end="")
            print(f"  bias {np.median(ratio):+6.1%}  all seconds {total:+6.1%}  ({len(rows)})")


def print_level(table: np.ndarray, measured_max: float) -> None:
    m, n, k, seconds = table.T
    large = (m >= 4096) & (n >= 4096) & (k >= 4096)
    tflops = (2 * m * n * k / seconds)[large] / 1e12
    low, middle, high = np.percentile(tflops, [5, 50, 95])
    print(f"  large shapes (M, N, K >= 4096; {large.sum()}): {middle:.0f} TFLOP/s, 5th {low:.0f}, 95th {high:.0f}", end=", ")
    print(f"best {tflops.max():.0f}; published best {measured_max:.0f}, ratio {middle / measured_max:.2f}", end="; ")
    print(f"shortest kernel of the table {seconds.min() * 1e6:.0f} us")


# --- fitting ----------------------------------------------------------------------------------------------------------------------


def fit_rates(start: MatmulRates, rows: np.ndarray) -> MatmulRates:
    """Coordinate descent on the mean |log ratio|; each octave of FLOPs weighs the same, so that many small shapes do not set the level."""
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]]
    octave = np.floor(np.log2(2 * rows[:, :3].prod(axis=1))).astype(int)
    octave = np.clip(octave, 33, 41)  # few shapes beyond
    weight = 1 / np.bincount(octave)[octave]

    def loss(point: np.ndarray) -> float:
        predicted = matmul_seconds(unpack(start, point), 1, *rows[:, :3].T, "float16")
        return float(np.average(abs(np.log(predicted / rows[:, 3])), weights=weight))

    level = (2 * rows[:, :3].prod(axis=1) / rows[:, 3]).max()
    return unpack(start, descend(loss, np.log([level, 50, 0.3, 4e-6, 0.85, 0.95, 0.7, 0.5, 0.3])))


def unpack(start: MatmulRates, point: np.ndarray) -> MatmulRates:
    """The logarithms of level, k0, wave step, kernel seconds, memory share and four tile efficiencies, as rates."""
    level, extra_k, step, kernel_s, share, *tiles = np.exp(point).tolist()
    flops = tuple((dtype, level if dtype in ("float16", "bfloat16") else rate) for dtype, rate in start.flops_per_s)
    return replace(
        start, flops_per_s=flops, extra_k=extra_k, wave_step=min(step, 1.0), kernel_s=kernel_s, memory_share=min(share, 1.0),
        tiles=make_tiles(*tiles),
    )  # fmt: skip


def descend(loss: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
    step, best = np.full(point.size, 0.15), loss(point)
    for _ in range(60):
        for i in range(point.size):
            for sign in (1, -1):
                trial = point.copy()
                trial[i] += sign * step[i]
                found = loss(trial)
                if found < best:
                    point, best, step[i] = trial, found, step[i] * 1.3
                    break
            else:
                step[i] /= 2
        if step.max() < 1e-3:
            break
    return point


def print_rates(rates: MatmulRates) -> None:
    level = dict(rates.flops_per_s)["float16"]
    medium, narrow, small, thin = (rates.tiles[i][2] for i in (2, 3, 5, 6))
    print(f"  fitted: level {level / 1e12:.1f} TFLOP/s, memory share {rates.memory_share:.3f}", end=", ")
    print(f"make_tiles({medium:.3f}, {narrow:.3f}, {small:.3f}, {thin:.3f}), k0 {rates.extra_k:.1f}", end=", ")
    print(f"wave step {rates.wave_step:.3f}, kernel {rates.kernel_s * 1e6:.2f} us")


if __name__ == "__main__":
    main()
