"""Pipelines: the emitted program beside torch.distributed.pipelining on the same model, cuts and microbatches, in one run.

    python benchmarks/pipeline.py                              # 4 gloo ranks, 1F1B
    python benchmarks/pipeline.py --ranks 2 --microbatches 4 --steps 20

Each process holds its stage twice: as autopar emitted it, and as torch's PipelineStage of the same modules under Schedule1F1B (with AdamW as torch
makes it by default, and fused). They take turns, a few steps each, so that what else the machine does falls on all alike.

    step         median over the rounds of the slowest rank's seconds a step; CPU: seconds of all ranks together, per step
    ratio        autopar's step over the faster one of torch's
    bubble       the share of a step in which a rank waits for other stages, on average: by the plan, and as timed in `receive` (transfers included). With more
                 ranks than cores a rank that waits for a core is seen as computing, and what one waits another has more of: so the plan's
                 schedule and times are replayed on as many cores as there are, too, which is what the measured share is to be compared with
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import autopar
from autopar.api import compile_workload, hold_files
from autopar.cli.torchrun import start_torchrun
from autopar.constraints import parse_fix
from autopar.demo.model import Block
from autopar.graph.machine import describe_machine
from autopar.graph.plan import Plan
from autopar.graph.repeats import block_of
from autopar.graph.schedules.known import build_schedule
from autopar.graph.schedules.schedule import Action, ActionKind
from autopar.runtime import (
    Executable,
    compile_program,
    initial_state,
    read_files,
    read_program,
    read_torchrun_env,
    start_process_group,
    stop_process_group,
)
from autopar.runtime.clock import clock_of
from autopar.runtime.timed_comm import Call, TimedComm
from autopar.trace import Workload
from benchmarks.shared_cores import share_of_waits

HERE = Path(__file__).resolve()
WARM_STEPS = 2


class Gpt(nn.Module):
    """A GPT whose head has a weight of its own. `blocks`: those that are here; the ends are where the first and the last are."""

    def __init__(self, vocab: int, seq: int, layers: int, hidden: int, heads: int, blocks: range | None = None) -> None:
        super().__init__()
        mine = range(layers) if blocks is None else blocks
        self.first, self.last = 0 in mine, layers - 1 in mine
        if self.first:
            self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in mine)
        if self.last:
            self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(sizes: dict[str, int], batch: int) -> Workload:
    tokens = torch.randint(0, sizes["vocab"], (batch, sizes["seq"] + 1))
    return Workload(
        model=Gpt(**sizes), example_inputs=(tokens[:, :-1],), example_targets=(tokens[:, 1:],), loss=token_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-3), name="gpt",
    )  # fmt: skip


# --- one rank ---------------------------------------------------------------------------------------------------------------------


def work(folder: str, sizes: dict[str, int], batch: int, microbatches: int, rounds: int, steps: int) -> None:
    """One rank: rounds of steps of each; rank 0 prints what all measured, as JSON."""
    env, files = read_torchrun_env(), read_files(folder)
    comm = start_process_group(read_program(compile_program(files)).mesh, env, 120.0)
    torch.manual_seed(1)
    tokens = torch.randint(0, sizes["vocab"], (batch, sizes["seq"] + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    executable = Executable(None, files, comm, {})
    executable.state.update(initial_state(executable.program, comm.rank, Gpt(**sizes).state_dict()))
    local = executable.local_batch(inputs, targets)
    runs: dict[str, Callable[[], Any]] = {"autopar": lambda: executable.step(*local)}
    mine = sorted({place[1] for name in executable.state if (place := block_of(name)) is not None})
    for name, fused in (("torch 1F1B, AdamW", None), ("torch 1F1B, fused AdamW", True)):
        runs[name] = _torch_run(sizes, range(mine[0], mine[-1] + 1), comm, microbatches, fused, inputs, targets)
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "busy": []} for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            comm.barrier()
            for _ in range(WARM_STEPS if number == 0 else 1):
                run()
            comm.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                run()
            if number:
                found[name]["seconds"].append((time.perf_counter() - began) / steps)
                found[name]["busy"].append((time.process_time() - cpu) / steps)
    told = comm.collect({**found, "waits": _time_waits(executable, local, steps)})
    if comm.rank == 0:
        print(json.dumps(told), flush=True)
    comm.barrier()
    stop_process_group()


def _time_waits(executable: Executable, batch: tuple[torch.Tensor, ...], steps: int) -> float:
    """Of this rank's seconds in a few steps, the share in which it waits for messages."""
    comm, calls = executable.comm, list[Call]()
    assert comm is not None
    clock = clock_of(comm.device)
    executable.comm = TimedComm(comm, clock, lambda: "", calls.append)
    comm.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        executable.step(*batch)
    took = time.perf_counter() - began
    executable.comm = comm
    return sum(clock.seconds(c.begin, c.end) for c in calls if c.kind == "receive") / took


