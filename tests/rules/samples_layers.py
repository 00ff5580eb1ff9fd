"""Samples of norms, softmax, attention, convolutions, pooling and losses."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from autopar.graph.rules import loss as loss_rules

from .referee import Sample, make_sample, run_op
from .samples_core import F64, below, numbers

aten = torch.ops.aten


def norm_samples() -> Iterator[Sample]:
    x, g = numbers(4, 6, 9), numbers(4, 6, 9, seed="g")
    for shape in ([9], [6, 9]):
        weight, bias = numbers(*shape, seed="w"), numbers(*shape, seed="b")
        yield make_sample("aten.native_layer_norm", x, shape, weight, bias, 1e-5, label=str(shape))
        yield make_sample("aten.native_layer_norm", x, shape, None, None, 1e-5, label=f"{shape} bare")
        _, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, 1e-5)
        for mask in ([True, True, True], [True, False, True], [False, True, True], [True, False, False]):
            yield make_sample("aten.native_layer_norm_backward", g, x, shape, mean, rstd, weight, bias, mask, label=f"{shape} {mask}")
        yield make_sample("aten._fused_rms_norm", x, shape, weight, 1e-5, label=str(shape))
        _, rstd = aten._fused_rms_norm(x, shape, weight, 1e-5)
        yield make_sample("aten._fused_rms_norm_backward", g, x, shape, rstd, weight, [True, True], label=str(shape))
    for groups in (2, 6, 1):
        x, g, weight = numbers(4, 12, 5, 3), numbers(4, 12, 5, 3, seed="g"), numbers(12)
        yield make_sample("aten.native_group_norm", x, weight, numbers(12, seed="b"), 4, 12, 15, groups, 1e-5, label=str(groups))
        _, mean, rstd = aten.native_group_norm(x, weight, None, 4, 12, 15, groups, 1e-5)
        sizes, mask = (4, 12, 15, groups), [True, True, True]
        yield make_sample("aten.native_group_norm_backward", g, x, mean, rstd, weight, *sizes, mask, label=str(groups))
    for data, dim in ((numbers(4, 6, 9), -1), (numbers(4, 6, 9), 1)):
        yield make_sample("aten._safe_softmax", data, dim, label=str(dim))
        for op in ("_softmax", "_log_softmax"):
            yield make_sample(f"aten.{op}", data, dim, False, label=str(dim))
            out = getattr(aten, op)(data, dim, False)
            yield make_sample(f"aten.{op}_backward_data", numbers(4, 6, 9, seed="g"), out, dim, F64, label=str(dim))


def _normal(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def attention_samples() -> Iterator[Sample]:
    cases = {
        "plain": ((2, 6, 6, 4), (2, 6, 9, 4), None, False),
        "causal": ((2, 6, 9, 4), (2, 6, 9, 4), None, True),
        "grouped": ((2, 12, 6, 4), (2, 2, 9, 4), None, False),
        "grouped causal": ((2, 6, 6, 4), (2, 3, 6, 4), None, True),
        "causal long": ((1, 2, 12, 4), (1, 2, 12, 4), None, True),
        "causal more keys": ((2, 2, 6, 4), (2, 2, 8, 4), None, True),
        "causal fewer keys": ((2, 2, 6, 4), (2, 2, 4, 4), None, True),
        "one key head": ((2, 6, 6, 4), (2, 1, 9, 4), None, False),
        "full mask": ((2, 6, 6, 4), (2, 6, 9, 4), (2, 6, 6, 9), False),
        "broadcast mask": ((2, 6, 6, 4), (2, 6, 9, 4), (2, 1, 6, 9), False),
        "key mask": ((2, 6, 6, 4), (2, 6, 9, 4), (2, 1, 1, 9), False),
        "matrix mask": ((2, 6, 6, 4), (2, 6, 9, 4), (6, 9), False),
        "grouped mask": ((2, 6, 6, 4), (2, 3, 9, 4), (2, 6, 6, 9), False),
    }
    for label, (q_shape, k_shape, mask_shape, causal) in cases.items():
        q, k, v = (_normal(shape, seed) for seed, shape in enumerate((q_shape, k_shape, k_shape)))
        mask = None if mask_shape is None else _normal(mask_shape, 9)
        scale = 0.3 if label == "plain" else None
        for rows in (None, torch.arange(q_shape[2])) if causal else (None,):
            name = f"{label} rows" if rows is not None else label
            sample = make_sample("autopar.attention", q, k, v, mask, causal, scale, rows, label=name)
            yield sample
            out, lse = sample.outputs
            yield make_sample("autopar.attention_backward", _normal(out.shape, 8), q, k, v, out, lse, causal, mask, scale, rows, label=name)


def _conv(
    label: str, x: torch.Tensor, w: torch.Tensor, bias: bool, stride: int, padding: int, dilation: int, transposed: bool, groups: int
) -> Iterator[Sample]:
    nd = x.dim() - 2
    outs = w.shape[1] * groups if transposed else w.shape[0]
    args = ([stride] * nd, [padding] * nd, [dilation] * nd, transposed, [0] * nd, groups)
    sample = make_sample("aten.convolution", x, w, numbers(outs, seed="bias") if bias else None, *args, label=label)
    yield sample
    g = numbers(*sample.outputs[0].shape, seed="g")
    sizes = [outs] if bias else None
    yield make_sample("aten.convolution_backward", g, x, w, sizes, *args, [True, True, bias], label=label)
    if bias:
        yield make_sample("aten.convolution_backward", g, x, w, sizes, *args, [False, True, True], label=f"{label} first layer")


def convolution_samples() -> Iterator[Sample]:
    for bias in (False, True):
        end = " bias" if bias else ""
        yield from _conv(f"3x3{end}", numbers(4, 6, 6, 6), numbers(9, 6, 3, 3), bias, 1, 1, 1, False, 1)
        yield from _conv(f"1x1{end}", numbers(2, 6, 6, 6), numbers(4, 6, 1, 1), bias, 1, 0, 1, False, 1)
        yield from _conv(f"patches{end}", numbers(2, 3, 8, 12), numbers(6, 3, 2, 4)[..., :2].contiguous(), bias, 2, 0, 1, False, 1)
        yield from _conv(f"grouped{end}", numbers(2, 12, 5, 5), numbers(6, 6, 3, 3), bias, 2, 1, 1, False, 2)
        yield from _conv(f"depthwise{end}", numbers(2, 6, 5, 5), numbers(12, 1, 3, 3), bias, 1, 1, 1, False, 6)
        yield from _conv(f"transposed{end}", numbers(2, 6, 4, 4), numbers(6, 4, 3, 3), bias, 2, 1, 1, True, 1)
        yield from _conv(f"transposed patches{end}", numbers(2, 6, 4, 6), numbers(6, 4, 2, 2), bias, 2, 0, 1, True, 1)
        yield from _conv(f"transposed grouped{end}", numbers(2, 12, 4, 4), numbers(12, 4, 3, 3), bias, 2, 1, 1, True, 2)
    yield from _conv("1d dilated", numbers(4, 6, 12), numbers(4, 6, 3), True, 1, 2, 2, False, 1)
    yield from _conv("3d", numbers(2, 4, 3, 4, 5), numbers(6, 4, 3, 3, 3), True, 1, 1, 1, False, 1)


def pooling_samples() -> Iterator[Sample]:
    x = numbers(4, 6, 6, 12)
    for label, args in (("tiled", ([2, 2], [2, 2])), ("overlapping", ([3, 3], [2, 2], [1, 1])), ("defaults", ([3, 2],))):
        sample = make_sample("aten.max_pool2d_with_indices", x, *args, label=label)
        yield sample
        out, index = sample.outputs
        stride, padding = (*args, args[0])[1], (*args, args[0], [0, 0])[2] if len(args) > 2 else [0, 0]
        g = numbers(*out.shape, seed="g")
        yield make_sample("aten.max_pool2d_with_indices_backward", g, x, args[0], stride, padding, [1, 1], False, index, label=label)
        yield make_sample("aten.avg_pool2d", x, *args, label=label)
        yield make_sample("aten.avg_pool2d_backward", g, x, args[0], stride, padding, False, True, None, label=label)
    for size in ([1, 1], [3, 4], [4, 5]):
        sample = make_sample("aten._adaptive_avg_pool2d", x, size, label=str(size))
        yield sample
        yield make_sample("aten._adaptive_avg_pool2d_backward", numbers(4, 6, *size), x, label=str(size))
        sample = make_sample("aten.adaptive_max_pool2d", x, size, label=str(size))
        yield sample
        yield make_sample("aten.adaptive_max_pool2d_backward", numbers(4, 6, *size), x, sample.outputs[1], label=str(size))
    v = numbers(2, 4, 4, 6, 2)
    out, index = aten.max_pool3d_with_indices(v, [2, 2, 2])
    yield make_sample("aten.max_pool3d_with_indices", v, [2, 2, 2])
    g = numbers(*out.shape, seed="g")
    yield make_sample("aten.max_pool3d_with_indices_backward", g, v, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, index)
    yield make_sample("aten.avg_pool3d", v, [2, 2, 2])
    yield make_sample("aten.avg_pool3d_backward", g, v, [2] * 3, [2] * 3, [0] * 3, False, True, None)
    yield make_sample("aten._adaptive_avg_pool3d", v, [2, 3, 1])
    yield make_sample("aten._adaptive_avg_pool3d_backward", numbers(2, 4, 2, 3, 1), v)
    out, index = aten.adaptive_max_pool3d(v, [2, 3, 1])
    yield make_sample("aten.adaptive_max_pool3d", v, [2, 3, 1])
    yield make_sample("aten.adaptive_max_pool3d_backward", numbers(2, 4, 2, 3, 1), v, index)
    yield make_sample("aten.avg_pool1d", numbers(4, 6, 12), [2])


def resample_samples() -> Iterator[Sample]:
    sizes = {1: ([6], [12]), 2: ([4, 6], [8, 18]), 3: ([4, 2, 3], [8, 4, 3])}
    for nd, (small, large) in sizes.items():
        x, g = numbers(2, 6, *small), numbers(2, 6, *large)
        scales = [b / a for a, b in zip(small, large)]
        for op in ("upsample_nearest", "_upsample_nearest_exact"):
            yield make_sample(f"aten.{op}{nd}d", x, large)
            yield make_sample(f"aten.{op}{nd}d", x, large, *scales, label="scales")
            yield make_sample(f"aten.{op}{nd}d_backward", g, large, [2, 6, *small], *scales)
        yield make_sample(f"aten.upsample_nearest{nd}d.vec", x, None, scales)
        yield make_sample(f"aten.upsample_nearest{nd}d.vec", x, large, None, label="size")
        smooth = {1: ("linear1d",), 2: ("bilinear2d", "bicubic2d"), 3: ("trilinear3d",)}[nd]
        for name in smooth:
            yield make_sample(f"aten.upsample_{name}", x, large, False)
            yield make_sample(f"aten.upsample_{name}_backward", g, large, [2, 6, *small], True)
            yield make_sample(f"aten.upsample_{name}.vec", x, None, False, scales)
    for name in ("bilinear2d", "bicubic2d"):
        yield make_sample(f"aten._upsample_{name}_aa", numbers(2, 6, 8, 6), [4, 9], False)
        yield make_sample(f"aten._upsample_{name}_aa_backward", numbers(2, 6, 4, 9), [4, 9], [2, 6, 8, 6], False)
    yield make_sample("aten.upsample_nearest2d", numbers(2, 6, 4, 6), [6, 9], label="not whole times")
    yield make_sample("aten.upsample_nearest2d_backward", numbers(2, 6, 6, 9), [6, 9], [2, 6, 4, 6], label="not whole times")


def loss_samples() -> Iterator[Sample]:
    log_p, target = torch.log_softmax(numbers(12, 5).clamp(-3, 3), 1), below(5, 12)
    target[3] = target[7] = 2
    weight = numbers(5, kind="positive")
    image, labels = torch.log_softmax(numbers(4, 5, 6, 3).clamp(-3, 3), 1), below(5, 4, 6, 3)
    for reduction in (loss_rules.NONE, loss_rules.MEAN, loss_rules.SUM):
        for kind, scores, classes in (("nll_loss", log_p, target), ("nll_loss2d", image, labels)):
            for w in (None, weight):
                label = f"reduction {reduction}{' weighted' if w is not None else ''}"
                sample = make_sample(f"aten.{kind}_forward", scores, classes, w, reduction, 2, label=label)
                yield sample
                out, total = run_op(sample.node.op, sample.node.args, sample.inputs)
                g = numbers(*out.shape, seed="g")
                yield make_sample(f"aten.{kind}_backward", g, scores, classes, w, reduction, 2, total, label=label)
        label = f"reduction {reduction}"
        for w in (None, weight):
            margin, ending = numbers(12, 5, seed="margin"), f"{label}{' weighted' if w is not None else ''}"
            sample = make_sample("aten.multi_margin_loss", margin, target, 1, 0.5, w, reduction, label=ending)
            yield sample
            g = numbers(*sample.outputs[0].shape, seed="g")
            yield make_sample("aten.multi_margin_loss_backward", g, margin, target, 1, 0.5, w, reduction, label=ending)
        margin_of_one = numbers(5, seed="margin")
        yield make_sample("aten.multi_margin_loss", margin_of_one, below(5, 1), 1, 0.5, None, reduction, label=f"{label} one row")
        labels_of_row = below(5, 12, 5) - 1
        sample = make_sample("aten.multilabel_margin_loss_forward", margin, labels_of_row, reduction, label=label)
        yield sample
        out, is_target = sample.outputs
        g = numbers(*out.shape, seed="g")
        yield make_sample("aten.multilabel_margin_loss_backward", g, margin, labels_of_row, reduction, is_target, label=label)
        x, y = numbers(6, 9), numbers(6, 9, seed="y")
        for name in loss_rules.POINTWISE:
            p, t = (x.sigmoid(), y.sigmoid()) if name.startswith("binary") else (x, y)
            extra = {"smooth_l1_loss": {"beta": 0.7}, "huber_loss": {"delta": 0.7}}.get(name, {})
            out = make_sample(f"aten.{name}", p, t, reduction=reduction, **extra, label=f"reduction {reduction}")
            yield out
            if name in loss_rules.POINTWISE_BACKWARD:
                g = numbers(*out.outputs[0].shape, seed="g")
                yield make_sample(f"aten.{name}_backward", g, p, t, reduction=reduction, **extra, label=f"reduction {reduction}")
