"""The grid: what `autopar profile` measures, in which order. Pure data, torch-free.

In: the kind of device, the number of ranks, whether it must be quick. Out: jobs. Invariants: the quick grid is part of the whole one; what
`measured_device` and `measured_link` read comes first, so that an interrupted profile already says the most important.

The points of a family need not fill a box (`lookup` says how it goes between them): squares along its diagonal, and the shapes in which one
dim is much larger or smaller than the others. On `cpu` the largest take 50 ms on one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..graph.tensor import DTYPE_BYTES
from .rows import COMM_KINDS, MEETING, SUSTAINED, Group, Shape


@dataclass(frozen=True, slots=True)
class OpJob:
    """Measure one op at one shape (`rows.OpRow`)."""

    family: str
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class CommJob:
    """Measure one collective (`rows.CommRow`); `beside`: while as many seconds of matmuls run; of a meeting, after some."""

    kind: str
    group: Group
    num_bytes: int
    beside: bool = False


Job = OpJob | CommJob

# (dtypes, shapes), the shapes of the quick grid first
_Points = tuple[Sequence[str], Sequence[Shape]]
_HALF = ("float32", "bfloat16")
_QUICK = {"matmul": 4, "comm": 2}  # shapes of a family in the quick grid; others 2
_MATMUL_FAMILIES = ("matmul", "matmul_input_grad", "matmul_weight_grad")
_ATTENTION_FAMILIES = ("attention", "attention_backward", "attention_full", "attention_full_backward")
_CONV_FAMILIES = ("conv", "conv_input_grad", "conv_weight_grad")
_BYTE_FAMILIES = ("pointwise", "gelu", "gelu_backward", "cast")
_TABLE_FAMILIES = ("layer_norm", "layer_norm_backward", "softmax", "softmax_backward", "bias_gelu", "row_sum", "column_sum")
_LOSS_FAMILIES = ("cross_entropy", "cross_entropy_backward")

_CPU: dict[str, tuple[_Points, ...]] = {
    "matmul": (
        (_HALF, (
            (512, 512, 512), (128, 128, 128), (2048, 256, 256), (256, 1024, 256), (1024, 1024, 1024), (256, 256, 256), (64, 64, 64),
            (256, 256, 2048), (128, 1024, 1024), (16, 1024, 1024), (1024, 16, 1024), (1024, 1024, 16), (4096, 64, 64), (64, 4096, 64), (64, 64, 4096),
            (16, 16, 16),
        )),
        (("float64",), ((512, 512, 512), (128, 128, 128), (2048, 256, 256))),
    ),
    "plain": ((_HALF, ((512, 512, 512), (128, 128, 128), (64, 64, 64), (256, 256, 256), (256, 1024, 256), (1024, 16, 1024), (64, 64, 4096), (16, 16, 16))),),
    "attention": ((_HALF, ((8, 256, 64), (8, 128, 32), (8, 512, 64), (4, 1024, 64), (64, 64, 32), (8, 256, 128))),),
    "conv": (
        (("float32",), ((8, 32, 32, 32, 3), (8, 64, 128, 16, 1), (8, 3, 32, 32, 3), (4, 64, 64, 28, 3), (2, 128, 128, 14, 3),
            (2, 16, 16, 64, 3))),
        (("bfloat16",), ((8, 32, 32, 32, 3), (8, 64, 128, 16, 1), (4, 64, 64, 28, 3))),
    ),
    "memory": ((("float32",), ((2**26,), (2**14,), (2**18,), (2**21,), (2**24,))),),
    "bytes": ((_HALF, ((2**18,), (2**24,), (2**14,), (2**21,), (2**26,))),),
    "table": ((_HALF, ((512, 1024), (4096, 256), (64, 128), (128, 4096), (2048, 1024))),),
    "loss": ((_HALF, ((256, 1024), (64, 32768), (1024, 256), (256, 8192))),),
    "adamw": ((("float32",), ((2**14,), (2**20,), (2**10,), (2**22,))),),
    "launch": ((("float32",), ((8,),)),),
}  # fmt: skip

_GPU_HALF = ("bfloat16", "float16")
_CUDA: dict[str, tuple[_Points, ...]] = {
    "matmul": (
        (_GPU_HALF, (
            (4096, 4096, 4096), (1024, 1024, 1024), (8192, 8192, 8192), (4096, 1024, 4096), (2048, 2048, 2048), (512, 512, 512),
            (256, 256, 256), (8192, 1024, 1024), (8192, 4096, 1024), (8192, 1024, 4096), (4096, 12288, 4096), (16384, 2048, 2048),
            (2048, 6144, 2048), (2048, 512, 8192), (2048, 8192, 512), (512, 8192, 8192), (64, 4096, 4096), (4096, 64, 4096),
            (4096, 4096, 64), (4096, 32768, 1024), (16384, 256, 256),
        )),
        (("float32",), (
            (4096, 4096, 4096), (1024, 1024, 1024), (2048, 2048, 2048), (512, 512, 512), (8192, 1024, 1024), (2048, 512, 8192),
            (256, 256, 256),
        )),
        (("float64",), ((2048, 2048, 2048), (1024, 1024, 1024), (4096, 4096, 4096))),
    ),
    "attention": (
        (_GPU_HALF, ((32, 2048, 128), (64, 1024, 64), (16, 4096, 128), (8, 8192, 128), (256, 512, 64), (128, 1024, 128), (16, 512, 64))),
        (("float32",), ((64, 1024, 64), (16, 512, 64), (32, 2048, 128))),
    ),
    "conv": (
        (("bfloat16", "float32"), (
            (32, 64, 64, 56, 3), (32, 256, 64, 56, 1), (32, 128, 128, 28, 3), (32, 256, 256, 14, 3), (32, 512, 512, 7, 3),
            (64, 3, 64, 112, 7), (8, 320, 320, 64, 3), (32, 512, 2048, 7, 1),
        )),
    ),
    "memory": ((("float32",), ((2**31,), (2**16,), (2**20,), (2**24,), (2**26,), (2**28,))),),
    "bytes": ((("bfloat16", "float32"), ((2**24,), (2**28,), (2**16,), (2**20,), (2**26,), (2**30,))),),
    "table": (
        (("bfloat16", "float32"), ((8192, 1024), (8192, 4096), (1024, 1024), (16384, 8192), (65536, 256), (2048, 16384), (256, 256))),
    ),
    "loss": ((("bfloat16", "float32"), ((2048, 32768), (8192, 50304), (256, 1024), (4096, 131072))),),
    "adamw": ((("float32",), ((2**24,), (2**27,), (2**12,), (2**18,), (2**21,))),),
    "launch": ((("float32",), ((8,),)),),
    "sustained": ((("bfloat16",), ((8192, 8192, 8192),)),),
}  # fmt: skip
_GRIDS = {"cpu": _CPU, "cuda": _CUDA}
_COMM_BYTES = {
    "cpu": (2**8, 2**23, 2**12, 2**16, 2**20),
    "cuda": (2**12, 2**26, 2**16, 2**18, 2**20, 2**22, 2**24, 2**28),
}
_WHOLE_BYTES = {"cpu": (2**25,), "cuda": (2**30,)}  # of all ranks in one group, also these
_BESIDE_BYTES = {"cpu": (2**23, 2**20), "cuda": (2**26, 2**22)}
_MEETING_BYTES = {"cpu": (2**20, 2**16), "cuda": ()}  # on a GPU collectives wait in a stream, not for the host
_FAMILIES = (
    ("launch", ("launch",)), ("memory", ("copy", "add_into")), ("matmul", _MATMUL_FAMILIES), ("plain", ("matmul_plain",)), ("bytes", _BYTE_FAMILIES),
    ("table", _TABLE_FAMILIES), ("loss", _LOSS_FAMILIES), ("adamw", ("adamw", "adamw_fused")), ("attention", _ATTENTION_FAMILIES),
    ("conv", _CONV_FAMILIES), ("sustained", (SUSTAINED,)),
)  # fmt: skip


def op_jobs(kind: str, quick: bool = False) -> tuple[OpJob, ...]:
    """The ops of a device.

    Args:
        kind: `cpu` or `cuda`.
    """
    found = tuple(_op_jobs(kind, True))
    return found if quick else (*found, *(job for job in _op_jobs(kind, False) if job not in set(found)))


def _op_jobs(kind: str, quick: bool) -> Iterator[OpJob]:
    for name, families in _FAMILIES:
        first = _QUICK.get(name, 2) if quick else None
        for family in families:
            for dtypes, shapes in _GRIDS[kind].get(name, ()):
                yield from (OpJob(family, dtype, shape) for dtype in dtypes for shape in shapes[:first])


def comm_jobs(kind: str, ranks: int, quick: bool = False) -> tuple[CommJob, ...]:
    """The collectives of so many ranks: in one group, and in every two ways to lie in equal groups (neighbours, and as far apart as can
    be).

    Args:
        kind: `cpu` or `cuda`.
    """
    if ranks == 1:
        return ()
    found = tuple(_comm_jobs(kind, ranks, True))
    return found if quick else (*found, *(job for job in _comm_jobs(kind, ranks, False) if job not in set(found)))


def _comm_jobs(kind: str, ranks: int, quick: bool) -> Iterator[CommJob]:
    first = _QUICK["comm"] if quick else None
    for group in list_groups(ranks):
        for wire in COMM_KINDS:
            sizes = _COMM_BYTES[kind] + (_WHOLE_BYTES[kind] if group[0] == ranks else ())
            yield from (CommJob(wire, group, _whole_pieces(size, group)) for size in sizes[:first])
    for wire in COMM_KINDS:
        yield from (
            CommJob(wire, (ranks, 1), _whole_pieces(size, (ranks, 1)), True) for size in _BESIDE_BYTES[kind][: 1 if quick else None]
        )
    for group in list_groups(ranks):
        yield from (CommJob(MEETING, group, _whole_pieces(size, group), True) for size in _MEETING_BYTES[kind][: 1 if quick else None])


def list_groups(ranks: int) -> tuple[Group, ...]:
    """(ranks of a group, distance between them): the whole first."""
    smaller = [size for size in range(ranks // 2, 1, -1) if ranks % size == 0]
    return ((ranks, 1), *(group for size in smaller for group in ((size, 1), (size, ranks // size))))


def group_members(group: Group, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The ranks of every group: all together are all ranks."""
    size, stride = group
    starts = (block + k for block in range(0, ranks, size * stride) for k in range(stride))
    return tuple(tuple(start + stride * k for k in range(size)) for start in starts)


def _whole_pieces(num_bytes: int, group: Group) -> int:
    """At least so many bytes, that divide into as many float32 pieces as the group has ranks."""
    unit = DTYPE_BYTES["float32"] * group[0]
    return -(-num_bytes // unit) * unit
