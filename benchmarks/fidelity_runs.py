"""Published training runs as what a predictor is asked, and what it answers.

In: rows of throughput.csv. Out: seconds of a step from whichever column is printed, each by its own convention; the batch; what a row does
not print; which family it is judged in. It predicts nothing: who predicts is a `Predictor`, given from outside.

FLOP/s to seconds, by `tflops_kind`:

* hardware with recompute (PTD-P, MT-NLG; Alpa counts its dense GPTs so): arXiv:2104.04473 equation 3.
* Alpa's Wide-ResNets: what XLA compiled (`alpa_runs.count_resnet_flops`).
* model (Megatron-Core, NeMo, Llama 3, llm-foundry; 2205.05198's MFU): arXiv:2205.05198 equation 7, attention without its mask; for
  grouped keys and gated feed-forward layers the same count over their matmuls (`published_rows.flops_of`).
* 8 P tokens (BLOOM's experiments): 8 FLOPs for each parameter and token.
* anything else ("unspecified", "derived", "wrong P") counts nobody knows what: no seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from benchmarks.alpa_runs import ABLATION_TABLE, cells_of, count_flops
from benchmarks.published import ImageRun, Run
from benchmarks.published_models import traced_model
from benchmarks.published_rows import NotExpressible, Row, Sizes, flops_of, sizes_of

NEEDED = (
    "layers", "hidden", "heads", "vocab", "seq_len", "n_gpus", "dp", "tp", "pp", "vpp", "zero_stage", "micro_bs", "global_bs", "recompute",
    "seq_par", "precision",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is said of a run. None: not predicted, because `why`.

    Args:
        seconds: of one step. scaled_s: with the one scalar that a microbenchmark of the device gives.
        band: share that the prediction may be off, where a larger error is stated: 0.4 is -40 % to +40 %.
        peak_bytes: of the fullest device, what tensors take. reserved_bytes: with the stated reserve of device and allocator.
        fits: reserved_bytes are within the device.
    """

    seconds: float | None = None
    scaled_s: float | None = None
    band: float | None = None
    peak_bytes: float | None = None
    reserved_bytes: float | None = None
    fits: bool | None = None
    why: str = ""


class Predictor(Protocol):
    """Predicts a run from its configuration alone. What a row does not print is the predictor's to choose, or to refuse with a reason."""

    def __call__(self, run: Run | ImageRun) -> Prediction: ...


def predict_nothing(run: Run | ImageRun) -> Prediction:
    """The predictor where none is given."""
    return Prediction(why="no predictor is given")


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a step, and from which column; None: `how` says why not."""

    seconds: float | None
    how: str


def measured_seconds(run: Run) -> Measured:
    """Seconds of one step as published."""
    if "misprint" in run.notes:
        return Measured(None, f"notes: {run.notes}")
    if run.iter_time_s is not None:
        return Measured(run.iter_time_s, "iter_time_s")
    batch = global_batch(run) or cells_of(run).get("global_bs")
    if not isinstance(batch, int):
        return Measured(None, "no column tells the batch")
    if run.tokens_per_s_per_gpu and run.seq_len and run.n_gpus:
        return Measured(batch * run.seq_len / (run.tokens_per_s_per_gpu * run.n_gpus), "tokens_per_s_per_gpu")
    if run.samples_per_s_total:
        return Measured(batch / run.samples_per_s_total, "samples_per_s_total")
    if not run.tflops_per_gpu or not run.n_gpus:
        return Measured(None, "no column tells its speed")
    flops = counted_flops(run)
    if isinstance(flops, str):
        return Measured(None, flops)
    return Measured(flops / (run.tflops_per_gpu * 1e12 * run.n_gpus), f"tflops_per_gpu ({run.tflops_kind})")


def counted_flops(run: Run) -> float | str:
    """The FLOPs of a step as `tflops_kind` counts them, or why they are not known."""
    kind = run.tflops_kind
    if kind == "8*P*tokens (incl recompute)":
        batch = global_batch(run)
        return (
            8e9 * run.params_b * batch * run.seq_len
            if run.params_b and run.seq_len and batch
            else "parameters, batch or sequence are not printed"
        )
    if kind.startswith("Alpa"):
        if run.family != "dense" and cells_of(run):
            return _counted_by_alpa(run)
        if run.family != "dense" or not run.model.lower().startswith("gpt"):
            return f"how {run.family} models are counted there is not among the closed forms"
        again = run.recompute in ("full", "yes")
    elif kind.startswith("hardware incl recompute"):
        again = True
    elif kind == "model" or kind.startswith("model ="):
        again = False
    else:
        return f"FLOP/s of kind {kind!r} do not say what they count"
    try:
        return flops_of(sizes_of_run(run), again)
    except NotExpressible as error:
        return str(error)


def _counted_by_alpa(run: Run) -> float | str:
    row = row_of(run)
    try:
        sizes = traced_model(row).sizes
    except NotExpressible as error:
        return str(error)
    return count_flops(sizes, row.get("recompute") == "full")


def sizes_of_run(run: Run) -> Sizes:
    """The decoder of a run.

    Raises:
        NotExpressible: a size is not printed, or it is no dense decoder.
    """
    return sizes_of(row_of(run))


# What Alpa's ablation of operators alone ran (alpa-projects/alpa, benchmark/alpa/exp_intra_ablation.py: `gpt_1_spec`), by devices: (hidden, heads);
# its table prints neither.
_ABLATION = {1: (2048, 16), 2: (3072, 24), 4: (4096, 32), 8: (5760, 40)}

# Alpa with stages alone ran each model in 64 to 1024 microbatches of 1024 samples, 128 among them for every size but the largest, and prints the best
# (benchmark/alpa/exp_inter_only.py); it has no chunks (`1f1b` of alpa/pipeline_parallel/schedules.py).
_STAGES_ALONE = "Alpa inter_only"
_STAGES_MICROBATCHES = 128


def row_of(run: Run) -> Row:
    """The run as the search's own reader of published rows takes it; the batch filled in where it follows from others, sizes that the source's code prints."""
    if ABLATION_TABLE in run.locator and run.model.startswith("gpt") and run.n_gpus in _ABLATION:
        hidden, heads = _ABLATION[run.n_gpus]
        run = replace(run, layers=8, hidden=hidden, heads=heads, vocab=25600, seq_len=1024, global_bs=8, micro_bs=8 // run.n_gpus)
    if run.framework == _STAGES_ALONE and run.family == "dense" and run.n_gpus and run.micro_bs is None and run.global_bs:
        run = replace(run, micro_bs=run.global_bs // _STAGES_MICROBATCHES, vpp=1 if run.n_gpus > 1 else None)
    cells = {f.name: "" if (value := getattr(run, f.name)) is None else str(value) for f in fields(run)}
    batch = global_batch(run)
    return Row(run.row_id, {**cells, "global_bs": "" if batch is None else str(batch), **{name: str(value) for name, value in cells_of(run).items()}})


def global_batch(run: Run) -> int | None:
    """Samples of a step. torchtitan prints the batch of one rank of dp, all of its microbatches (`micro_bs`)."""
    if run.global_bs is not None:
        return run.global_bs
    return run.micro_bs * run.dp if run.source_id == "torchtitan" and run.micro_bs and run.dp else None


def schedule_of(run: Run) -> str:
    """The pipeline schedule where its framework column names one (`1F1B`, `ZB-2p`); torchtitan's rows have it in their notes."""
    found = re.search(r"schedule (\S+)", run.framework) or run.source_id == "torchtitan" and re.search(r"\b(1F1B)\b", run.notes)
    return found[1] if found else ""


