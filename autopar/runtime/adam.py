"""Adam's step on a CPU: torch's own kernel, which reads and writes each element once.

In: parameters, their gradients and moments, the factors of a step. Out: nothing: the three states are rewritten. Source: `torch._fused_adamw_`, in
aten/src/ATen/native/cpu/FusedAdamKernel.cpp, which works in float32 on halves and rounds once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_LATE = 1e12  # a step at which no bias is left to correct: the factors have it


def runs_adam(*lists: Sequence[Tensor]) -> bool:
    """True where torch's kernel can rewrite these."""
    return all(x.device.type == "cpu" and x.is_contiguous() for one in lists for x in one)


def adam(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, keep: Any, beta1: float, beta2: float, divide: Any, plus: Any, value: float
) -> None:
    """Rewrite param, exp_avg and exp_avg_sq, of one shape and dtype, dense:

        exp_avg    = beta1 exp_avg + (1 - beta1) grad
        exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) grad grad
        param      = keep param + value exp_avg / (sqrt(exp_avg_sq) / divide + plus)

    Args:
        keep, divide, plus: numbers, or scalars.
    """
    _run([param], [grad], [exp_avg], [exp_avg_sq], float(keep), beta1, beta2, float(divide), float(plus), value)


def adam_all(
    param: Sequence[Tensor], grad: Sequence[Tensor], exp_avg: Sequence[Tensor], exp_avg_sq: Sequence[Tensor], *,
    keep: Any, beta1: float, beta2: float, divide: Any, plus: Any, value: float,
) -> None:  # fmt: skip
    """`adam` of many parameters: one call for all whose factors are equal.

    Args:
        keep, divide, plus: numbers, or lists with a scalar for each parameter.
    """
    lists = [factor if isinstance(factor, Sequence) else [factor] * len(param) for factor in (keep, divide, plus)]
    alike: dict[tuple[float, ...], list[int]] = {}
    for place, factors in enumerate(zip(*lists)):
        alike.setdefault(tuple(map(float, factors)), []).append(place)
    for (kept, divided, added), places in alike.items():
        params, grads, firsts, seconds = ([one[k] for k in places] for one in (param, grad, exp_avg, exp_avg_sq))
        _run(params, grads, firsts, seconds, kept, beta1, beta2, divided, added, value)


def _run(
    params: list[Tensor], grads: list[Tensor], firsts: list[Tensor], seconds: list[Tensor],
    keep: float, beta1: float, beta2: float, divide: float, plus: float, value: float,
) -> None:  # fmt: skip
    rate = -value * divide
    decay = (1.0 - keep) / rate if rate else 0.0
    if not rate and keep != 1.0:
        for param in params:
            param.mul_(keep)
    with torch.no_grad():
        torch._fused_adamw_(
            params, [g.contiguous() for g in grads], firsts, seconds, [], [torch.tensor(_LATE)] * len(params), lr=rate, beta1=beta1, beta2=beta2, weight_decay=decay,
            eps=divide * plus, amsgrad=False, maximize=False,
        )  # fmt: skip
