"""What judges predictions: published tables as rows, seconds from every column, errors against aims; and predictions with known answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.fidelity import main
from benchmarks.fidelity_activations import SETTINGS, evaluate, layers_held
from benchmarks.fidelity_bubbles import chunks_of, judge_bubbles, judge_rate
from benchmarks.fidelity_memory import judge_memory
from benchmarks.fidelity_predict import SearchPredictor, band_of, narrow_gain, narrow_share, side_bytes, side_seconds
from benchmarks.fidelity_runs import Prediction, cover, describe, family_of, global_batch, is_close, measured_seconds, missing_of, row_of
from benchmarks.fidelity_steps import count_orderable, judge_steps, rank
from benchmarks.fidelity_table import (
    ABSOLUTE,
    EXACT,
    PLACES,
    Aim,
    Group,
    Judged,
    group_as_json,
    last_place,
    percentile,
    print_group,
    print_summary,
    row_error,
    select_rows,
    summarise,
)
from benchmarks.published import BubbleRate, ImageRun, Published, PublishedError, Run, load_published
from benchmarks.published_rows import NotExpressible, cluster_of, constraints_of, precision_of, sizes_of, zero_of

# tables -----------------------------------------------------------------------------------------------------------------------------------

EMPTY = {
    "throughput_cnn.csv": "row_id\n",
    "memory.csv": "row_id\n",
    "pipeline_bubbles.csv": "row_id\n",
    "formulas.csv": "id\n",
    "throughput.csv": "row_id\n",
}


def write_tables(folder, **tables):
    for name, text in {**EMPTY, **{f"{k}.csv": v for k, v in tables.items()}}.items():
        (folder / name).write_text(text)
    return folder


def test_rows_are_typed_and_what_is_not_there_is_none(tmp_path):
    text = "row_id,layers,params_b,brand_new,zero_stage,iter_time_s\na,24,1.5,x,Pos,\nb,n/a,nan,,,2.5\n,1,1,,,\nc,3.5,7,x\n"
    a, b, c = load_published(write_tables(tmp_path, throughput=text)).runs
    assert (a.layers, a.params_b, a.zero_stage, a.iter_time_s) == (24, 1.5, "Pos", None)
    assert (b.layers, b.params_b, b.iter_time_s, b.hidden, b.model) == (None, None, 2.5, None, "")
    assert (c.layers, c.params_b) == (None, 7.0)


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        ("dp", "sixteen", "a whole number above 0, found 'sixteen'"),
        ("layers", "24.5", "a whole number above 0, found '24.5'"),
        ("layers", "-4", "a whole number above 0, found '-4'"),
        ("iter_time_s", "0", "a number above 0, found '0'"),
        ("hidden", "nan", "a whole number above 0, found 'nan'"),
        ("tflops_per_gpu", "163e12", "a number above 0 of at most 100000, found '163e12'"),
        ("samples_per_s_total", "-1", "a number of at least 0, found '-1'"),
    ],
)
def test_a_number_that_no_run_can_have_is_told(tmp_path, capsys, column, cell, expected):
    """Not counted, nor taken for one that is not printed without a word."""
    folder = write_tables(tmp_path, throughput=f"row_id,{column}\na,{cell}\n")
    tables = load_published(folder)
    assert getattr(tables.runs[0], column) is None
    assert f"throughput.csv: a: {column}: expected {expected}: read as not printed" in tables.notes
    assert main(["steps", "--data", str(folder)]) == 0 and expected in capsys.readouterr().err


def test_columns_that_are_not_there_and_names_that_come_twice_are_told(tmp_path):
    notes = load_published(write_tables(tmp_path, throughput="row_id,layers,samples_per_s_total\na,2,0.0\na,3,1\n")).notes
    assert "throughput.csv: a: the name comes again; expected one row of a name" in notes
    [lacks] = [note for note in notes if note.startswith("throughput.csv: no column")]
    assert " tp," in lacks and "layers" not in lacks and not any("0.0" in note for note in notes)


def test_a_prediction_without_a_scalar_says_so():
    run = replace(GPT_1T, iter_time_s=1.0, status="ok")
    groups = {g.name: g for g in judge_steps(Published(runs=(run,)), lambda run: Prediction(seconds=1.1, why="dp=2, 1 microbatch"))}
    [judged] = groups["steps scaled"].rows
    assert judged.predicted is None and judged.why == f"no microbenchmark of {run.hardware} has been run, so there is no scalar for it"


def test_a_printed_number_keeps_its_places(tmp_path):
    (cell,) = load_published(write_tables(tmp_path, memory="row_id,value\na,41.30\n")).memory
    assert (cell.value, cell.value_text) == (41.3, "41.30")


def test_missing_tables_are_an_error(tmp_path, capsys):
    with pytest.raises(PublishedError, match=r"expected a folder at .*nowhere, found none; name it with --data DIR"):
        load_published(tmp_path / "nowhere")
    with pytest.raises(PublishedError, match=r"expected throughput.csv in .*, found none"):
        load_published(tmp_path)
    (write_tables(tmp_path) / "memory.csv").write_text("name,value\n")
    with pytest.raises(PublishedError, match="expected a column row_id, found name, value"):
        load_published(tmp_path)
    assert main(["zero", "--data", str(tmp_path / "nowhere")]) == 1
    assert "published tables: expected a folder" in capsys.readouterr().err


def test_sections_and_rows_are_chosen(tmp_path, capsys):
    rates = "row_id,p,m,schedule,TF_ms,TB_ms,TW_ms,Tcomm_ms,bubble_rate\none,2,1,1F1B,1,1,1,0,0.5\ntwo,2,1,1F1B,,,,,0.5\n"
    folder = write_tables(tmp_path, pipeline_bubbles=rates)
    assert main(["bubbles", "--data", str(folder), "--rows", "o*", "--json", str(tmp_path / "out.json")]) == 0
    said = capsys.readouterr().out
    assert "one" in said and "two" not in said and "-- bubbles 1F1B: 1 rows: " in said and "aim met" in said
    judged, others, untimed = json.loads((tmp_path / "out.json").read_text())
    assert (judged["summary"]["count"], judged["rows"][0]["error"], others["rows"]) == (1, 0.0, [])
    with pytest.raises(SystemExit):
        main(["bubble", "--data", str(folder)])
    assert "section bubble: expected some of zero, activations, bubbles, memory, steps" in capsys.readouterr().err


# errors and aims --------------------------------------------------------------------------------------------------------------------------


def test_errors_as_they_are_measured():
    assert row_error(Judged("a", 2.0, 2.5, "s"), "relative") == 0.25
    assert row_error(Judged("a", 2.0, 1.5, "s"), ABSOLUTE) == -0.5
    assert row_error(Judged("a", 41.3, 41.25, "GB", printed="41.3"), PLACES) == pytest.approx(-0.5)
    assert row_error(Judged("a", None, 1.5, "s"), ABSOLUTE) is None
    assert (last_place("41.3"), last_place("536"), last_place("1.88")) == (pytest.approx(0.1), 1, pytest.approx(0.01))
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.9, 1)] == [1, 2.5, pytest.approx(3.7), 4]


def rows_off(*errors, **more):
    return tuple(Judged(f"r{i}", 1.0, 1.0 + e, "s", **more) for i, e in enumerate(errors))


def test_summary_of_a_group():
    rows = (*rows_off(-0.25, 0.125, 0.5), Judged("late", 1.0, None, "s", "no schedule"))
    found = summarise(Group("g", Aim("some"), rows))
    assert (found.count, found.left_out, found.median, found.bias, found.worst, found.worst_row, found.under, found.met) == (
        3,
        1,
        0.25,
        0.125,
        0.5,
        "r2",
        1,
        None,
    )
    assert found.mean == pytest.approx(0.875 / 3)


@pytest.mark.parametrize(
    ("aim", "met"),
    [
        (Aim("", median=0.25, p90=0.5), True),
        (Aim("", median=0.2, p90=0.5), False),
        (Aim("", p90=0.4), False),
        (Aim("", worst=0.49), False),
        (Aim("", mean=0.3), True),
        (Aim("", mean=0.2), False),
        (Aim("", never_under=True), False),
        (Aim("", right=0.1), False),
        (Aim("", contained=0.5), False),
    ],
)
def test_aims(aim, met):
    assert summarise(Group("g", aim, rows_off(-0.25, 0.125, 0.5))).met is met


def test_a_band_must_be_stated_for_every_row():
    inside, outside = Judged("a", 1.0, 1.5, "s", band=(0.9, 2.0)), Judged("b", 1.0, 1.5, "s", band=(1.1, 2.0))
    aim = Aim("", contained=0.5)
    assert summarise(Group("g", aim, (inside, outside))).met is True
    assert summarise(Group("g", Aim("", contained=0.9), (inside, outside))).met is False
    assert summarise(Group("g", aim, (inside, Judged("c", 1.0, 1.5, "s")))).met is False


def test_nothing_predicted_meets_no_aim():
    group = Group("g", Aim("all of it", worst=0.1), (Judged("a", 2.0, None, "s", "no predictor is given", note="GPT"),))
    assert summarise(group).met is None
    text = print_group(group)
    assert "not predicted: no predictor is given; GPT" in text and text.endswith("-- g: 0 rows compared, 1 not predicted")
    assert group_as_json(group)["rows"][0]["error"] is None


def test_a_verdict_tells_how_many_rows_were_not_asked():
    """An aim that is met by the rows that were asked alone says so."""
    late = Judged("late", 1.0, None, "s", "no schedule")
    assert print_summary(Group("g", Aim("", worst=0.2), (*rows_off(0.0, 0.125), late))).endswith("(r1): aim met, of 2 of 3 rows; 1 not asked")
    assert print_summary(Group("g", Aim("", ABSOLUTE, right=0.9), (*rows_off(0.0, -1.0), late, late))) == (
        "-- g: 2 rows, 2 not predicted: right in 50.0 %: AIM NOT MET, of 2 of 4 rows; 2 not asked"
    )
    assert print_summary(Group("g", Aim(""), (*rows_off(0.0), late))).endswith("no aim")


def test_a_group_as_text():
    group = Group("g", Aim("close", worst=0.2), rows_off(0.0, 0.25), lines=("   more",))
    text = print_group(group)
    assert text.splitlines()[0] == "== g: close" and "+25.00 %" in text and "   more" in text
    assert print_summary(group) == "-- g: 2 rows: median 12.50 %, p90 22.50 %, bias +12.50 %, worst 25.00 % (r1): AIM NOT MET"
    wrong = Group("order", Aim("", ABSOLUTE, right=0.5), rows_off(0.0, -1.0), only_wrong=True)
    assert (
        "r0" not in print_group(wrong)
        and "r1" in print_group(wrong)
        and print_summary(wrong) == "-- order: 2 rows: right in 50.0 %: aim met"
    )
    assert [r.row for r in select_rows(wrong, "*1").rows] == ["r1"]


# bubbles ----------------------------------------------------------------------------------------------------------------------------------


def rate_row(schedule="1F1B", p=2, m=1, times=(2.0, 3.0, 1.0, 0.5), model="6.2B"):
    return BubbleRate("r", "zb", "", model, p, m, schedule, *times, 0.5)


def test_bubble_of_one_microbatch_by_hand():
    """Two stages: forward 2, send 0.5, forward 2, backward 4, send 0.5, backward 4: 13 ms for 6 ms of work."""
    assert judge_rate(rate_row(), Published()).predicted == pytest.approx(1 - 6 / 13)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 3)])
def test_bubbles_without_sends_are_the_closed_forms(p, m):
    times = (2.0, 2.0, 1.0, 0.0)
    assert judge_rate(rate_row(p=p, m=m, times=times), Published()).predicted == pytest.approx((p - 1) / (m + p - 1))
    if m >= p:  # Source: arXiv:2401.10241 Table 2: (p - 1) (T_F + T_B - T_W) idle
        idle = (p - 1) * 3.0
        assert judge_rate(rate_row("ZB-H1", p, m, times), Published()).predicted == pytest.approx(idle / (idle + m * 5.0))


def test_why_a_bubble_is_not_predicted():
    assert "schedule ZB-H2 is not among ours" in judge_rate(rate_row("ZB-H2"), Published()).why
    assert "no run of this model tells its sizes" in judge_rate(rate_row("ZB-2p"), Published()).why
    assert judge_rate(rate_row(times=(1.0, None, 1.0, None)), Published()).why == "TB_ms, Tcomm_ms not printed"
    assert "no run of this model tells its layers" in judge_rate(rate_row("1F1B-I"), Published()).why


def test_interleaved_takes_its_chunks_from_the_model():
    tables = Published(runs=(Run("x", "zb", model="GPT 6.2B", layers=30),))
    assert chunks_of(rate_row("1F1B-I", 8), tables) == 4
    assert chunks_of(rate_row("1F1B-I", 7), tables) is None
    found = judge_rate(rate_row("1F1B-I", 8, 16, (4.0, 4.0, 4.0, 0.0)), tables).predicted
    assert found == pytest.approx(7 / (4 * 16 + 7))  # Source: arXiv:2104.04473 section 2.2.2: (p - 1) / (v m) of the work


def test_1f1b_is_judged_apart():
    judged, others, untimed = judge_bubbles(Published(bubbles=(rate_row(), rate_row("ZB-V"))))
    assert len(judged.rows) == len(others.rows) == 1 and others.aim.worst is None and not untimed.rows


def test_rates_tell_the_times_that_they_were_made_with():
    run = Run("x", "zb", model="GPT 6.2B", layers=30, hidden=4096, heads=32, seq_len=1024)
    times = (0.36, 0.36, 0.28, 0.02)
    made = {name: judge_rate(rate_row(name, 8, 24, times), Published(runs=(run,))).predicted for name in ("1F1B", "ZB-H1", "ZB-V", "ZB-2p")}
    none = (None, None, None, None)
    rows = tuple(replace(rate_row(name, 8, 24, none), row_id=name, bubble_rate=rate) for name, rate in made.items())
    _, _, untimed = judge_bubbles(Published(runs=(run,), bubbles=rows))
    found = {r.row: r for r in untimed.rows}
    assert found["1F1B"].predicted is found["ZB-H1"].predicted is None and "solved from" in found["1F1B"].why
    assert found["ZB-V"].predicted == pytest.approx(made["ZB-V"], abs=1e-6) and found["ZB-2p"].predicted == pytest.approx(made["ZB-2p"], abs=1e-6)
    assert 0 < made["ZB-2p"] < 0.02 < made["ZB-V"] < made["ZB-H1"]
    alone = replace(rows[2], bubble_rate=0.1)
    assert "neither times nor the rates" in judge_bubbles(Published(bubbles=(alone,)))[2].rows[0].why


# runs -------------------------------------------------------------------------------------------------------------------------------------

GPT_1T = Run(
    "1T", "ptdp", "Table 1", model="GPT 1T", family="dense", layers=128, hidden=25600, heads=160, vocab=51200, seq_len=2048, n_gpus=3072,
    global_bs=3072, hardware="A100-80GB", precision="fp16 mixed",
)  # fmt: skip


def test_seconds_of_flops_with_recompute():
    """Source: arXiv:2104.04473 equation 3: the 1T model at 163 TFLOP/s on 3072 devices takes 102.6 s."""
    run = replace(GPT_1T, tflops_per_gpu=163.0, tflops_kind="hardware incl recompute (eq.3)")
    assert measured_seconds(run).seconds == pytest.approx(102.6, abs=0.05)


def test_seconds_of_model_flops():
    """Source: arXiv:2205.05198 Table 5: the 22B model has an MFU of 41.5 % of 312 TFLOP/s at 1.10 s on 8 devices."""
    run = Run("22B", family="dense", model="GPT 22B", layers=48, hidden=6144, heads=64, vocab=51200, seq_len=2048, n_gpus=8, global_bs=4,
              tflops_per_gpu=0.415 * 312, tflops_kind="model = MFU x 312 (derived)")  # fmt: skip
    assert measured_seconds(run).seconds == pytest.approx(1.10, abs=0.005)


def test_seconds_of_eight_flops_a_parameter_and_token():
    run = Run("b", params_b=52.0, seq_len=1000, n_gpus=10, global_bs=5, tflops_per_gpu=20.0, tflops_kind="8*P*tokens (incl recompute)")
    assert measured_seconds(run).seconds == pytest.approx(8 * 52e9 * 5000 / (10 * 20e12))


def test_seconds_of_other_columns():
    run = Run("r", seq_len=100, n_gpus=4, global_bs=20)
    assert measured_seconds(replace(run, iter_time_s=3.0, samples_per_s_total=1.0)).seconds == 3.0
    assert measured_seconds(replace(run, tokens_per_s_per_gpu=50.0, samples_per_s_total=1.0)).seconds == 10.0
    assert measured_seconds(replace(run, samples_per_s_total=8.0)).seconds == 2.5
    assert measured_seconds(run).how == "no column tells its speed"
    assert measured_seconds(replace(run, global_bs=None)).how == "no column tells the batch"
    assert (
        measured_seconds(replace(run, tflops_per_gpu=30.0, tflops_kind="unspecified")).how
        == "FLOP/s of kind 'unspecified' do not say what they count"
    )
    assert measured_seconds(replace(run, tflops_per_gpu=30.0, tflops_kind="model", family="dense")).how == "layers is not printed"
    alpa = replace(run, tflops_per_gpu=30.0, tflops_kind="Alpa counting (GPT/MoE incl recompute)", family="moe")
    assert "moe models" in measured_seconds(alpa).how


def test_batch_of_torchtitan():
    assert global_batch(Run("t", "torchtitan", micro_bs=16, dp=32)) == 512
    assert global_batch(Run("t", "other", micro_bs=16, dp=32)) is None


def test_families():
    assert family_of(GPT_1T) == "PTD-P Tables 1, 2" and is_close(GPT_1T)
    assert not is_close(replace(GPT_1T, locator="sec 5.8")) and not is_close(replace(GPT_1T, hardware="V100-32GB"))
    foundry = Run("f", "llmfoundry", hardware="H100-80GB", precision="amp_fp8/DEFAULT")
    assert not is_close(foundry) and is_close(replace(foundry, precision="amp_bf16/DEFAULT"))
    (line,) = cover([GPT_1T])
    assert line.startswith("   PTD-P Tables 1, 2: 1 rows, 0 with seconds; not printed: dp 1, tp 1, pp 1, vpp 1, zero_stage 1, micro_bs 1, ")


def test_a_run_in_one_line():
    run = replace(GPT_1T, framework="Megatron-LM fork, schedule ZB-2p", dp=1, tp=8, pp=64, micro_bs=1)
    said = describe(run)
    assert "128 x 25600, 160 heads" in said and "tp 8 pp 64" in said and "ZB-2p" in said and "dp 1" not in said
    assert missing_of(run) == ("vpp", "zero_stage", "recompute", "seq_par") and "not printed: vpp zero_stage recompute seq_par" in said


# order and memory -------------------------------------------------------------------------------------------------------------------------


def contest(*seconds, batch=8):
    return [
        Run(f"r{i}", "s", model="GPT", hardware="A100", n_gpus=8, global_bs=batch, tp=2**i, iter_time_s=s, status="ok")
        for i, s in enumerate(seconds)
    ]


def test_pairs_and_regret():
    runs = contest(1.0, 2.0, 1.01, 4.0)
    said = {r.row_id: Prediction(seconds=s) for r, s in zip(runs, (1.5, 1.0, 3.0, 5.0))}
    pairs, (choice,) = rank(runs, said)
    assert {p.row: p.predicted for p in pairs} == {
        "r0 < r1": 0.0,
        "r0 < r3": 1.0,
        "r1 < r3": 1.0,
        "r2 < r1": 0.0,
        "r2 < r3": 1.0,
    }  # r0, r2: within 2 %
    assert row_error(choice, "relative") == 1.0 and choice.note == "chosen r1, best r0"


def test_batches_are_ranked_by_sample():
    (a,), (b,) = contest(1.0, batch=8), contest(1.5, batch=16)
    b = replace(b, row_id="b")
    (pair,), _ = rank([a, b], {"r0": Prediction(seconds=1.0), "b": Prediction(seconds=1.0)})
    assert pair.row == "b < r0" and pair.predicted == 1.0


def test_what_is_not_ranked():
    one = contest(1.0, 2.0)
    pairs, choices = rank([one[0], replace(one[1], tp=1)], {"r0": Prediction(), "r1": Prediction()})
    assert not pairs and not choices  # the same configuration, twice
    pairs, choices = rank([one[0], replace(one[1], n_gpus=16)], {"r0": Prediction(), "r1": Prediction()})
    assert not pairs and not choices
    (pair,), (choice,) = rank(one, {"r0": Prediction(seconds=1.0), "r1": Prediction(why="no such schedule")})
    assert pair.predicted is None and pair.why == choice.why == "no such schedule"


def test_what_no_predictor_could_order():
    a, b = contest(1.0, 2.0)
    again = [replace(a, row_id="a2", iter_time_s=3.0), replace(a, row_id="a3", iter_time_s=1.1)]
    runs = [a, b, *again]
    pairs, _ = rank(runs, {r.row_id: Prediction(seconds=1.0 if r.tp == 1 else 2.0) for r in runs})
    assert {p.row: p.predicted for p in pairs} == {"r0 < r1": 1.0, "a3 < r1": 1.0, "r1 < a2": 0.0}
    named = {r.row_id: r for r in runs}
    assert count_orderable([tuple(named[name] for name in p.row.split(" < ")) for p in pairs]) == 2
    assert count_orderable([(a, b)]) == count_orderable([(b, a)]) == 1


def test_steps_with_a_predictor():
    tables = Published(
        runs=(replace(GPT_1T, iter_time_s=100.0, status="ok"), *contest(1.0, 2.0), replace(GPT_1T, row_id="x", status="OOM"))
    )
    groups = {g.name: g for g in judge_steps(tables, lambda run: Prediction(seconds=110.0, scaled_s=101.0, band=0.5))}
    assert summarise(groups["steps"]).median == pytest.approx(0.1) and summarise(groups["steps scaled"]).median == pytest.approx(0.01)
    assert summarise(groups["steps others"]).contained == 0.0 and len(groups["steps others"].rows) == 2
    assert groups["ranking"].lines == ("   s: 1 pairs, 0 of 1 predicted in order",)


def test_bands_are_stated_by_what_is_not_known():
    run = Run("r", "torchtitan", hardware="H100-80GB", precision="bf16")
    assert band_of(run) == 0.48 and band_of(replace(run, hardware="H100-96GB HBM2e 2.4TB/s 500W")) == pytest.approx(0.40)
    assert band_of(replace(run, precision="float8")) == pytest.approx(1 / 3 + 0.11) and narrow_gain(replace(run, precision="NVFP4")) == 4.0
    assert band_of(replace(run, source_id="llmfoundry")) is None  # judged closely
    assert band_of(replace(run, source_id="bigsci")) == pytest.approx(1.48 / 0.6 - 1)  # one run's speed moves by 40 %, its source says


def test_what_narrow_matmuls_take():
    run = Run("r", "torchtitan", hardware="H100-80GB", precision="bf16")
    assert narrow_share(run) == 1.0 and narrow_share(replace(run, precision="fp8 tensorwise")) == 0.75 and narrow_share(replace(run, precision="NVFP4")) == 0.625
    assert narrow_share(replace(run, precision="fp8 rowwise")) == pytest.approx(0.87, abs=0.005)  # scales by rows save half of what scales by tensors do


def test_what_frameworks_do_beside_the_step():
    run = Run("r", "llmfoundry", family="dense", layers=12, hidden=768, heads=12, vocab=50368, seq_len=2048, n_gpus=8, global_bs=64, micro_bs=4)
    assert side_seconds(run, 1e12) == 2 * 14 * 8 * 2048 * 50368 / 1e12 and side_bytes(run) == 0
    megatron = replace(run, source_id="zb", tp=2)
    assert side_seconds(megatron, 1e12) == 0.0 and side_bytes(megatron) == 2 * 4 * 6 * 2048**2


def test_torchtitan_prints_the_local_batch():
    run = Run("r", "torchtitan", framework="torchtitan", n_gpus=512, dp=8, tp=8, pp=8, micro_bs=8)
    assert constraints_of(row_of(run)).microbatch == 1
    assert constraints_of(row_of(replace(run, dp=64, pp=1))).microbatch == constraints_of(row_of(replace(run, framework="Megatron-Core"))).microbatch == 8


def test_degrees_that_are_left_are_free():
    """A row may print tp, pp and cp and leave dp to the number of devices; what it prints whole must make that number."""
    run = Run("r", "mbridge", framework="Megatron-Bridge", n_gpus=256, tp=2, pp=8, cp=2, vpp=4, micro_bs=1)
    asked = constraints_of(row_of(run))
    assert dict(asked.degrees) == {"tp": 2, "pp": 8, "sp": 2} and asked.vpp == 4
    assert dict(constraints_of(row_of(replace(run, dp=8))).degrees)["dp"] == 8
    with pytest.raises(NotExpressible, match="make 128 devices, printed are 256"):
        constraints_of(row_of(replace(run, dp=4)))
    with pytest.raises(NotExpressible, match="make 32 devices, printed are 250"):
        constraints_of(row_of(replace(run, n_gpus=250)))


def test_rows_of_bigscience():
    run = Run("r", "bigsci", framework="Megatron + Deepspeed ZeRO (old branch)", model="GPT2-like 52B", family="dense", hardware="V100-SXM2 4/node Jean Zay (32 GB unless the 16 GB table)",
              gpus_per_node=4, n_gpus=64, dp=32, tp=2, seq_len=1024, global_bs=1024, micro_bs=32, recompute="full", precision="fp16")  # fmt: skip
    sizes, cluster, asked = sizes_of(row_of(run)), cluster_of(row_of(run)), constraints_of(row_of(run))
    assert (sizes.layers, sizes.hidden, sizes.heads) == (64, 8192, 32) and asked.zero == 3
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.device.name) == (16, 4, "V100-32GB")
    assert 4 * cluster.across.bandwidth_bytes_per_s == pytest.approx(13.55e9, rel=1e-3)  # of a host
    with pytest.raises(NotExpressible, match="layers is not printed"):
        sizes_of(row_of(replace(run, model="GPT2-like 22B")))
    with pytest.raises(NotExpressible, match="do not use"):
        constraints_of(row_of(replace(run, notes="source says the size is wrong for these rows: do not use")))
    with pytest.raises(NotExpressible, match="states on the host"):
        constraints_of(row_of(replace(run, notes="ID=8; PA_CPU=Y; noisy shared network")))
    staged = replace(run, framework="Megatron", dp=1, tp=4, pp=16, micro_bs=4)
    assert constraints_of(row_of(staged)).vpp == 1 and constraints_of(row_of(replace(staged, source_id="ptdp"))).vpp is None
    alone = constraints_of(row_of(replace(run, framework="HF + Deepspeed Zero 3 + Full Offload", zero_stage="3", dp=None, tp=None, notes="Opt Offl=N; Par Offl=N")))
    assert dict(alone.degrees) == {"dp": 64, "tp": 1, "pp": 1} and alone.zero == 3


def test_what_rows_say_by_name():
    run = Run("r", "mbridge", model="LLAMA3.1_405B", family="dense", hardware="DGX-GB200", n_gpus=256, seq_len=8192, global_bs=512)
    sizes = sizes_of(row_of(run))
    assert (sizes.layers, sizes.hidden, sizes.heads, sizes.wide, sizes.vocab) == (126, 16384, 128, 53248, 128256)
    cluster = cluster_of(row_of(run))
    assert (cluster.num_hosts, cluster.devices_per_host) == (4, 64)
    device = cluster_of(row_of(replace(run, hardware="H100-96GB HBM2e 2.4TB/s 500W Grand Teton"))).device
    assert (device.memory_bytes, device.memory_bytes_per_s, device.power_w) == (96 * 2**30, 2.4e12, 500.0)


def test_context_parallel_runs_are_predicted():
    """Both an axis of the sequence beside stages and the same sequence on one rank of it; split among two it takes half, and what keys and values travel."""
    run = Run(
        "r", "nemo2407", framework="NeMo", model="gpt", family="dense", layers=4, hidden=1024, heads=8, vocab=1024, seq_len=16384, n_gpus=4, dp=1, tp=1, pp=2, cp=2, vpp=1,
        micro_bs=1, global_bs=4, zero_stage="0", recompute="none", hardware="DGX-H100", precision="bf16",
    )  # fmt: skip
    predict = SearchPredictor()
    split, whole = predict(run), predict(replace(run, row_id="q", cp=1, n_gpus=2))
    assert split.why == "pp=2 sp=2, 4 microbatches, 1f1b" and whole.why == "pp=2 1 rank, 4 microbatches, 1f1b"
    assert 0.5 < split.seconds / whole.seconds < 0.7


def test_degrees_that_a_framework_says():
    run = Run("r", "alpa", framework="Alpa inter_only", n_gpus=8, recompute="full")
    assert dict(constraints_of(row_of(run)).degrees) == {"dp": 1, "tp": 1, "pp": 8}
    assert constraints_of(row_of(replace(run, framework="Alpa intra_only"))).degrees == (("pp", 1),)
    assert dict(constraints_of(row_of(replace(run, framework="Megatron-LM v2", n_gpus=1))).degrees)["pp"] == 1
    zero = replace(run, framework="Alpa zero_2", model="gpt (ablation)", family="dense", locator="osdi22_artifact/results_intra_ablation_ref.tsv")
    assert dict(constraints_of(row_of(zero)).degrees)["dp"] == 8 and constraints_of(row_of(zero)).zero == 2
    assert (sizes_of(row_of(zero)).hidden, sizes_of(row_of(zero)).layers, sizes_of(row_of(zero)).batch) == (5760, 8, 8)
    with pytest.raises(NotExpressible, match="no degree is printed"):
        constraints_of(row_of(replace(run, framework="Megatron-LM v2")))


def test_memory_with_a_predictor():
    peak = Run("p", "zb", peak_mem_gb=10.0, status="ok")
    tables = Published(
        runs=(peak, replace(peak, row_id="q", source_id="alpa"), Run("o", "alpa", status="OOM/failed")),
        image_runs=(ImageRun("u", status="OOM"),),
    )
    said = Prediction(peak_bytes=9.5 * 10**9, reserved_bytes=10.5 * 10**9, fits=True)
    groups = {g.name: g for g in judge_memory(tables, lambda run: said)}
    assert row_error(groups["memory"].rows[0], "relative") == pytest.approx(-0.05) and summarise(groups["memory with reserve"]).met is True
    (other,) = groups["memory others"].rows
    assert (groups["memory"].rows[0].unit, other.unit, other.predicted) == ("GB", "GiB", 9.5 * 10**9 / 2**30) and other.row == "q"
    assert [r.row for r in groups["out of memory"].rows] == ["o", "u"]
    assert summarise(groups["out of memory"]).right == 0.0 and summarise(groups["fitted"]).met is True


# closed forms, plans ----------------------------------------------------------------------------------------------------------------------


def test_closed_forms_are_arithmetic():
    assert evaluate("s*b*h*(34 + 5*a*s/h)", {"s": 4, "b": 2, "h": 8, "a": 2}) == 4 * 2 * 8 * (34 + 5)
    assert evaluate("72*h**2", {"h": 2}) == 288
    for text in ("O(sqrt(n))", "h + nobody", "'h'*3", "(h"):
        with pytest.raises(ValueError, match="is not arithmetic over h"):
            evaluate(text, {"h": 2})


def test_layers_in_flight():
    """Source: arXiv:2205.05198 section 4.2.3: L layers' worth, interleaved 1 + (p-1)/(p m) times as many."""
    assert layers_held(SETTINGS["22B"]) == 48 and layers_held(SETTINGS["175B"]) == 96
    assert layers_held(SETTINGS["175B"], 3) == pytest.approx(96 * (1 + 7 / 24))


