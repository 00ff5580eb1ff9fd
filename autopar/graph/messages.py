"""Messages: which tensors of a bucket travel as one.

In: the bytes of tensors that start together. Out: their places, message by message. The runtime sends them so, and the law of memory counts them so.
"""

from __future__ import annotations

from collections.abc import Sequence

# Bytes of a tensor, whole, from which on it travels alone on a CPU: of a reduction (in an all-reduce it lies where it lay then, if nobody else reads it), and of a gather, whose pieces
# are held twice while they are unpacked.
REDUCED_ALONE_BYTES = 1 << 23
GATHERED_ALONE_BYTES = 1 << 21


def split_bucket(sizes: Sequence[int], gathers: bool, on_cpu: bool) -> list[tuple[int, ...]]:
    """The places of tensors that are one message each: on a CPU the large ones alone, then the rest, packed; elsewhere all.

    By size alone, so that all ranks send the same messages. Copying what is large costs more than another message does. Measured with gloo, 4 ranks on 2 cores, ms a step with everything alone
    from 2 and from 8 MiB on: a GPT of 13 M parameters with data parallelism 552 and 530; with ZeRO-3 751 and 679 (all packed 863 in another hour), which holds 98 and 106 MiB; an MLP with matrices
    of 8 and 16 MiB and ZeRO-3 342 with either, 411 all packed, and 97 MiB held of 129. Gathers go alone from 2 MiB on for what that saves.

    Args:
        sizes: bytes of each, whole.
        gathers: whether they are gathered; else they are reduced.
    """
    least = GATHERED_ALONE_BYTES if gathers else REDUCED_ALONE_BYTES
    alone = [k for k, size in enumerate(sizes) if on_cpu and size >= least]
    rest = tuple(k for k in range(len(sizes)) if k not in alone)
    return [*((k,) for k in alone), *((rest,) if rest else ())]
