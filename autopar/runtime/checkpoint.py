"""Checkpoints: every rank writes its pieces, any plan reads them back.

A checkpoint is a folder with `autopar.json` and one data folder in the format of torch.distributed.checkpoint (`torch.distributed.checkpoint`
tools read it). Each piece is stored as the rectangles of the WHOLE tensor that it covers, so what is stored does not depend on the plan,
and a plan with another mesh, another ZeRO stage or other splits reads the rectangles that it needs.

A save writes a new data folder beside the old one; replacing `autopar.json`, one atomic rename, is the moment when it counts; only then
the old data goes. So a rank that dies at any time leaves a whole checkpoint: the new one or the last one.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ..errors import AutoparError, CheckpointError
from ..graph.mesh import Mesh, coordinates
from ..graph.sharding import Replicate, Sharding
from .comm import Comm
from .shards import Region, regions
from .spec import ProgramSpec, State, local_piece

FORMAT = "autopar-checkpoint-1"
MANIFEST = "autopar.json"


@dataclass(frozen=True)
class Piece:
    """This rank's part of one state."""

    whole: tuple[int, ...]
    dtype: str
    local: Tensor
    regions: tuple[Region, ...]
    writes: bool


def save_state(comm: Comm, program: ProgramSpec, state: Mapping[str, Tensor], directory: str | os.PathLike, model: Mapping[str, object]) -> None:
    """Write a checkpoint; every rank calls it. The one that was in the folder stays whole until the new one is.

    Args:
        program: as this rank holds it (`stages.here`).
        state: this rank's pieces.
        model: facts about the model, kept for people (`name`, `graph_hash`).
    Raises:
        CheckpointError: a rank cannot write, or the folder holds something else.
        RankError: another rank is gone.
    """
    target = Path(directory)
    data = comm.share(f"data-{uuid.uuid4().hex[:12]}")
    _all_fine(comm, target, lambda: _prepare_folder(target, data) if comm.rank == 0 else None)
    planner, writer = _SavePlanner(_pieces(program, state, comm.mesh, comm.rank)), FileSystemWriter(target / data, overwrite=False)
    planner.set_up_planner({}, is_coordinator=comm.rank == 0)
    writer.set_up_storage_writer(comm.rank == 0)
    plans = _all_fine(comm, target, lambda: writer.prepare_local_plan(planner.create_local_plan()))
    # every rank works out the same global plan, so nothing has to be sent back
    global_plans, metadata = planner.create_global_plan(plans)
    mine = planner.finish_plan(writer.prepare_global_plan(global_plans)[comm.rank])
    results = _all_fine(comm, target, lambda: writer.write_data(mine, planner).wait())
    _all_fine(comm, target, lambda: _commit(target, data, writer, metadata, results, program.states, model) if comm.rank == 0 else None)


def load_state(comm: Comm, program: ProgramSpec, state: Mapping[str, Tensor], directory: str | os.PathLike) -> None:
    """Read a checkpoint into this rank's pieces; it may have been saved under any plan of the same model.

    Raises:
        CheckpointError: the folder is no checkpoint, is damaged, or belongs to another model. What shows before the data is read
            (other states, missing or truncated files, unreadable metadata) changes nothing.
    """
    target = Path(directory)
    manifest = read_manifest(target)
    _check_same_states(target, manifest, program.states)
    _check_files(target, manifest)
    reader, planner = FileSystemReader(target / manifest["data"]), _LoadPlanner(_pieces(program, state, comm.mesh, comm.rank))
    try:
        metadata = reader.read_metadata()
        planner.set_up_planner({}, metadata, comm.rank == 0)
        reader.set_up_storage_reader(metadata, comm.rank == 0)
        plan = planner.create_local_plan()
    except Exception as error:  # whatever unpickling a damaged file raises
        raise _damaged(target, error) from None
    try:
        reader.read_data(planner.finish_plan(plan), planner).wait()
    except Exception as error:
        raise _damaged(target, error) from None
    comm.barrier()


def read_manifest(directory: str | os.PathLike) -> dict[str, Any]:
    """The manifest of a checkpoint: `format`, `data` (folder), `model`, `states` (name -> [shape, dtype]), `files` (name -> bytes).

    Raises:
        CheckpointError: the folder is no checkpoint of this version.
    """
    target = Path(directory)
    if not target.is_dir():
        raise CheckpointError(f"{target} is not a checkpoint: {'it is a file' if target.exists() else 'there is no such folder'}")
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        found = manifest["format"]
    except FileNotFoundError:
        raise CheckpointError(f"{target} is not a checkpoint: it has no {MANIFEST}; checkpoints are folders written by `step.save(dir)`") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{target / MANIFEST} is damaged: it is not the JSON that `step.save(dir)` writes") from None
    if found != FORMAT:
        raise CheckpointError(f"{target}: expected format {FORMAT}, found {found!r}: it was written by another version of autopar")
    missing = {"data", "states", "files"} - set(manifest)
    if missing:
        raise CheckpointError(f"{target / MANIFEST} is damaged: {', '.join(sorted(missing))} missing")
    return manifest


