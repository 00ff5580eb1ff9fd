"""One op of the grid, ready to run: tensors are made here, once, and only running is timed.

In: a job and a device. Out: a function that runs the op once. Ops allocate what they return, as they do in a step; `copy`, `add_into` and
the optimizers write into memory that is there. Gradients are taken by ATen's own backward ops, so that no forward is timed with them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..graph.cpu_matmul import multiply, multiply_rows
from ..graph.tensor import DTYPE_BYTES
from .profile_grid import OpJob
from .rows import SUSTAINED

Run = Callable[[], object]
_DRAWN = 2**16


def build_op(job: OpJob, device: Any) -> Run:
    """The op of a job.

    Args:
        device: a `torch.device`.
    Raises:
        whatever torch raises where the op cannot be run at this shape.
    """
    import torch

    dtype = getattr(torch, job.dtype)

    def normal(*shape: int) -> Any:
        """Normal numbers, some of them again and again: drawing all would take longer than the op. (Zeros would be too kind to a GPU's
        power.)"""
        count = prod(shape)
        drawn = torch.randn(min(count, _DRAWN), device=device, dtype=torch.float32).to(dtype)
        return drawn.repeat(-(-count // _DRAWN))[:count].reshape(shape).contiguous()

    for start, build in _BUILDERS.items():
        if job.family.startswith(start):
            return build(torch, job, normal)
    raise ValueError(f"no op for family {job.family!r}")


def _matmul(torch: Any, job: OpJob, normal: Any) -> Run:
    m, n, k = job.shape
    if job.family in ("matmul", SUSTAINED):
        x, w = normal(m, k), normal(n, k)
        return lambda: multiply(torch, x, w)
    dy = normal(m, n)
    if job.family == "matmul_input_grad":
        w = normal(n, k)
        return lambda: multiply(torch, dy, w.t())
    x = normal(m, k)
    return (lambda: torch.mm(dy.t(), x)) if job.family == "matmul_plain" else (lambda: multiply_rows(torch, dy, x))


def _attention(torch: Any, job: OpJob, normal: Any) -> Run:
    heads, sequence, dim = job.shape
    causal = "full" not in job.family
    q, k, v = (normal(1, heads, sequence, dim) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    if not job.family.endswith("backward"):
        return lambda: attend(q, k, v, is_causal=causal)
    given = [x.requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        out = attend(*given, is_causal=causal)
    grad = normal(1, heads, sequence, dim)
    return lambda: torch.autograd.grad(out, given, grad, retain_graph=True)


def _conv(torch: Any, job: OpJob, normal: Any) -> Run:
    batch, cin, cout, side, kernel = job.shape
    x, w, pad = normal(batch, cin, side, side), normal(cout, cin, kernel, kernel), kernel // 2
    if job.family == "conv":
        return lambda: torch.conv2d(x, w, padding=pad)
    grad = torch.conv2d(x, w, padding=pad)
    mask = [job.family == "conv_input_grad", job.family == "conv_weight_grad", False]
    return lambda: torch.ops.aten.convolution_backward(grad, x, w, [0], [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask)


def _elements(job: OpJob, tensors: int) -> int:
    """Elements of each of so many tensors that are moved whole."""
    return max(1, job.shape[0] // (tensors * DTYPE_BYTES[job.dtype]))


def _memory(torch: Any, job: OpJob, normal: Any) -> Run:
    if job.family == "copy":
        x = normal(_elements(job, 2))
        out = torch.empty_like(x)
        return lambda: out.copy_(x)
    x, y = normal(_elements(job, 3)), normal(_elements(job, 3))
    out = torch.empty_like(x)
    return lambda: torch.add(x, y, out=out)


def _pointwise(torch: Any, job: OpJob, normal: Any) -> Run:
    if job.family == "gelu":
        x = normal(_elements(job, 2))
        return lambda: torch.nn.functional.gelu(x)
    if job.family == "cast":
        other = torch.float32 if job.dtype == "bfloat16" else torch.bfloat16
        x = normal(max(1, job.shape[0] // 6))  # 2 bytes on one side, 4 on the other
        return lambda: x.to(other)
    x, y = normal(_elements(job, 3)), normal(_elements(job, 3))
    if job.family == "gelu_backward":
        return lambda: torch.ops.aten.gelu_backward(x, y)
    return lambda: torch.mul(x, y)


def _table(torch: Any, job: OpJob, normal: Any) -> Run:
    rows, columns = job.shape
    x = normal(rows, columns)
    if job.family in ("row_sum", "column_sum"):
        dim = 1 if job.family == "row_sum" else 0
        return lambda: torch.sum(x, dim)
    if job.family == "softmax":
        return lambda: torch.softmax(x, -1)
    if job.family == "softmax_backward":
        out, grad = torch.softmax(x, -1), normal(rows, columns)
        return lambda: torch.ops.aten._softmax_backward_data(grad, out, -1, x.dtype)
    bias, weight = normal(columns), normal(columns)
    if job.family == "bias_gelu":
        return lambda: torch.nn.functional.gelu(x + bias)
    if job.family == "layer_norm":
        return lambda: torch.ops.aten.native_layer_norm(x, [columns], weight, bias, 1e-5)
    grad = normal(rows, columns)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [columns], weight, bias, 1e-5)
    return lambda: torch.ops.aten.native_layer_norm_backward(grad, x, [columns], mean, rstd, weight, bias, [True, True, True])


def _loss(torch: Any, job: OpJob, normal: Any) -> Run:
    rows, columns = job.shape
    x = normal(rows, columns)
    target = torch.randint(0, columns, (rows,), device=x.device)
    if job.family == "cross_entropy":
        return lambda: torch.nn.functional.cross_entropy(x, target)
    scores = torch.log_softmax(x, -1)
    _, total = torch.ops.aten.nll_loss_forward(scores, target, None, 1, -100)
    one = torch.ones((), device=x.device, dtype=x.dtype)

    def backward() -> object:
        grad = torch.ops.aten.nll_loss_backward(one, scores, target, None, 1, -100, total)
        return torch.ops.aten._log_softmax_backward_data(grad, scores, -1, x.dtype)

    return backward


def _adamw(torch: Any, job: OpJob, normal: Any) -> Run:
    """The ops of `torch.optim.AdamW(foreach=False)` without its Python, as a traced update runs them; or the one op of `fused=True`."""
    param, grad, mean = (normal(job.shape[0]) for _ in range(3))
    square = normal(job.shape[0]).square()
    if job.family == "adamw_fused":
        step = torch.ones((), device=param.device)
        given = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
        return lambda: torch.ops.aten._fused_adamw_([param], [grad], [mean], [square], [], [step], **given)

    def update() -> None:
        param.mul_(1 - 1e-5)
        mean.lerp_(grad, 0.1)
        square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        param.addcdiv_(mean, (square.sqrt() / 0.9).add_(1e-8), value=-1e-3)

    return update


def _launch(torch: Any, job: OpJob, normal: Any) -> Run:
    x = normal(job.shape[0])
    return lambda: torch.add(x, x)


_BUILDERS: dict[str, Callable[[Any, OpJob, Any], Run]] = {
    "matmul": _matmul, "attention": _attention, "conv": _conv, "copy": _memory, "add_into": _memory, "pointwise": _pointwise,
    "gelu": _pointwise, "cast": _pointwise, "row_sum": _table, "column_sum": _table, "softmax": _table, "layer_norm": _table,
    "bias_gelu": _table, "cross_entropy": _loss, "adamw": _adamw, "launch": _launch,
}  # fmt: skip  # the start of a family's name
