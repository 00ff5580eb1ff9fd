"""The ops that are ours, and how any op of a graph is called on real tensors.

In: tensors and plain arguments. Out: tensors. Imports torch only: emitted programs use it. Views are reshapes here: a shard need not be
contiguous.
"""

from __future__ import annotations

from functools import partial

import torch

from ..graph.cpu_matmul import multiply, multiply_rows, runs_onednn
from ..graph.gpu_matmul import even_columns, input_grad_apart, multiply_apart, weight_grad_apart
from ..graph.strides import READS_PACKED
from .attention import attention, attention_backward, row_numbers
from .indexing import index as index
from .indexing import index_put as index_put
from .lists import columns as columns
from .parcels import as_they_come as as_they_come
from .parcels import lots as lots
from .parcels import parcels as parcels
from .parcels import put as put
from .pending import Bucket
from .random import poisson, uniform
from .vocabulary import cross_entropy_backward, embedding, embedding_backward, embedding_backward_onto, pick, sum_exp, unpick

_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, transposed: bool = False) -> torch.Tensor:
    """`input [..., i]` times `weight [o, i]` (`[i, o]` if transposed) plus `bias [o]` -> `[..., o]`."""
    rows = weight.t() if transposed else weight
    even = even_columns(torch, input, rows.shape[0])
    return multiply_apart(torch, input, rows, bias, even) if even else multiply(torch, input, rows, bias)


def linear_input_grad(grad: torch.Tensor, weight: torch.Tensor, transposed: bool = False) -> torch.Tensor:
    """`grad [..., o]` back through `linear` -> `[..., i]`."""
    rows = weight.t() if transposed else weight
    even = even_columns(torch, grad, rows.shape[0])
    return input_grad_apart(torch, grad, rows, even) if even else multiply(torch, grad, rows.t())


def linear_input_grad_onto(sum: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, transposed: bool = False) -> torch.Tensor:
    """`sum [..., i]` with `linear_input_grad` of the rest added in place: by the matmul itself, unless it is one of those that cannot."""
    rows = weight.t() if transposed else weight
    count = grad.numel() // max(1, grad.shape[-1])
    if not sum.is_contiguous() or even_columns(torch, grad, rows.shape[0]) or sum.device.type == "cpu" and runs_onednn(str(sum.dtype)[6:], count, *rows.shape):
        return sum.add_(linear_input_grad(grad, weight, transposed))
    sum.view(-1, sum.shape[-1]).addmm_(grad.reshape(-1, grad.shape[-1]), rows)
    return sum


def linear_weight_grad(grad: torch.Tensor, input: torch.Tensor, transposed: bool = False) -> torch.Tensor:
    """Gradient of `linear`'s weight, summed over all leading dims of `grad [..., o]` and `input [..., i]`."""
    even = even_columns(torch, grad, grad.shape[-1])
    if even:
        return _weight_grad_apart(grad, input, even, grad.new_empty(_weight_shape(grad, input, transposed)), transposed)
    return multiply_rows(torch, *_rows_and_cols(grad, input, transposed))


def linear_weight_grad_into(grad: torch.Tensor, input: torch.Tensor, bucket: Bucket, place: int, transposed: bool = False) -> torch.Tensor:
    """`linear_weight_grad`, written where it travels: at this place of the bucket."""
    even = even_columns(torch, grad, grad.shape[-1])
    if even:
        return _weight_grad_apart(grad, input, even, bucket[place], transposed)
    room = bucket.find_room(place)
    made = multiply_rows(torch, *_rows_and_cols(grad, input, transposed), out=room)
    if room is None:
        bucket.settle(place, made)
    return made


def _weight_grad_apart(grad: torch.Tensor, input: torch.Tensor, even: int, whole: torch.Tensor, transposed: bool) -> torch.Tensor:
    weight_grad_apart(torch, grad, input.reshape(-1, input.shape[-1]), even, whole.t() if transposed else whole)
    return whole


def _rows_and_cols(grad: torch.Tensor, input: torch.Tensor, transposed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As matrices, what the weight's gradient has a row of each of, and a column."""
    rows, cols = (input, grad) if transposed else (grad, input)
    return rows.reshape(-1, rows.shape[-1]), cols.reshape(-1, cols.shape[-1])


def _weight_shape(grad: torch.Tensor, input: torch.Tensor, transposed: bool) -> tuple[int, int]:
    wide, narrow = grad.shape[-1], input.shape[-1]
    return (narrow, wide) if transposed else (wide, narrow)


def layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight=None, bias=None, output_mask=(True, True, True)):
    """`aten.native_layer_norm_backward`, whose kernel ignores the strides of mean and rstd, and on a GPU wants them in float32."""
    mean, rstd = mean.contiguous(), rstd.contiguous()
    if mean.device.type == "cuda" and mean.dtype in _HALVES:
        mean, rstd = mean.float(), rstd.float()
    return _aten.native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)


