"""Peak memory of published runs, and whether they fit at all, beside what a predictor says.

In: throughput.csv, throughput_cnn.csv, memory.csv, a `Predictor`. Out: groups. GB of a framework's report are taken as 2**30 bytes, as torchtitan
prints them and as torch's own memory summaries and Alpa's count; Zero Bubble's as 10**9 (`UNIT_BYTES`).
"""

from __future__ import annotations

from benchmarks.fidelity_runs import Prediction, Predictor, describe
from benchmarks.fidelity_table import ABSOLUTE, RELATIVE, Aim, Group, Judged
from benchmarks.published import ImageRun, Published, Run

_GIB = 2**30
# What a source's "GB" are, where it is not GiB. Zero Bubble's code prints `torch.cuda.max_memory_allocated() // 1000000`
# (sail-sg/zero-bubble-pipeline-parallelism,
# megatron/core/pipeline_parallel/zerobubble/runtime.py). Its tables agree: from one batch to the double one, its four models' peaks (Tables 4 and 11) grow by
# 27, 27, 18 and 29; by 2205.05198's closed form the activations of the second stage grow by 26.0, 26.1, 17.5 and 28.9 times 10**9 bytes, 24.2 to 26.9 GiB.
UNIT_BYTES = {"zb": 10**9}
# Why memory.csv's rows of whole image models cannot be asked, by source.
_NOT_ASKED = {
    "nnunet": "its patch and its levels are planned for each data set and not printed",
    "maisi": "it prints what inference takes, or the least that a device must have: no training step of a printed model",
}  # fmt: skip


def judge_memory(tables: Published, predict: Predictor) -> tuple[Group, ...]:
    """Peaks that are judged, the same with the reserve, other peaks, those of image models, what must not fit, what must."""
    runs = [r for r in tables.runs if r.peak_mem_gb is not None and _fitted(r)]
    close = [r for r in runs if is_judged(r)]
    others = [r for r in runs if not is_judged(r)]
    every = _all(tables)
    said = {r.row_id: predict(r) for r in every}
    aim = Aim(
        "peak memory of torchtitan (H100) and Zero Bubble: median error <= 6 %, 90th percentile <= 15 %", RELATIVE, median=0.06, p90=0.15
    )
    reserve = Aim("the same with the stated reserve: never under the published peak", RELATIVE, never_under=True)
    more = Aim("peak memory of other runs: nothing is asked")
    images = Aim("memory.csv, nnU-Net's presets and MAISI: nothing is asked")
    oom = Aim("published out-of-memory runs: predicted not to fit >= 90 %", ABSOLUTE, right=0.9)
    fits = Aim("runs that fitted: predicted to fit >= 95 %", ABSOLUTE, right=0.95)
    return (
        Group("memory", aim, tuple(_peak(r, said[r.row_id], False) for r in close)),
        Group("memory with reserve", reserve, tuple(_peak(r, said[r.row_id], True) for r in close)),
        Group("memory others", more, tuple(_peak(r, said[r.row_id], False) for r in others)),
        Group("memory of images", images, tuple(Judged(c.row_id, c.value, None, c.unit, _NOT_ASKED[c.source_id]) for c in tables.memory if c.source_id in _NOT_ASKED)),
        Group("out of memory", oom, tuple(_fit(r, said[r.row_id]) for r in every if _ran_out(r))),
        Group("fitted", fits, tuple(_fit(r, said[r.row_id]) for r in every if _fitted(r)), only_wrong=True),
    )


def is_judged(run: Run) -> bool:
    """torchtitan on H100, and Zero Bubble's memory tables."""
    return run.source_id == "zb" or run.source_id == "torchtitan" and "H100" in run.hardware


def _all(tables: Published) -> tuple[Run | ImageRun, ...]:
    return (*tables.runs, *tables.image_runs)


def _ran_out(run: Run | ImageRun) -> bool:
    return "OOM" in run.status


def _fitted(run: Run | ImageRun) -> bool:
    return run.status == "ok"


def _peak(run: Run, said: Prediction, with_reserve: bool) -> Judged:
    found = said.reserved_bytes if with_reserve else said.peak_bytes
    size = UNIT_BYTES.get(run.source_id, _GIB)
    unit = "GiB" if size == _GIB else "GB"
    if found is None:
        return Judged(run.row_id, run.peak_mem_gb, None, unit, said.why or "the predictor says no bytes", note=describe(run))
    return Judged(run.row_id, run.peak_mem_gb, found / size, unit)


def _fit(run: Run | ImageRun, said: Prediction) -> Judged:
    """1: it fits."""
    if said.fits is None:
        return Judged(run.row_id, float(_fitted(run)), None, "fits", said.why or "the predictor does not say whether it fits")
    return Judged(run.row_id, float(_fitted(run)), float(said.fits), "fits")
