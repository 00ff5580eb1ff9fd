"""What ranks say to each other, by mesh axis name. `Comm` is the protocol, `ProcessComm` speaks torch.distributed (gloo, nccl).

`stride` is in elements of the local tensor that is whole along the axis: coordinate c holds the indices i of the dim with
`(i // stride) % N == c`, in order. A dim that is shorter than N strides is filled up with zeros before it is cut; `short` tells a gather how many of them are to go. Results are contiguous. Data is moved as bytes, so every dtype works; `bool` is reduced as "any" (as
"all" by `min`).
Nothing here records gradients: the backward pass is in the program.

`start_*` begin a collective of one or several tensors of one dtype, which travel as one, and return a `Pending` for each: the rank does
something else and takes the tensor with `wait()`. Along several axes at once (then `axis`, and each dim and stride, are tuples) all their ranks do one collective; the
result is that of one after the other, in this order. Of no tensors nothing is started. What is sent may not be written until then. All ranks of an axis start and do the same collectives in
the same order.

Messages go from one rank to another within a step: `open_links` once, then in each step `begin_step`, any `send`, `expect` and `receive`,
and `end_step`. What is sent may not be written until the step has ended. Every rank begins the same steps.
"""

from __future__ import annotations

import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, Union

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RankError
from ..graph.cpu_exchange import Exchange, Gather
from ..graph.mesh import Mesh, axis_groups, coordinates, joint_group, joint_name, num_ranks, print_mesh
from ..graph.messages import split_bucket
from .digits import merge_digit, split_digit, take_digit
from .messages import Arrival, Key, Ledger, Lost, QueriedSends, WaitedSends, arrival_of, arrival_text
from .pending import Along, Bucket, Digits, Flight, Pending, cut_pieces, give_back, pack_around, pack_into, pack_splits, pack_whole, shares_memory, unpack_gathered

Axes = Union[str, tuple[str, ...]]  # an axis, or several at once
TIMEOUT_S = 300.0

# torch 2.13 renamed them; the old names are all that 2.11 has
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Comm(Protocol):
    """One rank's end of the mesh."""

    rank: int
    mesh: Mesh
    device: torch.device

    def coordinate(self, axis: str) -> int:
        """Where this rank sits along the axis."""

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int, short: int = 0) -> Tensor:
        """Join the pieces along the axis: S -> R."""

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        """Reduce along the axis and keep the own piece: P -> S."""

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum", own: bool = False) -> Tensor:
        """Reduce along the axis: P -> R. The input is not written, unless it is `own`: nobody else reads it."""

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        """Exchange one split for another: S -> S on another dim."""

    def slice(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        """Keep the own piece: R -> S. Local."""

    def keep(self, x: Tensor, axis: str) -> Tensor:
        """Coordinate 0 keeps the value, the others hold zeros: R -> P. Local."""

    def start_all_gather(self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], short: Sequence[Digits] = ()) -> list[Pending]:
        """Begin `all_gather` of each, which has its own dim and stride, and padding where any has."""

    def start_reduce_scatter(
        self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], op: str = "sum", alone: bool = False
    ) -> list[Pending]:
        """Begin `reduce_scatter` of each. `alone`: the one that went alone before, along this axis, is finished first, so that only one at a time holds
        what it reads."""

    def start_all_reduce(self, xs: Sequence[Tensor], axis: Axes, op: str = "sum", own: Sequence[int] = (), bucket: Bucket | None = None) -> list[Pending]:
        """Begin `all_reduce` of each; of what they read there is a copy. `own`: places of those that nobody else reads, so that their sums may lie there. `bucket`: see
        `open_bucket`."""

    def open_bucket(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, own: Sequence[int] = ()) -> Bucket:
        """Room for the tensors of one `start_all_reduce`, which is given it with the same `own`: what is made in its place there is not copied. Local."""

    def broadcast(self, x: Tensor, axis: str, source: int) -> Tensor:
        """What coordinate `source` along the axis has, on all ranks of that axis; elsewhere x only says shape and dtype."""

    def open_links(self, links: Sequence[tuple[int, int]]) -> None:
        """Once, on every rank with the same list: (source rank, target rank) of all ordered pairs between which messages will go."""

    def begin_step(self, arrivals: Mapping[int, Sequence[Arrival]]) -> None:
        """Source rank -> what it will send to this rank in this step, in the order of sending. The step before may have been aborted."""

    def send(self, x: Tensor, target: int, key: Key) -> None:
        """Send without waiting; x is held until it is gone."""

    def let_arrive(self, target: int, most: int) -> None:
        """Wait until at most so many of the messages to this rank are still held."""

    def expect(self, source: int, key: Key) -> None:
        """Let the message, and what comes before it from that source, arrive while this rank does something else. Harmless if repeated."""

    def receive(self, source: int, key: Key) -> Tensor:
        """The message, once; waits for it. Its buffer belongs to the caller."""

    def end_step(self) -> None:
        """Wait until everything that was sent is gone.

        Raises:
            ProgramError: something that was announced was never received.
        """

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value (a small picklable object), in rank order."""

    def share(self, value: Any) -> Any:
        """Rank 0's value."""

    def barrier(self) -> None:
        """Return when every rank has come here."""


