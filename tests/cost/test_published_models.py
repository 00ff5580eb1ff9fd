"""Models of published rows: as many parameters as their sources print, rows that are asked, and rows that say why they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.alpa_runs import GptSizes, MoeSizes, ResnetSizes, count_compiled_flops, count_moe_flops, count_moe_params
from benchmarks.fidelity_memory import judge_memory
from benchmarks.fidelity_predict import SearchPredictor, band_of
from benchmarks.fidelity_runs import Prediction, counted_flops, measured_seconds, row_of
from benchmarks.fidelity_steps import judge_steps
from benchmarks.fidelity_table import summarise
from benchmarks.published import ImageRun, MemoryCell, Published, Run
from benchmarks.published_models import UnetSizes, run_of_image, traced_model, unet_sizes
from benchmarks.published_rows import NotExpressible, Sizes, cluster_of, constraints_of, precision_of

NNUNET = ImageRun(
    "nnunet", "dle_nnunet", model="nnU-Net 3D (BraTS, 4ch)", task="train", hardware="V100-16GB", n_gpus=8, batch_per_gpu=2, patch_or_image="4x128x128x128", precision="amp fp16",
    throughput_img_s=32.0, status="ok",
)  # fmt: skip


def test_a_row_of_images_is_a_run():
    run = run_of_image(NNUNET)
    row = row_of(run)
    assert unet_sizes(row) == UnetSizes(4, (128, 128, 128), 16) and precision_of(row) == "bf16" and precision_of(row_of(replace(run, precision="tf32"))) == "fp32"
    assert dict(constraints_of(row).degrees) == {"dp": 8, "tp": 1, "pp": 1} and constraints_of(row).recompute == "none"
    assert (cluster_of(row).device.name, measured_seconds(run).seconds, band_of(run)) == ("V100-16GB", 0.5, 0.48)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source_id": "gpipe"}, "TPUs, or on P100 over PCIe"),
        ({"source_id": "pipedream"}, "Titan X, which has no preset"),
        ({"source_id": "owt"}, "K20, which has no preset"),
        ({"source_id": "other"}, "no trace of this model is built here"),
        ({"patch_or_image": "224x224"}, "expected a 3D model, and channels x depth x height x width"),
        ({"patch_or_image": ""}, "patches that are not printed"),
        ({"task": "predict"}, "task predict: training steps alone"),
        ({"batch_per_gpu": None}, "its batch are not printed"),
    ],
)
def test_a_row_of_images_that_is_not_asked_says_why(change, why):
    image = replace(NNUNET, speedup=1.5, relative_to="1 GPU", **change)
    with pytest.raises(NotExpressible, match=why):
        run_of_image(image)
    assert why in SearchPredictor()(image).why
    groups = {g.name: g for g in judge_steps(Published(image_runs=(image,)), SearchPredictor())}
    (judged,) = groups["steps of images"].rows
    assert judged.predicted is None and why in judged.why and (judged.published, judged.unit) == (1.5, "times 1 GPU")


def test_rows_of_images_are_judged_by_their_band():
    tables = Published(image_runs=(NNUNET, replace(NNUNET, row_id="slow", throughput_img_s=16.0), replace(NNUNET, row_id="large", status="OOM")))
    said = Prediction(seconds=0.4, band=0.48, fits=True)
    steps = {g.name: summarise(g) for g in judge_steps(tables, lambda run: said)}
    assert steps["steps of images"].count == 2 and steps["steps of images"].contained == 0.5
    memory = {g.name: summarise(g) for g in judge_memory(tables, lambda run: said)}
    assert memory["out of memory"].right == 0.0 and memory["fitted"].right == 1.0


def test_memory_of_images_says_why_it_is_not_asked():
    tables = Published(memory=(MemoryCell("a", "nnunet", value=7.7, unit="GB"), MemoryCell("b", "maisi", value=14.0), MemoryCell("c", "zero", value=1.0)))
    groups = {g.name: g for g in judge_memory(tables, lambda run: Prediction())}
    assert [(r.row, r.published, r.predicted) for r in groups["memory of images"].rows] == [("a", 7.7, None), ("b", 14.0, None)]
    assert "planned for each data set" in groups["memory of images"].rows[0].why and "inference" in groups["memory of images"].rows[1].why


@pytest.mark.torch
def test_nnunet_is_as_large_as_monai_builds_it():
    """Source: `DynUNet(3, 4, 4, ...)` of MONAI with the kernels and strides of NVIDIA's `get_unet_params` for task 01; 31.2 million."""
    model = traced_model(row_of(run_of_image(NNUNET))).build().model
    assert sum(p.numel() for p in model.parameters()) == 31_192_868
    assert [block[0].conv.out_channels for block in model.down] == [32, 64, 128, 256, 320, 320]


