"""Matmul seconds: published kernels that no fit saw, units, monotony, unknown devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopar.cluster import list_devices
from autopar.cost.matmul import MatmulRates, find_matmul_rates, list_matmul_rates, make_tiles, matmul_level, matmul_seconds
from autopar.errors import ClusterError

# (m, n, k, seconds) of families that benchmarks/kernel_fit.py holds out, drawn at random; ten with m >= 1024, then four smaller ones.
# Source: microsoft/vidur at 7d47513, data/profiling.
HELD_OUT = {
    "A100-80GB": (
        (2144, 15360, 5120, 1499e-6), (3264, 13824, 5120, 1897e-6), (13952, 3584, 4096, 1814e-6), (1136, 8192, 3584, 294e-6),
        (26624, 5120, 8192, 9245e-6), (3552, 4096, 2048, 290.5e-6), (1520, 5120, 3456, 231e-6), (9856, 2560, 8192, 1787e-6),
        (26880, 3072, 4096, 3159e-6), (1888, 4096, 2048, 141.5e-6),
        (880, 5504, 8192, 340e-6), (8, 8192, 3584, 42e-6), (848, 28672, 8192, 1877e-6), (760, 28672, 8192, 1636e-6),
    ),
    "H100-80GB": (
        (1664, 4096, 5504, 109.5e-6), (1984, 14336, 8192, 655e-6), (3392, 2560, 10240, 258e-6), (1088, 7680, 5120, 154.5e-6),
        (3904, 5120, 1280, 73e-6), (2080, 14336, 8192, 701.5e-6), (1312, 8192, 4096, 142e-6), (3104, 4096, 2048, 77e-6),
        (3904, 5120, 8192, 479.5e-6), (1536, 4096, 512, 18e-6),
        (880, 6912, 5120, 129e-6), (8, 8192, 4096, 26e-6), (848, 28672, 8192, 646.5e-6), (760, 28672, 8192, 555e-6),
    ),
}  # fmt: skip
# One tile shape, no rounding of waves: every figure can be worked out by hand.
TOY = MatmulRates("toy", 10, (("float16", 1e12), ("float32", 1e11)), 1e9, 1.0, ((100, 100, 1.0),), 0.0, 1.0, 1e-6, "by hand")


@pytest.mark.parametrize(("device", "median", "worst"), [("A100-80GB", 0.06, 0.10), ("H100-80GB", 0.09, 0.26)])
def test_published_kernels_that_no_fit_saw(device, median, worst):
    m, n, k, seconds = np.array(HELD_OUT[device]).T
    error = abs(matmul_seconds(find_matmul_rates(device), 1, m, n, k, "float16") / seconds - 1)
    assert np.median(error) < median
    assert error.max() < worst


def test_compute_counts_whole_waves_of_whole_tiles():
    ten_tiles = 2 * 1000 * 100 * 100_000 / 1e12  # one full wave
    free = replace(TOY, memory_bytes_per_s=1e30)
    assert matmul_seconds(free, 1, 1000, 100, 100_000, "float16") == pytest.approx(ten_tiles + 1e-6)
    eleven = matmul_seconds(free, 1, 1001, 100, 100_000, "float16")
    assert eleven == pytest.approx(9 / 8 * ten_tiles + 1e-6)  # each split in 8: 88 pieces, 9 waves
    assert matmul_seconds(free, 10, 100, 100, 100_000, "float16") == pytest.approx(ten_tiles + 1e-6)  # a batch is more tiles
    assert matmul_seconds(free, 1, 1000, 100, 100_000, "float32") == pytest.approx(10 * ten_tiles + 1e-6)


def test_few_tiles_of_a_long_sum_are_split():
    rates = find_matmul_rates("A100-80GB")
    whole = 2 * 128 * 128 * 65536 / (matmul_level(rates, "float16") / rates.multiprocessors)
    assert matmul_seconds(rates, 1, 128, 128, 65536, "float16") < whole / 4


def test_a_thin_matmul_takes_its_bytes():
    rates = find_matmul_rates("H100-80GB")
    moved = 2 * (8192 * 8192 + 2 * 8192) / (rates.memory_bytes_per_s * rates.memory_share)
    assert matmul_seconds(rates, 1, 1, 8192, 8192, "bfloat16") == pytest.approx(moved + rates.kernel_s, rel=0.03)


@pytest.mark.parametrize("rates", list_matmul_rates(), ids=lambda r: r.name)
@pytest.mark.parametrize("grows", range(4))
def test_no_dim_makes_it_faster(rates, grows):
    sizes = np.concatenate([np.arange(1, 700), np.arange(700, 9000, 37)])
    for base in ((1, 1024, 1024, 1024), (1, 4096, 512, 8192), (16, 64, 128, 64)):
        shape = list(base)
        shape[grows] = sizes
        seconds = matmul_seconds(rates, *shape, "float16")
        assert seconds.shape == sizes.shape
        assert (np.diff(seconds) >= -1e-15).all()


def test_many_shapes_are_the_same_as_one_by_one():
    rates = find_matmul_rates("A100-80GB")
    m, k = np.array([64, 1024, 5000]), np.array([[128], [4096]])
    together = matmul_seconds(rates, 2, m, 768, k, "bfloat16")
    assert together.shape == (2, 3)
    assert together[1, 2] == matmul_seconds(rates, 2, 5000, 768, 4096, "bfloat16")


@pytest.mark.parametrize("device", [d.name for d in list_devices() if d.kind == "cuda"])
def test_every_gpu_preset_has_rates_below_its_peak(device):
    preset = next(d for d in list_devices() if d.name == device)
    rates = find_matmul_rates(device)
    for dtype in dict(preset.flops_per_s):
        reached = 2 * 16384**3 / matmul_seconds(rates, 1, 16384, 16384, 16384, dtype)
        assert 0.4 * dict(preset.flops_per_s)[dtype] < reached < dict(preset.flops_per_s)[dtype]
    assert rates.memory_bytes_per_s == pytest.approx(preset.memory_bytes_per_s, rel=0.03)
    assert rates.source


@pytest.mark.parametrize(("name", "found"), [("A100", "A100-80GB"), ("H100", "H100-80GB"), ("V100-32GB", "V100"), ("RTX-4090", "RTX4090")])
def test_short_and_long_names(name, found):
    assert find_matmul_rates(name).name == found


def test_an_unknown_device_is_named():
    with pytest.raises(ClusterError) as error:
        find_matmul_rates("TPU-v5p")
    assert str(error.value) == (
        "matmul rates: no entry for device 'TPU-v5p'; known: A100-80GB, H100-80GB, V100, A100-40GB, H100-PCIe, H200, B200, B300, GB200, GB300, "
        "MI300X, MI355X, L40S, RTX4090. Add its MatmulRates to autopar/cost/matmul.py"
    )


def test_an_unknown_dtype_is_named():
    with pytest.raises(ClusterError) as error:
        matmul_seconds(find_matmul_rates("V100-32GB"), 1, 64, 64, 64, "bfloat16")
    assert str(error.value) == "matmul rates of V100: no entry for dtype 'bfloat16'; known: float16, float32, float64"


def test_tiles_are_symmetric():
    tiles = {(m, n): e for m, n, e in make_tiles(0.9, 0.8, 0.5, 0.3)}
    assert tiles[128, 64] == tiles[64, 128] == 0.8
    assert tiles[256, 128] == tiles[128, 256] == 1.0