def missing_of(run: Run) -> tuple[str, ...]:
    """The columns of its configuration that the row does not print."""
    return tuple(name for name in NEEDED if getattr(run, name) in (None, ""))


def describe(run: Run) -> str:
    """The configuration in one line; what is not printed is left out and named at the end."""
    sizes = f"{run.layers or '?'} x {run.hidden or '?'}, {run.heads or '?'} heads, vocab {run.vocab or '?'}, seq {run.seq_len or '?'}"
    degrees = " ".join(
        f"{name} {value}" for name in ("dp", "tp", "pp", "vpp", "cp", "ep") if (value := getattr(run, name)) not in (None, 1)
    )
    batch = f"batch {global_batch(run) or '?'} by {run.micro_bs or '?'}"
    words = [run.model, sizes, f"{run.n_gpus or '?'} x {run.hardware}", degrees, batch, f"zero {run.zero_stage}" if run.zero_stage else ""]
    words += [
        f"recompute {run.recompute}" if run.recompute else "",
        f"sequence parallel {run.seq_par}" if run.seq_par else "",
        schedule_of(run),
    ]
    words += [run.precision, f"not printed: {' '.join(missing_of(run))}" if missing_of(run) else ""]
    return "; ".join(filter(None, words))


# families ------------------------------------------------------------------------------------------------------------------------------


def _named(source: str, *locators: str) -> Callable[[Run], bool]:
    return lambda run: run.source_id == source and (not locators or run.locator.startswith(locators))


# Families whose step times are judged closely: name, which rows.
FAMILIES: tuple[tuple[str, Callable[[Run], bool]], ...] = (
    ("PTD-P Tables 1, 2", _named("ptdp", "Table 1", "Table 2")),
    ("2205.05198 Table 5", _named("seqpar", "Table 5")),
    ("Zero Bubble", _named("zb")),
    ("llm-foundry", _named("llmfoundry")),
    ("Megatron-Core", _named("mcore_h100")),
    ("Llama 3", _named("llama3")),
)


def family_of(run: Run) -> str:
    """The closely judged family of a run, or its source."""
    return next((name for name, holds in FAMILIES if holds(run)), run.source_id)


def is_narrow(run: Run) -> bool:
    """Matmuls of fewer than 16 bits."""
    return bool(re.search(r"fp8|float8|fp4", run.precision, re.IGNORECASE))


def is_close(run: Run) -> bool:
    """A 16-bit run of a closely judged family on A100 or H100 at full power."""
    known = family_of(run) in {name for name, _ in FAMILIES}
    return known and ("A100" in run.hardware or "H100" in run.hardware) and not is_narrow(run) and "fp32" not in run.precision.lower()


def cover(runs: Sequence[Run]) -> tuple[str, ...]:
    """A line for each family: how many rows, how many with seconds, and which columns how many of them do not print."""
    lines = []
    for family in dict.fromkeys(map(family_of, runs)):
        rows = [r for r in runs if family_of(r) == family]
        counts = [(name, sum(name in missing_of(r) for r in rows)) for name in NEEDED]
        missing = ", ".join(f"{name} {n}" for name, n in counts if n)
        timed = sum(measured_seconds(r).seconds is not None for r in rows)
        lines.append(f"   {family}: {len(rows)} rows, {timed} with seconds" + (f"; not printed: {missing}" if missing else ""))
    return tuple(lines)
