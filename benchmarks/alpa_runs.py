"""What Alpa's own code says of its published Wide-ResNets and mixtures of experts: sizes, microbatches, stages, recompute. Its tables print few of them.

In: a `Run` of Alpa's. Out: cells that its row lacks, in the columns of throughput.csv and three more (`turns`: microbatches; `factor`, `experts`, `group`, `side`: sizes);
FLOPs of a step as its tables count them. A plan that is not known, or that has no words among the constraints, is the cell `refused`: why.

Source of all: alpa-projects/alpa (its benchmark folder and osdi22_artifact); files are named beside the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.published import Run

ABLATION_TABLE = "results_intra_ablation_ref.tsv"
# Wide-ResNets by name: base channels, width factor (benchmark/alpa/suite_paper_wresnet.py: `wresnet_specs`); 50 layers, images of 224, float32.
_RESNETS = {"250M": (160, 2), "500M": (224, 2), "1B": (320, 2), "2B": (448, 2), "4B": (640, 2), "6.8B": (320, 16), "13B": (320, 32)}
_RESNET_GROUPS, _SIDE, _CLASSES = (3, 4, 6, 3), 224, 1024  # alpa/model/wide_resnet.py: `model_configs` of 50 layers
# Its ablation of operators alone (benchmark/alpa/exp_intra_ablation.py: `wresnet_1_spec`): by devices; 32 images, one microbatch, nothing run again.
_RESNET_ABLATION = {1: (160, 2), 2: (224, 2), 4: (320, 2), 8: (448, 2)}
# Microbatches of operators alone (benchmark/alpa/exp_intra_only.py). The two largest ran smaller batches of the same microbatch (32 and 8 images), whose seconds are
# printed for 1536.
_RESNET_TURNS_ALONE = {"250M": 48, "500M": 32, "1B": 32, "2B": 48, "4B": 64, "6.8B": 48, "13B": 192}
# Microbatches of the others (osdi22_artifact/suite_artifact_e2e_wresnet.py, suite_paper_wresnet.py); 38 and 42 of the two largest do not divide 1536: 48, which takes less memory.
_RESNET_TURNS = {"250M": 24, "500M": 24, "1B": 24, "2B": 24, "4B": 32, "6.8B": 48, "13B": 48}
_RESNET_TURNS_STAGES = {**_RESNET_TURNS, "1B": 64, "2B": 96}
# Stages of the plans that its search found, with as many devices each (`artifact_result_e2e_wresnet_suite`): by devices, stages and microbatches.
_RESNET_FOUND = {1: (1, 24), 2: (1, 24), 4: (1, 24), 8: (2, 24), 32: (4, 32)}
# Mixtures of experts by name: layers, hidden, experts (benchmark/alpa/suite_paper_auto_moe.py: `moe_specs`); 16 heads, 32000 words, 1024 tokens, groups of 2048. Tables have
# the experts in the column of expert parallelism.
_MOES = {
    "380M": (8, 768, 8), "690M": (8, 768, 16), "1.3B": (16, 768, 16), "2.4B": (16, 1024, 16), "10B": (16, 1536, 32), "27B": (16, 2048, 48), "70B": (32, 2048, 64),
}  # fmt: skip
# By devices (exp_intra_ablation.py: `moe_1_spec`): hidden, heads, experts; 8 layers, 8 samples in one microbatch, 51200 words, groups of 1024.
_MOE_ABLATION = {1: (1024, 32, 8), 2: (1280, 40, 16), 4: (1536, 24, 16), 8: (1536, 24, 32)}
# Operators alone (exp_intra_only.py): the two largest ran microbatches of 32 and 4 samples, printed for 1024. Stages alone (exp_inter_only.py): several numbers of
# microbatches, 128 among them for each size that ran, the best printed; of the two largest, which did not, 1024 take the least memory.
_MOE_TURNS_ALONE = {"380M": 32, "690M": 32, "1.3B": 16, "2.4B": 16, "10B": 32, "27B": 32, "70B": 256}
_MOE_TURNS_STAGES = {**dict.fromkeys(_MOES, 128), "27B": 1024, "70B": 1024}
# Found by its search (osdi22_artifact/suite_artifact_e2e_moe.py: `artifact_result_e2e_moe_suite`): by devices, stages, microbatches, degree of dp where it is forced.
_MOE_FOUND = {1: (1, 512, 1), 2: (1, 32, 2), 4: (2, 32, 2), 8: (2, 32, 4), 16: (2, 16, None), 32: (8, 128, None)}
_UNEQUAL = "its stages have different numbers of devices, for which there is no word among the constraints"
_NOT_PRINTED = "the plan that it ran is neither printed nor in its source's code"


WIDER = 8  # times the hidden size: the middle of a feed-forward layer and of an expert (`intermediate_size=hidden_size * 8`, `mlp_factor`)


@dataclass(frozen=True, slots=True)
class ResnetSizes:
    """A Wide-ResNet; batch: of a step; turns: microbatches with batch statistics of their own."""

    width: int
    factor: int
    batch: int
    turns: int
    groups: tuple[int, ...] = _RESNET_GROUPS
    side: int = _SIDE
    classes: int = _CLASSES


@dataclass(frozen=True, slots=True)
class GptSizes:
    """A GPT as Alpa builds it."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    batch: int
    tied: bool