@pytest.mark.torch
def test_nnunet_is_predicted():
    """TF32 has matmuls that float32 has not; a large batch does not fit."""
    small = replace(NNUNET, patch_or_image="4x64x64x64", n_gpus=1, hardware="A100-80GB")
    half, tf32, whole = (SearchPredictor()(replace(small, precision=word)) for word in ("amp fp16", "tf32", "fp32"))
    assert half.why == "1 rank, 1 microbatch" and half.band == 0.48 and half.fits
    assert tf32.seconds < whole.seconds and tf32.peak_bytes == whole.peak_bytes > half.peak_bytes
    assert SearchPredictor()(replace(small, batch_per_gpu=64, hardware="V100-16GB")).fits is False


# Alpa -------------------------------------------------------------------------------------------------------------------------------------

ALPA = Run(
    "r", "alpa", locator="osdi22_artifact/results_e2e_ref.tsv", framework="Alpa intra_only", model="wresnet 1B", family="cnn", hardware="V100-16GB AWS p3.16xlarge, 25 Gb/s between nodes",
    gpus_per_node=8, n_gpus=4, global_bs=1536, recompute="yes", precision="fp32", tflops_kind="Alpa counting (GPT/MoE incl recompute)", status="ok",
)  # fmt: skip
MOE = replace(ALPA, model="moe 1.3B", family="moe", ep=16, global_bs=1024, recompute="full", precision="fp16")
ABLATION = {"locator": "osdi22_artifact/results_intra_ablation_ref.tsv", "global_bs": None, "framework": "Alpa zero_2", "ep": None}


def test_plans_of_wide_resnets():
    def asked(**change):
        return constraints_of(row_of(replace(ALPA, **change)))

    alone = asked()
    assert (alone.degrees, alone.microbatches, alone.recompute) == ((("pp", 1),), 32, "none")
    stages = asked(framework="Alpa inter_only")
    assert (dict(stages.degrees), stages.microbatches, stages.vpp, stages.recompute) == ({"dp": 1, "tp": 1, "pp": 4}, 64, 1, "full")
    found = asked(framework="Alpa auto", model="wresnet 6.8B", n_gpus=32)
    assert (dict(found.degrees), found.microbatches, found.vpp) == ({"pp": 4}, 32, 1)
    assert (dict(asked(framework="Alpa ppdp", model="wresnet 13B", n_gpus=64).degrees), asked(framework="Alpa ppdp", model="wresnet 13B", n_gpus=64).vpp) == ({"tp": 1}, 1)
    ablation = asked(**ABLATION)
    assert (dict(ablation.degrees), ablation.zero, ablation.microbatches, ablation.recompute) == ({"dp": 4, "tp": 1, "pp": 1}, 2, 1, "none")
    assert traced_model(row_of(replace(ALPA, **ABLATION))).sizes == ResnetSizes(320, 2, 32, 1)


def test_plans_of_mixtures_of_experts():
    def asked(**change):
        return constraints_of(row_of(replace(MOE, **change)))

    assert (asked().degrees, asked().microbatches, asked().recompute) == ((("pp", 1),), 16, "full")
    assert (dict(asked(framework="Alpa inter_only").degrees), asked(framework="Alpa inter_only").microbatches) == ({"dp": 1, "tp": 1, "pp": 4}, 128)
    assert dict(asked(framework="Alpa auto").degrees) == {"dp": 2, "pp": 2}
    assert dict(asked(framework="Alpa auto", model="moe 27B", n_gpus=32).degrees) == {"pp": 8}
    assert traced_model(row_of(MOE)).sizes == MoeSizes(16, 768, 16, 16, 32000, 1024, 2048, 1024, True)
    assert traced_model(row_of(replace(MOE, **ABLATION))).sizes == MoeSizes(8, 1536, 24, 16, 51200, 1024, 1024, 8, True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"framework": "Alpa auto", "n_gpus": 16, "model": "wresnet 4B"}, "different numbers of devices"),
        ({"framework": "Alpa ppdp"}, "different numbers of devices"),
        ({"framework": "Alpa equal_eqn"}, "neither printed nor in its source's code"),
        ({"framework": "Alpa auto", "n_gpus": 64, "model": "wresnet 13B"}, "neither printed nor in its source's code"),
        ({"model": "wresnet 3B"}, "wresnet 3B is no model of its suites"),
        ({**ABLATION, "n_gpus": 16}, "no model for 16 devices"),
        ({"family": "moe", "model": "moe 1.3B", "framework": "DeepSpeed MoE"}, "neither printed nor in its source's code"),
        ({**ABLATION, "framework": "Alpa heuristic"}, "no degree is printed"),
    ],
)
def test_alpas_rows_that_are_not_asked_say_why(change, why):
    assert why in SearchPredictor()(replace(ALPA, **change)).why


