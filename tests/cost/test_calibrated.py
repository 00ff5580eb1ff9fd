"""A GPU at the level that a profile found on one, and which profile prices which cluster."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from autopar.cluster import name_preset, parse_cluster
from autopar.cost import measured_file
from autopar.cost.calibrated import calibrate, matmul_levels
from autopar.cost.machine import machine_here
from autopar.cost.matmul import find_matmul_rates, matmul_seconds
from autopar.cost.measured_file import find_measured, list_packaged, load_packaged
from autopar.cost.model import build_cost_model
from autopar.cost.rows import SUSTAINED, Machine, OpRow, ProfileRows
from autopar.cost.rows_file import save_profile
from autopar.errors import ClusterError

RATES = find_matmul_rates("H100-80GB")


def row(family, dtype, shape, seconds):
    return OpRow(family, dtype, shape, 1, seconds, 0.0, 7, "2026-11-26")


def profile(*rows):
    return ProfileRows(Machine("NVIDIA H100 80GB HBM3", "p", 1, "2.11.0", "3.12"), rows, ())


def matmul(dtype, level, side=4096, family="matmul"):
    return row(family, dtype, (side, side, side), float(matmul_seconds(RATES, 1, side, side, side, dtype)) / level)


def test_the_level_is_that_of_a_matmul_that_runs_for_seconds_else_of_large_ones():
    short = profile(matmul("bfloat16", 1.1), matmul("bfloat16", 1.2, 8192), matmul("bfloat16", 0.3, 512), matmul("float32", 0.8), matmul("float16", 0.9))
    assert matmul_levels(RATES, short) == {"bfloat16": pytest.approx(1.15), "float32": pytest.approx(0.8), "float16": pytest.approx(0.9)}, "small ones tell of starting"
    held = replace(short, ops=(*short.ops, matmul("bfloat16", 0.92, 8192, SUSTAINED)))
    assert matmul_levels(RATES, held) == {"bfloat16": pytest.approx(0.92), "float32": pytest.approx(0.8), "float16": pytest.approx(0.92)}
    found = dict(calibrate(RATES, held).rates.flops_per_s)
    assert {dtype: found[dtype] / rate for dtype, rate in RATES.flops_per_s} == {"bfloat16": pytest.approx(0.92), "float16": pytest.approx(0.92), "float32": pytest.approx(0.8), "float64": 1.0}
    failed = OpRow("matmul", "float64", (4096, 4096, 4096), 1, None, 0.0, 0, "2026-11-26", "RuntimeError: no memory")
    assert "float64" not in matmul_levels(RATES, profile(failed)) and calibrate(RATES, profile(failed)).rates == RATES


def test_a_model_at_a_level_takes_as_much_longer_and_says_so():
    plain, rows = build_cost_model(parse_cluster("1x8xH100-80GB")), profile(matmul("bfloat16", 0.5), row("copy", "float32", (2**31,), 1e-3), row("add_into", "float32", (2**31,), 1e-3))
    found = build_cost_model(plain.cluster, rows)
    assert found.memory_bytes_per_s == pytest.approx(2**31 / 1e-3) and dict(found.flops_per_s)["bfloat16"] == pytest.approx(0.5 * dict(plain.flops_per_s)["bfloat16"])
    assert found.rates is not None and found.source.startswith(plain.source) and "measured 2026-11-26 on NVIDIA H100 80GB HBM3, torch 2.11.0: bfloat16 matmuls at 0.500 of them" in found.source
    assert build_cost_model(plain.cluster, None) == plain


def test_power_and_level_both_count():
    """A limit of half the watts leaves half of whatever the profile found at full power."""
    cluster = parse_cluster("1x8xH100-80GB")
    limited, rows = replace(cluster, device=replace(cluster.device, power_w=350.0)), profile(matmul("bfloat16", 0.9))
    rates = [dict(build_cost_model(c, rows).flops_per_s)["bfloat16"] for c in (cluster, limited)]
    assert rates[1] == pytest.approx(rates[0] / 2)


@pytest.mark.parametrize(("gpu", "preset"), [
    ("NVIDIA H100 80GB HBM3", "H100-80GB"), ("NVIDIA H100 PCIe", "H100-PCIe"), ("NVIDIA H100 NVL", None), ("NVIDIA H200", "H200-141GB"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
    ("NVIDIA A100 80GB PCIe", "A100-80GB"), ("Tesla V100-SXM2-16GB", "V100-16GB"), ("NVIDIA B200", "B200"), ("NVIDIA GB200", "GB200"), ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ("AMD Instinct MI300X", "MI300X"), ("NVIDIA L40S", "L40S"), ("nvidia-h100-80gb-hbm3", "H100-80GB"), ("cpu", None), ("Voodoo 2", None), ("", None),
    ("NVIDIA GH200 480GB", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None), ("NVIDIA H200 MIG 3g.71gb", None),
])  # fmt: skip
def test_gpus_are_known_by_name(gpu, preset):
    assert name_preset(gpu) == preset


def test_the_package_has_what_was_measured():
    assert list_packaged() == ("H100-80GB", "H200-141GB")
    for name in list_packaged():
        rows = load_packaged(name)
        assert name_preset(rows.machine.device) == name and len(rows.ops) > 100
        levels = matmul_levels(find_matmul_rates(name), rows)
        assert 0.9 < levels["bfloat16"] == levels["float16"] < 1.0 and 0.9 < levels["float32"] < 1.1 and 0.9 < levels["float64"] < 1.1


def test_a_cluster_finds_its_profile(tmp_path):
    """What is asked for by name or file; what lies in the cache; nothing of another device."""
    said, cpu = [], tmp_path / "profile-cpu.json"
    gpus = parse_cluster("2x8xH100-80GB")

    def find(asked=None, cluster=gpus):
        return find_measured(cluster, asked, cpu, machine_here(), said.append)

    assert find() is None and said == []
    assert find("h100-80gb") == load_packaged("H100-80GB") and "priced at the level of NVIDIA H100 80GB HBM3" in said.pop()
    kept = tmp_path / "profile-nvidia-h100-80gb-hbm3.json"
    shutil.copy(measured_file._packaged("H100-80GB"), kept)
    shutil.copy(measured_file._packaged("H200-141GB"), tmp_path / "profile-nvidia-h200.json")
    assert find() == load_packaged("H100-80GB") and str(kept) in said.pop()
    assert find(cluster=parse_cluster("1x8xA100-80GB")) is None and find(cluster=parse_cluster("cpu:2")) is None
    own = replace(gpus, device=replace(gpus.device, flops_per_s=(("bfloat16", 1e15), ("float32", 6e13))))
    assert find(cluster=own) is None and "not used: H100-80GB has figures of its own" in said.pop()
    with pytest.raises(ClusterError, match=r"a profile of NVIDIA H200 \(H200-141GB\), and the cluster's devices are H100-80GB"):
        find(str(tmp_path / "profile-nvidia-h200.json"))
    with pytest.raises(ClusterError, match=r"measured for the package \(H100-80GB, H200-141GB\), found 'nothing.json'"):
        find("nothing.json")
    with pytest.raises(ClusterError, match="expected a file that `autopar profile` wrote on this machine, found 'H100-80GB'"):
        find("H100-80GB", parse_cluster("cpu:2"))
    kept.write_text(kept.read_text()[:500])
    with pytest.raises(ClusterError, match=r"not a profile: cut short or damaged \("):
        find()


def test_a_profile_of_an_earlier_autopar_is_left_aside_but_not_where_it_is_asked_for(tmp_path):
    said, cpu, cluster = [], tmp_path / "profile-cpu.json", parse_cluster("cpu:2")
    cpu.write_text('{"format": "autopar-profile-5"}')
    assert find_measured(cluster, None, cpu, machine_here(), said.append) is None
    assert said == [f"{cpu}: not used: of an earlier autopar; run `autopar profile` again, or delete the file"]
    with pytest.raises(ClusterError, match="'autopar-profile-5' of an earlier autopar"):
        find_measured(cluster, str(cpu), cpu, machine_here(), said.append)
    cpu.write_text('{"format": "autopar-profile-99"}')
    with pytest.raises(ClusterError, match="found 'autopar-profile-99'"):
        find_measured(cluster, None, cpu, machine_here(), said.append)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((), "no rows of ops"),
        ((OpRow("matmul", "float64", (4096, 4096, 4096), 1, None, 0.0, 0, "2026-11-26", "CUDA error"),), r"1 rows of ops, none with seconds \(CUDA error\)"),
        ((row("matmul", "bfloat16", (8192, 8192, 8192), 2 * 8192**3 / 1.3e15),), "8192 x 8192 x 8192 in bfloat16 at 1300 TFLOP/s: expected at most the 989 of H100-80GB's data sheet"),
        ((row("copy", "float32", (2**31,), 2**31 / 5e12),), "memory at 5000 GB/s: expected at most the 3350 of"),
        ((matmul("bfloat16", 0.12, 8192, SUSTAINED),), "bfloat16 matmuls at 0.12 of what H100-80GB reaches"),
    ],
    ids=["empty", "errors", "fast", "memory", "slow"],
)
def test_what_no_such_gpu_can_have_is_refused(tmp_path, rows, text):
    path = tmp_path / "profile.json"
    save_profile(replace(profile(*rows), finished=True), path)
    with pytest.raises(ClusterError, match=text):
        find_measured(parse_cluster("8xH100"), str(path), tmp_path / "cpu.json", machine_here(), [].append)


def test_what_a_gpus_profile_lacks_is_said(tmp_path):
    said, path = [], tmp_path / "profile.json"
    save_profile(replace(profile(matmul("bfloat16", 0.95)), finished=False), path)
    assert find_measured(parse_cluster("8xH100"), str(path), tmp_path / "cpu.json", machine_here(), said.append) is not None
    text = "\n".join(said)
    assert "measuring was interrupted" in text and "no matmul that runs for seconds" in text and "no copy was measured" in text
    said.clear()
    for name in list_packaged():
        assert find_measured(parse_cluster(f"8x{name}"), name, tmp_path / "cpu.json", machine_here(), said.append) is not None
    assert all("priced at the level of" in line for line in said)
