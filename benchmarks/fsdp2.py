"""What a step under FSDP2, as torchtitan runs it, keeps on one device: from our program of the same plan (ZeRO-3), changed where the two differ.

In: a program. Out: `Piece`s for the allocator (`benchmarks.allocator`); torchtitan prints what that has reserved (`get_peak_stats`: reserved_bytes.all.peak).
Where they differ, with V bytes of logits in 16 bits:

* **Loss.** `cross_entropy(pred.flatten(0, 1).float(), ...)` in plain torch: float32 logits and their log_softmax (2 V each) beside the logits in the forward
  pass; log_softmax, its gradient and that of the float32 logits (2 V each) in the backward pass, then the gradient in 16 bits. The logits go before
  the backward pass (`del pred`). Our programs hold the logits and their gradient: 2 V. Source: torchtitan/components/loss.py, torchtitan/train.py;
  torch's `log_softmax_backward`, which needs the result.
* **States.** 12 bytes a parameter: float32 parameters and two moments, made in the first update; no copy in 16 bits (`MixedPrecisionPolicy`). Gradients
  are reduced in float32 (`reduce_dtype`) on a stream of their own, and stay until they are zeroed.
* **Gathered parameters.** The root's (embedding, last norm, head) stay until the end of the backward pass: FSDP2 does not reshard the root after its forward. A
  group is gathered into a buffer on another stream and copied out of it (`foreach_all_gather`); a group's gradients are copied into a float32 buffer before they are
  reduced (`foreach_reduce`). Source: torch/distributed/fsdp/_fully_shard.
* **Update.** AdamW over lists of tensors holds a list of square roots (`_multi_tensor_adamw`): 4 bytes a parameter, one piece for each.

Not known: whether the loss was compiled. Compiled it holds about what ours does; the table's peaks say that it was not (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from autopar.cost.memory import Life, list_lives
from autopar.graph.graph import value_table
from autopar.graph.node import Phase
from autopar.graph.program import Program
from autopar.graph.repeats import block_of
from autopar.graph.tensor import Kind, size_bytes
from benchmarks.allocator import Piece

_GATHER, _REDUCE = 1, 2  # streams
_LOSS = "autopar.cross_entropy_backward"
_WIDE = 2  # float32 beside 16 bits


def list_pieces(program: Program) -> tuple[Piece, ...]:
    """The storage of a step on one device."""
    nodes, values = program.graph.nodes, value_table(program.graph)
    ends = {phase: max((i for i, n in enumerate(nodes) if n.phase is phase), default=0) for phase in Phase}
    found: list[Piece] = []
    for life in list_lives(program):
        kind = values[life.name].kind
        if not life.bytes or kind is Kind.PARAM and life.holder in ("parameters", "temporaries"):
            continue
        if kind is Kind.OPTIM:
            if life.first < 0:
                first = -1 if life.name.startswith("master:") else ends[Phase.UPDATE]
                found.append(Piece(life.bytes, first, len(nodes), stays=True))
        elif life.holder == "gathered":
            found += _gathered(program, life, ends[Phase.BACKWARD])
        elif life.holder == "gradients":
            found += _gradient(program, life, ends[Phase.BACKWARD], len(nodes) - 1)
        elif life.first < 0 or nodes[life.first].phase is not Phase.UPDATE:
            found.append(Piece(life.bytes, life.first, life.last, stays=life.leaves and life.first < 0))
    found += [Piece(p.bytes, ends[Phase.UPDATE], ends[Phase.UPDATE]) for p in found if p.stays and p.first < 0]
    return tuple(_with_loss(program, found))


def _gathered(program: Program, life: Life, backward: int) -> Iterator[Piece]:
    yield Piece(life.bytes, life.first, life.first, stream=_GATHER)
    if block_of(program.graph.nodes[life.last].path) is not None:
        yield Piece(life.bytes, life.first, life.last)
    elif program.graph.nodes[life.first].phase is Phase.FORWARD:
        yield Piece(life.bytes, life.first, backward)


def _gradient(program: Program, life: Life, backward: int, end: int) -> Iterator[Piece]:
    """Whole ones in 16 bits as they are, and in float32 while they are reduced; the root's are reduced at the end. Parts: float32, to the end of the step."""
    node = program.graph.nodes[life.first]
    if node.op == "comm.reduce_scatter":
        yield Piece(_WIDE * life.bytes, life.first, end, stream=_REDUCE)
        return
    in_block = block_of(node.path) is not None
    yield Piece(life.bytes, life.first, life.last if in_block else backward)
    yield Piece(_WIDE * life.bytes, *(2 * (life.last if in_block else backward,)))


def _with_loss(program: Program, pieces: list[Piece]) -> list[Piece]:
    """The logits and the loss as plain torch has them."""
    nodes, values = program.graph.nodes, value_table(program.graph)
    at = next((i for i, n in enumerate(nodes) if n.op == _LOSS), None)
    if at is None:
        return pieces
    logits = next(name for name in nodes[at].inputs if values[name].shape == values[nodes[at].outputs[0]].shape)
    made = next(i for i, n in enumerate(nodes) if logits in n.outputs)
    forward = max(i for i, n in enumerate(nodes) if n.phase is Phase.FORWARD)
    size = size_bytes(values[logits])
    kept = [p for p in pieces if (p.bytes, p.first, p.last) != (size, made, at)]
    wide = _WIDE * size
    return [
        *kept,
        Piece(size, made, forward),
        Piece(wide, made + 1, forward),  # logits in float32
        Piece(wide, made + 1, at - 1),  # log_softmax
        Piece(wide, at - 1, at - 1),  # its gradient
        Piece(wide, at - 1, at),  # that of the float32 logits; in 16 bits our program has it
    ]
