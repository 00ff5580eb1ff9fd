"""What torch's caching allocator takes from a CUDA device for storage that comes and goes: the bytes that frameworks print as reserved.

In: `Piece`s of storage, when each is made and given back. Out: bytes. The rules and constants are those of torch's `CUDACachingAllocator`
(c10/cuda/CUDACachingAllocator.cpp): sizes in steps of 512 bytes; a pool for pieces up to 1 MiB and one for the rest, each stream has its own; the smallest
free block that fits, split where enough is left; neighbours that are free are merged; nothing goes back to the device. Not modelled: what it does when the
device is full (it gives free segments back and tries again), and what is held by several streams.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

_STEP = 512  # kMinBlockSize
_SMALL = 2**20  # kSmallSize: the largest piece of the small pool; what is left of a large block must be more than that
_SMALL_SEGMENT = 2 * 2**20  # kSmallBuffer
_LARGE_SEGMENT = 20 * 2**20  # kLargeBuffer, for pieces of less than kMinLargeAlloc
_OWN_SEGMENT = 10 * 2**20  # kMinLargeAlloc: larger pieces have a segment of their own size
_ROUND_SEGMENT = 2 * 2**20  # kRoundLarge


@dataclass(frozen=True, slots=True)
class Piece:
    """Storage.

    Args:
        bytes: at least 1.
        first, last: moments of a step, both included; `first` -1: it is there before the first step.
        stays: it is made once, in the first step, and never given back.
        stream: the one it is made on.
    """

    bytes: int
    first: int
    last: int
    stays: bool = False
    stream: int = 0


@dataclass(slots=True)
class _Block:
    size: int
    before: _Block | None = None
    after: _Block | None = None
    is_free: bool = False


@dataclass(slots=True)
class _Pool:
    """Free blocks by size, then by age."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)  # id of a block -> its number
    reserved_bytes: int = 0

    def take(self, size: int) -> _Block:
        at = bisect_left(self.free, (size, -1))
        if at < len(self.free):
            _, age = self.free.pop(at)
            block = self.blocks.pop(age)
        else:
            block = _Block(_segment_bytes(size))
            self.reserved_bytes += block.size
        block.is_free = False
        left = block.size - size
        if left >= _STEP if self.small else left > _SMALL:
            rest = _Block(left, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after, block.size = rest, size
            self._offer(rest)
        return block

    def give(self, block: _Block) -> None:
        for other in (block.before, block.after):
            if other is None or not other.is_free:
                continue
            self._withdraw(other)
            block.size += other.size
            if other is block.before:
                block.before = other.before
                if other.before is not None:
                    other.before.after = block
            else:
                block.after = other.after
                if other.after is not None:
                    other.after.before = block
        self._offer(block)

    def _offer(self, block: _Block) -> None:
        block.is_free = True
        age = self.keys.setdefault(id(block), len(self.keys))
        self.blocks[age] = block
        insort(self.free, (block.size, age))

    def _withdraw(self, block: _Block) -> None:
        age = self.keys[id(block)]
        del self.blocks[age]
        self.free.remove((block.size, age))


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND_SEGMENT) * _ROUND_SEGMENT


def reserved_bytes(pieces: Sequence[Piece], steps: int = 3) -> int:
    """Bytes that the allocator has taken after so many steps; two or three are enough, as nothing changes any more."""
    pools: dict[tuple[int, bool], _Pool] = {}
    held: dict[int, _Block] = {}

    def pool_of(piece: Piece) -> _Pool:
        small = piece.bytes <= _SMALL
        return pools.setdefault((piece.stream, small), _Pool(small))

    def make(k: int) -> None:
        held[k] = pool_of(pieces[k]).take(-(-max(1, pieces[k].bytes) // _STEP) * _STEP)

    for k, piece in enumerate(pieces):
        if piece.first < 0 and piece.stays:
            make(k)
    # a moment makes its pieces before it gives back those that it is the last to need
    events = sorted([(p.first, 0, k) for k, p in enumerate(pieces)] + [(p.last, 1, k) for k, p in enumerate(pieces) if not p.stays])
    for _ in range(steps):
        for _, gives, k in events:
            if gives:
                pool_of(pieces[k]).give(held.pop(k))
            elif k not in held:
                make(k)
    return sum(pool.reserved_bytes for pool in pools.values())
