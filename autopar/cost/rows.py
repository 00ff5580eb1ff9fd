"""Rows: what `autopar profile` measured on a machine, and the device and link that a cluster of `cpu` ranks reads from them.

Ranks of one machine contend for its cores and its memory, so every row says how many ran at once; figures are of the slowest of them. In: a
profile (`rows_file` loads one). Out: `ProfileRows`; a `Device` and a `Link` with measured figures; `lookup` gives seconds of single ops and
collectives. Between the measured counts the nearest smaller one stands, scaled as if its total were shared out.

What `shape` means, by family (dtype: of the operands):

    matmul, matmul_input_grad, matmul_weight_grad   (m, n, k) of the FORWARD matmul y[m, n] = x[m, k] w[n, k]^T; the gradients are
                                                    dx = dy w and dw = dy^T x
    matmul_plain                                    (m, n, k) of the weight's gradient by torch's own call, as all products but those of linears are
    matmul_sustained                                (m, n, k) of one that runs for seconds without a pause, as its board's power lets it; of GPUs
    attention, attention_full, and .._backward      (batch x heads, sequence, dim of a head); causal, or without a mask
    conv, conv_input_grad, conv_weight_grad         (batch, channels in, channels out, height = width, kernel); stride 1, same padding
    copy, add_into, pointwise, gelu,                (bytes read and written,); the first two write into memory that is there, the others
    gelu_backward, cast                             allocate what they return, as a step does; cast: to bfloat16, or from it to float32
    row_sum, column_sum, softmax, layer_norm,       (rows, columns); softmax and norms along the columns; bias_gelu is gelu(x + bias)
    bias_gelu, cross_entropy, and .._backward
    adamw, adamw_fused                              (elements,) of one parameter: op by op as torch's default on cpu, or in one call
    launch                                          (elements,) of an addition too small to count
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ..cluster import Device, Link
from ..graph.machine import Machine
from ..graph.tensor import DTYPE_BYTES

Shape = tuple[int, ...]
_BYTES, _TABLE, _MATMUL = ("bytes",), ("rows", "columns"), ("m", "n", "k")
_ATTENTION, _CONV = ("batch x heads", "sequence", "dim"), ("batch", "channels in", "channels out", "side", "kernel")
SUSTAINED = "matmul_sustained"  # for seconds without a pause
_DISTURBED = 1.5  # times as long while fewer processes ran: no quiet machine does that
SHAPE_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("matmul", "matmul_input_grad", "matmul_weight_grad", "matmul_plain", SUSTAINED), _MATMUL),
    **dict.fromkeys(("attention", "attention_backward", "attention_full", "attention_full_backward"), _ATTENTION),
    **dict.fromkeys(("conv", "conv_input_grad", "conv_weight_grad"), _CONV),
    **dict.fromkeys(("copy", "add_into", "pointwise", "gelu", "gelu_backward", "cast"), _BYTES),
    **dict.fromkeys(("row_sum", "column_sum", "softmax", "softmax_backward", "layer_norm", "layer_norm_backward", "bias_gelu"), _TABLE),
    **dict.fromkeys(("cross_entropy", "cross_entropy_backward"), _TABLE),
    **dict.fromkeys(("adamw", "adamw_fused", "launch"), ("elements",)),
}  # family -> what the numbers of its shape are
_LARGE_BYTES = 2**20  # of a collective whose latency hardly counts
COMM_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
MEETING = "meeting"  # an all_reduce that follows compute: ranks come to it one after the other, with cold caches, where one after another measures neither
Group = tuple[int, int]  # ranks of a group, and the distance between them: (2, 1) is 0 1 | 2 3, (2, 2) is 0 2 | 1 3


@dataclass(frozen=True, slots=True)
class OpRow:
    """One op at one local shape, while `ranks` processes ran it at once.

    Args:
        seconds: of one run on the slowest rank: the median, or the mean where ranks outnumber cores; None where measuring failed.
        spread: interquartile range over the median.
        repeats: that these are of.
        date: ISO.
        error: why measuring failed; "" where it did not.
    """

    family: str
    dtype: str
    shape: Shape
    ranks: int
    seconds: float | None
    spread: float
    repeats: int
    date: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class CommRow:
    """One collective in groups that together are all `ranks`, all groups at once.

    Args:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, meeting.
        group: which ranks talk.
        per_host: of the ranks, on one host.
        num_bytes: of a rank's tensor, the larger of before and after.
        beside_s: seconds of the compute that ran beside it (of a meeting: before it), alone; 0: nothing ran.
        seconds: of the collective; of both together where compute ran beside or before.
        spread, repeats, date, error: as of `OpRow`.
    """

    kind: str
    group: Group
    ranks: int
    per_host: int
    num_bytes: int
    beside_s: float
    seconds: float | None
    spread: float
    repeats: int
    date: str
    error: str = ""
    beside: bool = False


@dataclass(frozen=True, slots=True)
class ProfileRows:
    """One measured machine; `finished` is False where measuring was interrupted or out of time."""

    machine: Machine
    ops: tuple[OpRow, ...]
    comms: tuple[CommRow, ...]
    finished: bool = True


def row_key(row: OpRow | CommRow) -> tuple:
    """What a row is of: two rows of one profile never share it."""
    if isinstance(row, OpRow):
        return row.family, row.dtype, row.shape, row.ranks
    return row.kind, row.group, row.ranks, row.per_host, row.num_bytes, row.beside


def measured_counts(rows: ProfileRows) -> tuple[int, ...]:
    """The numbers of ranks at which ops were measured, ascending."""
    return tuple(sorted({r.ranks for r in rows.ops if r.seconds is not None}))


def missing_kinds(rows: ProfileRows) -> tuple[str, ...]:
    """Families of ops and kinds of collectives of which a CPU's profile has no row with seconds."""
    ops, comms = {r.family for r in rows.ops if r.seconds is not None}, {r.kind for r in rows.comms if r.seconds is not None}
    return (*(name for name in SHAPE_NAMES if name not in ops and name != SUSTAINED), *(name for name in COMM_KINDS if name not in comms))


