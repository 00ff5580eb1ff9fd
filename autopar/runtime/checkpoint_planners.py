"""Planners of torch.distributed.checkpoint: which rectangles of the whole tensors a rank writes, and which it reads.

In: this rank's pieces of the states. Out: plans in torch's words. Imported where a checkpoint is written or read alone: torch's package for it takes longer to load than the rest of the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ..graph.mesh import Mesh, coordinates
from ..graph.sharding import Replicate, Sharding
from .shards import Region, regions
from .spec import ProgramSpec, local_piece


@dataclass(frozen=True)
class Piece:
    """This rank's part of one state."""

    whole: tuple[int, ...]
    dtype: str
    local: Tensor
    regions: tuple[Region, ...]
    writes: bool


class SavePlanner(DefaultSavePlanner):
    """Plans rectangles instead of tensors."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([item for name, piece in self.pieces.items() if piece.writes for item in _write_items(name, piece)])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return _at(self.pieces[write_item.index.fqn], write_item.index.offset)


class LoadPlanner(DefaultLoadPlanner):
    """Reads rectangles into pieces."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, piece in self.pieces.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            chunks = [ChunkStorageMetadata(torch.Size(r.offsets), torch.Size(r.sizes)) for r in piece.regions]
            items += create_read_items_for_chunk_list(name, stored, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return _at(self.pieces[index.fqn], index.offset)


def list_pieces(program: ProgramSpec, state: Mapping[str, Tensor], mesh: Mesh, rank: int) -> dict[str, Piece]:
    """Of each state that this rank holds.

    Args:
        state: this rank's pieces.
    """
    pieces = {}
    for number, (name, spec) in enumerate(program.states.items()):
        if not program.holds(name):
            continue
        sharding, _ = local_piece(spec, mesh)
        writes = _writes(number, sharding, mesh, rank, program.home(name))
        pieces[name] = Piece(spec.shape, spec.dtype, state[name], tuple(regions(spec.shape, sharding, mesh, rank)), writes)
    return pieces


def _writes(number: int, sharding: Sharding, mesh: Mesh, rank: int, home: int | None) -> bool:
    """One of the ranks that hold the same writes it; which one turns with the number of the state, so that all have work. In stages it is one of the
    state's home."""
    rows = list(zip(sharding.placements, mesh.axes, coordinates(mesh, rank)))
    if home is not None:
        if rows[0][2] != home:
            return False
        rows = rows[1:]
    for placement, axis, coordinate in rows:
        if isinstance(placement, Replicate):
            if coordinate != number % axis.size:
                return False
            number //= axis.size
    return True


def _write_items(name: str, piece: Piece) -> Iterator[WriteItem]:
    for region in piece.regions:
        offsets = torch.Size(region.offsets)
        chunk = ChunkStorageMetadata(offsets, torch.Size(region.sizes))
        data = TensorWriteData(chunk, TensorProperties(dtype=piece.local.dtype), torch.Size(piece.whole))
        yield WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)


def _at(piece: Piece, offsets: torch.Size | None) -> Tensor:
    region = next(r for r in piece.regions if r.offsets == tuple(offsets or ()))
    local = piece.local.detach()
    for dim, (start, length) in enumerate(zip(region.local_offsets, region.sizes)):
        local = local.narrow(dim, start, length)
    return local