def test_a_search_that_fails_says_so(monkeypatch):
    """The other rows are asked all the same."""

    def fail(self, run):
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(SearchPredictor, "_predict", fail)
    assert SearchPredictor()(ALPA) == Prediction(why="the search failed: IndexError: tuple index out of range")


def test_alpa_counts_what_it_compiled():
    """Source: the rows of osdi22_artifact that print seconds beside FLOP/s: 368.3 TFLOP a step of the 250M, 1,580 of the 690M in two stages."""
    small = replace(ALPA, model="wresnet 250M", n_gpus=1)
    assert counted_flops(small) == pytest.approx(8.3738e12 * 43.9851, rel=1e-3)
    assert counted_flops(replace(small, framework="Alpa inter_only")) == pytest.approx(4 / 3 * 8.3738e12 * 43.9851, rel=5e-3)
    ablation = replace(small, locator="osdi22_artifact/results_inter_ablation_ref.tsv", framework="Alpa auto_stage", global_bs=None, tflops_per_gpu=8.3)
    assert measured_seconds(ablation).seconds == pytest.approx(counted_flops(ablation) / 8.3e12), "its batch is told by the source's code"
    staged = replace(MOE, model="moe 690M", framework="Alpa inter_only", n_gpus=2)
    assert counted_flops(staged) == pytest.approx(2 * 40.7499e12 * 19.3882, rel=1e-4)
    assert measured_seconds(replace(staged, tflops_per_gpu=40.7499)).seconds == pytest.approx(19.3882, rel=1e-4)


@pytest.mark.parametrize(("devices", "tflops", "seconds"), [(1, 45.492902, 0.4982), (1, 45.528674, 0.4978), (2, 38.890024, 0.4261), (2, 24.895107, 0.6656), (2, 20.847743, 0.7949)])
def test_alpas_embeddings_are_products(devices, tflops, seconds):
    """Source: results_intra_ablation_ref.tsv, whose FLOP/s are XLA's count of what it compiled over its seconds: with lookups an eighth of it would be missing."""
    sizes = traced_model(row_of(replace(MOE, **ABLATION, n_gpus=devices))).sizes
    counted = devices * tflops * 1e12 * seconds
    assert count_compiled_flops(sizes) == pytest.approx(counted, rel=3e-4)
    assert count_moe_flops(sizes, True) < 0.91 * counted


@pytest.mark.parametrize(("model", "params_b"), [("380M", 0.3835), ("690M", 0.6857), ("1.3B", 1.3468), ("27B", 26.6481), ("70B", 70.4152)])
def test_alpas_closed_form_of_experts_is_what_it_prints(model, params_b):
    assert count_moe_params(traced_model(row_of(replace(MOE, model=f"moe {model}"))).sizes) / 1e9 == pytest.approx(params_b, abs=5e-5)


@pytest.mark.torch
@pytest.mark.parametrize(("model", "params_b"), [("250M", 0.254123104), ("500M", 0.495046176), ("1B", 1.0057), ("6.8B", 6.7277), ("13B", 13.2671)])
def test_wide_resnets_are_as_large_as_printed(model, params_b):
    built = traced_model(row_of(replace(ALPA, model=f"wresnet {model}"))).build().model
    assert sum(p.numel() for p in built.parameters()) / 1e9 == pytest.approx(params_b, abs=5e-5)


@pytest.mark.torch
@pytest.mark.parametrize(("devices", "params_b"), [(1, 0.690395), (2, 1.90144)])
def test_mixtures_of_experts_are_as_large_as_printed(devices, params_b):
    """But for what the closed form counts and the model lacks (biases of experts), and the other way round (gates, places)."""
    row = row_of(replace(MOE, **ABLATION, n_gpus=devices))
    assert count_moe_params(traced_model(row).sizes) / 1e9 == pytest.approx(params_b, abs=1e-6)
    assert sum(p.numel() for p in traced_model(row).build().model.parameters()) / 1e9 == pytest.approx(params_b, rel=2e-3)


def test_alpas_gpts_are_its_own_and_those_of_others_are_megatrons():
    run = replace(ALPA, model="gpt 350M", family="dense", framework="Alpa intra_only", layers=24, hidden=1024, heads=16, vocab=51200, seq_len=1024, global_bs=1024, precision="fp16")
    assert traced_model(row_of(run), True).sizes == GptSizes(24, 1024, 16, 51200, 1024, 1024, True)
    assert traced_model(row_of(replace(run, framework="Alpa auto")), True).sizes == GptSizes(24, 1024, 16, 51200, 1024, 1024, False)
    assert isinstance(traced_model(row_of(replace(run, framework="Megatron-LM v2 (grid search)")), True).sizes, Sizes)
    assert counted_flops(run) == pytest.approx(46.2003e12 * 71.1109, rel=1e-4), "counted as those of others are"