def disturbed_text(rows: ProfileRows) -> str:
    """Of a CPU: which of its ops took longer while fewer processes ran them, so that something else must have run meanwhile; "" where none did.

    On two quiet cores no op of 341 pairs was slower so; beside two other programs 189 of 682 were, small ones thousands of times, for they waited for a core.
    """
    times: dict[tuple, dict[int, float]] = {}
    for row in rows.ops:
        if row.seconds is not None and row.family != SUSTAINED:
            times.setdefault((row.family, row.dtype, row.shape), {})[row.ranks] = row.seconds
    pairs = [(key, at[few], at[more]) for key, at in times.items() for few, more in pairwise(sorted(at))]
    slower = [(few / more, key) for key, few, more in pairs if few > _DISTURBED * more]
    if not slower:
        return ""
    ratio, (family, dtype, shape) = max(slower)
    return f"{len(slower)} of {len(pairs)} ops took longer while fewer processes ran them (most: {family} {dtype} {' x '.join(map(str, shape))}, {ratio:.3g} times): something else ran meanwhile"


def measured_device(rows: ProfileRows, device: Device, ranks: int) -> Device:
    """The device with the figures measured at this number of ranks: the best rate of any matmul shape of each dtype, the memory bandwidth
    of the largest copy and addition, the launch. A figure that was not measured stays the device's own, and the source says so."""
    count, share = nearest_count(rows, measured_counts(rows), ranks)
    at = [r for r in rows.ops if r.ranks == count]
    flops = _matmul_rates(at)
    memory, launch = memory_bytes_per_s(at), launch_seconds(at)
    missing = [name for name, found in (("matmul", flops), ("memory", memory), ("launch", launch)) if not found]
    source = source_text(rows, at, count, ranks) + (f" (not measured: {', '.join(missing)})" if missing else "")
    return replace(
        device,
        flops_per_s=tuple((dtype, rate * share) for dtype, rate in flops) or device.flops_per_s,
        memory_bytes_per_s=memory * share if memory else device.memory_bytes_per_s,
        launch_s=launch / share if launch else device.launch_s,
        source=source if len(missing) < 3 else device.source,
    )


def _matmul_rates(at: Iterable[OpRow]) -> tuple[tuple[str, float], ...]:
    best: dict[str, float] = {}
    for row in at:
        if row.family == "matmul" and row.seconds is not None:
            m, n, k = row.shape
            best[row.dtype] = max(best.get(row.dtype, 0.0), 2 * m * n * k / row.seconds)
    return tuple(best.items())


def memory_bytes_per_s(at: Iterable[OpRow]) -> float:
    """Bytes per second of the largest float32 copy and addition together; 0 where there is neither."""
    largest: dict[str, OpRow] = {}
    for row in at:
        if row.family in ("copy", "add_into") and row.dtype == "float32" and row.seconds is not None:
            if row.family not in largest or row.shape > largest[row.family].shape:
                largest[row.family] = row
    taken = sum(row.seconds or 0.0 for row in largest.values())
    return sum(row.shape[0] for row in largest.values()) / taken if taken else 0.0


def launch_seconds(at: Iterable[OpRow]) -> float:
    """Seconds of an op that does nothing worth counting; 0 where there is none."""
    return next((row.seconds for row in at if row.family == "launch" and row.seconds is not None), 0.0)