class Placed:
    """What every `Comm` knows without talking: its place, and the local ops."""

    def __init__(self, mesh: Mesh, rank: int, device: torch.device) -> None:
        self.mesh, self.rank, self.device = mesh, rank, device
        self._coordinate = {axis.name: c for axis, c in zip(mesh.axes, coordinates(mesh, rank))}
        self._size = {axis.name: axis.size for axis in mesh.axes}

    def coordinate(self, axis: str) -> int:
        return self._coordinate[axis]

    def _along(self, axis: Axes) -> Along:
        axes = (axis,) if isinstance(axis, str) else tuple(axis)
        ordered = sorted(axes, key=list(self._size).index)
        return Along(axes, tuple(self._size[a] for a in axes), tuple(ordered.index(a) for a in axes))

    def slice(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        return take_digit(x, dim, stride, self._size[axis], self._coordinate[axis])

    def open_bucket(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, own: Sequence[int] = ()) -> Bucket:
        return Bucket(shapes, dtype, own, self.device)

    def keep(self, x: Tensor, axis: str) -> Tensor:
        """Never `x` itself: a state may be rewritten before what is kept of it is read."""
        return (torch.clone if self._coordinate[axis] == 0 else torch.zeros_like)(x, memory_format=torch.contiguous_format)


class ProcessComm(Placed):
    """A rank that is a process. One process group per mesh axis; the default group must exist and have the mesh's size.

    Args:
        timeout_s: what waits longer for another rank fails: a collective along an axis, `receive`, `end_step`. (A new group does not take
            it from the default one.)
    Raises (every collective, and every message):
        RankError: another rank is gone or did not come within the timeout.
    """

    def __init__(self, mesh: Mesh, device: torch.device | None = None, timeout_s: float = TIMEOUT_S) -> None:
        world = dist.get_world_size()
        if world != num_ranks(mesh):
            raise RankError(world_size_text(mesh, world))
        super().__init__(mesh, dist.get_rank(), device or torch.device("cpu"))
        self._timeout_s = timeout_s
        by_host = self.device.type != "cpu" and "nccl" not in str(dist.get_backend_config())  # gloo's messages are of the host's memory
        self._messages_on = torch.device("cpu") if by_host else self.device
        self._groups: dict[str, Any] = {}
        self._others: dict[str, str] = {}  # axis -> the other ranks along it, for errors
        self._link_groups: dict[tuple[int, int], Any] = {}
        self._ledger = Ledger(self.rank, world)
        self._sends = self._new_sends()
        self._given_up: list[Any] = []
        self._ways: dict[Axes, tuple[Along, str]] = {}
        self._alone: dict[Axes, Flight] = {}  # axis -> the last reduction that went alone
        for index, axis in enumerate(mesh.axes):
            for ranks in axis_groups(mesh, index):
                group = self._new_group(list(ranks), axis.name)
                if self.rank in ranks:
                    self._groups[axis.name] = group
                    self._others[axis.name] = _print_ranks([r for r in ranks if r != self.rank])

    def all_gather(self, x: Tensor, axis: str, dim: int, stride: int, short: int = 0) -> Tensor:
        pieces = x.new_empty((self._size[axis], *x.shape))
        self._gather(pieces, [x], axis, later=False).finish()
        whole = merge_digit(pieces, dim, stride, short)
        give_back(pieces, whole)
        return whole

    def reduce_scatter(self, x: Tensor, axis: str, dim: int, stride: int, op: str = "sum") -> Tensor:
        pieces = split_digit(x, dim, stride, self._size[axis])
        piece = torch.empty_like(pieces[0])
        self._scatter(piece.view(-1), pieces, [x], op, axis, later=False).finish()
        return piece

    def all_reduce(self, x: Tensor, axis: str, op: str = "sum", own: bool = False) -> Tensor:
        whole = x if own and x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
        reduction, [flat] = _reducible(op, whole.view(-1))
        self._call("all_reduce", axis, lambda: dist.all_reduce(flat, reduction, self._groups[axis]))
        return whole

    def all_to_all(self, x: Tensor, axis: str, from_dim: int, from_stride: int, to_dim: int, to_stride: int) -> Tensor:
        received = self._exchange(x, axis, to_dim, to_stride)
        whole = merge_digit(received, from_dim, from_stride)
        give_back(received, whole)
        return whole

    def _exchange(self, x: Tensor, axis: str, dim: int, stride: int) -> Tensor:
        sent = split_digit(x, dim, stride, self._size[axis])
        received = torch.empty_like(sent)
        self._call("all_to_all", axis, lambda: dist.all_to_all_single(_bytes(received), _bytes(sent), group=self._groups[axis]))
        give_back(sent, x)
        return received

    def start_all_gather(self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], short: Sequence[Digits] = ()) -> list[Pending]:
        if not xs:
            return []
        along, name = self._open_group(axis)
        digits, found = list(zip(dim, stride, short or (0,) * len(xs))), {}
        for places in split_bucket([along.size * x.nbytes for x in xs], True, self.device.type == "cpu"):
            found |= zip(places, self._gather_packed([xs[k] for k in places], [digits[k] for k in places], along, name))
        return [found[k] for k in range(len(xs))]

    def _gather_packed(self, xs: list[Tensor], digits: list[tuple[Digits, Digits, Digits]], along: Along, name: str) -> list[Pending]:
        pieces, shapes = xs[0].new_empty((along.size, sum(x.numel() for x in xs))), [tuple(x.shape) for x in xs]
        flight, left, stays = self._gather(pieces, xs, name, later=True), len(shapes), False

        def unpack(number: int) -> Tensor:
            nonlocal left, stays
            whole = unpack_gathered(pieces, shapes, number, *digits[number], along)
            left, stays = left - 1, stays or shares_memory(pieces, [whole])
            if not left and not stays:
                give_back(pieces)
            return whole

        return [_pending(flight, lambda number=number: unpack(number)) for number in range(len(shapes))]

    def _gather(self, pieces: Tensor, xs: list[Tensor], name: str, later: bool) -> Flight:
        """Bring what the ranks of a group send, that of rank c into row c. `later`: something else is done meanwhile."""
        if self.device.type == "cpu":
            rows = _rows(pieces, len(pieces))
            pack_into(rows[dist.get_rank(self._groups[name])], xs)
            return self._start("all_gather", name, [], [], lambda: Gather(torch, rows, self._groups[name]))
        sent = xs[0].contiguous() if len(xs) == 1 else pack_whole(xs)[0]
        return self._start("all_gather", name, [sent], xs, lambda: _ALL_GATHER(_bytes(pieces), _bytes(sent), group=self._groups[name], async_op=later))

    def start_reduce_scatter(
        self, xs: Sequence[Tensor], axis: Axes, dim: Sequence[Digits], stride: Sequence[Digits], op: str = "sum", alone: bool = False
    ) -> list[Pending]:
        if not xs:
            return []
        if alone and axis in self._alone:
            self._alone.pop(axis).finish()
        along, name = self._open_group(axis)
        flights: list[Flight] = []
        pieces: dict[int, Tensor] = {}
        for places in split_bucket([x.nbytes for x in xs], False, self.device.type == "cpu"):
            flight, made = self._scatter_packed([xs[k] for k in places], [dim[k] for k in places], [stride[k] for k in places], op, along, name)
            flights.append(flight)
            pieces |= zip(places, made)
        works = [work for flight in flights for work in flight.works]
        whole = Flight(lambda: [flight.finish() for flight in flights], (), works=works)  # what all have read goes at once
        if alone:
            self._alone[axis] = whole
        return [_pending(whole, lambda piece=pieces[k]: piece) for k in range(len(xs))]

    def _scatter_packed(self, xs: list[Tensor], dims: list[Digits], strides: list[Digits], op: str, along: Along, name: str) -> tuple[Flight, list[Tensor]]:
        packed, shapes = pack_splits(xs, dims, strides, along)
        scattered = packed.new_empty(packed.shape[1])
        return self._scatter(scattered, packed, xs, op, name, later=True), cut_pieces(scattered, shapes)

    def _scatter(self, out: Tensor, sent: Tensor, made_of: Sequence[Tensor], op: str, name: str, later: bool) -> Flight:
        """Reduce what the ranks of a group have, row c for rank c, into `out`. `later`: something else is done meanwhile."""
        reduction, [piece, flat] = _reducible(op, out, sent.view(-1))

        def begin() -> Any:
            if self.device.type == "cpu":
                return Exchange(torch, piece, _rows(flat, len(sent)), reduction, self._groups[name])
            return _REDUCE_SCATTER(piece, flat, reduction, self._groups[name], async_op=later)

        return self._start("reduce_scatter", name, [sent], made_of, begin)

    def start_all_reduce(self, xs: Sequence[Tensor], axis: Axes, op: str = "sum", own: Sequence[int] = (), bucket: Bucket | None = None) -> list[Pending]:
        if not xs:
            return []
        _, name = self._open_group(axis)
        found: dict[int, Pending] = {}
        for whole, views in pack_around(xs, own, bucket):
            reduction, [flat] = _reducible(op, whole)
            flight = self._start("all_reduce", name, [], [], lambda flat=flat: dist.all_reduce(flat, reduction, self._groups[name], async_op=True))
            found |= {k: _pending(flight, lambda view=view: view) for k, view in views.items()}
        return [found[k] for k in range(len(xs))]

    def broadcast(self, x: Tensor, axis: str, source: int) -> Tensor:
        here = self._coordinate[axis] == source
        whole = x.resolve_conj().contiguous() if here else torch.empty_like(x, memory_format=torch.contiguous_format)
        self._call("broadcast", axis, lambda: dist.broadcast(_bytes(whole), group=self._groups[axis], group_src=source))
        return whole

    def open_links(self, links: Sequence[tuple[int, int]]) -> None:
        new = self._ledger.open(links)
        if new and self._messages_on.type == "cpu":
            self._link_groups |= dict.fromkeys(new, self._new_group(None))
        elif new:
            for source, target in new:  # nccl knows no tags and does one thing after the other in a group: a group per direction
                group = self._new_group([source, target])
                if self.rank in (source, target):
                    self._link_groups[source, target] = group
                    self._connect(source, target, group)

    def begin_step(self, arrivals: Mapping[int, Sequence[Arrival]]) -> None:
        if self._ledger.running:  # aborted; gloo cannot take back what was posted, so the buffers stay
            self._given_up.append((self._sends, self._ledger.put_and_not_taken()))
            self._sends = self._new_sends()
        self._ledger.begin(arrivals)

    def send(self, x: Tensor, target: int, key: Key) -> None:
        self._ledger.send(target, key)
        arrival = arrival_of(key, x)
        if target == self.rank:
            self._ledger.put_own(arrival, (x.clone(memory_format=torch.contiguous_format), None))
            return
        x = x.resolve_conj().contiguous().to(self._messages_on)
        what = f"send of {arrival_text(arrival)} to rank {target}"
        group, tag = self._link_groups[self.rank, target], self._tag(arrival)
        work = self._call(what, "", lambda: dist.isend(_bytes(x), target, group, tag))
        self._call(what, "", lambda: self._sends.hold(target, what, x, work))

    def let_arrive(self, target: int, most: int) -> None:
        self._call(f"the messages to rank {target}", "", lambda: self._sends.let_arrive(target, most, self._timeout_s))

    def expect(self, source: int, key: Key) -> None:
        for arrival in self._ledger.due(source, key):
            x = torch.empty(arrival.shape, dtype=getattr(torch, arrival.dtype), device=self._messages_on)
            group, tag = self._link_groups[source, self.rank], self._tag(arrival)
            work = self._call(self._receipt(source, arrival), "", lambda: dist.irecv(_bytes(x), source, group, tag))
            self._ledger.put(source, arrival.key, (x, work))

    def receive(self, source: int, key: Key) -> Tensor:
        what = self._receipt(source, self._ledger.announced(source, key))
        self.expect(source, key)
        self._call(what, "", self._sends.let_go)
        x, work = self._ledger.take(source, key)
        if work is not None:
            self._call(what, "", work.wait)
        return x.to(self.device)

    def end_step(self) -> None:
        self._ledger.end()
        self._call("end_step", "", lambda: self._sends.finish(self._timeout_s))

    def collect(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * num_ranks(self.mesh)
        self._call("collect", "", lambda: dist.all_gather_object(found, value))
        return found

    def share(self, value: Any) -> Any:
        box = [value if self.rank == 0 else None]
        self._call("share", "", lambda: dist.broadcast_object_list(box, src=0))
        return box[0]

    def barrier(self) -> None:
        self.collect(None)  # gloo's own barrier only polls; this one raises as soon as a rank is gone

    def call_text(self, what: str, axis: str) -> str:
        """What is done, and with which other ranks: `all_reduce along mesh axis 'dp' with rank 1`."""
        return f"{what} along mesh axis {axis!r}{self._others.get(axis, '')}" if axis else what

    def _new_group(self, ranks: list[int] | None, axis: str = "", only_members: bool = False) -> Any:
        limit = timedelta(seconds=self._timeout_s)
        return self._call("the set-up", axis, lambda: dist.new_group(ranks, timeout=limit, use_local_synchronization=only_members))

    def _open_group(self, axis: Axes) -> tuple[Along, str]:
        """The way along one axis or several, and the name of its group; that of several axes is made when it is first used, by its ranks alone."""
        if axis in self._ways:
            return self._ways[axis]
        along = self._along(axis)
        name = joint_name(self.mesh, along.axes)
        self._ways[axis] = along, name
        if name not in self._groups:
            ranks = joint_group(self.mesh, along.axes, self.rank)
            self._others[name] = _print_ranks([r for r in ranks if r != self.rank])
            self._groups[name] = self._new_group(ranks, name, only_members=True)
        return along, name

    def _new_sends(self) -> QueriedSends | WaitedSends:
        return WaitedSends() if self._messages_on.type == "cpu" else QueriedSends()

    def _connect(self, source: int, target: int, group: Any) -> None:
        """The first message of an nccl group waits for both ranks: let that be here, where all go through the links in one order."""
        x = torch.zeros(1, dtype=torch.uint8, device=self.device)
        work = dist.isend(x, target, group) if self.rank == source else dist.irecv(x, source, group)
        self._call("the set-up", "", work.wait)

    def _tag(self, arrival: Arrival) -> int:
        """By the tag gloo lets in only what was announced: a message that is longer than its buffer would abort the process, a shorter one
        leave garbage. The order alone would do otherwise: receives are posted as is sent. One of an aborted step stays out, too."""
        return zlib.crc32(f"step {self._ledger.step}: {arrival_text(arrival)}".encode()) & 0x7FFFFFFF

    def _receipt(self, source: int, arrival: Arrival) -> str:
        return f"receive of {arrival_text(arrival)} from rank {source}"

    def _start(self, what: str, axis: str, read: list[Tensor], made_of: list[Tensor], collective: Callable[[], Any]) -> Flight:
        work = self._call(what, axis, collective)
        if work is None:  # it is done
            return Flight(lambda: None, read, made_of)
        return Flight(lambda: self._call(what, axis, work.wait), read, made_of, [work])

    def _call(self, what: str, axis: str, collective: Callable[[], Any]) -> Any:
        try:
            return collective()
        except (RuntimeError, pickle.UnpicklingError) as error:
            if isinstance(error, Lost):
                what, axis = error.what, ""
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            first = re.sub(r"^\[\S*\.cc:\d+\] |\. This is typically .*$", "", first)  # gloo's own file, and what it guesses
            raise RankError(
                f"rank {self.rank}: {self.call_text(what, axis)} failed: another rank is gone or did not answer within the timeout. "
                f"The first rank that stopped says why; restart from the last checkpoint. ({first})"
            ) from error


def _pending(flight: Flight, take: Callable[[], Tensor]) -> Pending:
    def bring() -> Tensor:
        flight.finish()
        return take()

    return Pending(bring, flight)


def world_size_text(mesh: Mesh, found: int) -> str:
    """The message for a world size that is not the plan's."""
    need = num_ranks(mesh)
    return f"the plan needs {need} ranks (mesh {print_mesh(mesh)}), torchrun started {found}: use --nproc-per-node {need}"


def _print_ranks(ranks: Sequence[int]) -> str:
    """` with rank 3`, ` with ranks 1, 2`; of many the first."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f" with rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{more}" if ranks else ""


def _bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def _rows(x: Tensor, count: int) -> Tensor:
    return x.view(count, x.numel() // count)


def _reducible(op: str, *tensors: Tensor) -> tuple[Any, list[Tensor]]:
    """The backend's reduction and the tensors as it knows them."""
    if tensors[0].dtype == torch.bool:
        return (dist.ReduceOp.MIN if op == "min" else dist.ReduceOp.MAX), [t.view(torch.uint8) for t in tensors]
    if tensors[0].is_complex():
        tensors = tuple(torch.view_as_real(t).view(-1) for t in tensors)
    return {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op], list(tensors)
