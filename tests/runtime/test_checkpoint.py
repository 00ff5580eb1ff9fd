"""A checkpoint of one plan loads under any other; what is damaged or foreign is named."""

from __future__ import annotations

import json
import random

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import CheckpointError
from autopar.runtime import Executable, checkpoint_planners, run_ranks
from autopar.runtime.checkpoint import MANIFEST, load_state, read_manifest, save_state
from autopar.runtime.shards import cut
from autopar.runtime.spec import ProgramSpec, State, local_piece

from .conftest import all_shardings, mesh_of, some
from .programs import zero3
from .test_executable import batch, plain_training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def shaped(mesh, rng):
    shapes = {"w": ((24, 8), "float32"), "qkv": ((12, 4), "bfloat16"), "step:w": ((), "float32"), "count": ((5,), "int64"), "mask": ((4, 4), "bool")}
    return {n: State("param", shape, dtype, str(some(rng, all_shardings(shape, mesh), 1)[0])) for n, (shape, dtype) in shapes.items()}


def spec(states, mesh):
    return ProgramSpec(mesh, states, {}, None, {}, lambda *_: None)


def test_any_plan_reads_what_any_plan_wrote(tmp_path):
    rng = random.Random(0)
    for number in range(12):
        torch.manual_seed(number)
        source, target = mesh_of(*rng.choice([(1,), (4,), (2, 2), (2, 2, 2)])), mesh_of(*rng.choice([(1,), (2,), (4,), (2, 3), (2, 2)]))
        wrote, reads = shaped(source, rng), shaped(target, rng)
        wholes = {n: (torch.randn(s.shape) * 5).to(getattr(torch, s.dtype)) for n, s in wrote.items()}

        def piece(states, mesh, rank):
            return {n: cut(wholes[n], local_piece(s, mesh)[0], mesh, rank) for n, s in states.items()}

        run_ranks(source, lambda comm: save_state(comm, spec(wrote, source), piece(wrote, source, comm.rank), tmp_path / "c", {"name": "m"}))

        def load(comm):
            state = {n: torch.zeros_like(t) for n, t in piece(reads, target, comm.rank).items()}
            load_state(comm, spec(reads, target), state, tmp_path / "c")
            return state

        for rank, got in enumerate(run_ranks(target, load)):
            for name, want in piece(reads, target, rank).items():
                assert torch.equal(got[name], want), (number, name, wrote[name], reads[name])
        assert sorted(p.name for p in (tmp_path / "c").iterdir()) == [MANIFEST, read_manifest(tmp_path / "c")["data"]]


def test_training_goes_on_under_another_plan(tmp_path):
    def first(comm):
        run = Executable(None, zero3(4), comm)
        start = run.state_dict()["w"]
        for _ in range(2):
            run(*batch())
        run.save(tmp_path / "c")
        return start

    def second(comm):
        run = Executable(None, zero3(2, dim=1, stride=1), comm, seed=9)
        run.load(tmp_path / "c")
        return torch.stack([run(*batch()) for _ in range(2)]), run.state_dict()["w"], int(run.state["seen"])

    start = run_ranks(mesh_of(4), first)[0]
    losses, w = plain_training(start, 4)
    for got, last, seen in run_ranks(mesh_of(2), second):
        torch.testing.assert_close(got, losses[2:])
        torch.testing.assert_close(last, w)
        assert seen == 4


def saved(path):
    run_ranks(mesh_of(2), lambda comm: Executable(None, zero3(2), comm).save(path))
    return path


def load_anew(path, files=None):
    def main(comm):
        run = Executable(None, files or zero3(2), comm)
        run.state["w"].fill_(7.0)
        try:
            run.load(path)
        except CheckpointError:
            assert (run.state["w"] == 7.0).all()
            raise

    run_ranks(mesh_of(2), main)


def test_folders_that_are_no_checkpoints(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere is not a checkpoint: there is no such folder"):
        load_anew(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: it has no autopar.json; checkpoints are folders written by `step.save\(dir\)`"):
        load_anew(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is not a checkpoint: it is a file"):
        load_anew(tmp_path / "file")


def test_another_model(tmp_path):
    saved(tmp_path / "c")
    files = zero3(2)
    other = {**files, "program.py": files["program.py"].replace('"scale": State', '"gain": State')}
    with pytest.raises(CheckpointError, match=r"(?s)another model, optimizer or precision \(linear\):.*missing in it: gain.*only in it: scale"):
        load_anew(tmp_path / "c", other)
    bigger = {**files, "program.py": files["program.py"].replace("shape=(3,)", "shape=(4,)").replace("3.0)", "3.0, 4.0)")}
    with pytest.raises(CheckpointError, match=r"scale: expected float32\[4\], found float32\[3\]"):
        load_anew(tmp_path / "c", bigger)


def test_damage_is_named(tmp_path):
    path = saved(tmp_path / "c")
    manifest = read_manifest(path)
    data = path / manifest["data"]
    victim = data / "__0_0.distcp"
    good = victim.read_bytes()
    victim.write_bytes(good[:-10])
    with pytest.raises(CheckpointError, match=rf"c is damaged: __0_0.distcp: expected {len(good)} bytes, found {len(good) - 10} bytes"):
        load_anew(path)
    victim.unlink()
    with pytest.raises(CheckpointError, match="__0_0.distcp: expected .* found no file"):
        load_anew(path)
    victim.write_bytes(good)
    metadata = (data / ".metadata").read_bytes()
    (data / ".metadata").write_bytes(b"x" * len(metadata))
    with pytest.raises(CheckpointError, match="c is damaged and cannot be read"):
        load_anew(path)
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:-40])
    with pytest.raises(CheckpointError, match="autopar.json is damaged: it is not the JSON"):
        load_anew(path)
    (path / MANIFEST).write_text(json.dumps({"format": "autopar-checkpoint-9"}))
    with pytest.raises(CheckpointError, match="expected format autopar-checkpoint-1, found 'autopar-checkpoint-9'"):
        load_anew(path)


def test_a_save_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    path = saved(tmp_path / "c")
    before = read_manifest(path)

    def broken(comm):
        run = Executable(None, zero3(2), comm)
        run.state["w"].fill_(3.0)
        run.save(path)

    def refuse(self, item):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint_planners.SavePlanner, "resolve_data", refuse)
    with pytest.raises(CheckpointError, match="rank . cannot write the checkpoint .*No space left on device; the checkpoint that was there before is untouched"):
        run_ranks(mesh_of(2), broken)
    monkeypatch.undo()
    assert read_manifest(path) == before
    run_ranks(mesh_of(2), lambda comm: Executable(None, zero3(2), comm).load(path))
    saved(path)  # and clears what the failure left
    assert len(list(path.iterdir())) == 2


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "photos.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"is not empty and not a checkpoint \(it has photos.txt\)"):
        saved(tmp_path)
    with pytest.raises(CheckpointError, match="photos.txt is a file, expected a folder"):
        saved(tmp_path / "photos.txt")
