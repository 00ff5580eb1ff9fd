"""Step times of published runs, and their order, beside what a predictor says.

In: throughput.csv, throughput_cnn.csv, a `Predictor`. Out: groups: the closely judged families, unscaled and with the scalar of a microbenchmark; the rows that
have a stated larger band; those of throughput_cnn.csv, with theirs; pairs of configurations in order; the regret of choosing by prediction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from benchmarks.fidelity_runs import Prediction, Predictor, cover, describe, global_batch, is_close, measured_seconds
from benchmarks.fidelity_table import ABSOLUTE, Aim, Group, Judged
from benchmarks.published import ImageRun, Published, Run
from benchmarks.published_models import run_of_image
from benchmarks.published_rows import NotExpressible

DIFFERENT = 0.02  # configurations that differ by less are not ranked
# A configuration is what is alike in rows that are not ranked against each other; the framework brings its schedule.
_KNOBS = ("framework", "dp", "tp", "pp", "cp", "ep", "vpp", "zero_stage", "micro_bs", "global_bs", "recompute", "seq_par")
_CONTEST = ("source_id", "model", "layers", "hidden", "seq_len", "hardware", "n_gpus", "precision")  # what ranked rows have in common


def judge_steps(tables: Published, predict: Predictor) -> tuple[Group, ...]:
    """All groups."""
    runs = [r for r in tables.runs if r.status == "ok"]
    said = {r.row_id: predict(r) for r in runs}
    close, others = [r for r in runs if is_close(r)], [r for r in runs if not is_close(r)]
    aim = Aim("step time of A100 and H100 16-bit rows, unscaled: median <= 7 %, 90th percentile <= 14 %", median=0.07, p90=0.14)
    scaled = Aim("the same with the scalar of one microbenchmark: median <= 3.5 %, 90th percentile <= 12 %", median=0.035, p90=0.12)
    band = Aim("V100, FP8, power-capped or unknown-framework rows: the stated band holds >= 90 %", contained=0.9)
    images = [r for r in tables.image_runs if r.status == "ok"]
    order = Aim(
        "two configurations of one model on the same devices that differ by more than 2 %: right order in >= 95 % of pairs",
        ABSOLUTE,
        right=0.95,
    )
    regret = Aim("regret of the predicted best of each model on the same devices: mean <= 3 %", mean=0.03)
    pairs, choices = rank(runs, said)
    return (
        Group("steps", aim, tuple(_step(r, said[r.row_id], False) for r in close), cover(close)),
        Group("steps scaled", scaled, tuple(_step(r, said[r.row_id], True) for r in close)),
        Group("steps others", band, tuple(_step(r, said[r.row_id], False) for r in others), cover(others)),
        Group("steps of images", replace(band, text="throughput_cnn.csv: the stated band holds >= 90 %"), tuple(_image_step(r, predict(r)) for r in images)),
        Group("ranking", order, pairs, _count_pairs(runs, pairs), only_wrong=True),
        Group("regret", regret, choices),
    )


def _step(run: Run, said: Prediction, with_scalar: bool) -> Judged:
    measured = measured_seconds(run)
    found = said.scaled_s if with_scalar else said.seconds
    if measured.seconds is None:
        return Judged(run.row_id, None, None, "s", measured.how, note=describe(run))
    if found is None:
        no_scalar = f"no microbenchmark of {run.hardware} has been run, so there is no scalar for it"
        return Judged(run.row_id, measured.seconds, None, "s", no_scalar if said.seconds is not None else said.why or "the predictor says no seconds", note=describe(run))
    band = (found * max(0.0, 1 - said.band), found * (1 + said.band)) if said.band is not None else None
    return Judged(run.row_id, measured.seconds, found, "s", band=band)


def _image_step(image: ImageRun, said: Prediction) -> Judged:
    try:
        return _step(run_of_image(image), said, False)
    except NotExpressible as error:
        return Judged(image.row_id, image.speedup, None, f"times {image.relative_to}" if image.relative_to else "", str(error))


def rank(runs: Sequence[Run], said: Mapping[str, Prediction]) -> tuple[tuple[Judged, ...], tuple[Judged, ...]]:
    """Pairs (1: the first is the faster), and the regret of each contest: the published speed of the predicted best beside the best one's.

    Speed is seconds for each sample: batches differ within a contest. A contest has no regret where a run of it is not predicted.
    """
    pairs, choices = [], []
    for name, contest in contests(runs).items():
        published = {r.row_id: (measured_seconds(r).seconds or 0.0) / (global_batch(r) or 1) for r in contest}
        predicted = {r.row_id: seconds / (global_batch(r) or 1) for r in contest if (seconds := said[r.row_id].seconds) is not None}
        for a, b in combinations(contest, 2):
            fast, slow = sorted((a, b), key=lambda r: published[r.row_id])
            if _knobs(a) == _knobs(b) or published[slow.row_id] <= (1 + DIFFERENT) * published[fast.row_id]:
                continue
            pair = f"{fast.row_id} < {slow.row_id}"
            missing = [r for r in (fast, slow) if r.row_id not in predicted]
            if missing:
                pairs.append(Judged(pair, 1.0, None, "in order", said[missing[0].row_id].why or "the predictor says no seconds"))
            else:
                pairs.append(Judged(pair, 1.0, float(predicted[fast.row_id] < predicted[slow.row_id]), "in order"))
        best = min(published, key=published.__getitem__)
        absent = [r for r in contest if r.row_id not in predicted]
        if absent:
            choices.append(Judged(name, published[best], None, "s a sample", said[absent[0].row_id].why or "the predictor says no seconds"))
        else:
            chosen = min(predicted, key=predicted.__getitem__)
            choices.append(Judged(name, published[best], published[chosen], "s a sample", note=f"chosen {chosen}, best {best}"))
    return tuple(pairs), tuple(choices)


def _count_pairs(runs: Sequence[Run], pairs: Sequence[Judged]) -> tuple[str, ...]:
    """A line for each source: some repeat a configuration on a noisy network, and have most of the pairs."""
    row = {r.row_id: r for r in runs}
    named = {p: tuple(row[name] for name in p.row.split(" < ")) for p in pairs}
    lines = []
    for name in dict.fromkeys(fast.source_id for fast, _ in named.values()):
        own = [p for p in pairs if named[p][0].source_id == name]
        judged = [p for p in own if p.predicted is not None]
        most = count_orderable([named[p] for p in judged])
        more = f" (at most {most} by anything that has one speed for each configuration)" if most < len(judged) else ""
        lines.append(f"   {name}: {len(own)} pairs, {sum(p.predicted == 1 for p in judged)} of {len(judged)} predicted in order{more}")
    return tuple(lines)


def count_orderable(pairs: Sequence[tuple[Run, Run]]) -> int:
    """How many of these pairs (faster run, slower run) a predictor could order that knew them all, but has one speed for each configuration.

    Of two configurations that were run several times, and now one was the faster and now the other, it orders the more frequent ones: no predictor orders more.
    """
    faster: dict[frozenset[tuple[object, ...]], Counter[tuple[object, ...]]] = defaultdict(Counter)
    for fast, slow in pairs:
        faster[frozenset((_configuration(fast), _configuration(slow)))][_configuration(fast)] += 1
    return sum(max(counts.values()) for counts in faster.values())


def contests(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that can be ranked among each other: one model, the same devices, from one source, with seconds and a batch; two at least."""
    found: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if measured_seconds(run).seconds and global_batch(run) and run.n_gpus:
            found[tuple(getattr(run, name) for name in _CONTEST)].append(run)
    several = {key: rows for key, rows in found.items() if len({_knobs(r) for r in rows}) > 1}
    return {_print_contest(rows[0], k): rows for k, rows in enumerate(several.values(), 1)}


def _knobs(run: Run) -> tuple[object, ...]:
    return tuple(getattr(run, name) for name in _KNOBS)


def _configuration(run: Run) -> tuple[object, ...]:
    return (*(getattr(run, name) for name in _CONTEST), *_knobs(run))


def _print_contest(run: Run, number: int) -> str:
    device = run.hardware.split(",")[0]
    return f"{number}: {run.source_id} {run.model} seq {run.seq_len or '?'}, {run.n_gpus} x {device} {run.precision}".rstrip()
