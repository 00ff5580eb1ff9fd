"""What a step under Alpa keeps on one device: it sends all gradients in one message, so all are there, unreduced, when the backward pass ends.

In: our program of the same plan. Out: bytes. Alpa's combiner of all-reduces has a threshold of 2**60 bytes and works on one continuous buffer; its combiner of
all-gathers has 2**60, too, but for ZeRO-3, which has 2**25 (alpa/shard_parallel/auto_sharding.py: `AutoShardingOption`, `run_auto_sharding_pass`). What
we send as it comes, and give back at once, is there as a whole.
"""

from __future__ import annotations

from autopar.cost.memory import list_lives
from autopar.graph.graph import value_table
from autopar.graph.node import Phase
from autopar.graph.program import Program
from autopar.graph.tensor import STATE_KINDS, size_bytes
from autopar.graph.transfer import Transfer, transfer_of


def combined_bytes(program: Program, gathers_at_once: bool) -> int:
    """Bytes at the end of the backward pass: states, all gradients as they are before they are reduced, and parameters that were gathered.

    Args:
        gathers_at_once: parameters are gathered in one message, too.
    """
    values = value_table(program.graph)
    names = [life.name for life in list_lives(program)]
    held = {n: size_bytes(values[n]) for n in names if values[n].kind in STATE_KINDS and values[n].version == 0}
    for node, origin in zip(program.graph.nodes, program.origins):
        if not node.op.startswith("comm.") or not origin.value:
            continue
        transfer = transfer_of(values[origin.value]) if origin.value in values else Transfer.BLOCKING
        if transfer is Transfer.GRAD and node.phase is not Phase.FORWARD:
            held[node.inputs[0]] = size_bytes(values[node.inputs[0]])
        elif gathers_at_once and transfer is Transfer.STATE and node.phase is Phase.FORWARD:
            held[node.outputs[0]] = size_bytes(values[node.outputs[0]])
    return sum(held.values())