def measured_link(rows: ProfileRows, link: Link, ranks: int) -> Link:
    """The link inside a host with the figures measured at this number of ranks, by the ring formula of `cost.model`: the latency of the
    smallest all_gather that was measured, and the median bandwidth of those from 1 MiB on (else of the largest). A roofline's
    two figures: `lookup.comm_seconds` knows each size.

        seconds = launch + (n-1) latency + (n-1)/n bytes / bandwidth
    """
    gathers = [
        r for r in rows.comms
        if r.kind == "all_gather" and not r.beside and r.seconds is not None and r.group == (r.ranks, 1) and r.per_host == r.ranks
    ]  # fmt: skip
    if not gathers:
        return link
    count, share = nearest_count(rows, tuple(sorted({r.ranks for r in gathers})), ranks)
    at = sorted((r for r in gathers if r.ranks == count), key=lambda r: r.num_bytes)
    launch_s = launch_seconds(r for r in rows.ops if r.ranks == count)
    latency_s, bandwidth = _fit_ring(at, launch_s)
    return replace(link, latency_s=latency_s / share, bandwidth_bytes_per_s=bandwidth * share, source=source_text(rows, at, count, ranks))


def _fit_ring(gathers: Sequence[CommRow], launch_s: float) -> tuple[float, float]:
    """(latency, bandwidth) by the ring formula; what a small gather sends is counted too.

    Args:
        gathers: measured, ascending in bytes.
    """
    small, n = gathers[0], gathers[0].group[0]
    rates = [_ring_rate(small, row) for row in gathers if row.num_bytes >= _LARGE_BYTES] or [_ring_rate(small, gathers[-1])]
    bandwidth = median(rates)
    assert small.seconds is not None
    return max(1e-7, (small.seconds - launch_s - (n - 1) / n * small.num_bytes / bandwidth) / (n - 1)), bandwidth


def _ring_rate(small: CommRow, large: CommRow) -> float:
    """Bytes per second that a rank sends, from what the larger one takes longer; where noise hides that, from all it takes."""
    n = small.group[0]
    assert small.seconds is not None and large.seconds is not None
    longer = large.seconds - small.seconds
    if longer > 0.1 * large.seconds:
        return (n - 1) / n * (large.num_bytes - small.num_bytes) / longer
    return (n - 1) / n * large.num_bytes / large.seconds


def source_text(rows: ProfileRows, at: Iterable[OpRow | CommRow], measured: int, wanted: int) -> str:
    """One line for people: when, where and how the rows were measured."""
    machine = rows.machine
    date = max((row.date for row in at), default="")
    what = machine_text(machine)
    scaled = "" if measured == wanted or machine.device != "cpu" else f", scaled to {wanted}"
    at_once = f", {measured} at once{scaled}" if machine.device == "cpu" else ""
    return f"measured {date} on {what}, torch {machine.torch}{at_once}"


def machine_text(machine: Machine) -> str:
    """`AMD EPYC with 2 cores`, or the GPU's name."""
    return (
        machine.device
        if machine.device != "cpu"
        else f"{machine.processor} with {machine.cores} {'core' if machine.cores == 1 else 'cores'}"
    )


def nearest_count(rows: ProfileRows, counts: tuple[int, ...], ranks: int) -> tuple[int, float]:
    """The measured number of ranks that stands for `ranks`, and the share of its rate that is left to each: ranks of one CPU contend, GPUs
    do not."""
    if not counts:
        return 0, 1.0
    smaller = [c for c in counts if c <= ranks]
    count = max(smaller) if smaller else min(counts)
    return count, min(1.0, count / ranks) if rows.machine.device == "cpu" else 1.0


def op_work(family: str, dtype: str, shape: Shape) -> tuple[float, float]:
    """(FLOPs, bytes moved at least) of an op: what its seconds are compared by between shapes. FLOPs are 0 where memory decides."""
    width = DTYPE_BYTES[dtype]
    if family.startswith("matmul"):
        m, n, k = shape
        return 2.0 * m * n * k, width * (1.0 * m * k + 1.0 * n * k + 1.0 * m * n)
    if family.startswith("attention"):
        heads, sequence, dim = shape
        # forward 2 matmuls, backward 5 (one makes the scores again); a causal mask leaves half: FlashAttention-2 (Dao 2023), section 4.1
        whole = (10.0 if family.endswith("backward") else 4.0) * heads * sequence**2 * dim
        return whole if "full" in family else whole / 2, 4.0 * width * heads * sequence * dim
    if family.startswith("conv"):
        batch, cin, cout, side, kernel = shape
        return 2.0 * batch * cin * cout * side**2 * kernel**2, width * (1.0 * batch * (cin + cout) * side**2 + 1.0 * cin * cout * kernel**2)
    if family.startswith("adamw"):
        return 0.0, 7.0 * width * shape[0]  # reads parameter, gradient, two moments; writes all but the gradient
    if family == "launch":
        return 0.0, 3.0 * width * shape[0]
    if len(shape) == 1:
        return 0.0, 1.0 * shape[0]
    tensors = 1.0 if family.endswith("sum") else 3.0 if family in ("softmax_backward", "layer_norm_backward") else 2.0
    return 0.0, tensors * width * shape[0] * shape[1]
