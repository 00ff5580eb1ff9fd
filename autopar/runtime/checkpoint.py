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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import AutoparError, CheckpointError
from .comm import Comm
from .spec import ProgramSpec, State

if TYPE_CHECKING:
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.metadata import Metadata

FORMAT = "autopar-checkpoint-1"
MANIFEST = "autopar.json"


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
    from torch.distributed.checkpoint import FileSystemWriter

    from .checkpoint_planners import SavePlanner, list_pieces

    target = Path(directory)
    data = comm.share(f"data-{uuid.uuid4().hex[:12]}")
    _all_fine(comm, target, lambda: _prepare_folder(target, data) if comm.rank == 0 else None)
    planner, writer = SavePlanner(list_pieces(program, state, comm.mesh, comm.rank)), FileSystemWriter(target / data, overwrite=False)
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
    from torch.distributed.checkpoint import FileSystemReader

    from .checkpoint_planners import LoadPlanner, list_pieces

    target = Path(directory)
    manifest = read_manifest(target)
    _check_same_states(target, manifest, program.states)
    _check_files(target, manifest)
    reader, planner = FileSystemReader(target / manifest["data"]), LoadPlanner(list_pieces(program, state, comm.mesh, comm.rank))
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
