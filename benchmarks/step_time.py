"""Step time and memory on this machine: autopar's emitted programs beside what people use without it, on gloo processes, in one run.

    python benchmarks/step_time.py                                       # a GPT and an MLP on 1, 2 and 4 ranks, about 10 minutes on 2 cores
    python benchmarks/step_time.py --quick                               # small sizes, 1 and 2 ranks, a minute or two
    python benchmarks/step_time.py --models gpt --ranks 4 --memory 100MiB --gpt layers=6,hidden=512 --json

Each process holds every contender, with the same first weights and the same global batch. They take turns, a step or two each, so that what else the machine does
falls on all alike. Before that each is weighed (`benchmarks.weigh`), and its first losses are compared: a contender that computes something else ends the run.

    autopar                    the solver's plan under the memory limit, nothing else said
    autopar inductor           on 1 rank: that plan with `Options(local="inductor")`
    autopar dp, zero=0         the twin of DDP; `zero=3`: of FSDP2
    DDP, FSDP2, DDP + ZeRO-1   DistributedDataParallel (gradients as views of its buckets), fully_shard on each block and the root, ZeroRedundancyOptimizer under DDP
    eager, torch.compile       on 1 rank

    step, spread     median over the rounds of the slowest rank's seconds, and interquartile range over it; CPU: seconds of all ranks together
    / best peer      step over the fastest peer's that keeps the limit; `CPU /` the same of CPU seconds, which other work on the machine moves less
    peak, / FSDP2    bytes that a rank holds at most during a step, states and batch with it; over those of the lighter FSDP2
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))  # torchrun starts this file by its path

from autopar.api import PROFILE_PATH, compile_workload, hold_files  # noqa: E402
from autopar.cli.torchrun import finish, start_torchrun  # noqa: E402
from autopar.constraints import Constraints, parse_fix  # noqa: E402
from autopar.cost.machine import machine_here  # noqa: E402
from autopar.cost.rows_file import load_profile  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.errors import InfeasibleError  # noqa: E402
from autopar.graph.machine import describe_machine  # noqa: E402
from autopar.graph.mesh import Mesh, MeshAxis  # noqa: E402
from autopar.options import Options, parse_bytes  # noqa: E402
from autopar.runtime import (  # noqa: E402
    Executable,
    ProcessComm,
    compile_program,
    initial_state,
    read_files,
    read_program,
    read_torchrun_env,
    start_process_group,
    state_of_module,
    stop_process_group,
)
from autopar.trace import Workload  # noqa: E402
from benchmarks.peers import mean_loss, parallel_peers, single_peers, take  # noqa: E402
from benchmarks.rounds import spread, time_rounds  # noqa: E402
from benchmarks.weigh import Step, weigh  # noqa: E402

Sizes = dict[str, int]
GPT: Sizes = {"batch": 8, "seq": 128, "vocab": 8192, "layers": 4, "hidden": 384, "heads": 6}
MLP: Sizes = {"batch": 256, "wide": 1024, "hidden": 2048, "layers": 4}
QUICK: dict[str, Sizes] = {
    "gpt": {"batch": 4, "seq": 32, "vocab": 256, "layers": 2, "hidden": 64, "heads": 4},
    "mlp": {"batch": 32, "wide": 64, "hidden": 128, "layers": 3},
}
TWINS = {"autopar dp, zero=0": "dp={n},zero=0,pp=1", "autopar dp, zero=3": "dp={n},zero=3,pp=1"}
INDUCTOR = "autopar inductor"
STEP_AIM, SINGLE_AIM, INDUCTOR_AIM, PEAK_AIM = 1.0, 1.02, 1.05, 1.0
WEIGHED_STEPS = 4  # their losses are compared
LOSS_TOLERANCE = 1e-3  # relative; float32, whose sums are split otherwise, after three updates by AdamW
COLLECTIVE_LIMIT_S, MAX_ROUNDS = 120.0, 30


def build_gpt(**sizes: int) -> Workload:
    """GPT-2's shape; the head is the embedding."""
    return demo.build(**sizes)


