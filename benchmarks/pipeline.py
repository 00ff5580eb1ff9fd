"""Pipelines: the emitted program beside torch.distributed.pipelining on the same model, cuts and microbatches, in one run.

    python benchmarks/pipeline.py                              # 4 gloo ranks, 1F1B
    python benchmarks/pipeline.py --ranks 2 --microbatches 4 --steps 20

Each process holds its stage twice: as autopar emitted it, and as torch's PipelineStage of the same modules under Schedule1F1B (with AdamW as torch
makes it by default, and fused). They take turns, a few steps each, so that what else the machine does falls on all alike.

    step         median over the rounds of the slowest rank's seconds a step; CPU: seconds of all ranks together, per step
    ratio        autopar's step over the faster one of torch's
    bubble       the share of a step in which the average rank waits for others. Predicted: what is left of the plan's step beside its compute and messages.
                 Measured: the CPU seconds that each section took on its rank (the middle one of all turns and steps of a round), played along the schedule with a core for each rank.
                 So neither the number of cores nor what else runs here counts, and neither does what only a clock sees: transfers, and ranks that
                 wait for a core
    waits        what the clock sees: the share of a step that a rank stands in `receive`, transfers included. With more ranks than cores a rank that waits for a
                 core is seen as computing, and what one waits another has more of: so it is compared with the same schedule replayed on as many cores as
                 there are, by the measured seconds and by the plan's, of which the waits for messages count
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from autopar.runtime.recording import list_sections
from autopar.runtime.timed_comm import Call, TimedComm
from autopar.trace import Workload
from benchmarks.shared_cores import Waits, share_of_waits

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
    told = comm.collect({**found, "timed": [_time_sections(executable, local, steps) for _ in range(rounds)]})
    if comm.rank == 0:
        print(json.dumps(told), flush=True)
    comm.barrier()
    stop_process_group()


def _time_sections(executable: Executable, batch: tuple[torch.Tensor, ...], steps: int) -> dict[str, Any]:
    """Of this rank in a few steps: `waits`, the share of its seconds in which it waits for messages; `sections`, of each the CPU seconds of one run, the middle one."""
    comm, calls, spent = executable.comm, list[Call](), defaultdict[str, list[float]](list)
    assert comm is not None
    clock = clock_of(comm.device)
    places = [(table, name, table[name]) for table, name in list_sections(executable.program, comm)]
    executable.comm = TimedComm(comm, clock, lambda: "", calls.append)
    for table, name, run in places:
        table[name] = functools.partial(_spend, run, spent[name])
    comm.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        executable.step(*batch)
    took = time.perf_counter() - began
    executable.comm = comm
    for table, name, run in places:
        table[name] = run
    waits = sum(clock.seconds(c.begin, c.end) for c in calls if c.kind == "receive") / took
    return {"waits": waits, "sections": {name: median(seconds) for name, seconds in spent.items()}}


def _spend(run: Callable[..., Any], spent: list[float], *args: Any) -> Any:
    began = time.process_time()
    result = run(*args)
    spent.append(time.process_time() - began)
    return result


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
    timed = [rank.pop("timed") for rank in told]
    print_table(told)
    print_bubble(compiled.plan, timed, machine.cores)


def print_bubble(plan: Plan, timed: Sequence[Sequence[Mapping[str, Any]]], cores: int) -> None:
    """The bubble and the waits, predicted and measured.

    Args:
        timed: of each rank and round, as `_time_sections` gives it.
    """
    stages = plan.pipeline.stages if plan.pipeline else ()
    planned = [{"forward": stage.forward_s, "backward": stage.backward_s, "update": stage.update_s} for stage in stages]
    rounds = [[rank[k]["sections"] for rank in timed] for k in range(len(timed[0]))]
    alone = [replay(plan, row, len(stages)) for row in rounds]
    shared = [replay(plan, row, cores) for row in rounds]
    print(f"bubble predicted {plan.cost.bubble_s / plan.cost.step_s:.1%}, measured {_spread([w.all for w in alone])} (played with a core for each rank)")
    print(
        f"waits  measured {_spread([fmean(rank[k]['waits'] for rank in timed) for k in range(len(rounds))])} in receives; played on {cores} cores: "
        f"{_spread([w.messages for w in shared])} by measured seconds, {replay(plan, planned, cores).messages:.1%} by the plan's"
    )
    for name in planned[0]:
        print(f"  {name:9} of each stage, ms: planned {_row(row[name] for row in planned)}; measured {_row(median(row[k][name] for row in rounds) for k in range(len(stages)))}")


def _spread(shares: Sequence[float]) -> str:
    return f"{median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%} over {len(shares)} rounds)"


def _row(seconds: Iterable[float]) -> str:
    return " ".join(f"{s * 1e3:.1f}" for s in seconds)


def replay(plan: Plan, sections: Sequence[Mapping[str, float]], cores: int) -> Waits:
    """What ranks wait by the plan's schedule, with so many cores for all of them.

    Args:
        sections: of each stage, the seconds of its forward and backward of one microbatch and of its update.
    """
    schedule = build_schedule("1f1b", len(sections), plan.num_microbatches)

    def seconds(action: Action) -> float:
        return sections[schedule.rank_of[action.stage]]["forward" if action.kind is ActionKind.F else "backward"]

    return share_of_waits(schedule, seconds, [row["update"] for row in sections], cores)


def print_table(told: list[dict[str, Any]]) -> None:
    """One row a run.

    Args:
        told: of each rank: run -> seconds and CPU seconds a step, per round.
    """
    step = {name: median(max(rank[name]["seconds"][k] for rank in told) for k in range(len(told[0][name]["seconds"]))) for name in told[0]}
    busy = {name: sum(median(rank[name]["busy"]) for rank in told) for name in told[0]}
    for name, seconds in step.items():
        print(f"{name:28} step {seconds * 1e3:8.1f} ms   CPU {busy[name] * 1e3:8.1f} ms")
    best = min(seconds for name, seconds in step.items() if name != "autopar")
    print(f"ratio {step['autopar'] / best:.3f} (aim at most 1.0); CPU ratio {busy['autopar'] / min(b for n, b in busy.items() if n != 'autopar'):.3f}")


if __name__ == "__main__":
    main()