def test_what_xla_does_and_megatron_does_not(monkeypatch):
    """Nothing is sent beside compute, and each sum along rows ends a kernel; of Alpa's own runs, not of those that it ran by Megatron-LM."""
    from autopar.solver import pipeline

    class Asked(Exception):
        pass

    def stop(cases, model, *rest, **words):
        raise Asked(model)

    monkeypatch.setattr(pipeline, "PipelineSearch", stop)
    monkeypatch.setattr(SearchPredictor, "_case", lambda self, row, as_megatron: None)
    for framework, habits in (("Alpa zero_2", (True, 1.0)), ("Megatron-LM v2 (grid search)", (False, 0.5))):
        run = replace(ALPA, framework=framework, model="gpt 350M", family="dense", layers=24, hidden=1024, heads=16, vocab=51200, seq_len=1024, global_bs=1024, precision="fp16", pp=1)
        with pytest.raises(Asked) as found:
            SearchPredictor()._predict(run)
        assert (found.value.args[0].sums_end_kernels, found.value.args[0].exposed_share) == habits


@pytest.mark.torch
def test_embeddings_are_rows_and_their_products_run_again():
    """Forward, again with the layers (priced with their blocks, which run again whole), and for the weights."""
    import torch

    from autopar.graph.repeats import block_of
    from autopar.trace import trace_step
    from benchmarks.published_alpa import Embedding, Lm, build_gpt

    built = Embedding(7, 5)
    torch.nn.init.normal_(built.weight)
    numbers = torch.tensor([[0, 6, 3]])
    assert torch.equal(built(numbers), built.weight[numbers])
    tied = Lm(7, 5, 8, (), True)
    assert tied.head.weight is tied.embeddings[0].weight
    small = build_gpt(11, 4, 2, 8, 2, 3, False)
    assert small.model.head.weight.shape == (11, 8)
    traced = trace_step(small, "fp32").graph
    assert not traced.sequences and {block_of(n.path) for n in traced.nodes if n.path.startswith("embeddings")} == {("embeddings", 0), ("embeddings", 1)}


@pytest.mark.torch
def test_experts_take_what_they_have_room_for():
    """Two experts a token, each with 2 S / E places of a group of S; the weights of a token that found both add up to 1."""
    import torch

    from benchmarks.published_alpa import route

    gates = torch.softmax(torch.randn(3, 16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), -1)
    combine = route(gates)
    assert combine.shape == (3, 16, 4, 8)
    assert (combine > 0).sum(1).max() == 1, "no place is given twice"
    assert (combine > 0).flatten(2).sum(-1).max() == 2
    weights = combine.sum((2, 3))
    assert ((weights - 1).abs() < 1e-12).logical_or(weights == 0).all()
    assert set(combine[0, 0].sum(-1).nonzero().flatten().tolist()) == set(gates[0, 0].topk(2).indices.tolist())


@pytest.mark.torch
def test_adafactor_keeps_means_of_rows_and_columns():
    import torch

    from benchmarks.published_alpa import Adafactor

    large, small = torch.nn.Parameter(torch.ones(2, 128, 256)), torch.nn.Parameter(torch.ones(64, 3))
    optimizer = Adafactor([large, small], lr=0.1)
    (large.square().sum() / 2 + small.sum()).backward()
    optimizer.step()
    assert {name: tuple(value.shape) for name, value in optimizer.state[large].items()} == {"row": (2, 128), "column": (2, 256)}
    assert optimizer.state[small]["square"].shape == small.shape
    assert torch.allclose(large, torch.full_like(large, 0.9)) and torch.allclose(small, torch.full_like(small, 0.9)), "a first step of equal gradients is lr times the size"


@pytest.mark.torch
def test_alpas_models_are_predicted():
    """Without parallelism ZeRO changes nothing; a data parallel model of 2B parameters does not fit in 16 GB."""
    one = replace(ALPA, **ABLATION, n_gpus=1)
    found = SearchPredictor()(one)
    assert found.why == "1 rank, 1 microbatch" and found.fits and found.band == 0.48 and 8 < found.peak_bytes / 2**30 < 11
    assert SearchPredictor()(replace(one, framework="Alpa data_parallel", n_gpus=8)).fits is False
    experts = SearchPredictor()(replace(MOE, **ABLATION, n_gpus=1))
    assert experts.why == "1 rank, 1 microbatch" and experts.fits and 0.2 < experts.seconds < 0.7