def _torch_run(sizes: dict[str, int], blocks: range, comm: Any, count: int, fused: bool | None, inputs: torch.Tensor, targets: torch.Tensor) -> Callable[[], Any]:
    """A step of torch's pipeline on this rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stages = comm.mesh.axes[0].size
    module = Gpt(**sizes, blocks=blocks)
    schedule = Schedule1F1B(PipelineStage(module, comm.rank, stages, torch.device("cpu")), count, loss_fn=token_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        with torch.enable_grad():
            optimizer.zero_grad()
            schedule.step(*([inputs] if comm.rank == 0 else []), **({"target": targets, "losses": []} if comm.rank == stages - 1 else {}), return_outputs=False)
            optimizer.step()

    return step


# --- all ranks --------------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3, help="of each in each round")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = {"vocab": args.vocab, "seq": args.seq, "layers": args.layers, "hidden": args.hidden, "heads": 8}
    if args.work:
        work(args.work, sizes, args.batch, args.microbatches, args.rounds, args.steps)
        return
    fix = parse_fix(f"pp={args.ranks},microbatches={args.microbatches},schedule=1f1b")
    compiled = compile_workload(build(sizes, args.batch), f"cpu:{args.ranks}", autopar.Options(constraints=fix, price=False, time_limit_s=30.0))
    machine = describe_machine("cpu", str(torch.__version__))
    print(f"{machine.processor}, {machine.cores} cores, torch {machine.torch}\n{args.ranks} ranks, {args.microbatches} microbatches of {args.batch // args.microbatches}, {sizes}")
    with tempfile.TemporaryDirectory() as folder:
        hold_files(compiled).emit(f"{folder}/program")
        words = [w for key in ("ranks", "microbatches", "batch", "layers", "hidden", "seq", "vocab", "rounds", "steps") for w in (f"--{key}", str(getattr(args, key)))]
        process = start_torchrun([str(HERE), "--work", f"{folder}/program", *words], args.ranks, stdout=subprocess.PIPE)
        text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the ranks failed with {process.returncode}")
    told = json.loads(next(line for line in text.splitlines() if line.startswith("[")))
    print_table(told, compiled.plan.cost.bubble_s / compiled.plan.cost.step_s)
    print(f"on {machine.cores} cores: predicted {predict_waits(compiled.plan, machine.cores):.1%} (the share of waits for messages, as it is measured)")


def predict_waits(plan: Plan, cores: int) -> float:
    """The share of a step in which a rank waits for messages, by the plan's times, with so many cores for all ranks."""
    pipeline = plan.pipeline
    assert pipeline is not None
    schedule = build_schedule(pipeline.kind, len(pipeline.stages), plan.num_microbatches, pipeline.chunks)

    def seconds(action: Action) -> float:
        stage = pipeline.stages[schedule.rank_of[action.stage]]
        return (stage.forward_s if action.kind is ActionKind.F else stage.backward_s) / pipeline.chunks

    return share_of_waits(schedule, seconds, [stage.update_s for stage in pipeline.stages], cores)


def print_table(told: list[dict[str, Any]], bubble: float) -> None:
    """One row a run.

    Args:
        told: of each rank: run -> seconds and CPU seconds a step, per round; and its waits.
        bubble: predicted.
    """
    waits = fmean(rank.pop("waits") for rank in told)
    step = {name: median(max(rank[name]["seconds"][k] for rank in told) for k in range(len(told[0][name]["seconds"]))) for name in told[0]}
    busy = {name: sum(median(rank[name]["busy"]) for rank in told) for name in told[0]}
    for name, seconds in step.items():
        print(f"{name:28} step {seconds * 1e3:8.1f} ms   CPU {busy[name] * 1e3:8.1f} ms")
    best = min(seconds for name, seconds in step.items() if name != "autopar")
    print(f"ratio {step['autopar'] / best:.3f} (aim at most 1.0); CPU ratio {busy['autopar'] / min(b for n, b in busy.items() if n != 'autopar'):.3f}")
    print(f"bubble predicted {bubble:.1%}, measured {waits:.1%}")


if __name__ == "__main__":
    main()
