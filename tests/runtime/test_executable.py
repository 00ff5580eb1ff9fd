"""Steps, state dicts and inputs of a program written by hand, all ranks as threads."""

from __future__ import annotations

import traceback

import pytest

torch = pytest.importorskip("torch")

from autopar.errors import InputError, ProgramError
from autopar.runtime import Executable, run_ranks, solo_comm
from autopar.runtime.folder import read_files, write_program
from autopar.runtime.reading import compile_program, read_program

from .conftest import mesh_of
from .programs import zero3

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(24, 4, generator=generator), torch.randn(24, 8, generator=generator)


def plain_training(w, steps):
    w = w.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    x, target = batch()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(x @ w.t(), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), w.detach()


@pytest.mark.parametrize("n, dim", [(1, 0), (2, 0), (4, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize("own_part", [False, True])
def test_steps_equal_plain_pytorch(n, dim, own_part):
    def main(comm):
        run = Executable(None, zero3(n, dim), comm)
        first = run.state_dict()
        x, target = batch()
        given = run.local_batch(x, target) if own_part else (x, target)
        losses = torch.stack([run(*given) if k % 2 else run.step(given[1], x=given[0]) for k in range(3)])
        return first, losses, run.state_dict(), run.num_bytes()

    results = run_ranks(mesh_of(n), main)
    losses, w = plain_training(results[0][0]["w"], 3)
    for first, got, last, sizes in results:
        torch.testing.assert_close(got, losses)
        torch.testing.assert_close(last["w"], w)
        assert set(last) == {"w", "tied.w", "scale"} and last["tied.w"] is last["w"]
        assert sizes == {"param": 128 // n, "buffer": 12 + 8, "optim": 128 // n}


def test_state_dict_round_trip():
    def main(comm):
        run = Executable(None, zero3(2), comm)
        wanted = {"tied.w": torch.arange(32.0).view(8, 4), "scale": torch.tensor([4.0, 5.0, 6.0])}
        run.load_state_dict(wanted)
        local = run.state_dict(full=False)
        run.load_state_dict(local)
        return run.state_dict(), local["w"]

    for rank, (full, local) in enumerate(run_ranks(mesh_of(2), main)):
        assert torch.equal(full["w"], torch.arange(32.0).view(8, 4)) and full["scale"].tolist() == [4, 5, 6]
        assert torch.equal(local, full["w"][4 * rank : 4 * rank + 4])


MASTERS = '''
from autopar.runtime import Batch, State
MESH = (("a", 1),)
STATES = {
    "w": State("param", (4,), "bfloat16", "R", (("normal_", 0.0, 1.0),)),
    "master:w": State("optim", (4,), "float32", "R", ("copy", "w")),
}
BATCH = {}
def step(comm, state, batch):
    raise ValueError("line ten")
'''


def test_masters_are_the_state_dict():
    run = Executable(None, {"program.py": MASTERS}, solo_comm(mesh_of(1)))
    full = run.state_dict()
    assert full["w"].dtype == torch.float32 and torch.equal(full["w"].bfloat16(), run.state["w"])
    run.load_state_dict({"w": full["w"] + 1})
    assert torch.equal(run.state["master:w"], full["w"] + 1) and torch.equal(run.state["w"], (full["w"] + 1).bfloat16())
    full["w"].zero_()
    assert run.state["master:w"].abs().sum() > 0  # what the user gets is a copy


def test_tracebacks_show_the_program():
    run = Executable(None, {"program.py": MASTERS}, solo_comm(mesh_of(1)))
    try:
        run.step()
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    assert 'raise ValueError("line ten")' in text and "<autopar program.py" in text


X, T = (torch.zeros(24, 4), torch.zeros(24, 8))


@pytest.mark.parametrize(
    "args, keywords, text",
    [
        ((X,), {}, r"expected 2 positional inputs \(input:x, target:0\), found 1"),
        ((T,), {"y": X}, r"unknown input y: the program takes input:x, target:0"),
        ((X, T), {"x": X}, r"expected 1 positional inputs \(target:0\), found 2"),
        ((X[:5], T), {}, r"input:x: expected shape \[24, 4\], or \[12, 4\] for this rank's own part, found \[5, 4\]"),
        ((X.double(), T), {}, r"input:x: expected dtype float32, found float64"),
        ((X, T.to("meta")), {}, r"target:0: expected device cpu, found meta"),
        ((X, 3), {}, r"target:0: expected a tensor float32\[24, 8\], found int"),
    ],
)
def test_wrong_inputs(args, keywords, text):
    run = Executable(None, zero3(2), _rank0())
    with pytest.raises(InputError, match=text):
        run.step(*args, **keywords)


def _rank0():
    return run_ranks(mesh_of(2), lambda comm: comm)[0]


@pytest.mark.parametrize(
    "given, text",
    [
        ({"scale": torch.zeros(3)}, "missing: w"),
        ({"w": torch.zeros(8, 4), "scale": torch.zeros(3), "v": torch.zeros(1)}, "unexpected: v"),
        ({"w": torch.zeros(8, 5), "scale": torch.zeros(3)}, r"w: expected shape \[8, 4\], found \[8, 5\]"),
        ({"w": torch.zeros(8, 4), "tied.w": torch.ones(8, 4), "scale": torch.zeros(3)}, "w and tied.w are tied in the model, but differ here"),
    ],
)
def test_wrong_state_dicts_change_nothing(given, text):
    run = Executable(None, zero3(2), _rank0())
    before = run.state["w"].clone()
    with pytest.raises(InputError, match=f"(?s)does not fit the model.*{text}"):
        run.load_state_dict(given)
    assert torch.equal(run.state["w"], before)


@pytest.mark.parametrize(
    "text, error",
    [
        ("MESH = ()\nx = (", r"program.py, line 2: the emitted program is not valid Python"),
        ("MESH = ()", "expected MESH, STATES, BATCH and step, STATES, BATCH, step missing"),
        (MASTERS.replace('"R", (("n', '"S0/3", (("n'), r"w \[4\] cannot be stored as S0/3: dim 0 of size 4 is not a multiple of 3 x 1"),
        (MASTERS.replace('"R", (("n', '"P", (("n'), "a stored tensor cannot be partial"),
        (MASTERS.replace('"R", (("n', '"X", (("n'), "w: .*found 'X'"),
        (MASTERS.replace("bfloat16", "brain"), "expected a torch dtype such as float32, found 'brain'"),
        (MASTERS.replace('"param"', '"thing"'), "w: expected kind param, buffer, optim, found 'thing'"),
        (MASTERS + '\nALIASES = {"v": "u"}', "v is an alias of u, which is no state"),
        ("MESH = ()\n\nimport stage_7", "program.py, line 3: cannot be loaded: ModuleNotFoundError: No module named 'stage_7'; emit the program again, or put it beside"),
        ("MESH = ()\nSTATES = MESHES", "program.py, line 2: cannot be loaded: NameError: name 'MESHES' is not defined; mend the line, or emit"),
    ],
)
def test_malformed_programs(text, error):
    with pytest.raises(ProgramError, match=error):
        read_program(compile_program({"program.py": text}))


def test_no_program():
    with pytest.raises(ProgramError, match="has no program.py, only train.py"):
        compile_program({"train.py": ""})


def test_emit_is_whole_and_overwrites_only_its_own(tmp_path):
    out = tmp_path / "deep" / "out"
    files = zero3(2)
    run_ranks(mesh_of(2), lambda comm: Executable(None, files, comm).emit(out))
    assert read_files(out) == files
    (out / "__pycache__").mkdir()
    write_program({**files, "plan.json": "{}"}, out)
    assert read_files(out)["plan.json"] == "{}" and [p.name for p in out.parent.iterdir()] == ["out"]
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ProgramError, match=r"out is not empty and not only an emitted program \(it has notes.txt\): choose another folder"):
        write_program(files, out)
    assert (out / "notes.txt").read_text() == "mine"
    with pytest.raises(ProgramError, match="is a file, expected a folder"):
        write_program(files, out / "notes.txt")
    (tmp_path / "empty").mkdir()
    write_program(files, tmp_path / "empty")
    with pytest.raises(ProgramError, match="is not an emitted program: it has no program.py"):
        read_files(tmp_path)
    with pytest.raises(ProgramError, match="cannot write /proc/nothing/out: .*; choose another folder"):
        write_program(files, "/proc/nothing/out")