def grouped_mm(self: torch.Tensor, mat2: torch.Tensor, **others: object) -> torch.Tensor:
    """`aten._grouped_mm`, whose kernel wants each matrix packed along rows or along columns."""
    return _aten._grouped_mm(_packed_matrix(self), _packed_matrix(mat2), **others)


def _packed_matrix(x: torch.Tensor) -> torch.Tensor:
    packed = (x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1]) or (x.stride(-2) == 1 and x.stride(-1) >= x.shape[-2])
    return x if packed else x.contiguous()


def microbatch(x: torch.Tensor, turn: int = 0, *, dim: int, count: int) -> torch.Tensor:
    """The samples of one of `count` turns: a view of `x`, whose `dim` has the turn as its outermost digit."""
    size = x.shape[dim] // count
    return x.narrow(dim, turn * size, size)


def accumulate(sums: dict[str, torch.Tensor], name: str, x: torch.Tensor, own: bool = False) -> None:
    """Add `x` to the sum over turns that `sums` holds under `name`, in place; the first turn makes it, in float32 at least.

    Args:
        own: nobody else reads `x`: the first one becomes the sum, where it is packed and wide enough.
    """
    if name in sums:
        sums[name].add_(x)
    else:
        sums[name] = x if own and x.is_contiguous() and x.dtype not in _HALVES else _start_sum(x)


def accumulate_weight_grad(sums: dict[str, torch.Tensor], name: str, grad: torch.Tensor, input: torch.Tensor, transposed: bool = False) -> None:
    """`accumulate` of `linear_weight_grad`, of float32 or float64: the matmul adds its product where the sum lies."""
    if name not in sums:
        sums[name] = linear_weight_grad(grad, input, transposed)
        return
    multiply_rows(torch, *_rows_and_cols(grad, input, transposed), out=sums[name], add=True)


def accumulate_embedding(
    sums: dict[str, torch.Tensor], name: str, grad: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, num_rows: int, padding_idx: int = -1
) -> None:
    """`accumulate` of `embedding_backward`, of float32 or float64: on a CPU rows are added where the sum lies."""
    if name in sums:
        embedding_backward_onto(sums[name], grad, indices, rows, num_rows, padding_idx)
    else:
        sums[name] = embedding_backward(grad, indices, rows, num_rows, padding_idx).contiguous()


def collect(wholes: dict[str, torch.Tensor], name: str, x: torch.Tensor, turn: int, *, dim: int, count: int) -> None:
    """Put `x`, the part of one of `count` turns, in its place of what `wholes` holds under `name`; the turn that comes first makes it."""
    if name not in wholes:
        wholes[name] = x.new_empty((*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :]))
    microbatch(wholes[name], turn, dim=dim, count=count).copy_(x)


def _start_sum(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if x.dtype in _HALVES else x.dtype
    return torch.empty(x.shape, dtype=dtype, device=x.device).copy_(x)


_OWN = {
    "autopar.linear": linear,
    "autopar.linear_input_grad": linear_input_grad,
    "autopar.linear_input_grad_onto": linear_input_grad_onto,
    "autopar.linear_weight_grad": linear_weight_grad,
    "autopar.attention": attention,
    "autopar.attention_backward": attention_backward,
    "autopar.row_numbers": row_numbers,
    "autopar.uniform": uniform,
    "autopar.poisson": poisson,
    "autopar.embedding": embedding,
    "autopar.embedding_backward": embedding_backward,
    "autopar.embedding_backward_onto": embedding_backward_onto,
    "autopar.sum_exp": sum_exp,
    "autopar.pick": pick,
    "autopar.unpick": unpick,
    "autopar.cross_entropy_backward": cross_entropy_backward,
    "autopar.microbatch": lambda x, dim, count: microbatch(x, dim=dim, count=count),
    "autopar.accumulate": _start_sum,
    "autopar.collect": lambda x, dim, count: torch.cat([x] * count, dim),
    "aten._grouped_mm.default": grouped_mm,
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.view.default": lambda self, size: self.reshape(size),
    "aten._unsafe_view.default": lambda self, size: self.reshape(size),
    "aten.native_layer_norm_backward.default": layer_norm_backward,
}


def find_op(name: str):
    """The function for an op of a graph: `autopar.linear`, `aten.mm.default`. Arguments go by schema name.

    A user's op (of another namespace) gets its tensors packed, too: its kernel may know of no strides.
    """
    if name in _OWN:
        return _OWN[name]
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    return op if namespace == "aten" and packet not in READS_PACKED else partial(_call_packed, op)


def _call_packed(op, **arguments: object):
    return op(**{name: _contiguous(value) for name, value in arguments.items()})


def _contiguous(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_contiguous(v) for v in value]
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def call(name: str, **arguments: object):
    """Call an op of a graph."""
    return find_op(name)(**arguments)
