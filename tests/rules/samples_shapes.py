"""Samples of views, slices and indexing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .referee import Sample, make_sample
from .samples_core import below, numbers


def view_samples() -> Iterator[Sample]:
    pairs = (
        ((4, 6, 9), (24, 9)), ((24, 9), (4, 6, 9)), ((4, 6, 12), (4, 6, 3, 4)), ((4, 6, 3, 4), (4, 6, 12)), ((6, 4), (3, 8)),
        ((6, 4), (4, 6)), ((4, 6), (24,)), ((1, 6, 1), (6,)), ((6,), (1, 6, 1)), ((), (1, 1)), ((1,), ()), ((4, 9, 6), (2, 2, 3, 3, 6)),
        ((2, 3), (6,)), ((6, 2, 6), (3, 4, 6)), ((5, 7), (35,)), ((12, 12), (2, 3, 2, 4, 3)), ((4, 3, 6, 2), (12, 12)),
    )  # fmt: skip
    for before, after in pairs:
        yield make_sample("aten.view", numbers(*before), list(after), label=f"{before} {after}")
    yield make_sample("aten._unsafe_view", numbers(4, 6, 9), [24, 9])
    yield make_sample("aten.reshape", numbers(4, 6), [2, 12])
    yield make_sample("aten.view", numbers(4, 6, 9), [-1, 9], label="-1")
    yield make_sample("aten.view", numbers(4, 6, kind="int"), [24], label="integers")
    for before, size in (((6, 1, 9), [6, 4, 9]), ((1, 9), [4, 6, 9]), ((9,), [6, 9]), ((6, 9), [-1, -1]), ((), [4, 6]), ((1, 1), [2, 3])):
        yield make_sample("aten.expand", numbers(*before), size, label=f"{before} {size}")
    for reps in ([2, 3], [4, 1, 2], [1, 1]):
        yield make_sample("aten.repeat", numbers(4, 6), reps, label=str(reps))
    yield make_sample("aten.permute", numbers(4, 6, 9), [2, 0, 1])
    yield make_sample("aten.permute", numbers(4, 6, 9), [0, -1, 1], label="negative")
    yield make_sample("aten.transpose.int", numbers(4, 6, 9), 0, -1)
    yield make_sample("aten.t", numbers(4, 6))
    yield make_sample("aten.t", numbers(6), label="vector")
    yield make_sample("aten.unsqueeze", numbers(4, 6), 1)
    yield make_sample("aten.unsqueeze", numbers(4, 6), -1, label="last")
    yield make_sample("aten.squeeze", numbers(1, 6, 1))
    yield make_sample("aten.squeeze", numbers(2, 1, 3), label="shards of one")
    yield make_sample("aten.squeeze.dim", numbers(6, 1, 2), 1)
    yield make_sample("aten.squeeze.dim", numbers(6, 1, 2), 2, label="not one")
    yield make_sample("aten.squeeze.dims", numbers(2, 1, 3, 1), [1, 2])
    yield make_sample("aten.alias", numbers(4, 6))
    yield make_sample("aten.detach", numbers(4, 6))
    yield make_sample("aten.as_strided", numbers(4, 6), [3, 4], [2, 1], 1)


SLICES = (
    (0, 12, 1), (0, 4, 1), (4, 8, 1), (8, 12, 1), (6, 12, 1), (0, 8, 1), (1, 12, 2), (0, 12, 3), (1, 6, 1), (0, 5, 1),
    (-4, 2**63 - 1, 1), (2, 11, 4),
)  # fmt: skip


def slice_samples() -> Iterator[Sample]:
    x = numbers(6, 12)
    for start, end, step in SLICES:
        label = f"{start}:{end}:{step}"
        yield make_sample("aten.slice.Tensor", x, 1, start, end, step, label=label)
        piece = torch.ops.aten.slice.Tensor(numbers(6, 12, seed="src"), 1, start, end, step).clone()
        yield make_sample("aten.slice_backward", piece, [6, 12], 1, start, end, step, label=label)
        yield make_sample("aten.slice_scatter", x, piece, 1, start, end, step, label=label)
    yield make_sample("aten.slice.Tensor", numbers(12, 5), label="defaults")
    yield make_sample("aten.slice.Tensor", numbers(12, 5), 0, 3, label="open end")
    for dim, index in ((0, 1), (1, -1), (-1, 3)):
        big, row = numbers(4, 6, 9), numbers(4, 6, 9, seed="row").select(dim, index).clone()
        yield make_sample("aten.select.int", big, dim, index, label=f"{dim} {index}")
        yield make_sample("aten.select_scatter", big, row, dim, index, label=f"{dim} {index}")
        yield make_sample("aten.select_backward", row, [4, 6, 9], dim, index, label=f"{dim} {index}")
    for sizes in ((6, 6), (6, 12), (4, 4, 4), (2, 3), (5,), (12, 6, 6)):
        yield make_sample("aten.cat", [numbers(4, s, 5, seed=str(k)) for k, s in enumerate(sizes)], 1, label=str(sizes))
    yield make_sample("aten.cat", [numbers(6, kind="int"), numbers(6, kind="int", seed="b")], label="integers")
    yield make_sample("aten.cat", [numbers(4, 1), numbers(4, 1, seed="b")], -1, label="stack")
    yield make_sample("aten.flip", numbers(4, 6, 9), [1])
    yield make_sample("aten.roll", numbers(4, 6, 9), [2, 1], [1, 2])
    yield make_sample("aten.roll", numbers(4, 6), [5], label="flat")
    yield make_sample("aten.constant_pad_nd", numbers(4, 6, 9), [1, 2], 0.0)
    yield make_sample("aten.constant_pad_nd", numbers(4, 6, 9), [0, 0, -1, 2], 1.5, label="one")
    for op in ("tril", "triu"):
        yield make_sample(f"aten.{op}", numbers(4, 6, 9), 1)
    yield make_sample("aten.diagonal", numbers(4, 6, 6), 0, 1, 2)
    yield make_sample("aten.diagonal_backward", numbers(4, 6), [4, 6, 6], 0, 1, 2)
    yield make_sample("aten.unfold", numbers(4, 12), 1, 3, 3, label="tiled")
    yield make_sample("aten.unfold", numbers(4, 12), 1, 4, 2, label="overlapping")
    yield make_sample("aten.unfold_backward", numbers(4, 4, 3), [4, 12], 1, 3, 3, label="tiled")
    yield make_sample("aten.unfold_backward", numbers(4, 5, 4), [4, 12], 1, 4, 2, label="overlapping")
    yield make_sample("aten.glu", numbers(4, 12), -1)
    yield make_sample("aten.glu", numbers(12, 6), 0, label="first")
    yield make_sample("aten.glu_backward", numbers(4, 6), numbers(4, 12), -1)


def diagonal_samples() -> Iterator[Sample]:
    yield make_sample("aten.diag_embed", numbers(4, 6, 3))
    yield make_sample("aten.diag_embed", numbers(4, 6, 3), 1, 0, 2, label="apart")
    yield make_sample("aten.diagonal_scatter", numbers(4, 6, 6), numbers(4, 6), 0, 1, 2)
    yield make_sample("aten.trace", numbers(6, 9))
    for k in (1, 2, -1):
        yield make_sample("aten.rot90", numbers(4, 6, 9), k, [0, 2], label=str(k))
    yield make_sample("aten.block_diag", [numbers(2, 4), numbers(4, 2)])


def copy_samples() -> Iterator[Sample]:
    """The copying spellings of views, and views with several results."""
    x = numbers(4, 6, 12)
    yield make_sample("aten.alias_copy", x)
    yield make_sample("aten.detach_copy", x)
    yield make_sample("aten.as_strided_copy", numbers(4, 6), [3, 4], [2, 1], 1)
    yield make_sample("aten.as_strided_scatter", numbers(4, 6), numbers(3, 4), [3, 4], [6, 1], 1)
    yield make_sample("aten.expand_copy", numbers(6, 1, 9), [6, 4, 9])
    yield make_sample("aten.permute_copy", x, [2, 0, 1])
    yield make_sample("aten.view_copy", x, [24, 3, 4])
    yield make_sample("aten.t_copy", numbers(4, 6))
    yield make_sample("aten.transpose_copy.int", x, 0, 2)
    yield make_sample("aten.squeeze_copy.dim", numbers(6, 1, 2), 1)
    yield make_sample("aten.unsqueeze_copy", x, 1)
    yield make_sample("aten.unfold_copy", numbers(4, 12), 1, 3, 3)
    yield make_sample("aten.slice_copy.Tensor", x, 2, 4, 8)
    yield make_sample("aten.select_copy.int", x, 1, 2)
    yield make_sample("aten.diagonal_copy", x, 0, 1, 2)
    yield make_sample("aten.narrow_copy", x, 2, 3, 5)
    yield make_sample("aten.narrow_copy", x, 1, 0, 6, label="all")
    for op in ("split.Tensor", "unsafe_split.Tensor"):
        for size in (6, 4, 8, 5, 20):
            yield make_sample(f"aten.{op}", x, size, 2, label=str(size))
    for op in ("split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy"):
        yield make_sample(f"aten.{op}", x, [4, 8], 2)
        yield make_sample(f"aten.{op}", x, [1, 3, 2], 1, label="odd")
    yield make_sample("aten.unbind.int", x, 1)
    yield make_sample("aten.unbind_copy.int", x, -1, label="last")


def index_samples() -> Iterator[Sample]:
    table, tokens = numbers(10, 6), below(10, 4, 9)
    yield make_sample("aten.embedding", table, tokens)
    yield make_sample("aten.embedding", table, tokens, 3, label="padding")
    yield make_sample("aten.embedding", table, torch.tensor(3), label="scalar")
    grad = numbers(4, 9, 6)
    yield make_sample("aten.embedding_dense_backward", grad, tokens, 10, -1, False)
    yield make_sample("aten.embedding_dense_backward", grad, tokens, 10, 3, False, label="padding")
    yield make_sample("aten.embedding_dense_backward", grad, tokens, 10, -1, True, label="by frequency")
    x = numbers(4, 6, 9)
    yield make_sample("aten.gather", x, 1, below(6, 4, 12, 9))
    yield make_sample("aten.gather", x, -1, below(9, 4, 6, 1), label="one")
    yield make_sample("aten.gather", x, 1, below(6, 2, 6, 9), label="shorter")
    yield make_sample("aten.gather", numbers(10), 0, below(10, 6), label="vector")
    places = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(k)) for k in range(36)]).view(4, 9, 6).mT
    yield make_sample("aten.scatter.src", x, 1, places[:, :4], numbers(4, 4, 9, seed="src"))
    yield make_sample("aten.scatter.src", x, 1, places[:, :4], numbers(4, 6, 9, seed="src"), label="shorter")
    yield make_sample("aten.scatter.value", x, 1, below(6, 4, 2, 9), 1.5)
    yield make_sample("aten.scatter.value", x, 1, below(6, 4, 2, 9), 0.0, label="zero")
    yield make_sample("aten.scatter_add", x, 1, below(6, 4, 12, 9), numbers(4, 12, 9))
    yield make_sample("aten.scatter_add", x, 1, below(6, 2, 12, 9), numbers(4, 12, 9), label="shorter")
    yield make_sample("aten.scatter_add", numbers(10), 0, below(10, 6), numbers(6), label="vector")
    yield make_sample("aten.index_select", x, 1, below(6, 12))
    yield make_sample("aten.index_select", x, -1, torch.tensor(3), label="scalar")
    yield make_sample("aten.index_add", x, 1, below(6, 12), numbers(4, 12, 9), alpha=0.5)
    i, j = below(6, 4, 2), torch.tensor([3, 0])
    yield make_sample("aten.index.Tensor", x, [None, i], label="middle")
    yield make_sample("aten.index.Tensor", numbers(10, 6), [below(10, 12)], label="first")
    yield make_sample("aten.index.Tensor", x, [j, below(6, 6, 1)], label="two, broadcast")
    yield make_sample("aten.index.Tensor", x, [None, torch.tensor([5, 2]), below(9, 6, 2)], label="last two")
    yield make_sample("aten.index.Tensor", x, [j, None, below(9, 2)], label="apart")
    yield make_sample("aten.index.Tensor", x, [torch.tensor(2)], label="scalar")
    yield make_sample("aten.index.Tensor", numbers(6, 9), [below(6, 6)], label="looks like a mask")
    mask = numbers(6, 9, kind="bool")
    yield make_sample("aten.index.Tensor", numbers(6, 9, 4), [mask], label="mask")
    yield make_sample("aten.index_put", numbers(6, 9, 4), [mask], torch.tensor(0.0, dtype=torch.float64), label="mask")
    yield make_sample("aten.index_put", numbers(6, 9, 4), [mask], numbers(4, seed="row"), label="mask and row")
    yield make_sample("aten.index_put", numbers(6, 9, 4), [mask], numbers(1, 1, seed="one"), True, label="mask accumulate")
    yield make_sample("aten.index_put", numbers(6, 9, 4), [mask], numbers(int(mask.sum()), 4, seed="v"), label="mask and places")
    yield make_sample("aten.index_put", numbers(4, 6, 9), [None, mask], numbers(4, 1, seed="v"), label="mask behind")
    yield make_sample("aten.index_put", numbers(6, 9), [below(6, 6)], numbers(9), True, label="looks like a mask")
    yield make_sample("aten.index_put", x, [None, torch.tensor([4, 1])], numbers(4, 2, 9), label="middle")
    yield make_sample("aten.index_put", x, [None, torch.tensor([4, 1])], numbers(9), label="row")
    yield make_sample("aten.index_put", x, [None, below(6, 12)], numbers(4, 12, 9), True, label="accumulate")
    yield make_sample("aten.index_put", x, [below(4, 12), below(6, 12)], numbers(12, 9), True, label="accumulate two")
    yield make_sample("aten.index_put", x, [below(4, 12), None, below(9, 12)], numbers(12, 6), True, label="accumulate apart")
    yield make_sample("aten.index_put", x, [below(4, 12)], numbers(6, 9), True, label="accumulate broadcast")
