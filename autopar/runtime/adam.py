"""Adam's step on a CPU: torch's own kernel, which reads and writes each element once.

In: a parameter, its gradient and moments, the factors of a step. Out: nothing: the three states are rewritten. Source: `torch._fused_adamw_`, in
aten/src/ATen/native/cpu/FusedAdamKernel.cpp, which works in float32 on halves and rounds once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LATE = 1e12  # a step at which no bias is left to correct: the factors have it


def runs_adam(*states: Tensor) -> bool:
    """True where torch's kernel can rewrite these."""
    return all(x.device.type == "cpu" and x.is_contiguous() for x in states)


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
    keep, divide, plus = float(keep), float(divide), float(plus)
    rate = -value * divide
    decay = (1.0 - keep) / rate if rate else 0.0
    if not rate and keep != 1.0:
        param.mul_(keep)
    with torch.no_grad():
        torch._fused_adamw_(
            [param], [grad.contiguous()], [exp_avg], [exp_avg_sq], [], [torch.tensor(_LATE)], lr=rate, beta1=beta1, beta2=beta2, weight_decay=decay,
            eps=divide * plus, amsgrad=False, maximize=False,
        )  # fmt: skip
