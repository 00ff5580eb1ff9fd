"""What a step under FSDP2, as torchtitan runs it, keeps on one device: from our program of the same plan (ZeRO-3), changed where the two differ.

In: a program. Out: `Piece`s for the allocator (`benchmarks.allocator`); torchtitan prints what that has reserved (`get_peak_stats`: reserved_bytes.all.peak).
Where they differ, with V bytes of logits in 16 bits:

* **Loss.** `cross_entropy(pred.flatten(0, 1).float(), ...)` in plain torch: float32 logits and their log_softmax (2 V each) beside the logits in the forward
  pass; log_softmax, its gradient and that of the float32 logits (2 V each) in the backward pass, then the gradient in 16 bits. The logits go before
  the backward pass (`del pred`). Our programs hold the logits and their gradient: 2 V. Source: torchtitan/components/loss.py, torchtitan/train.py;
  torch's `log_softmax_backward`, which needs the result.
* **States.** 12 bytes a parameter: float32 parameters and two moments, made in the first update; no copy in 16 bits (`MixedPrecisionPolicy`). Gradients
  are reduced in float32 (`reduce_dtype`) on a stream of their own, and stay until they are zeroed.
* **Groups.** A block's parameters are one group, all others the root's: one buffer gathers a group, on another stream, and is copied out; in the forward pass it stays until the
  next group's is, in the backward pass it is there while the block before runs (prefetch). The root's stay gathered until the end of the backward pass, the last block's until
  its own (`reshard_after_forward` of the root, and of `apply_fsdp`). A group's gradients are copied into one float32 buffer, which stays until the next group's is filled. Source: `foreach_all_gather`,
  `foreach_reduce`, `FSDPParamGroup.wait_for_unshard`, `post_backward` in torch/distributed/fsdp/_fully_shard; torchtitan/models/llama/parallelize_llama.py.
* **Last norm.** In plain torch: its input in float32, what it is normalised to, and its result, in 16 bits, for the backward pass (`RMSNorm`, torchtitan/models/norms.py); we keep the input.
* **Update.** AdamW over lists of tensors holds a list of square roots (`_multi_tensor_adamw`): 4 bytes a parameter, one piece for each.

The loss was not compiled when the rows of December 2024 were measured (torchtitan/train.py of then: "compiling loss function causes CUDA errors, turning off for now").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

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
        elif life.holder in ("gathered", "gradients"):
            continue
        elif life.first < 0 or nodes[life.first].phase is not Phase.UPDATE:
            found.append(Piece(life.bytes, life.first, life.last, stays=life.leaves and life.first < 0))
    groups = _list_groups(program)
    found += _gathered(groups, ends[Phase.BACKWARD])
    found += _gradients(program, ends[Phase.BACKWARD])
    found += [Piece(p.bytes, ends[Phase.UPDATE], ends[Phase.UPDATE]) for p in found if p.stays and p.first < 0]
    return tuple(_with_last_norm(program, _with_loss(program, found)))


@dataclass(frozen=True, slots=True)
class _Group:
    """Parameters that are gathered together, in one pass: block (None: the root), when the first is needed, whole lives of each."""

    block: tuple[str, int] | None
    phase: Phase
    lives: tuple[Life, ...]

    @property
    def first(self) -> int:
        return min(life.first for life in self.lives)

    @property
    def bytes(self) -> int:
        return sum(life.bytes for life in self.lives)


def _list_groups(program: Program) -> list[_Group]:
    """In the order of their first use; the root's is gathered once, in the forward pass."""
    nodes = program.graph.nodes
    found: dict[tuple[tuple[str, int] | None, Phase], list[Life]] = defaultdict(list)
    for life in list_lives(program):
        if life.holder == "gathered" and life.bytes:
            block, phase = block_of(nodes[life.last].path), nodes[life.first].phase
            if block is not None or phase is Phase.FORWARD:
                found[block, phase].append(life)
    return sorted((_Group(block, phase, tuple(lives)) for (block, phase), lives in found.items()), key=lambda group: group.first)


def _gathered(groups: list[_Group], backward: int) -> Iterator[Piece]:
    """Buffers on their stream, and what is copied out of them."""
    last = next((g.block for g in reversed(groups) if g.phase is Phase.FORWARD and g.block is not None), None)
    turns = [g for g in groups if g.phase is Phase.FORWARD or g.block != last]
    stays = {g.block: max(life.last for life in g.lives) for g in groups if g.phase is Phase.BACKWARD}
    for before, group, after in zip([None, *turns], turns, [*turns[1:], None]):
        if group.phase is Phase.FORWARD:
            yield Piece(group.bytes, group.first, after.first if after and after.phase is Phase.FORWARD else group.first, stream=_GATHER)
        else:
            fetched = before.first if before and before.phase is Phase.BACKWARD else group.first
            yield Piece(group.bytes, fetched, group.first, stream=_GATHER)
        end = max(life.last for life in group.lives)
        if group.block is None:
            end = backward
        elif group.phase is Phase.FORWARD and group.block == last:
            end = stays.get(last, end)
        yield from (Piece(life.bytes, group.first, end) for life in group.lives)


def _gradients(program: Program, backward: int) -> Iterator[Piece]:
    """Whole ones in 16 bits until their group's last is there; one float32 buffer a group, until the next one's; parts in float32 to the end of the step."""
    nodes = program.graph.nodes
    whole: dict[tuple[str, int] | None, list[Life]] = defaultdict(list)
    for life in list_lives(program):
        if life.holder != "gradients" or not life.bytes:
            continue
        if nodes[life.first].op == "comm.reduce_scatter":
            yield Piece(_WIDE * life.bytes, life.first, len(nodes) - 1, stream=_REDUCE)
        else:
            whole[block_of(nodes[life.first].path)].append(life)
    ends = {block: backward if block is None else max(life.last for life in lives) for block, lives in whole.items()}
    order = sorted(whole, key=ends.__getitem__)
    for block, after in zip(order, [*order[1:], None]):
        yield from (Piece(life.bytes, life.first, ends[block]) for life in whole[block])
        yield Piece(_WIDE * sum(life.bytes for life in whole[block]), ends[block], max(ends[block], ends.get(after, backward)))


def _with_last_norm(program: Program, pieces: list[Piece]) -> list[Piece]:
    """What plain torch keeps of the norm before the head: its input in float32 and two results in 16 bits instead of the input."""
    nodes, values = program.graph.nodes, value_table(program.graph)
    at = next((i for i, n in enumerate(nodes) if n.op == _LOSS), None)
    kept = [life for life in list_lives(program) if at is not None and life.holder == "activations" and 0 <= life.first < at < life.last]
    blocks = [block_of(nodes[life.first].path) for life in kept]
    inputs = [life for life, block in zip(kept, blocks) if block is not None and block_of(nodes[life.last].path) is None]
    for life in inputs:
        if len(values[life.name].shape) == 3:
            pieces = [*pieces, Piece((_WIDE + 1) * life.bytes, life.first, life.last)]
    return pieces


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
