"""The demo itself: plan, write, train on four processes, train in plain PyTorch, compare.

In: a folder and a number of steps. Out: a `DemoResult`; the folder holds `plan.json`, `plan.html`, `program/` and the figures measured
on this machine. Both runs begin with the same weights and read the same text; the reference is eager PyTorch in this process.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..api import Compiled, build_case, compile_workload
from ..cluster import parse_cluster
from ..cost.model import build_cost_model
from ..cost.profile import measure_cpu
from ..errors import RankError, VerificationError
from ..graph.mesh import num_ranks
from ..graph.plan import ModelInfo, Plan
from ..graph.plan_json import save_plan
from ..graph.stage_programs import plan_mesh
from ..options import Options, parse_bytes
from ..runtime import write_program
from ..trace import Workload, trace_step
from ..trace.load import load_workload
from ..verify import first_values, real_model
from ..view.html import save_html
from ..view.stages import state_sums
from .data_parallel import data_parallel_memory
from .text import draw_batches, load_text
from .worker import DATA_SEED

CLUSTER = "cpu:4"
RANKS = 4
LIMIT = "50MiB"  # per device; plain data parallelism of this model needs about 56 MiB, which the demo works out and shows
SOLVE_S = 30.0
PROFILE_S = 25.0
LOSS_TOLERANCE = 2e-3  # float32 sums in another order, carried through the steps; a real error is far beyond
BYTES_TOLERANCE = 0.03
MODEL = Path(__file__).with_name("model.py")

Say = Callable[[str], None]
StartRanks = Callable[..., "subprocess.Popen[str]"]


@dataclass(frozen=True)
class Losses:
    """One step: loss of the four processes, of plain PyTorch, and the seconds that each took."""

    distributed: float
    plain: float
    distributed_s: float
    plain_s: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Args:
        data_parallel_bytes: what plain data parallelism would need on each device.
        measured: for each rank, bytes of `param`, `grad`, `optim`.
        predicted: the same as the plan says.
    """

    plan: Plan
    data_parallel_bytes: int
    losses: tuple[Losses, ...]
    measured: tuple[dict[str, int], ...]
    predicted: tuple[dict[str, int], ...]
    folder: str


def run_demo(folder: str, steps: int, say: Say, show_plan: Callable[[Plan, int], None], start_ranks: StartRanks) -> DemoResult:
    """Run the demo.

    Args:
        say: told what is going on.
        show_plan: given the plan, and what plain data parallelism would need, as soon as they are there.
        start_ranks: starts torchrun (`cli.torchrun.start_torchrun`).
    Raises:
        RankError: a rank failed; its text.
        VerificationError: the losses or the bytes are not what they should be.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    text = load_text()
    say(f"text: {len(text):,} bytes of Python's own documentation")
    profile = target / "profile.json"
    measure_cpu((RANKS,), say, profile, quick=True, limit_s=PROFILE_S)

    source = ModelInfo("", 0, "", "", f"{MODEL}:build")
    workload = load_workload(source.source)
    options = Options(memory_bytes=parse_bytes(LIMIT), time_limit_s=SOLVE_S)
    needed = _data_parallel_bytes(workload)
    compiled = compile_workload(workload, CLUSTER, options, source=source, report=say, rows_path=profile)
    save_plan(compiled.plan, target / "plan.json")
    save_html(compiled.plan, target / "plan.html")
    write_program(compiled.files, target / "program")
    show_plan(compiled.plan, needed)

    distributed, measured = _train_ranks(str(target / "program"), steps, say, start_ranks)
    plain = _train_plain(compiled, text, steps, say)
    losses = tuple(Losses(d, p, ds, ps) for (d, ds), (p, ps) in zip(distributed, plain, strict=True))
    return DemoResult(compiled.plan, needed, losses, measured, predicted_bytes(compiled.plan), folder)


def predicted_bytes(plan: Plan) -> tuple[dict[str, int], ...]:
    """Bytes on each rank, as the plan's tables say."""
    ranks = num_ranks(plan.assignment.mesh)
    if plan.pipeline is None:
        return ({kind: sum(getattr(p, f"{kind}_bytes") for p in plan.params) for kind in ("param", "grad", "optim")},) * ranks
    rows = [{"param": s.param_bytes, "grad": s.grad_bytes, "optim": s.optim_bytes} for s in state_sums(plan)]
    return tuple(row for row in rows for _ in range(ranks))


