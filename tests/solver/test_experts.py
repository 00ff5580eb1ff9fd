"""`benchmarks/experts.py` on a tiny row: what it asks, what it finds, what it prints; and what a row that cannot be asked is told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

pytest.importorskip("torch")

from autopar.constraints import print_constraints
from autopar.cost.model import build_cost_model, matmul_flops_per_s
from autopar.graph.case import build_case
from autopar.trace import trace_step
from benchmarks import experts
from benchmarks.published_rows import (
    NotExpressible,
    Row,
    build_workload,
    cluster_of,
    constraints_of,
    flops_of,
    precision_of,
    published_seconds,
    read_rows,
    select_rows,
    sizes_of,
    with_half_rates,
)

pytestmark = pytest.mark.torch

TINY = {
    "row_id": "tiny", "model": "GPT tiny", "family": "dense", "layers": "2", "hidden": "64", "heads": "4", "vocab": "256", "seq_len": "32",
    "hardware": "A100-80GB", "gpus_per_node": "8", "n_gpus": "4", "dp": "2", "tp": "2", "pp": "1", "zero_stage": "0", "micro_bs": "2",
    "global_bs": "8", "recompute": "full", "precision": "fp16 mixed", "iter_time_s": "0.01",
}  # fmt: skip


def row(**changes: str) -> Row:
    text = {**TINY, **changes}
    return Row(text["row_id"], text)


def write_table(path, *rows: Row):
    names = list(rows[0].text)
    path.write_text("\n".join([",".join(names), *(",".join(r.text[n] for n in names) for r in rows)]) + "\n")
    return path


SOLVED = row(layers="1", n_gpus="2", tp="1", global_bs="4", micro_bs="1")  # seconds


@pytest.fixture(scope="module")
def tiny() -> experts.Compared:
    return experts.compare(SOLVED, time_limit_s=20.0)


def test_a_row_is_solved_with_and_without_the_experts_choice(tiny):
    assert tiny.why == "" and tiny.expert.why == "" and tiny.free.why == ""
    assert tiny.asked == "dp=2,tp=1,pp=1,zero=0,recompute=full,microbatch=1" and tiny.devices == "1x2xA100-80GB"
    assert tiny.expert.degrees == (("data", 2),) and tiny.expert.microbatches == 2 and tiny.expert.again > 0.3
    assert 0 < tiny.free.bound_s <= tiny.free.step_s <= tiny.expert.step_s
    assert experts.is_kept(tiny)


def test_the_row_prints_and_survives_json(tiny):
    again = experts.read_compared(json.loads(json.dumps(asdict(tiny))))
    assert again == tiny
    cells = experts.print_row(tiny)
    assert cells[0] == "tiny" and cells[3].startswith(f"{tiny.asked}: data 2, 2 microbatches") and cells[5] == "0.01"
    assert cells[-1].startswith(("less ", "more ", "fewer ")) and "less recompute" in cells[-1]
    assert experts.print_summary([tiny]).startswith("1 rows: free <= expert in 1 of 1, median ratio 0.")


def test_a_free_solve_that_is_worse_is_said_to_be(tiny):
    worse = replace(tiny, free=replace(tiny.expert, step_s=tiny.expert.step_s * 1.01, stages=4))
    assert experts.is_kept(worse) is False
    assert experts.print_row(worse)[-1] == "WORSE: more stages (1 to 4)"
    assert "free <= expert in 0 of 1" in experts.print_summary([worse])
    none = replace(tiny, free=experts.Solved("InfeasibleError: no plan fits", 1.0))
    assert experts.is_kept(none) is False and experts.print_row(none)[-1] == "WORSE: free: InfeasibleError: no plan fits"


def test_an_expert_that_has_no_plan_is_not_judged(tiny):
    asked = constraints_of(replace(SOLVED, text={**SOLVED.text, "micro_bs": "3"}))
    case = build_case(trace_step(build_workload(sizes_of(SOLVED)), "bf16").graph)
    expert = experts.solve(case, build_cost_model(cluster_of(SOLVED)), asked, 5.0, False)
    assert expert.why.startswith("ConstraintError: dp=2, tp=1, pp=1, zero=0, recompute=full, microbatch=3: ")
    found = replace(tiny, expert=expert)
    assert experts.is_kept(found) is None and experts.print_row(found)[-1].startswith(f"expert: {expert.why[:100]}")


def test_what_was_found_is_not_solved_again(tiny, tmp_path, capsys, monkeypatch):
    table, out = write_table(tmp_path / "rows.csv", SOLVED, row(row_id="moe", family="moe")), tmp_path / "out.json"
    out.write_text(json.dumps({"tiny": asdict(tiny)}))
    asked = []

    def run_apart(one, *others):
        asked.append(one.id)
        return experts.compare(one, 1.0)

    monkeypatch.setattr(experts, "run_apart", run_apart)
    experts.main(["--rows", str(table), "--out", str(out)])
    printed = capsys.readouterr().out
    assert asked == ["moe"] and list(json.loads(out.read_text())) == ["tiny", "moe"]
    assert "| tiny | GPT tiny | 1x2xA100-80GB |" in printed and "family 'moe': only dense decoders are built here" in printed
    experts.main(["tiny", "--rows", str(table), "--out", str(out)])
    assert asked == ["moe"] and "| moe |" not in capsys.readouterr().out


def test_one_row_runs_in_a_process_of_its_own(tmp_path):
    found = experts.run_apart(row(family="cnn"), write_table(tmp_path / "rows.csv", row(family="cnn")), 1.0, 60.0, False)
    assert found.why == "family 'cnn': only dense decoders are built here"


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"micro_bs": "", "zero_stage": ""}, "dp=2,tp=2,pp=1,recompute=full"),
        ({"n_gpus": "8", "pp": "2", "vpp": "3", "recompute": "selective", "seq_par": "yes"},
         "dp=2,tp=2,pp=2,zero=0,recompute=selective,sequence_parallel=1,vpp=3,microbatch=2"),
        ({"n_gpus": "8", "cp": "2", "micro_bs": "4", "zero_stage": "FSDP: optimizer+grad sharded, params not resharded after fwd"},
         "dp=2,tp=2,sp=2,pp=1,zero=2,recompute=full,microbatch=4"),
        ({"n_gpus": "16", "cp": "2", "pp": "2"}, "dp=2,tp=2,sp=2,pp=2,zero=0,recompute=full,microbatch=2"),
        ({"dp": "1", "n_gpus": "2", "zero_stage": "1", "recompute": "none"}, "dp=1,tp=2,pp=1,recompute=none,microbatch=2"),
    ],
)  # fmt: skip
def test_the_experts_words(changes, asked):
    assert ",".join(print_constraints(constraints_of(row(**changes)))) == asked


@pytest.mark.parametrize(
    ("make", "changes", "why"),
    [
        (constraints_of, {"n_gpus": "8"}, "the degrees {'dp': 2, 'tp': 2, 'pp': 1} make 4 devices, printed are 8"),
        (constraints_of, {"ep": "4"}, "expert parallelism has no word among the constraints"),
        (constraints_of, {"dp": "", "tp": "", "pp": ""}, "no degree is printed"),
        (cluster_of, {"hardware": "TPU v4"}, "hardware 'TPU v4': no preset"),
        (cluster_of, {"hardware": "A100-80GB PCIe"}, "hardware 'A100-80GB PCIe': no preset"),
        (cluster_of, {"hardware": "H100"}, "hardware 'H100': no preset"),
        (cluster_of, {"n_gpus": "12"}, "12 devices on hosts of 8: only equal hosts are planned"),
        (sizes_of, {"layers": ""}, "layers is not printed"),
        (sizes_of, {"model": "Llama 9"}, "Llama 9 with 2 layers of 64: its feed-forward width is not printed"),
        (precision_of, {"precision": "MXFP8"}, "precision MXFP8: matmuls narrower than 16 bits are not traced"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(make, changes, why):
    with pytest.raises(NotExpressible) as error:
        make(row(**changes))
    assert str(error.value) == why


def test_clusters_of_the_table():
    dgx2 = cluster_of(row(hardware="V100-SXM3-32GB DGX-2 + 8x100Gb IB/node", gpus_per_node="16", n_gpus="32"))
    assert dgx2.spec == "2x16xV100-32GB" and dgx2.across.bandwidth_bytes_per_s == 6.25e9
    assert dict(dgx2.device.flops_per_s)["bfloat16"] == 125e12
    p3 = cluster_of(row(hardware="V100-16GB AWS p3.16xlarge, 25 Gb/s between nodes", n_gpus="16"))
    for words, spec in {
        "H100-80GB": "2x8xH100-80GB", "H100-80GB PCIe": "2x8xH100-PCIe", "NVIDIA H100 PCIe": "2x8xH100-PCIe", "H100-80GB SXM, PCIe Gen5 to its NICs": "2x8xH100-80GB", "L40S PCIe": "2x8xL40S", "RTX 4090 24GB": "2x8xRTX4090",
    }.items():
        assert cluster_of(row(hardware=words, n_gpus="16")).spec == spec
    assert p3.spec == "2x8xV100-16GB" and p3.across.bandwidth_bytes_per_s == pytest.approx(0.390625e9)


def test_half_precision_of_v100_is_that_of_float16_in_prices_and_in_floors():
    """A floor by float32's rate would be above the price, and rule out what is best."""
    cluster = cluster_of(row(hardware="V100-SXM3-32GB DGX-2 + 8x100Gb IB/node", gpus_per_node="16", n_gpus="32"))
    plain, model = build_cost_model(cluster), with_half_rates(build_cost_model(cluster))
    half = dict(model.rates.flops_per_s)["float16"]
    assert matmul_flops_per_s(plain, "bfloat16") < half / 5
    assert dict(model.rates.flops_per_s)["bfloat16"] == matmul_flops_per_s(model, "bfloat16") == half


