"""The error that a plan tells of its predicted seconds: how far predictions of such steps were from measured ones. Measured, never guessed.

In: a cost model, the dtype in which most is computed. Out: the share within which nine of ten steps were, or None where none was compared; and on what. The figures are those of docs/benchmarks.md: steps on
GPUs as published and on the two that were at hand (`benchmarks/fidelity.py`, `benchmarks/one_gpu.py`), on CPUs after `autopar profile` (`benchmarks/this_machine.py`). They are of plans under the recipes of experts and
of our own on one device; nothing was measured of other plans on many.
"""

from __future__ import annotations

from .model import CostModel

_HALVES = ("bfloat16", "float16")
_PUBLISHED = "319 published steps on A100 and H100 in 16 bits, half of them within 4.0 %"
_V100 = "83 published steps on V100 in 16 bits, of frameworks whose habits are not all known"
_LIMITED = "published steps under a power limit, between a clock that falls with the watts and one that does not"
_BARS = {
    "A100-40GB": (0.103, _PUBLISHED),
    "A100-80GB": (0.103, _PUBLISHED),
    "H100-80GB": (0.103, _PUBLISHED),
    "H200-141GB": (0.103, f"{_PUBLISHED}; and 7 steps on one H200 within 3.9 %"),
    "V100-16GB": (0.48, _V100),
    "V100-32GB": (0.48, _V100),
}  # preset -> (share, of what)
_LIMITED_SHARE = 0.40
_CPU = (0.13, "35 steps of a GPT and an MLP on 2 and 4 gloo ranks of two CPUs minutes after `autopar profile`, half of them within 6 %")


def error_bar(model: CostModel, dtype: str) -> tuple[float | None, str]:
    """(share within which nine of ten measured steps were, of what); None: no such step was compared.

    Args:
        dtype: in which most of the FLOPs are.
    """
    device = model.cluster.device
    if device.kind == "cpu":
        if model.measured is None:
            return None, "default figures: run `autopar profile` on the machine"
        return _of(_CPU)
    bar = _BARS.get(device.name) if model.rates is not None and not device.parts else None
    if bar is None:
        return None, f"no measured step of {device.name} has been compared with its prediction"
    if dtype not in _HALVES or dtype not in dict(model.flops_per_s):  # V100 has no bfloat16
        return None, f"no measured step in {dtype} on a GPU has been compared with its prediction"
    if device.power_w is not None and device.power_w != device.board_power_w:
        return _of((max(bar[0], _LIMITED_SHARE), _LIMITED))
    return _of(bar)


def _of(bar: tuple[float, str]) -> tuple[float, str]:
    return bar[0], f"nine of ten of {bar[1]}, were within it"