class _SavePlanner(DefaultSavePlanner):
    """Plans rectangles instead of tensors."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([item for name, piece in self.pieces.items() if piece.writes for item in _write_items(name, piece)])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return _at(self.pieces[write_item.index.fqn], write_item.index.offset)


class _LoadPlanner(DefaultLoadPlanner):
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


def _pieces(program: ProgramSpec, state: Mapping[str, Tensor], mesh: Mesh, rank: int) -> dict[str, Piece]:
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


def _all_fine(comm: Comm, target: Path, work: Any) -> list[Any]:
    """Do a part of the save on every rank and collect the results; if one fails, all raise what it says."""
    try:
        mine, error = work(), None
    except AutoparError as problem:
        mine, error = None, str(problem)
    except (OSError, RuntimeError, ValueError) as problem:
        mine, error = None, f"rank {comm.rank} cannot write the checkpoint {target}: {problem}"
    found = comm.collect((mine, error))
    failed = [text for _, text in found if text]
    if failed:
        raise CheckpointError(f"{failed[0]}; the checkpoint that was there before is untouched")
    return [result for result, _ in found]


def _prepare_folder(target: Path, data: str) -> None:
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{target} is a file, expected a folder for the checkpoint")
    if target.is_dir() and not (target / MANIFEST).exists():
        foreign = sorted(p.name for p in target.iterdir() if not p.name.startswith("data-"))
        if foreign:
            raise CheckpointError(f"{target} is not empty and not a checkpoint (it has {', '.join(foreign[:3])}): choose another folder")
    (target / data).mkdir(parents=True)


def _commit(
    target: Path, data: str, writer: FileSystemWriter, metadata: Metadata, results: list[Any], states: Mapping[str, State], model: Mapping[str, object]
) -> None:
    writer.finish(metadata, results)
    manifest = {
        "format": FORMAT,
        "data": data,
        "model": dict(model),
        "states": {name: [list(s.shape), s.dtype] for name, s in states.items()},
        "files": {p.name: p.stat().st_size for p in sorted((target / data).iterdir())},
    }
    fresh = target / f"{MANIFEST}.{data}"
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(target / MANIFEST)
    for old in target.iterdir():  # earlier checkpoints, and what killed ranks left
        if old.name.startswith("data-") and old.name != data:
            shutil.rmtree(old, ignore_errors=True)
        elif old.name.startswith(f"{MANIFEST}."):
            old.unlink(missing_ok=True)


def _check_same_states(target: Path, manifest: Mapping[str, Any], states: Mapping[str, State]) -> None:
    stored = {name: (tuple(shape), dtype) for name, (shape, dtype) in manifest["states"].items()}
    wanted = {name: (s.shape, s.dtype) for name, s in states.items()}
    if stored == wanted:
        return
    lines = [f"missing in it: {_some(sorted(set(wanted) - set(stored)))}"] if set(wanted) - set(stored) else []
    lines += [f"only in it: {_some(sorted(set(stored) - set(wanted)))}"] if set(stored) - set(wanted) else []
    for name in sorted(set(stored) & set(wanted)):
        if stored[name] != wanted[name]:
            (shape, dtype), (found, found_dtype) = wanted[name], stored[name]
            lines.append(f"{name}: expected {dtype}{list(shape)}, found {found_dtype}{list(found)}")
            break
    raise CheckpointError(
        f"{target} belongs to another model, optimizer or precision ({manifest.get('model', {}).get('name', 'unnamed')}):\n  " + "\n  ".join(lines)
    )


def _check_files(target: Path, manifest: Mapping[str, Any]) -> None:
    for name, size in manifest["files"].items():
        path = target / manifest["data"] / name
        found = path.stat().st_size if path.exists() else None
        if found != size:
            raise CheckpointError(f"{target} is damaged: {path.name}: expected {size} bytes, found {'no file' if found is None else f'{found} bytes'}")


def _damaged(target: Path, error: Exception) -> CheckpointError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CheckpointError(f"{target} is damaged and cannot be read ({first}): use another checkpoint")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