def build_mlp(batch: int, wide: int, hidden: int, layers: int) -> Workload:
    """Linear layers with gelu between, a mean of squares, AdamW."""
    sizes = [wide, *[hidden] * (layers - 1), wide]
    parts = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.GELU())]
    return Workload(
        model=nn.Sequential(*parts[:-1]), example_inputs=(torch.randn(batch, wide),), example_targets=(torch.randn(batch, wide),),
        loss=nn.functional.mse_loss, optimizer=functools.partial(torch.optim.AdamW, lr=1e-3), name="mlp",
    )  # fmt: skip


BUILD: dict[str, Callable[..., Workload]] = {"gpt": build_gpt, "mlp": build_mlp}


def make_workload(model: str, sizes: Sizes) -> Workload:
    """The same weights and batch in every process."""
    torch.manual_seed(0)
    return BUILD[model](**sizes)


# --- one rank ---------------------------------------------------------------------------------------------------------------------


def work(folder: Path, model: str, sizes: Sizes, ranks: int, seconds: float, steps: int) -> None:
    """One rank: weighs the contenders, times them in rounds; rank 0 prints what all found, as JSON.

    Args:
        folder: has an emitted program for each of autopar's contenders.
        seconds: for the rounds.
        steps: of each in a round.
    """
    workload = make_workload(model, sizes)
    comm = start_process_group(Mesh((MeshAxis("world", ranks),)) if ranks > 1 else Mesh(()), read_torchrun_env(), COLLECTIVE_LIMIT_S)
    own = {p.name: functools.partial(_emitted, p, workload, comm, ranks) for p in sorted(folder.iterdir())}
    others = parallel_peers(workload, comm.rank, ranks) if ranks > 1 else single_peers(workload)
    runs: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, build in {**own, **others}.items():
        comm.barrier()
        try:
            runs[name], losses, peak = weigh(build, WEIGHED_STEPS, comm.device)
            found[name] = {"losses": losses, "peak": peak}
        except Exception as error:
            if not (name.startswith("torch.compile") and _lacks_compiler(error)):
                raise
            found[name] = {"missing": "no C++ compiler here"}
    whole = mean_loss({name: found[name]["losses"] for name in runs}, ranks)

    def may_go_on(done: int, took: float) -> bool:
        return comm.share(done < 3 or (done < MAX_ROUNDS and took * (done + 1) / done < seconds))

    for name, times in time_rounds(runs, steps, comm.barrier, lambda: None, may_go_on).items():
        found[name] |= {**asdict(times), "losses": whole[name]}
    told = comm.collect(found)
    if comm.rank == 0:
        print(json.dumps(told), flush=True)
    comm.barrier()
    stop_process_group()
    os._exit(0)  # all is said: threads of groups that the contenders hold may abort an exiting process (torch 2.13: "terminate called without an active exception")


def _emitted(folder: Path, workload: Workload, world: Any, ranks: int) -> Step:
    """A step of an emitted program."""
    files = read_files(folder)
    comm = ProcessComm(read_program(compile_program(files)).mesh, timeout_s=COLLECTIVE_LIMIT_S) if ranks > 1 else world
    executable = Executable(None, files, comm, {})
    executable.state.update(initial_state(executable.program, comm.rank, state_of_module(workload.model)))
    mine = take(workload)
    local = executable.local_batch(*mine.inputs, *mine.targets)
    return lambda: executable.step(*local)


def _lacks_compiler(error: BaseException) -> bool:
    return "InvalidCxxCompiler" in f"{type(error).__name__} {error}"


# --- all ranks --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Of one contender in one case. Seconds are None where it did not run, and `note` says why."""

    name: str
    note: str
    step_s: float | None = None
    spread: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0

    @property
    def ours(self) -> bool:
        return self.name.startswith("autopar")


