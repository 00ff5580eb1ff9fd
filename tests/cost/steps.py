"""Seconds of one step of a reshard, by itself: what a whole reshard must come to where nothing is joined."""

from autopar.cost.wires import axis_link, estimate_comm_s, step_copied_bytes
from autopar.graph.tensor import DTYPE_BYTES, num_elements
from autopar.graph.transfer import Transfer


def estimate_step_s(model, step, mesh, dtype, transfer=Transfer.BLOCKING):
    ends = (step.from_dim, step.from_stride), (step.to_dim, step.to_stride)
    copied = step_copied_bytes(step.kind, step.local_in, step.local_out, dtype, mesh.axes[step.axis].size, ends)
    sides = (num_elements(shape) * DTYPE_BYTES[dtype] for shape in (step.local_in, step.local_out))
    return estimate_comm_s(model, step.kind, axis_link(model, mesh, step.axis), *sides, copied, transfer)