@dataclass(frozen=True, slots=True)
class MoeSizes:
    """A mixture of experts; group: tokens whose places at the experts are given out together."""

    layers: int
    hidden: int
    heads: int
    experts: int
    vocab: int
    seq: int
    group: int
    batch: int
    tied: bool


def cells_of(run: Run) -> Mapping[str, object]:
    """What the source's code adds to a row; empty of a run that is none of these."""
    if run.source_id != "alpa":
        return {}
    if run.family == "dense" and run.framework.startswith("Alpa "):
        return {"tied": int(ABLATION_TABLE in run.locator or run.framework == "Alpa intra_only")}  # `tie_word_embeddings = False` where stages are (benchmark_3d_one_case_gpt_bert.py)
    return _resnet_cells(run) if run.family == "cnn" else _moe_cells(run) if run.family == "moe" else {}


def _resnet_cells(run: Run) -> dict[str, object]:
    if ABLATION_TABLE in run.locator:
        if run.n_gpus not in _RESNET_ABLATION:
            return {"refused": f"its ablation has no model for {run.n_gpus} devices"}
        width, factor = _RESNET_ABLATION[run.n_gpus]
        return {"layers": 50, "hidden": width, "factor": factor, "global_bs": 32, "turns": 1, "recompute": "none"}
    name = run.model.removeprefix("wresnet ")
    if name not in _RESNETS or run.n_gpus is None:
        return {"refused": f"{run.model} is no model of its suites"}
    width, factor = _RESNETS[name]
    cells: dict[str, object] = {"layers": 50, "hidden": width, "factor": factor, "global_bs": run.global_bs or 1536, "recompute": "full"}
    way = run.framework.removeprefix("Alpa ")
    if way == "intra_only":
        return {**cells, "turns": _RESNET_TURNS_ALONE[name], "recompute": "none"}
    if way == "inter_only":
        return {**cells, "turns": _RESNET_TURNS_STAGES[name], "vpp": 1 if run.n_gpus > 1 else ""}
    if way == "ppdp":
        return {**cells, "turns": _RESNET_TURNS[name], "tp": 1, "vpp": 1 if run.n_gpus > 1 else ""} | ({"refused": _UNEQUAL} if run.n_gpus in (4, 8) else {})
    if way in ("auto", "auto_stage") and run.n_gpus in _RESNET_FOUND:
        stages, turns = _RESNET_FOUND[run.n_gpus]
        return {**cells, "turns": turns, "pp": stages, "vpp": 1 if stages > 1 else ""}
    return {**cells, "turns": 1, "refused": _UNEQUAL if way in ("auto", "auto_stage") and run.n_gpus == 16 else _NOT_PRINTED}


def _moe_cells(run: Run) -> dict[str, object]:
    cells: dict[str, object] = {"ep": "", "recompute": "full", "tied": 1}
    if ABLATION_TABLE in run.locator:
        if run.n_gpus not in _MOE_ABLATION:
            return {**cells, "refused": f"its ablation has no model for {run.n_gpus} devices"}
        hidden, heads, experts = _MOE_ABLATION[run.n_gpus]
        return {**cells, "layers": 8, "hidden": hidden, "heads": heads, "experts": experts, "vocab": 51200, "seq_len": 1024, "group": 1024, "global_bs": 8, "turns": 1}
    name = run.model.removeprefix("moe ")
    if name not in _MOES or run.n_gpus is None:
        return {**cells, "refused": f"{run.model} is no model of its suites"}
    layers, hidden, experts = _MOES[name]
    cells |= {"layers": layers, "hidden": hidden, "heads": 16, "experts": experts, "vocab": 32000, "seq_len": 1024, "group": 2048, "global_bs": run.global_bs or 1024}
    way = run.framework.removeprefix("Alpa ")
    if way == "intra_only":
        return {**cells, "turns": _MOE_TURNS_ALONE[name]}
    cells["tied"] = 0  # `tie_word_embeddings = False` where stages are (benchmark_3d_one_case_moe.py)
    if way == "inter_only":
        return {**cells, "turns": _MOE_TURNS_STAGES[name], "vpp": 1 if run.n_gpus > 1 else ""}
    if way == "auto" and run.n_gpus in _MOE_FOUND:
        stages, turns, dp = _MOE_FOUND[run.n_gpus]
        return {**cells, "turns": turns, "pp": stages, "dp": dp or "", "vpp": 1 if stages > 1 else ""}
    return {**cells, "refused": _NOT_PRINTED}


