"""Models of published rows: as many parameters as their sources print, rows that are asked, and rows that say why they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fidelity_memory import judge_memory
from benchmarks.fidelity_predict import SearchPredictor, band_of
from benchmarks.fidelity_runs import Prediction, measured_seconds, row_of
from benchmarks.fidelity_steps import judge_steps
from benchmarks.fidelity_table import summarise
from benchmarks.published import ImageRun, MemoryCell, Published
from benchmarks.published_models import UnetSizes, run_of_image, traced_model, unet_sizes
from benchmarks.published_rows import NotExpressible, cluster_of, constraints_of, precision_of

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
