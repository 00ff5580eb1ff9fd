"""One collective of the grid, ready to run.

In: a job, the process groups, a device. Out: a function that starts the collective, as the runtime calls it. `send_recv` is a ping-pong
between pairs, of which half the time counts: a train of sends would hide its latency.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.cpu_exchange import Exchange, Gather
from .profile_grid import CommJob, group_members
from .rows import MEETING

Start = Callable[[bool], Any]  # given whether to return at once: what to wait for


def join_groups(
    groups: tuple[tuple[int, int], ...], rank: int, ranks: int, backend: str, timeout: Any
) -> dict[tuple[int, int], tuple[Any, tuple[int, ...]]]:
    """The process group, and its members, in which this rank is for each way to lie in groups. Every rank calls it alike."""
    import torch.distributed as dist

    joined = {}
    for group in groups:
        for members in group_members(group, ranks):
            process_group = dist.new_group(list(members), timeout=timeout, backend=backend)
            if rank in members:
                joined[group] = (process_group, members)
    return joined


def build_comm(job: CommJob, joined: dict[tuple[int, int], tuple[Any, tuple[int, ...]]], rank: int, device: Any) -> Start:
    """The collective of a job.

    Args:
        joined: from `join_groups`.
        device: a `torch.device`: that of the tensors.
    """
    import torch
    import torch.distributed as dist

    group, members = joined[job.group]
    elements = job.num_bytes // 4
    whole = torch.zeros(elements, device=device)
    piece = torch.zeros(max(1, elements // job.group[0]), device=device)
    if job.kind in ("all_reduce", MEETING):
        return lambda later: dist.all_reduce(whole, group=group, async_op=later)
    if job.kind == "all_gather" and device.type == "cpu":
        rows = _rows(whole, job.group[0])
        own = rows[members.index(rank)]
        return _now_or_later(lambda: (own.copy_(piece), Gather(torch, rows, group))[1])
    if job.kind == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
        return lambda later: gather(whole, piece, group=group, async_op=later)
    if job.kind == "reduce_scatter" and device.type == "cpu":
        return _now_or_later(lambda: Exchange(torch, piece, _rows(whole, job.group[0]), dist.ReduceOp.SUM, group))
    if job.kind == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in torch 2.13
        return lambda later: scatter(piece, whole, group=group, async_op=later)
    if job.kind == "all_to_all":
        other = torch.zeros_like(whole)
        return lambda later: dist.all_to_all_single(other, whole, group=group, async_op=later)
    if job.kind == "broadcast":
        return lambda later: dist.broadcast(whole, src=members[0], group=group, async_op=later)
    return _ping_pong(dist, whole, group, members, rank)


def _rows(whole: Any, ranks: int) -> Any:
    """One for each rank."""
    return whole[: len(whole) // ranks * ranks].view(ranks, -1) if len(whole) >= ranks else whole.new_zeros(ranks, 1)


def _now_or_later(begin: Callable[[], Any]) -> Start:
    def start(later: bool) -> Any:
        work = begin()
        return work if later else work.wait()

    return start


def _ping_pong(dist: Any, whole: Any, group: Any, members: tuple[int, ...], rank: int) -> Start:
    """Pairs of neighbours in the group; one that is left over does nothing. Beside compute: one way only, and the receiver waits."""
    place = members.index(rank)
    even = place % 2 == 0
    if even and place + 1 == len(members):
        return lambda later: None
    peer = members[place + 1 if even else place - 1]

    def start(later: bool) -> Any:
        if later:
            return dist.isend(whole, peer, group=group) if even else dist.irecv(whole, peer, group=group)
        for sends in (even, not even):
            if sends:
                dist.send(whole, peer, group=group)
            else:
                dist.recv(whole, peer, group=group)
        return None

    return start


def share_of_run(kind: str) -> float:
    """Of one run of what `build_comm` returns, what counts: half of a ping-pong."""
    return 0.5 if kind == "send_recv" else 1.0