def count_flops(sizes: object, again: bool) -> float | str:
    """FLOPs of a step as Alpa's tables count them, or why they are not known.

    Args:
        again: the forward pass was run again.
    """
    if isinstance(sizes, ResnetSizes):
        return count_resnet_flops(sizes, again)
    return count_moe_flops(sizes, again) if isinstance(sizes, MoeSizes) else f"how {type(sizes).__name__} are counted there is not among the closed forms"


def count_moe_flops(sizes: MoeSizes, again: bool) -> float:
    """`compute_moe_tflops` (benchmark/alpa/util.py), without its division; the head once forward and twice back, and never again."""
    h, tokens = sizes.hidden, sizes.batch * sizes.seq
    attention = 8 * tokens * h * h + 4 * tokens * sizes.seq * h
    plain = attention + 4 * WIDER * tokens * h * h
    mixed = attention + 8 * WIDER * tokens * h * h + 2 * tokens * h * sizes.experts + 4 * tokens * sizes.group + 8 * tokens * h * sizes.group
    return (4 if again else 3) * sizes.layers / 2 * (plain + mixed) + 6.0 * tokens * h * sizes.vocab


def count_compiled_flops(sizes: MoeSizes) -> float:
    """FLOPs of a step with full recompute as XLA counts what it compiled (`executable.flop_count`, which the ablation of operators prints): beside those of `count_moe_flops`
    embeddings as products with one-hot matrices, forward, again and for their weights (`embed_call_one_hot`, alpa/monkey_patch.py); no gradient of who goes where."""
    tokens, mixtures = sizes.batch * sizes.seq, sizes.layers // 2
    embeddings, masks = 3 * 2.0 * tokens * (sizes.vocab + sizes.seq) * sizes.hidden, 2.0 * tokens * 2 * sizes.group * sizes.hidden
    return count_moe_flops(sizes, again=True) + embeddings - mixtures * masks


def count_moe_params(sizes: MoeSizes) -> int:
    """`compute_moe_parameter_count` (benchmark/alpa/util.py), which tables print: with biases of experts that its model does not have, without gates, places and the
    norm of the embeddings, and with one embedding whether the head is tied or not."""
    h = sizes.hidden
    attention, expert = 4 * h * h + 2 * h + 4 * h, h * (WIDER * h + 1) + WIDER * h * (h + 1)
    return sizes.layers // 2 * (2 * attention + (1 + sizes.experts) * expert) + sizes.vocab * (h + 1)


def count_resnet_flops(sizes: ResnetSizes, again: bool) -> float:
    """FLOPs of a step as XLA counts what it compiled (`executable.flop_count`): convolutions by the places of the kernel that are inside of the image, the forward pass
    once, gradients of weights and of inputs but the first's, and with `again` the forward pass once more; the head beside."""
    first, side = _count_valid(sizes.side, 7, 2, 3)
    stem = 2.0 * first**2 * 3 * sizes.width
    forward, side, inside = stem, -(-side // 2), sizes.width
    for group, count in enumerate(sizes.groups):
        width = sizes.width * 2**group
        for place in range(count):
            stride = 2 if group and not place else 1
            pairs, out = _count_valid(side, 3, stride, None)
            wide = width * sizes.factor
            forward += 2.0 * (side**2 * inside * width + pairs**2 * width * wide + out**2 * wide * 4 * width)
            if stride > 1 or inside != 4 * width:
                forward += 2.0 * out**2 * inside * 4 * width
            side, inside = out, 4 * width
    return sizes.batch * ((4 if again else 3) * forward - stem + 6.0 * inside * sizes.classes)


def _count_valid(side: int, kernel: int, stride: int, padding: int | None) -> tuple[int, int]:
    """Pairs of an output and a place of the kernel inside of a line, and outputs of it.

    Args:
        padding: before the line; None: as TensorFlow's SAME has it.
    """
    out = -(-side // stride) if padding is None else (side + 2 * padding - kernel) // stride + 1
    before = max((out - 1) * stride + kernel - side, 0) // 2 if padding is None else padding
    return sum(0 <= o * stride + place - before < side for o in range(out) for place in range(kernel)), out