@dataclass(frozen=True)
class Case:
    """A model on so many ranks."""

    model: str
    ranks: int
    sizes: Sizes
    memory_bytes: int
    rounds: int
    rows: tuple[Row, ...]

    def counts(self, row: Row) -> bool:
        return row.step_s is not None and row.peak_bytes <= self.memory_bytes

    def best_peer(self) -> Row | None:
        return min((r for r in self.rows if not r.ours and self.counts(r)), key=lambda r: r.step_s, default=None)

    def least_cpu_s(self) -> float | None:
        return min((r.cpu_s for r in self.rows if not r.ours and self.counts(r)), default=None)

    def fsdp_bytes(self) -> int | None:
        return min((r.peak_bytes for r in self.rows if r.name.startswith("FSDP2") and r.step_s is not None), default=None)


def measure_case(model: str, ranks: int, sizes: Sizes, asked: argparse.Namespace) -> Case:
    """Plan, emit, start the ranks, and read what they say."""
    memory = parse_bytes(asked.memory)
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, fix in {"autopar": "", **(TWINS if ranks > 1 else {})}.items():
            constraints = parse_fix(fix.format(n=ranks)) if fix else Constraints()
            options = Options(memory_bytes=memory, constraints=constraints, price=False, time_limit_s=asked.solver_limit)
            try:
                compiled = compile_workload(make_workload(model, sizes), f"cpu:{ranks}", options, rows_path=asked.profile)
            except InfeasibleError:
                notes[name] = "no plan fits the limit"
                continue
            hold_files(compiled).emit(f"{folder}/{name}")
            notes[name] = _describe_plan(compiled.plan)
            if asked.keep is not None:
                hold_files(compiled).emit(asked.keep / f"{model}-{ranks}-{name.replace(', ', '-').replace(' ', '-')}")
            if ranks == 1:  # the same plan, what it runs made by torch.compile
                again = compile_workload(make_workload(model, sizes), "cpu:1", replace(options, local="inductor"), given_plan=compiled.plan, rows_path=asked.profile)
                hold_files(again).emit(f"{folder}/{INDUCTOR}")
                notes[INDUCTOR] = notes[name]
        told = _start(Path(folder), model, sizes, ranks, asked)
    names = [*(n for n in notes if n not in told[0]), *told[0]]
    rows = tuple(_row(name, [rank.get(name, {}) for rank in told], notes.get(name, ""), memory) for name in sorted(names, key=lambda n: not n.startswith("autopar")))
    return Case(model, ranks, sizes, memory, max(len(f.get("seconds", ())) for f in told[0].values()), rows)


def _describe_plan(plan: Any) -> str:
    words = [f"{axis}: {' '.join(labels)}" for axis, labels in plan.labels]
    words += [f"{plan.num_stages} stages"] * (plan.num_stages > 1) + [f"{plan.num_microbatches} microbatches"] * (plan.num_microbatches > 1)
    return ", ".join(words)


