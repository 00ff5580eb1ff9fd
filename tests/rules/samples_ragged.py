"""Samples of histograms and searches, of writes by index, and of ragged runs: embedding bags, segments, experts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .referee import Sample, make_sample
from .samples_core import below, numbers


def counting_samples() -> Iterator[Sample]:
    x = numbers(4, 6, 9)
    yield make_sample("aten.histc", numbers(12, 6), 5, -2, 3)
    yield make_sample("aten.histc", numbers(12, 6), 5, label="own range")
    edges = numbers(6).sort().values
    yield make_sample("aten.bucketize.Tensor", x, edges)
    yield make_sample("aten.bucketize.Scalar", 250.0, edges)
    yield make_sample("aten.searchsorted.Tensor", edges, x, label="one sequence")
    yield make_sample("aten.searchsorted.Scalar", edges, 250.0)
    many = numbers(4, 6, 8)
    yield make_sample("aten.searchsorted.Tensor", many.sort(-1).values, x[:, :, :6].contiguous(), right=True, label="many sequences")
    yield make_sample("aten.searchsorted.Tensor", many, x[:, :, :6].contiguous(), sorter=many.argsort(-1), label="sorter")
    few, tests = below(9, 4, 6), below(9, 12, seed="tests")[:4]
    yield make_sample("aten.isin.Tensor_Tensor", few, tests)
    yield make_sample("aten.isin.Tensor_Tensor", few, tests, invert=True, label="inverted")
    yield make_sample("aten.isin.Tensor_Scalar", below(2, 4, 6), 1)
    yield make_sample("aten.isin.Scalar_Tensor", 11, tests, label="nowhere")
    yield make_sample("aten.isin.Scalar_Tensor", int(tests[2]), tests, label="there")
    yield make_sample("aten.histogram.bin_ct", numbers(12), 5)
    yield make_sample("aten.nonzero_static", below(3, 4, 6), size=8)
    yield make_sample("aten.repeat_interleave.Tensor", torch.tensor([1, 2, 0, 3, 2, 4]), output_size=12)


def scatter_samples() -> Iterator[Sample]:
    x, places, src = numbers(4, 6, 9), below(6, 4, 12, 9), numbers(4, 12, 9, seed="src")
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        yield make_sample("aten.scatter_reduce.two", x, 1, places, src, reduce, label=reduce)
        yield make_sample("aten.scatter_reduce.two", x, 1, below(6, 4, 12, 9), src, reduce, include_self=False, label=f"{reduce} alone")
    for reduce in ("prod", "mean", "amax", "amin"):
        yield make_sample("aten.index_reduce", x, 1, below(6, 12), src, reduce, label=reduce)
        yield make_sample("aten.index_reduce", x, 1, below(6, 12), src, reduce, include_self=False, label=f"{reduce} alone")
    yield make_sample("aten.scatter.reduce", x, 1, places, src, reduce="add", label="add")
    yield make_sample("aten.scatter.reduce", x, 1, places, src, reduce="multiply", label="multiply")
    yield make_sample("aten.scatter.value_reduce", x, 1, places, 1.5, reduce="add")
    inside = numbers(4, 6, 9, kind="bool")
    spots = [None, below(6, 6, 1), below(9, 9)]
    yield make_sample("aten._unsafe_masked_index", x, inside, spots, 0.5)
    yield make_sample("aten._unsafe_masked_index_put_accumulate", x, inside, spots, numbers(4, 6, 9, seed="values"))
    yield make_sample("aten.embedding_renorm", numbers(6, 9), below(6, 4), 1.5, 2.0)
    some = torch.tensor([4, 1, 3, 0])
    yield make_sample("aten.index_copy", x, 1, some, numbers(4, 4, 9, seed="rows"))
    yield make_sample("aten.index_fill.int_Scalar", x, 1, some, 1.5)
    yield make_sample("aten.index_fill.int_Scalar", x, 1, some, 0.0, label="zero")
    yield make_sample("aten.index_fill.int_Tensor", x, -1, some, numbers(seed="value"))
    yield make_sample("aten.take", x, below(216, 6, 4))
    yield make_sample("aten.put", x, below(216, 6, 4), numbers(6, 4, seed="new"), True, label="accumulate")
    yield make_sample("aten.put", x, torch.arange(24).view(6, 4) * 7, numbers(6, 4, seed="new"))
    mask = numbers(6, 9, kind="bool")
    yield make_sample("aten.masked_scatter", numbers(6, 9), mask, numbers(60, seed="src"))
    yield make_sample("aten.masked_scatter_backward", numbers(6, 9, seed="g"), mask, [6, 9])
    yield make_sample("aten._unsafe_index.Tensor", x, [None, below(6, 4, 2)])
    yield make_sample("aten._unsafe_index_put", x, [None, below(6, 12)], src, True)


def bag_samples() -> Iterator[Sample]:
    table, entries = numbers(10, 6), below(10, 12)
    for mode, name in ((0, "sum"), (1, "mean"), (2, "max")):
        for offsets, last in ((torch.tensor([0, 3, 3, 8]), False), (torch.tensor([0, 2, 4, 7, 12]), True)):
            label = f"{name}{' with the last end' if last else ''}"
            sample = make_sample("aten._embedding_bag", table, entries, offsets, False, mode, False, None, last, label=label)
            yield sample
            yield make_sample("aten._embedding_bag_forward_only", table, entries, offsets, False, mode, False, None, last, label=label)
            out, where, sizes, largest = sample.outputs
            if where.numel() == 0:  # what the backward of the whole op fills in
                where = torch.repeat_interleave(torch.diff(offsets, append=None if last else torch.tensor([12])))
            g = numbers(*out.shape, seed="g")
            rest = (10, False, mode)
            args = (g, entries, offsets, where, sizes, largest, *rest)
            yield make_sample("aten._embedding_bag_backward", *args, False, None, label=label)
            yield make_sample("aten._embedding_bag_dense_backward", g, entries, where, sizes, largest, *rest, None, label=label)
    offsets, weights = torch.tensor([0, 3, 3, 8]), numbers(12, seed="weights")
    sample = make_sample("aten._embedding_bag", table, entries, offsets, False, 0, False, weights, label="weighted")
    yield sample
    out, where, sizes, largest = sample.outputs
    g = numbers(*out.shape, seed="g")
    rest = (sizes, largest, 10, False, 0, False, weights)
    yield make_sample("aten._embedding_bag_backward", g, entries, offsets, where, *rest, label="weighted")
    yield make_sample("aten._embedding_bag_per_sample_weights_backward", g, table, entries, offsets, where, 0)


def segment_samples() -> Iterator[Sample]:
    for axis, shape, lengths in ((0, (12, 6), torch.tensor([3, 0, 5, 4])), (1, (2, 12, 6), torch.tensor([[3, 0, 5, 4], [2, 4, 4, 2]]))):
        data = numbers(*shape)
        for reduce in ("sum", "mean", "max", "min", "prod"):
            label = f"{reduce} {axis}"
            sample = make_sample("aten.segment_reduce", data, reduce, lengths=lengths, axis=axis, initial=1, label=label)
            yield sample
            out = sample.outputs[0]
            g = numbers(*out.shape, seed="g")
            yield make_sample("aten._segment_reduce_backward", g, out, data, reduce, lengths=lengths, axis=axis, initial=1, label=label)


def expert_samples() -> Iterator[Sample]:
    import transformers.integrations.moe  # noqa: F401  registers the op

    rows, weight, ends = numbers(12, 4), numbers(6, 4, 8), torch.tensor([2, 2, 5, 9, 11, 12], dtype=torch.int32)
    yield make_sample("transformers.grouped_mm_fallback", rows, weight, ends)
    yield make_sample("transformers.grouped_mm_fallback_backward", rows, weight, ends, numbers(12, 8, seed="g"))
