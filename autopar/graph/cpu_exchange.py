"""Gathers and reduce-scatters on a CPU, where gloo's own copy what they read or make and take longer.

In: torch (whoever calls has it), flat tensors, a process group of gloo's. Out: what is to be waited for. The runtime begins them so, and `autopar profile` measures them. Times are of torch 2.13, float32 and (of reduce-scatters) bfloat16,
2 to 4 ranks on 2 cores of a Zen 5, nothing beside them:

    gather           each rank broadcasts its piece into its place; gloo's all-gather makes a copy of the result first. 0.56 to 0.97 of its time from 4 KiB to 16 MiB, and 1.48 in one of 21 sizes
    reduce_scatter   pieces are exchanged, and each rank reduces those that it was sent. gloo has none (2.11 to 2.13): it copies what it reads, all-reduces the copy, which brings to each rank
                     twice what it needs, and leaves it to a thread of its own, which lets go of it when it next runs. 0.17 to 0.74 of its time. As much memory is held, all of it ours
                     to give back; sums are taken in the order of the ranks, of halves in float32
"""

from __future__ import annotations

from typing import Any


class Gather:
    """One gather under way.

    Args:
        rows: `[ranks, elements]`, contiguous: this rank's row is what it sends, the others become what theirs send.
    """

    def __init__(self, torch: Any, rows: Any, group: Any) -> None:
        self._collect = torch.futures.collect_all
        self._works = [torch.distributed.broadcast(row.view(torch.uint8), group=group, group_src=source, async_op=True) for source, row in enumerate(rows)]

    def wait(self) -> None:
        """Until all rows are there.

        Raises:
            RuntimeError: as of torch's works.
        """
        for work in self._works:
            work.wait()

    def get_future(self) -> Any:
        """Done when all rows are there."""
        return self._collect([work.get_future() for work in self._works])


class Exchange:
    """One reduce-scatter under way.

    Args:
        out: `[elements]`: this rank's piece, written by `wait`.
        sent: `[ranks, elements]`: row c goes to rank c; contiguous, read until `wait`.
        reduction: a `torch.distributed.ReduceOp`: SUM, MAX or MIN.
    """

    def __init__(self, torch: Any, out: Any, sent: Any, reduction: Any, group: Any) -> None:
        ops = torch.distributed.ReduceOp
        self._reduce = {ops.SUM: torch.sum, ops.MAX: torch.amax, ops.MIN: torch.amin}[reduction]
        self._out, self._received = out, torch.empty_like(sent)
        self._work = torch.distributed.all_to_all_single(self._received.view(-1).view(torch.uint8), sent.view(-1).view(torch.uint8), group=group, async_op=True)

    def wait(self) -> None:
        """Until the piece is there.

        Raises:
            RuntimeError: as of torch's works.
        """
        self._work.wait()
        self._reduce(self._received, 0, out=self._out)
        self._received.untyped_storage().resize_(0)  # a thread of gloo's may hold it for longer

    def get_future(self) -> Any:
        """Done when all that is reduced is here."""
        return self._work.get_future()