def test_published_seconds_are_those_of_equation_3():
    """PTD-P prints 137 TFLOP/s for its 1.7B model; equation 3, written as in the paper, makes 3.528 s of it."""
    found = {r.id: r for r in read_rows(experts.TABLE)}
    one = found["ptdp_t1_1.7B"]
    b, s, l, h, v = 512, 2048, 24, 2304, 51200  # noqa: E741
    paper = 96 * b * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))
    assert flops_of(sizes_of(one), again=True) == pytest.approx(paper, rel=1e-12)
    seconds, is_certain = published_seconds(Row(one.id, {**one.text, "iter_time_s": ""}), sizes_of(one))
    assert is_certain and seconds == pytest.approx(3.528, rel=2e-3)
    assert published_seconds(found["zero_f4_1.5B_zero"], sizes_of(found["zero_f4_1.5B_zero"]))[1] is False
    assert published_seconds(found["zero_f2_20B_zero"], sizes_of(found["zero_f2_20B_zero"])) == (None, False)


def test_every_row_kept_here_can_be_asked():
    rows = read_rows(experts.TABLE)
    assert len(rows) >= 40
    for one in rows:
        assert sizes_of(one).batch > 0 and precision_of(one) == "bf16" and constraints_of(one)
        assert one.get("reference").startswith("arXiv:") and one.get("locator")
        assert cluster_of(one).num_hosts >= 1


def test_rows_are_named_and_unique(tmp_path):
    rows = read_rows(experts.TABLE)
    assert [r.id for r in select_rows(rows, ["mtnlg_280"])] == ["mtnlg_280"] and len(select_rows(rows, [])) == len(rows)
    with pytest.raises(ValueError, match="no row x; there are zero_f2_1.5B_zero"):
        select_rows(rows, ["x"])
    with pytest.raises(ValueError, match="row_id tiny: expected once, found more often"):
        read_rows(write_table(tmp_path / "twice.csv", row(), row()))