def _data_parallel_bytes(workload: Workload) -> int:
    model = build_cost_model(parse_cluster(CLUSTER))
    return data_parallel_memory(build_case(trace_step(workload, "fp32").graph), RANKS, model.reserve_bytes).peak_bytes


def _train_ranks(program: str, steps: int, say: Say, start_ranks: StartRanks) -> tuple[list[tuple[float, float]], tuple[dict[str, int], ...]]:
    """(loss, seconds) of each step, and what each rank measured."""
    say(f"training on {RANKS} processes (torchrun, gloo over loopback)")
    found: list[tuple[float, float]] = []
    measured: tuple[dict[str, int], ...] = ()
    with tempfile.TemporaryFile("w+") as errors:
        process = start_ranks(["-m", "autopar.demo.worker", program, str(steps)], RANKS, stdout=subprocess.PIPE, stderr=errors)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                data: dict[str, Any] = json.loads(line)
                if "measured" in data:
                    measured = tuple(data["measured"])
                    continue
                found.append((data["loss"], data["seconds"]))
                _tell(say, len(found), steps, data["loss"])
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if code != 0 or len(found) != steps or not measured:
            errors.seek(0)
            raise RankError(f"a rank of the demo failed (torchrun ended with {code}):\n{errors.read().strip()}")
    return found, measured


def _train_plain(compiled: Compiled, text: bytes, steps: int, say: Say) -> list[tuple[float, float]]:
    """(loss, seconds) of each step in one process: the module, backward, the optimizer. One thread, as each of the ranks has."""
    say("training in one process with plain PyTorch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _plain_steps(compiled, text, steps, say)
    finally:
        torch.set_num_threads(threads)


def _plain_steps(compiled: Compiled, text: bytes, steps: int, say: Say) -> list[tuple[float, float]]:
    workload = compiled.workload
    facts, given = first_values(workload, compiled.traced)
    with real_model(workload, compiled.traced.graph, facts, given, Options().seed) as model:
        return _train(workload, model, text, steps, say)


def _train(workload: Workload, model: torch.nn.Module, text: bytes, steps: int, say: Say) -> list[tuple[float, float]]:
    assert workload.optimizer is not None and workload.loss is not None
    optimizer: Any = workload.optimizer(model.parameters())
    batch, seq = workload.example_inputs[0].shape
    found = []
    for number, (tokens, targets) in zip(range(steps), draw_batches(text, batch, seq, DATA_SEED)):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss: torch.Tensor = workload.loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        found.append((float(loss.detach()), time.perf_counter() - began))
        _tell(say, number + 1, steps, found[-1][0])
    return found


def _tell(say: Say, done: int, steps: int, loss: float) -> None:
    if done % 5 == 0 or done in (1, steps):
        say(f"  step {done} of {steps}: loss {loss:.4f}")


def check_result(result: DemoResult) -> VerificationError | None:
    """What is wrong with the result, if anything."""
    worst = max(abs(row.distributed - row.plain) for row in result.losses)
    if not worst <= LOSS_TOLERANCE:
        return VerificationError(f"the losses differ by up to {worst:.2g} from plain PyTorch, expected at most {LOSS_TOLERANCE:g}")
    for rank, (measured, predicted) in enumerate(zip(result.measured, result.predicted, strict=True)):
        for kind, expected in predicted.items():
            if abs(measured[kind] - expected) > BYTES_TOLERANCE * expected:
                return VerificationError(f"rank {rank} holds {measured[kind]:,} bytes of {kind}, the plan says {expected:,}")
    return None


def result_to_json(result: DemoResult) -> dict[str, Any]:
    """The result as JSON data; the plan itself is in the folder."""
    return {
        "model": result.plan.model.name,
        "cluster": result.plan.cluster.spec,
        "mesh": [{"name": a.name, "size": a.size} for a in plan_mesh(result.plan).axes],
        "labels": {axis: list(names) for axis, names in result.plan.labels},
        "memory_bytes": result.plan.cluster.memory_bytes,
        "peak_bytes": max(result.plan.cost.peak_bytes),
        "data_parallel_bytes": result.data_parallel_bytes,
        "step_s": result.plan.cost.step_s,
        "losses": [
            {"distributed": r.distributed, "plain": r.plain, "distributed_s": r.distributed_s, "plain_s": r.plain_s} for r in result.losses
        ],
        "measured_bytes": list(result.measured),
        "predicted_bytes": list(result.predicted),
        "directory": result.folder,
    }
