"""Programs in pipeline stages, written by hand: their numbers, schedules made by hand, what is refused before the first step, and what errors
say in one; all ranks as threads."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

import autopar
from autopar.errors import AutoparError, ProgramError, RankError, ScheduleError
from autopar.graph.mesh import Mesh, MeshAxis
from autopar.graph.schedules.known import build_schedule
from autopar.graph.schedules.schedule import parse_csv, print_csv
from autopar.graph.schedules.sends import lower_sends
from autopar.runtime import Executable, initial_state, run_ranks
from autopar.runtime.reading import compile_program, read_program

from .staged_programs import LEARNING_RATE, LENGTH, WIDTH, staged

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def mesh_of(stages, tp=1):
    return Mesh((MeshAxis("pp", stages), MeshAxis("tp", tp)))


def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(LENGTH, WIDTH, generator=generator), torch.randn(LENGTH, WIDTH, generator=generator)


def plain_training(weights, steps):
    weights = [w.clone().requires_grad_() for w in weights]
    optimizer = torch.optim.SGD(weights, lr=LEARNING_RATE)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        x, target = batch()
        for w in weights:
            x = x @ w.t()
        loss = torch.nn.functional.mse_loss(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), [w.detach() for w in weights]


def check_numbers(files, stages, tp=1):
    """Three steps and the state dict of every rank equal plain PyTorch."""
    names = [f"layers.{k}.weight" for k in range(stages)]

    def main(comm):
        run = Executable(None, files, comm)
        first = run.state_dict()
        return first, torch.stack([run.step(*batch()) for _ in range(3)]), run.state_dict(), set(run.state), run.num_bytes()["param"]

    results = run_ranks(mesh_of(stages, tp), main)
    losses, weights = plain_training([results[0][0][name] for name in names], 3)
    for rank, (_, got, last, held, size) in enumerate(results):
        torch.testing.assert_close(got, losses)
        for name, weight in zip(names, weights, strict=True):
            torch.testing.assert_close(last[name], weight)
        assert held == {names[rank // tp]} and size == 4 * WIDTH * WIDTH // tp


@pytest.mark.parametrize(
    "stages, tp, microbatches, kind", [(2, 1, 1, "gpipe"), (2, 2, 4, "1f1b"), (3, 1, 2, "gpipe"), (4, 1, 8, "1f1b"), (5, 2, 4, "1f1b")]
)
def test_steps_equal_plain_pytorch(stages, tp, microbatches, kind):
    """Of five stages, those between the first and the last run one file under other names."""
    check_numbers(staged(stages, tp, microbatches, kind), stages, tp)


ONE_F_ONE_B = staged(2, 2)["schedule.csv"]
FIRST, SECOND = ONE_F_ONE_B.splitlines()
SENT = print_csv(lower_sends(parse_csv(ONE_F_ONE_B)))
OF_ANOTHER_ORDER = "0F3,0F0,0F2,0F1,0B0,0B3,0B1,0B2\n1F3,1F0,1B0,1B3,1F2,1F1,1B1,1B2\n"


OF_TORCH = f" {FIRST.replace(',', ' , ,')},0REDUCE_GRAD\r\n{SECOND}\r\n\r\n"


@pytest.mark.parametrize("text", [SENT, OF_ANOTHER_ORDER, OF_TORCH], ids=["sends", "order", "torch"])
def test_a_schedule_of_ones_own_runs(text):
    assert "SEND_F" in SENT
    check_numbers({**staged(2, 2), "schedule.csv": text}, 2, 2)


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
def test_full_backwards_in_a_program_whose_files_split_them(kind):
    """Each is its two halves: the same steps as with the schedule that the program was emitted with."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(4)))
    x, target = batch()
    options = autopar.Options(constraints=autopar.constrain(pp=2, microbatches=4, schedule="zero-bubble"), price=False)
    workload = autopar.Workload(model, (x,), (target,), torch.nn.functional.mse_loss, torch.optim.SGD)
    files = autopar.compile_workload(workload, "cpu:2", options).files
    full = {**files, "schedule.csv": print_csv(build_schedule(kind, 2, 4))}
    assert "W" in files["schedule.csv"] and "W" not in full["schedule.csv"]

    def main(files):
        def run(comm):
            executable = Executable(None, files, comm, {})
            executable.state.update(initial_state(executable.program, comm.rank, model.state_dict()))
            return torch.stack([executable.step(x, target) for _ in range(3)]), executable.state_dict()

        return run_ranks(read_program(compile_program(files)).mesh, run)

    for (losses, states), (expected, expected_states) in zip(main(full), main(files)):
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(states, expected_states)


