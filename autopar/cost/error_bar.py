"""The error that a plan tells of its predicted seconds: how far predictions of such steps were from measured ones. Measured, never guessed.

In: a cost model, the dtype in which most is computed. Out: the share within which nine of ten steps were, or None where that is not known; and on what. The figures are those of docs/benchmarks.md: steps on
GPUs as published and on the two that were at hand (`benchmarks/fidelity.py`, `benchmarks/one_gpu.py`), on CPUs after `autopar profile` (`benchmarks/this_machine.py`: the last three whole runs with a profile that lacked no row). They are
of plans under the recipes of experts and of our own on one device; nothing was measured of other plans on many.
"""

from __future__ import annotations

from .device_rates import find_device_rates
from .model import CostModel
from .rows import COMM_KINDS, disturbed_text, measured_counts, missing_kinds
from .unlike import LIKE, Unlike

_HALVES = ("bfloat16", "float16")
_PUBLISHED = 0.103, "319 published steps on A100 and H100 in 16 bits, each priced with what its own framework does beside this program, half of them within 4.0 %"
_BARS = {
    "A100-40GB": _PUBLISHED,
    "A100-80GB": _PUBLISHED,
    "H100-80GB": _PUBLISHED,
    "H200-141GB": (_PUBLISHED[0], f"{_PUBLISHED[1]}; and of 10 steps on one H200 nine within 3.9 %, a BERT took 9 % longer"),
}  # preset -> (share, of what), priced by the tables
_WITH_ENCODERS = ("H200-141GB",)  # a BERT is among its ten
_AT_LEVEL = {"H100-80GB": (0.106, "71 published steps on H100 in 16 bits at the level of one, each priced with what its own framework does beside this program, half of them within 2.0 %")}
_ASKING_S = 49e-6  # of a call, on the host of the H200 that was at hand: of a GPT of 209 calls 10.24 ms a step, of a mixture of experts of 831 calls 41.0 (benchmarks/gpu.py, runs 4 and 8)
_MUCH_SENT = 0.05  # of a step: by how much it would be off, were its links half as fast as said
_OF_THIS = "It is of this program: a framework that runs the same split op by op, or hides less of what it sends, takes longer"
_CPU = 0.13, "35 steps of a GPT and an MLP on 2 and 4 gloo ranks of two CPUs minutes after `autopar profile`, half of them within 6 %"


def error_bar(model: CostModel, dtype: str, calls: int = 0, step_s: float = 0.0, unlike: Unlike = LIKE, sent_s: float = 0.0) -> tuple[float | None, str]:
    """(share within which nine of ten measured steps were, of what); None: not known.

    Args:
        dtype: in which most of the FLOPs are.
        calls: kernels and collectives that a rank's host asks for in a step.
        step_s: predicted, of the device. Where asking may take longer than that, nothing is known of the step: prices are of devices, and hosts differ.
        unlike: how the step is unlike those that were compared.
        sent_s: of the step, what is sent beside no compute. Where that is much and nobody measured the links, nothing is known either: the steps that were compared went over NVLink and InfiniBand.
    """
    device = model.cluster.device
    if device.kind != "cpu" and calls * _ASKING_S > step_s:
        return None, (
            f"not known of a step that may wait for its host: it asks for {calls:,} kernels, for which the one host that was measured took {_ASKING_S * 1e6:.0f} us each, {calls * _ASKING_S * 1e3:.3g} ms together; "
            "the prediction is of the device alone, as the step runs as a CUDA graph (`autopar emit --cuda-graph`)"
        )
    if device.kind == "cpu":
        why = _unlike_measured(model) or unlike.why
        return (None, why) if why else _of(_CPU, unlike)
    rates = find_device_rates(device)
    bar = (_BARS if model.rates == rates else _AT_LEVEL).get(device.name) if rates is not None and not device.parts else None
    if bar is None:
        return None, f"not known of steps on {device.name}{'' if model.rates == rates else ' at a level of their own'}"
    if dtype not in _HALVES:
        return None, f"not known of steps on GPUs in {dtype}"
    if device.power_w is not None and device.power_w != device.board_power_w:
        return None, "not known of steps under a power limit"
    why = unlike.why or _unlike_links(model, step_s, sent_s)
    if not why and unlike.encodes and device.name not in _WITH_ENCODERS:
        why = f"not known of attention without a mask on {device.name}: all steps that were compared there are of decoders"
    if why:
        return None, why
    share, text = _of(bar, unlike)
    return share, f"{text}. {_OF_THIS}"


def _unlike_links(model: CostModel, step_s: float, sent_s: float) -> str:
    """The link that collectives of no table have, where they are much of the step; empty where there is none."""
    cluster, links = model.cluster, model.links
    unknown = [links.across.name] if cluster.num_hosts > 1 and not links.measured_across else []
    unknown += [links.inside.name] if cluster.devices_per_host > 1 and not links.curves else []
    if not unknown or sent_s <= _MUCH_SENT * step_s:
        return ""
    return f"not known of a step of which {sent_s / step_s:.0%} is communication where collectives are priced by formula, for nobody measured any over {' or '.join(unknown)}"


def _unlike_measured(model: CostModel) -> str:
    """How a step on a CPU is priced by something else than rows of its own machine, as those were that were compared; empty where it is not."""
    if model.measured is None:
        return "default figures: run `autopar profile` on the machine"
    rows, ranks = model.measured.rows, model.measured.ranks
    if model.cluster.num_hosts > 1:
        return "not known of steps on several hosts without GPUs"
    if ranks not in measured_counts(rows):
        counts = ", ".join(map(str, measured_counts(rows)))
        return f"not known of {ranks} ranks on a machine that was measured with {counts} at once: run `autopar profile --ranks 1,{ranks}`"
    if disturbed := disturbed_text(rows):
        return f"not known by this profile, of which {disturbed}"
    missing = [kind for kind in missing_kinds(rows) if ranks > 1 or kind not in COMM_KINDS]
    return f"not known of what is priced by formula, for the profile has no rows of it ({', '.join(missing)}): run `autopar profile`" if missing else ""


def _of(bar: tuple[float, str], unlike: Unlike) -> tuple[float, str]:
    return bar[0], f"nine of ten of {bar[1]}, were within it{unlike.beside}"
