"""Row sums: what is moved beside our programs where each sum along rows ends a kernel, as XLA compiles for GPUs.

In: an op and the bytes of what it reads. Out: bytes. Our softmax or norm is one kernel, which reads its rows once. XLA fuses what comes before a sum into it, and never what comes
after it: what needs the sum is another kernel, which reads the rows again (tensorflow/compiler/xla/service/gpu/gpu_fusible.cc, `IsProducerConsumerFusible`: "Reductions from/to
continuous dims epilogue not fusible"). Sums of the same rows are one kernel (multi_output_fusion.cc), those along columns are another; an exponential is not computed twice
(service/instruction_fusion.cc, `IsExpensive`), so what has two readers is written by the kernel of its sum. Since 2023 XLA has softmax and norms in one kernel, from Ampere on
(openxla/xla 14962: `xla_gpu_enable_triton_softmax_fusion`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Which of its operands, how often more than once; by the derivative that jax makes of flax's softmax and LayerNorm (moments of a row by one kernel: mean and mean of squares).
_AGAIN: dict[str, tuple[tuple[int, int], ...]] = {
    "aten._softmax": ((0, 3),),  # maximum; sum, which reads the rows and writes exponentials; quotient, which reads these
    "aten._safe_softmax": ((0, 3),),
    "aten._softmax_backward_data": ((0, 1), (1, 1)),  # sum of both's product; result
    "aten._log_softmax": ((0, 2),),  # maximum; sum; difference
    "aten._log_softmax_backward_data": ((0, 1),),
    "aten.native_layer_norm": ((0, 1),),  # moments; result
    "aten.native_layer_norm_backward": ((0, 2), (1, 2)),  # sums along rows; along columns; result
    "autopar.sum_exp": ((0, 1),),  # maximum; sum
}  # fmt: skip


def reread_bytes(packet: str, inputs: Sequence[np.ndarray]) -> np.ndarray | float:
    """Bytes that are read, or written for it, beside one pass.

    Args:
        packet: of the op.
        inputs: bytes of each operand, of any number of cases.
    """
    return sum(times * inputs[place] for place, times in _AGAIN.get(packet, ()))