def refused(files):
    """The error with which the program is refused, and its lines."""
    with pytest.raises(AutoparError) as caught:
        read_program(compile_program(files))
    return caught.value, str(caught.value).splitlines()


FILE_HAS = "the file of stage 0 has forward, backward"
ELSE = "to have other sections run, emit it again"
ROWS = "rows are in the order of STAGES in program.py"
MICROBATCHES = "expected microbatches 0 to 3 (MICROBATCHES in program.py), found 0 to"


@pytest.mark.parametrize(
    "text, kind, why",
    [
        (ONE_F_ONE_B.replace("1F1,", ""), ScheduleError, "rank 1: 1F1 is missing; every stage runs every microbatch once"),
        (ONE_F_ONE_B.replace(",0B1", ""), ScheduleError, "rank 0: 0B1 is missing (or 0I1 and 0W1); every forward has its backward"),
        (ONE_F_ONE_B.replace("1F1,", "1F1,1F1,"), ScheduleError, "rank 1: 1F1 is there twice, at places 2 and 3; take one out"),
        (ONE_F_ONE_B.replace("1F1,1B1", "1B1,1F1"), ScheduleError, "rank 1: 1B1 at place 2 comes before 1F1 at place 3; swap them"),
        (ONE_F_ONE_B.replace("0F1,0B0", "0B0,0F1").replace("1B0,1F1", "1F1,1B0"), ScheduleError, "deadlock: rank 0 waits with 0B0 for 1B0 of rank 1 (place 2); "
         "rank 1 waits with 1F1 for 0F1 of rank 0 (place 2); move one of these actions behind what the others wait for"),
        (SENT.replace("1RECV_F2,", ""), ScheduleError, "rank 1: 1RECV_F2 is missing; what 0F2 makes crosses ranks, and 0SEND_F2 of rank 0 stays unmet"),
        (f"{FIRST}\n", ProgramError, "expected 2 rows, one for each of STAGES in program.py, found 1"),
        (f"{ONE_F_ONE_B}2F0,2F1,2F2,2F3,2B0,2B1,2B2,2B3\n", ProgramError, "expected 2 rows, one for each of STAGES in program.py, found 3"),
        (f"{FIRST},2F0\n{SECOND}\n", ProgramError, "expected equally many chunks of the model in each row, found 3 in 2 rows: 2F0 is of the last"),
        (f"{FIRST}\n{SECOND},2F0\n", ProgramError, f"expected 2F0 in row 1, found it in row 2: {ROWS}"),
        (f"{SECOND}\n{FIRST}\n", ProgramError, f"expected 1F0 in row 2, found it in row 1: {ROWS}"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", ProgramError, f"{MICROBATCHES} 1: 0F1 in row 1 is of the last"),
        (ONE_F_ONE_B.replace("0F3", "0F33"), ProgramError, f"{MICROBATCHES} 33: 0F33 in row 1 is of the last"),
        (ONE_F_ONE_B.replace("0B1", "0I1,0W1"), ProgramError, f"row 1: 0B1 is missing: {FILE_HAS}; {ELSE}"),
        ("0F0,0F1,0F2,0F3\n1F0,1F1,1F2,1F3\n", ProgramError, f"row 1: 0B0 is missing: {FILE_HAS}; {ELSE}"),
        (print_csv(build_schedule("interleaved", 2, 4, 2)), ProgramError, f"row 1: 0F0 runs forward_0, but {FILE_HAS}; emit it again with as many chunks"),
    ],
)  # fmt: skip
def test_a_schedule_that_does_not_fit_is_refused_with_its_grid(text, kind, why):
    error, (first, head, slots, *rows) = refused({**staged(2, 2), "schedule.csv": text})
    assert type(error) is kind and first == f"schedule.csv: {why}"
    assert head.startswith("schedule.csv: ") and slots.startswith("slot ") and rows[0].startswith("rank 0 ") and ">" in "".join(rows)
    if kind is ScheduleError:
        assert rows[-1] == "A rank of this grid is a stage of program.py, with all ranks of its mesh."


def test_no_schedule():
    files = staged(2)
    assert refused({**files, "schedule.csv": "0F0,0X1\n"})[1] == [
        "schedule.csv: row 1, column 2: expected an action as 2F0 (stage, one of F B I W SEND_F RECV_F SEND_B RECV_B, microbatch), found '0X1'"
    ]
    files.pop("schedule.csv")
    assert refused(files)[1] == ["program.py: its schedule schedule.csv is not beside it; emit it again"]


def edited(name, old, new, stages=2, kind="1f1b"):
    files = staged(stages, kind=kind)
    assert old in files[name], (name, old)
    return {**files, name: files[name].replace(old, new, 1)}


@pytest.mark.parametrize(
    "files, why",
    [
        (edited("stage_1.py", "WAITS = {'forward': [(-1, 0)]}", "WAITS = {}"),
         "schedule.csv: message 0 of microbatch 0 from stage 0 to stage 1 is sent and never received: see 0F0 of stage 0"),
        (edited("stage_1.py", "SENDS = {'backward': [(-1, 0)]}", "SENDS = {}"),
         "schedule.csv: message 0 of microbatch 0 from stage 1 to stage 0 is awaited and never sent: see 0B0 of stage 0"),
        (edited("stage_0.py", "SENDS = {'forward': [(1, 0)]}", "SENDS = {'forward': [(1, 0), (1, 0)]}"),
         "schedule.csv: message 0 of microbatch 0 from stage 0 to stage 1 is sent twice, in 0F0 of stage 0 and in 0F0 of stage 0"),
        (edited("stage_0.py", "WAITS = {'backward'", "WAITS = {'forward'", kind="gpipe"), "schedule.csv: the stages would wait for each other: 0F0 of stage 0 waits for "
         "message 0 of microbatch 0 from stage 1 to stage 0; 1F1 of stage 1 waits for message 0 of microbatch 1 from stage 0 to stage 1"),
        (edited("stage_0.py", "RECEIVES = {(1, 0)", "RECEIVES = {(1, 5)"),
         "stage 1 sends message 0 in its backward to stage 0, whose file lacks it in RECEIVES"),
        (edited("program.py", "Stage(stage_1),)", "Stage(stage_1), Stage(stage_1),)"),
         "program.py: MESH: expected ('pp', 3) first, as STAGES has 3, found (('pp', 2),)"),
        (edited("program.py", "MICROBATCHES", "BATCHES"),
         "program.py: expected MESH, STAGES, SCHEDULE, MICROBATCHES, BATCH and step, MICROBATCHES missing; emit it again"),
        (edited("stage_1.py", "COPIES", "KOPIES"), "the file of stage 1 lacks COPIES; emit it again"),
        (edited("stage_1.py", "COPIES = ()", "COPIES = ('layers.1.weight',)"), "layers.1.weight: every stage that has it says that another one updates it (COPIES)"),
    ],
)  # fmt: skip
def test_an_edited_file_that_does_not_fit_is_refused(files, why):
    error, (first, *grid) = refused(files)
    assert type(error) is ProgramError and first == why
    assert ("slot" in "".join(grid)) == why.startswith("schedule.csv")


def fail_of(files, stages):
    with pytest.raises(Exception) as caught:
        run_ranks(mesh_of(stages), lambda comm: [Executable(None, files, comm).step(*batch()) for _ in range(2)])
    return caught.value


def test_an_error_of_an_op_says_in_which_action():
    """The middle stages of four run one file: the stage is told, too."""
    files = edited("stage_1.py", "    own = ", '    if comm.rank == 2 and turn == 1:\n        raise ValueError("no such thing")\n    own = ', 4)
    error = fail_of(files, 4)
    assert type(error) is ValueError and str(error) == "no such thing"
    if hasattr(error, "add_note"):
        line = 'raise ValueError("no such thing")'
        (note,) = error.__notes__
        assert note == f"rank 2: stage 2, in 2B1 (backward of microbatch 1): stage_1.py, line {_line_of(files['stage_1.py'], line)}: {line}"


def _line_of(text, part):
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def test_a_message_of_another_shape_names_the_action():
    error = fail_of(edited("stage_0.py", "comm.send(y, stage=1", "comm.send(y[:1], stage=1"), 2)
    assert type(error) is ProgramError and str(error) == (
        "stage 1, in 1F0 (forward of microbatch 0), waiting for stage 0: rank 1: the next message from rank 0: "
        "expected message 0 of turn 0, float32[2, 4]; found message 0 of turn 0, float32[1, 4]"
    )


@pytest.mark.parametrize(
    "old, new, text",
    [
        ("    y = ", "    return\n    y = ", r"stage ., in .*: ranks wait for each other: rank . in receive of message 0 of turn 0, float32\[2, 4\] from rank .; rank "),
        ("comm.receive(stage=1, message=0, turn=turn)", "kept['x']", r"stage 0, at the end of the step: rank 0 never received message 0 .* \(4 such messages\)$"),
    ],
)
def test_a_file_that_does_not_do_what_it_says_does_not_hang(old, new, text):
    """It says that it sends, or receives, and does not."""
    error = fail_of(edited("stage_0.py", old, new), 2)
    assert isinstance(error, (RankError, ProgramError)) and re.match(text, str(error)), error
