"""Under way: what a program holds beside its plan's peak, because its collectives start early, its ops run in kernels, and on a CPU reductions, matmuls, the loss and convolutions work on copies.

In: a program as it was partitioned, and as it is emitted, with its sections. Out: bytes. The plan's own law (`cost.memory`) knows the program before collectives are
started ahead, and op by op; the emitted one holds what is under way, too (`graph.overlap_memory`), as far as there is room, and what its kernels are given (`cost.arguments`). On a CPU the loss works on a block of logits at a time (`runtime.vocabulary`);
elsewhere it is a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph.channels_last import list_lying
from ..graph.cpu_matmul import rows_scratch_bytes
from ..graph.graph import value_table
from ..graph.liveness import bytes_over_time, live_ranges
from ..graph.node import Node, get_arg, packet_of
from ..graph.overlap_memory import held_over_time
from ..graph.program import MAKES, OPEN, STARTS, WAIT, WRITES, Program
from ..graph.sections import Section
from ..graph.tensor import DTYPE_BYTES, LOGITS_BLOCK, Value, num_elements
from ..graph.turns import loop_span
from .arguments import with_arguments
from .cpu_scratch import conv_scratch_bytes
from .memory import scratch_bytes, waiting_bytes

_PROMOTE = frozenset(("aten.add", "aten.sub", "aten.mul", "aten.div"))  # on a CPU an operand of another dtype than the result is cast first, whole (TensorIterator::build)
_LOGITS = {"autopar.sum_exp": 0, "autopar.cross_entropy_backward": 1}  # place of the logits among the inputs


def under_way_bytes(program: Program, overlapped: Program, sections: Sequence[Section], in_flight: float = 1.0, on_cpu: bool = False) -> int:
    """By how much the peak of what runs is above `estimate_memory`'s.

    Args:
        overlapped, sections: the program as it is emitted, as far as there is room (`overlap_within`).
        in_flight: as of `estimate_memory`.
        on_cpu: whether collectives run on gloo, and groups of ops one after the other.
    """
    waiting = sum(waiting_bytes(program, in_flight).values())
    plain = _peak(program, bytes_over_time(program.graph, live_ranges(program.graph)), waiting)
    held = held_over_time(overlapped, on_cpu)
    return max(0, _peak(overlapped, with_arguments(overlapped, sections, held, on_cpu), waiting, on_cpu) - plain)


def _peak(program: Program, held: Sequence[int], waiting: int, on_cpu: bool = False) -> int:
    """With the buffers of blocking collectives, the block of the loss, and what other turns hold."""
    values, strides, span = value_table(program.graph), list_lying(program.graph) if on_cpu else {}, loop_span(program.graph)
    return max(
        size + _scratch(program, node, values, strides, on_cpu) + (waiting if span is not None and span[0] <= i <= span[1] else 0)
        for i, (size, node) in enumerate(zip(held, program.graph.nodes))
    )


def _scratch(program: Program, node: Node, values: dict[str, Value], strides: Mapping[str, Sequence[int]], on_cpu: bool) -> int:
    if node.op.startswith("comm."):
        return 0 if node.op in (*STARTS, WAIT, OPEN) else scratch_bytes(program, node, values)
    return _op_scratch(node, values, strides) if on_cpu else 0


def _op_scratch(node: Node, values: Mapping[str, Value], strides: Mapping[str, Sequence[int]]) -> int:
    """On a CPU."""
    if node.op in _LOGITS:
        logits = values[node.inputs[_LOGITS[node.op]]]
        block = min(LOGITS_BLOCK, num_elements(logits.shape)) * max(4, DTYPE_BYTES[logits.dtype])
        if DTYPE_BYTES[logits.dtype] < 4:  # widened, and the softmax of it
            return 2 * block
        return block if node.op == "autopar.sum_exp" else 0  # a gradient is made where it stays
    if packet_of(node.op) in _PROMOTE:
        made = values[node.outputs[0]]
        return sum(num_elements(values[name].shape) * DTYPE_BYTES[made.dtype] for name in set(node.inputs) if values[name].dtype != made.dtype)
    if node.op in (MAKES, WRITES):
        grad, read = (values[name] for name in node.inputs[:2])
        rows, cols = (read, grad) if get_arg(node, "transposed") else (grad, read)
        return rows_scratch_bytes(grad.dtype, num_elements(grad.shape[:-1]), rows.shape[-1], cols.shape[-1], node.op == WRITES)
    return conv_scratch_bytes(node, values, strides)