@pytest.mark.torch
def test_states_of_plans():
    """Source: arXiv:1910.02054 Table 1: 2 + 2 + 12 bytes a parameter, of which each stage divides more."""
    from benchmarks.fidelity_zero import judge_states, plan_states
    from benchmarks.published import MemoryCell

    assert plan_states(1, 3).total == 16
    assert [plan_states(4, stage).total for stage in range(4)] == [16, 2 + 2 + 3, 2 + 0.5 + 3, 4]
    assert plan_states(4, 1).grad_held == 4  # the sum over microbatches is fp32
    cell = MemoryCell("c", "zero", params_b=7.5, dp=4, zero_stage="Pos+g", value=41.3, value_text="41.3", unit="GB(1e9)")
    assert abs(row_error(judge_states(cell), PLACES)) < EXACT
    assert "stage 'Pos+x' is not among" in judge_states(replace(cell, zero_stage="Pos+x")).why
    assert "degree of data parallelism is not printed" in judge_states(replace(cell, dp=None)).why
    assert "dp=3: expected a divisor of 1024" in judge_states(replace(cell, dp=3)).why


@pytest.mark.torch
def test_activations_of_a_layer():
    """Source: arXiv:2205.05198 equations 1, 2, 4 and Table 2; beside them two norms hold two 16-bit statistics a token.

    The rest is scalars: the three dropouts' counters and two 16-bit constants.
    """
    from benchmarks.fidelity_megatron import Layer, layer_bytes

    s, b, h, a, t = 32, 2, 64, 4, 2
    core = 5 * a * s / h
    forms = {
        (1, False, "none"): 34 + core,
        (t, False, "none"): 10 + 24 / t + core / t,
        (t, True, "none"): 34 / t + core / t,
        (t, False, "selective"): 10 + 24 / t,
        (t, True, "selective"): 34 / t,
        (t, False, "full"): 2,
    }
    for (tp, sequence_parallel, recompute), form in forms.items():
        rest = layer_bytes(Layer(s, b, h, a, tp), sequence_parallel, recompute) - s * b * h * form
        statistics = 0 if recompute == "full" else 8 * s * b / (t if sequence_parallel else 1)
        assert rest - statistics == 3 * 8 + 2 * 2
    one = Layer(s, 1, h, a, t)
    assert layer_bytes(one, True, "none") == s * h * forms[t, True, "none"] + 8 * s / t + 3 * 8 + 2 * 2


def test_words_that_no_run_can_have_are_told(tmp_path):
    """Not read as what is not printed, nor left out of all groups without a word."""
    tables = load_published(write_tables(tmp_path, throughput="row_id,status\na,OK\nb,ok\n", pipeline_bubbles="row_id,bubble_rate\nc,2.5\nd,0.25\n"))
    assert "throughput.csv: a: status: expected one of ok, OOM, OOM/failed, found 'OK': in no group" in tables.notes and not any("b: status" in note for note in tables.notes)
    assert any("c: bubble_rate: expected a number" in note and "of at most 1" in note for note in tables.notes) and not any("d: bubble" in note for note in tables.notes)
    row = row_of(replace(GPT_1T, precision="int4"))
    with pytest.raises(NotExpressible, match="precision int4: not a word of 16 or 32 bits"):
        precision_of(row)
    assert [precision_of(row_of(replace(GPT_1T, precision=word))) for word in ("", "fp16", "amp_bf16/DEFAULT", "16-bit mixed", "fp32")] == ["bf16", "bf16", "bf16", "bf16", "fp32"]
    with pytest.raises(NotExpressible, match="zero_stage 9: ZeRO has stages 0 to 3"):
        zero_of(row_of(replace(GPT_1T, zero_stage="9")))