def _start(folder: Path, model: str, sizes: Sizes, ranks: int, asked: argparse.Namespace) -> list[dict[str, Any]]:
    words = ["--work", str(folder), "--models", model, f"--{model}", print_sizes(sizes), "--ranks", str(ranks)]
    words += ["--seconds", str(asked.seconds), "--steps", str(asked.steps)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = start_torchrun([str(HERE), *words], ranks, stdout=out, stderr=errors)
        with stop_after(process, asked.limit):
            finish(process)
        errors.seek(0)
        out.seek(0)
        lines = out.read().splitlines()
        if process.returncode:
            raise SystemExit(f"{model} on {ranks} ranks: a rank failed, or they took more than {asked.limit:g} s:\n{errors.read()[-4000:]}")
    told: list[dict[str, Any]] = json.loads(next(line for line in lines if line.startswith("[{")))
    check_losses(told[0], f"{model} on {ranks} ranks")
    return told


@contextlib.contextmanager
def stop_after(process: subprocess.Popen[str], limit_s: float) -> Iterator[None]:
    """Inside, the process (torchrun, which ends its ranks) is asked to stop when the time is over."""
    timer = threading.Timer(limit_s, process.terminate)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_losses(found: dict[str, dict[str, Any]], where: str) -> None:
    """End the run where contenders compute different things.

    Args:
        found: of each contender its first losses, if it ran.
    """
    losses = {name: f["losses"] for name, f in found.items() if "losses" in f}
    first = next(iter(losses.values()))
    if any(not math.isclose(a, b, rel_tol=LOSS_TOLERANCE) for other in losses.values() for a, b in zip(first, other, strict=True)):
        lines = "\n".join(f"  {name:28} {' '.join(f'{x:.6f}' for x in row)}" for name, row in losses.items())
        raise SystemExit(f"{where}: the contenders do not compute the same (first losses, tolerance {LOSS_TOLERANCE:g}):\n{lines}")


def _row(name: str, told: list[dict[str, Any]], note: str, memory: int) -> Row:
    if "seconds" not in told[0]:
        return Row(name, told[0].get("missing", note))
    seconds = [max(of_ranks) for of_ranks in zip(*(t["seconds"] for t in told))]
    busy = sum(median(t["busy"]) for t in told)
    peak = max(t["peak"] for t in told)
    over = "over the limit" if peak > memory else ""
    return Row(name, "; ".join(filter(None, (over, note))), median(seconds), spread(seconds), busy, peak)


# --- the table --------------------------------------------------------------------------------------------------------------------


def print_case(case: Case) -> Iterator[str]:
    """The lines of one case."""
    yield (f"{case.model}, {case.ranks} rank{'s' * (case.ranks > 1)}: {print_sizes(case.sizes)}; limit {case.memory_bytes / 2**20:.0f} MiB a rank; {case.rounds} rounds")
    yield f"  {'':26} {'step ms':>9} {'spread':>7} {'CPU ms':>9} {'peak MiB':>9} {'/ best peer':>12} {'CPU /':>6} {'/ FSDP2':>8}"
    best, cpu, fsdp = case.best_peer(), case.least_cpu_s(), case.fsdp_bytes()
    for row in case.rows:
        if row.step_s is None:
            yield f"  {row.name:26} {row.note}"
            continue
        ratio = f"{row.step_s / best.step_s:12.3f} {row.cpu_s / cpu:6.3f}" if best and best.step_s and cpu else f"{'-':>12} {'-':>6}"
        weight = f"{row.peak_bytes / fsdp:8.3f}" if fsdp else f"{'-':>8}"
        yield f"  {row.name:26} {row.step_s * 1e3:9.1f} {row.spread:7.1%} {row.cpu_s * 1e3:9.1f} {row.peak_bytes / 2**20:9.2f} {ratio} {weight}  {row.note}".rstrip()


def print_aims(cases: list[Case]) -> Iterator[str]:
    """What was aimed at, beside the best of autopar's rows that keep the limit."""
    for case in cases:
        best, fsdp = case.best_peer(), case.fsdp_bytes()
        ours = [row for row in case.rows if row.ours and case.counts(row)]
        if best is None or not ours:
            yield f"{case.model}, {case.ranks} ranks: {'no peer keeps the limit' if ours else 'autopar has no row that keeps the limit'}"
            continue
        fast, light = min(ours, key=lambda r: r.step_s), min(ours, key=lambda r: r.peak_bytes)
        assert fast.step_s is not None and best.step_s is not None
        if case.ranks == 1:
            slow, made = (next((r for r in ours if (r.name == INDUCTOR) == compiled), None) for compiled in (False, True))
            peer = min((r.step_s for r in case.rows if r.name.startswith("torch.compile") and r.step_s is not None), default=None)
            eager = min(row.step_s for row in case.rows if row.name.startswith("eager") and row.step_s is not None)
            if slow is not None and slow.step_s is not None:
                yield f"{case.model}, 1 rank: step {slow.step_s / eager:.3f} of eager's (aim {SINGLE_AIM:g})"
            if made is not None and made.step_s is not None and peer is not None:
                yield f"{case.model}, 1 rank: with local=inductor {made.step_s / peer:.3f} of torch.compile's (aim {INDUCTOR_AIM:g})"
        else:
            weight = f"; peak {light.peak_bytes / fsdp:.3f} of FSDP2's (aim {PEAK_AIM:g}; {light.name})" if fsdp else ""
            yield f"{case.model}, {case.ranks} ranks: step {fast.step_s / best.step_s:.3f} of {best.name}'s (aim {STEP_AIM:g}; {fast.name}){weight}"


def parse_sizes(text: str, known: Sizes) -> Sizes:
    """`layers=6,hidden=512`: what is not said is as in `known`."""
    pairs = [part.partition("=") for part in text.split(",") if part]
    wrong = next((name for name, _, value in pairs if name not in known or not value.isdigit()), None)
    if wrong is not None:
        raise SystemExit(f"expected sizes such as {print_sizes(known)}, found {wrong!r} in {text!r}")
    return {**known, **{name: int(value) for name, _, value in pairs}}


def print_sizes(sizes: Sizes) -> str:
    return ",".join(f"{name}={value}" for name, value in sizes.items())


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(BUILD), default=list(BUILD))
    parser.add_argument("--ranks", type=int, nargs="+", help="default 1 2 4, quick 1 2")
    parser.add_argument("--gpt", default="", help=f"sizes; default {print_sizes(GPT)}")
    parser.add_argument("--mlp", default="", help=f"sizes; default {print_sizes(MLP)}")
    parser.add_argument("--memory", default="2GiB", help="limit of a rank; default 2GiB")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    parser.add_argument("--seconds", type=float, help="for the rounds of a case; default 50, quick 3")
    parser.add_argument("--steps", type=int, default=1, help="of each contender in each round")
    parser.add_argument("--solver-limit", type=float, default=20.0, help="seconds for each plan")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the ranks of a case are stopped")
    parser.add_argument("--profile", type=Path, default=PROFILE_PATH, help="prices of this machine, where `autopar profile` made them")
    parser.add_argument("--keep", type=Path, help="folder for the emitted programs")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    asked.seconds = asked.seconds if asked.seconds is not None else 3.0 if asked.quick else 50.0
    asked.ranks = asked.ranks or ([1, 2] if asked.quick else [1, 2, 4])
    known = QUICK if asked.quick else {"gpt": GPT, "mlp": MLP}
    asked.sizes = {name: parse_sizes(getattr(asked, name), known[name]) for name in BUILD}
    return asked


def main(words: list[str] | None = None) -> None:
    asked = read_arguments(words)
    if asked.work:
        [model], [ranks] = asked.models, asked.ranks
        return work(asked.work, model, asked.sizes[model], ranks, asked.seconds, asked.steps)
    machine = describe_machine("cpu", str(torch.__version__))
    prices = "measured by `autopar profile`" if load_profile(asked.profile, machine_here()) is not None else "the preset's (no profile of this machine)"
    if not asked.json:
        print(f"{machine.processor}, {machine.cores} cores, torch {machine.torch}; prices of the plans: {prices}", flush=True)
    cases = []
    for model in asked.models:
        for ranks in asked.ranks:
            cases.append(measure_case(model, ranks, asked.sizes[model], asked))
            if not asked.json:
                print("\n".join(print_case(cases[-1])), flush=True)
    if not asked.json:
        print("\n".join(print_aims(cases)))
    else:
        print(json.dumps({"machine": asdict(machine), "prices": prices, "cases": [asdict(case) for case in cases]}))


if __name__ == "__main__":
    main()
