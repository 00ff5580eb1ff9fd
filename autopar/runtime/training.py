"""The loop of an emitted `train.py`: short, so that people copy and change it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from ..errors import AutoparError, RankError, RunError
from .checkpoint import MANIFEST
from .comm import TIMEOUT_S
from .executable import Executable
from .folder import read_files
from .initial import initial_state
from .last_words import keep_silent, write_error_file
from .launch import read_torchrun_env, start_process_group, stop_process_group
from .named_trace import trace_step
from .recording import Recorder
from .spec import make_mesh

PROFILED = 2  # the step that is traced: the first ones make what is made lazily


def run_training(
    program: ModuleType,
    batches: Iterable[tuple[Tensor, ...]],
    num_steps: int,
    seed: int = 0,
    checkpoint_dir: str | os.PathLike | None = None,
    weights: dict[str, Tensor] | None = None,
    timeout_s: float = TIMEOUT_S,
    device_type: str | None = None,
    record: str | os.PathLike | None = None,
    profile: str | os.PathLike | None = None,
) -> list[float]:
    """Train under torchrun, or run a model without a loss; rank 0 prints the loss of each step, if there is one.

    Args:
        program: the emitted `program` module.
        batches: whole batches (or own parts), the same on every rank, as `Executable.step` takes them.
        num_steps: at most so many.
        seed: of first values that a recipe makes.
        checkpoint_dir: where to go on from, if there is a checkpoint, and to save to at the end.
        weights: first values under the model's own names; else recipes.
        timeout_s: when a rank that does not answer counts as gone.
        device_type: `cpu` or `cuda`; None takes what is there.
        profile: file for a trace of the third step (or the last, if there are fewer) on rank 0, for Perfetto; other ranks write beside it, with their number.
        record: file for what the steps took and held (`runtime.recording`), written where there are steps; None: nobody looks.
    Returns:
        the losses; none where the program returns outputs. On an error that the user can act on, its text goes to stderr and the process exits with 2. What a
        rank ends with also goes into torchrun's summary, SIGTERM from torchrun included (`last_words`).
    """
    env = None
    try:
        env = read_torchrun_env()
        kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
        comm = start_process_group(make_mesh(program.MESH), env, timeout_s, kind)
        executable = Executable(None, read_files(Path(program.__file__ or ".").parent), comm, {})
        executable.state.update(initial_state(executable.program, comm.rank, weights, seed, comm.device))
        if checkpoint_dir is not None and (Path(checkpoint_dir) / MANIFEST).exists():
            executable.load(checkpoint_dir)
        torch.manual_seed(seed)  # of ops of the user's own that draw numbers: every rank runs them whole and must draw alike
        recorder = Recorder(executable, record) if record is not None and num_steps > 0 else None
        unwritten: AutoparError | None = None
        losses, num_run = [], 0
        for number, batch in zip(range(num_steps), batches):
            own = executable.local_batch(*_on_device(batch, comm.device))
            if profile is not None and number == min(PROFILED, num_steps - 1):
                result, profile = trace_step(executable, own, _of_rank(profile, comm.rank)), None
            else:
                result = executable.step(*own) if recorder is None else recorder.step(*own)
            if executable.program.output is None:
                losses.append(float(result))
            num_run += 1
            if comm.rank == 0:
                print(f"step {number}" + (f"  loss {losses[-1]:.6f}" if losses else ""), flush=True)
            if recorder is not None and recorder.full:
                recorder, unwritten = None, recorder.write()
        if checkpoint_dir is not None:
            executable.save(checkpoint_dir)
        if recorder is not None:
            unwritten = recorder.write()
        if profile is not None:
            traced = max(0, min(PROFILED, num_steps - 1))
            unwritten = unwritten or RunError(f"{profile}: no trace was written: it is of step {traced}, and {num_run} were run. Run more steps, or give it more batches.")
        if unwritten is not None:
            raise unwritten
        stop_process_group()
        return losses
    except AutoparError as error:
        keep_silent()
        text = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"{text}\n")  # at once: the lines of ranks that end together stay apart
        sys.stderr.flush()
        write_error_file(env and env.error_file, text, is_cause=not isinstance(error, RankError))
        stop_process_group()
        raise SystemExit(2) from None
    except Exception:
        keep_silent()
        write_error_file(env and env.error_file, traceback.format_exc(), is_cause=True)
        raise


def _of_rank(path: str | os.PathLike, rank: int) -> Path:
    """`trace.json` of rank 0, `trace.1.json` of rank 1."""
    found = Path(path)
    return found if rank == 0 else found.with_name(f"{found.stem}.{rank}{found.suffix}")


def _on_device(batch: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """The batch where the program runs; batches are made on the CPU as a rule."""
    return tuple(x.to(device) if isinstance(x, Tensor) and x.device.type == "cpu" else x for x in batch)
