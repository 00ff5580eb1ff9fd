"""Which model a published row trains, and how its training step is built.

In: a row. Out: its sizes, which tell one model from another, and what builds the workload; rows of throughput_cnn.csv as runs of throughput.csv. A row whose model
is not built here is a `NotExpressible` with the reason. Imports no torch until a model is built.

Sizes that a table does not print are those of the source's code: Alpa's are in `alpa_runs`. nnU-Net is NVIDIA's (DeepLearningExamples, PyTorch/Segmentation/nnUNet): its benchmark
(`scripts/benchmark.py`) trains task 01, the brain tumours of the Medical Segmentation Decathlon, in 3D with the defaults of `utils/args.py`: fused Adam, no deep
supervision, `accelerator="ddp"`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.alpa_runs import GptSizes, MoeSizes, ResnetSizes
from benchmarks.published import ImageRun, Run
from benchmarks.published_rows import NotExpressible, Row, build_workload, sizes_of

NNUNET = "dle_nnunet"
# Why other sources of throughput_cnn.csv cannot be asked.
_REFUSED = {
    "gpipe": "it ran on TPUs, or on P100 over PCIe, which have no preset, and prints speeds relative to its own smallest run: no seconds",
    "pipedream": "it ran on Titan X, which has no preset, and prints speeds to an accuracy relative to one machine: no seconds of a step",
    "owt": "it ran on K20, which has no preset, and prints speeds of 90 epochs relative to one device: no seconds of a step",
}  # fmt: skip
_PATCH = r"(\d+)x(\d+)x(\d+)x(\d+)"


@dataclass(frozen=True, slots=True)
class UnetSizes:
    """An nnU-Net: channels of the input, voxels of its three dims, patches of the whole batch.

    Levels and classes: six, as sides of 128 are halved down to 4 (`get_unet_params`, nnunet/nn_unet.py: `depth` 5, `min_fmap` 4), and four of task 01.
    """

    channels: int
    patch: tuple[int, int, int]
    batch: int
    levels: int = 6
    classes: int = 4


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model by its sizes, and what builds its workload."""

    sizes: object
    build: Callable[[], Any]


def traced_model(row: Row, as_megatron: bool = False) -> TracedModel:
    """The model of a row.

    Args:
        as_megatron: see `build_workload`.

    Raises:
        NotExpressible: a size is not known, or no such model is built here.
    """
    if row.get("source_id") == NNUNET:
        unet = unet_sizes(row)
        return TracedModel(unet, lambda: _build_unet(unet))
    if row.get("source_id") == "alpa" and row.get("family") == "cnn":
        resnet = ResnetSizes(row.need("hidden"), row.need("factor"), row.need("global_bs"), row.need("turns"))
        return TracedModel(resnet, lambda: _build_resnet(resnet))
    if row.get("source_id") == "alpa" and row.get("family") == "moe":
        names = ("layers", "hidden", "heads", "experts", "vocab", "seq_len", "group", "global_bs")
        moe = MoeSizes(*(row.need(name) for name in names), tied=row.get("tied") == "1")
        return TracedModel(moe, lambda: _build_moe(moe))
    sizes = sizes_of(row)
    if row.get("framework").startswith("Alpa "):
        gpt = GptSizes(sizes.layers, sizes.hidden, sizes.heads, sizes.vocab, sizes.seq, sizes.batch, tied=row.get("tied") == "1")
        return TracedModel(gpt, lambda: _build_gpt(gpt))
    return TracedModel(sizes, lambda: build_workload(sizes, as_megatron))


def run_of_image(image: ImageRun) -> Run:
    """A row of throughput_cnn.csv as a run of throughput.csv; `model` brings its patch.

    Raises:
        NotExpressible: its model is not built here, or it does not print its devices or its batch.
    """
    if image.source_id != NNUNET:
        raise NotExpressible(_REFUSED.get(image.source_id, "no trace of this model is built here"))
    if re.fullmatch(_PATCH, image.patch_or_image) is None or "3D" not in image.model:
        raise NotExpressible(f"{image.model} on {image.patch_or_image or 'patches that are not printed'}: expected a 3D model, and channels x depth x height x width")
    if image.task != "train":
        raise NotExpressible(f"task {image.task}: training steps alone are predicted")
    if image.n_gpus is None or image.batch_per_gpu is None:
        raise NotExpressible("its devices or its batch are not printed")
    return Run(
        image.row_id, image.source_id, image.locator, framework="PyTorch Lightning, DDP", model=f"{image.model} {image.patch_or_image}", family="cnn", hardware=image.hardware,
        n_gpus=image.n_gpus, dp=image.n_gpus, tp=1, pp=1, zero_stage="0", micro_bs=image.batch_per_gpu, global_bs=image.batch_per_gpu * image.n_gpus, recompute="none",
        precision=image.precision, samples_per_s_total=image.throughput_img_s, status=image.status, notes=image.notes,
    )  # fmt: skip


def unet_sizes(row: Row) -> UnetSizes:
    """Of a row as `run_of_image` makes it."""
    found = re.search(_PATCH, row.get("model"))
    if found is None:
        raise NotExpressible(f"{row.get('model')}: its patch is not printed")
    channels, depth, height, width = map(int, found.groups())
    return UnetSizes(channels, (depth, height, width), row.need("global_bs"))


def _build_unet(sizes: UnetSizes) -> object:
    from benchmarks.published_cnn import build_unet

    return build_unet(sizes.channels, sizes.patch, sizes.batch, sizes.levels, sizes.classes)


def _build_resnet(sizes: ResnetSizes) -> object:
    from benchmarks.published_cnn import build_wide_resnet

    return build_wide_resnet(sizes.groups, sizes.width, sizes.factor, sizes.side, sizes.batch, sizes.classes, sizes.turns)


def _build_gpt(sizes: GptSizes) -> object:
    from benchmarks.published_alpa import build_gpt

    return build_gpt(sizes.vocab, sizes.seq, sizes.layers, sizes.hidden, sizes.heads, sizes.batch, sizes.tied)


def _build_moe(sizes: MoeSizes) -> object:
    from benchmarks.published_alpa import build_moe

    return build_moe(sizes.vocab, sizes.seq, sizes.layers, sizes.hidden, sizes.heads, sizes.experts, sizes.group, sizes.batch, sizes.tied)
