"""This machine: predicted step time and peak bytes beside measured ones, for real programs on gloo processes.

    python benchmarks/this_machine.py                              # 2 and 4 ranks, a GPT and an MLP, three kinds of plans
    python benchmarks/this_machine.py --ranks 2 --models mlp --plans dp --ops

Takes the profile that `autopar profile` left for this machine (and measures the numbers of ranks that it lacks). Per case: plans under
constraints (`dp`: data parallel, every state whole; `zero3`: the same with states split; `tp`: tensor parallel), emits, starts the ranks
twice, times steps; then one step more under torch's memory profiler.

    predicted, measured    seconds of a step: the plan's, and the median over the steps, of the slowest rank
    spread, again          interquartile range over the median; how far apart the medians of the two starts are. Where that is more than the aim the program
                           is started once more, and the middle one of the three counts
    drift                  a matmul and a copy of the profile, run again by all ranks after the steps: how many times longer they take
                           than when they were profiled. A prediction cannot know of a busier machine: `error` is as it is, `/ drift` what remains
    CPU                    seconds of all ranks together, per step: what is left of the measurement on a machine that others use, too
    peak                   states, batch, and the most that torch's allocator held above them in a step; of the rank that needs most

`--ops` runs the program's nodes one by one on all ranks, each timed alone, and adds them up by op. That is where a wrong prediction is
looked for: `CPU ms` beside `predicted ms` for what computes; of a collective the rank that waited least. The sum is no step: every node waits for
its timer, and of a loop over microbatches the first turn stands for all.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch

from autopar.api import PROFILE_PATH, Compiled, compile_workload
from autopar.cli.torchrun import start_torchrun
from autopar.constraints import parse_fix, parse_lines
from autopar.cost.buckets import bucketed_model
from autopar.cost.estimate import node_seconds
from autopar.cost.machine import machine_here
from autopar.cost.model import build_cost_model
from autopar.cost.profile import measure_cpu
from autopar.cost.rows import ProfileRows, measured_counts
from autopar.cost.rows_file import load_profile
from autopar.graph.case import build_case, decided_case
from autopar.graph.cpu_matmul import multiply
from autopar.graph.graph import value_table
from autopar.graph.node import Ref, packet_of
from autopar.graph.partition import assigned_strategies
from autopar.graph.registry import rules_in_force
from autopar.graph.turns import count_microbatches, times_of
from autopar.options import Options
from autopar.runtime import (
    Executable,
    compile_program,
    read_files,
    read_program,
    read_torchrun_env,
    start_process_group,
    stop_process_group,
    write_program,
)  # fmt: skip
from autopar.runtime.execute import real_arg
from autopar.runtime.ops import find_op
from autopar.runtime.peak import measure_cpu_peak
from autopar.trace import Workload
from autopar.trace.load import load_workload

TIME_AIM, BYTES_AIM = 0.15, 0.05
HERE = Path(__file__).resolve()
DEMO = HERE.parent.parent / "autopar" / "demo" / "model.py"
MODELS = {
    "gpt": (f"{DEMO}:build", {"batch": "8", "seq": "128", "vocab": "4096", "layers": "4", "hidden": "256", "heads": "4"}),
    "mlp": (f"{HERE}:build_mlp", {}),
}
PLANS = {"dp": "dp={n},zero=0,pp=1", "zero3": "dp={n},zero=3,pp=1", "tp": "tp={n},pp=1"}
WARM_STEPS, DRIFT_SHAPE, DRIFT_BYTES = 3, (512, 512, 512), 2**26  # 16 MiB fit some caches
CLASSES = 256  # whole numbers of a batch are below


def build_mlp(batch: int = 512, wide: int = 1024, hidden: int = 2048, layers: int = 3) -> Workload:
    """Linear layers with gelu between, a mean of squares, AdamW."""
    sizes = [wide, *[hidden] * (layers - 1), wide]
    parts = [m for a, b in zip(sizes, sizes[1:]) for m in (torch.nn.Linear(a, b), torch.nn.GELU())]
    return Workload(
        model=torch.nn.Sequential(*parts[:-1]),
        example_inputs=(torch.randn(batch, wide),),
        example_targets=(torch.randn(batch, wide),),
        loss=torch.nn.functional.mse_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-3),
        name="mlp",
    )


# --- one rank ---------------------------------------------------------------------------------------------------------------------


def work(folder: str, steps: int, nodes: str) -> None:
    """One rank: timed steps, the machine's drift, one step's memory; or the nodes one by one. Rank 0 prints what all found, as JSON."""
    torch.set_num_threads(1)  # as the profile has it
    env, files = read_torchrun_env(), read_files(folder)
    comm = start_process_group(read_program(compile_program(files)).mesh, env, 120.0)
    executable = Executable(None, files, comm)
    torch.manual_seed(1)
    batch = executable.local_batch(*(_draw(spec) for spec in executable.program.batch.values()))
    if nodes:
        found: Any = _time_nodes(executable, batch, Path(nodes), steps)
    else:
        found = _time_steps(executable, batch, steps)
        found["drift"] = _time_drift(comm)
        found["peak"] = _peak_bytes(executable, batch)
    told = comm.collect(found)
    if comm.rank == 0:
        print(json.dumps(told), flush=True)
    comm.barrier()
    stop_process_group()


def _draw(spec: Any) -> torch.Tensor:
    if "int" in spec.dtype:
        return torch.randint(0, CLASSES, spec.shape, dtype=getattr(torch, spec.dtype))
    return torch.randn(spec.shape, dtype=getattr(torch, spec.dtype))


def _time_steps(executable: Executable, batch: tuple[torch.Tensor, ...], steps: int) -> dict[str, Any]:
    seconds, busy = [], []
    for number in range(WARM_STEPS + steps):
        executable.comm.barrier()
        began, cpu = time.perf_counter(), time.process_time()
        executable.step(*batch)
        if number >= WARM_STEPS:
            seconds.append(time.perf_counter() - began)
            busy.append(time.process_time() - cpu)
    return {"seconds": seconds, "busy": busy}


def _time_drift(comm: Any) -> dict[str, float]:
    """Seconds of two ops of the profile, by all ranks at once."""
    m, n, k = DRIFT_SHAPE
    x, w = torch.randn(m, k), torch.randn(n, k)
    source, target = torch.randn(DRIFT_BYTES // 8), torch.empty(DRIFT_BYTES // 8)
    found = {}
    for name, run in (("matmul", lambda: multiply(torch, x, w)), ("copy", lambda: target.copy_(source))):
        run()
        times = []
        for _ in range(15):
            comm.barrier()
            began = time.perf_counter()
            for _ in range(3):
                run()
            times.append((time.perf_counter() - began) / 3)
        found[name] = fmean(times) if len(comm.collect(0)) > (os.cpu_count() or 1) else median(times)  # as the profile does
    return found


def _peak_bytes(executable: Executable, batch: tuple[torch.Tensor, ...]) -> int:
    """States and batch, and the most that the allocator held above them in a step."""
    _, most = measure_cpu_peak(lambda: executable.step(*batch))
    return sum(executable.num_bytes().values()) + sum(t.untyped_storage().nbytes() for t in batch) + most


def _time_nodes(executable: Executable, batch: tuple[torch.Tensor, ...], path: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds and CPU seconds of each node of the program, the mean over the repeats; of a loop, its first turn."""
    graph = pickle.loads(path.read_bytes())  # written by the benchmark itself
    comm, values = executable.comm, value_table(graph)
    enters = dict(zip(executable.program.batch, batch))
    inside = {**enters, **executable.state}
    named = {name: inside[values[name].storage] if values[name].storage in inside else inside[name] for name in graph.inputs}
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    total: dict[str, list[float]] = {node.name: [0.0, 0.0] for node in graph.nodes}
    with torch.no_grad():
        for number in range(repeats + 1):
            known = dict(named)
            for i, node in enumerate(graph.nodes):
                inputs = [known[name] for name in node.inputs]
                run = _node_call(comm, node, inputs)
                began, cpu = time.perf_counter(), time.thread_time()
                found = run()
                cpu_s, wall_s = time.thread_time() - cpu, time.perf_counter() - began
                if number:
                    total[node.name][0] += wall_s / repeats
                    total[node.name][1] += cpu_s / repeats
                made = [found] if isinstance(found, torch.Tensor) else list(found)
                known.update({o: t for o, t in zip(node.outputs, made) if o and t is not None})
                del made, found, inputs, run
                for name in node.inputs:
                    if last[name] == i:
                        known.pop(name, None)
    return total


def _node_call(comm: Any, node: Any, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    """The node, ready to run: only the op itself is timed."""
    if node.op.startswith("comm."):
        others = {key: value for key, value in node.args if not isinstance(value, Ref)}
        return functools.partial(getattr(comm, node.op.removeprefix("comm.")), inputs[0], **others)
    if node.op == "state.write":
        return functools.partial(inputs[0].copy_, inputs[1])
    return functools.partial(find_op(node.op), **{key: real_arg(value, inputs) for key, value in node.args})


# --- the benchmark ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Of one start of a program: seconds of each step on the slowest rank; CPU seconds of a step, all ranks; see the module's header."""

    seconds: tuple[float, ...]
    busy_s: float
    drift: float
    peak_bytes: int

    @property
    def step_s(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        low, _, high = quantiles(self.seconds, n=4)
        return (high - low) / self.step_s


def measure_program(folder: str, ranks: int, steps: int, rows: ProfileRows) -> Measured:
    """Start the ranks of an emitted program and time it."""
    told = _start(folder, ranks, steps, "")
    seconds = tuple(max(row) for row in zip(*(t["seconds"] for t in told)))
    busy = sum(median(t["busy"]) for t in told)
    drift = []
    for name, shape in (("matmul", DRIFT_SHAPE), ("copy", (DRIFT_BYTES,))):
        wanted = name, "float32", shape, ranks
        then = [r.seconds for r in rows.ops if (r.family, r.dtype, r.shape, r.ranks) == wanted and r.seconds]
        drift += [max(t["drift"][name] for t in told) / s for s in then]
    return Measured(seconds, busy, sum(drift) / len(drift) if drift else float("nan"), max(t["peak"] for t in told))


def _start(folder: str, ranks: int, steps: int, nodes: str) -> list[Any]:
    with tempfile.TemporaryFile("w+") as errors:
        script = [str(HERE), "--worker", folder, "--steps", str(steps), "--nodes", nodes]
        process = start_torchrun(script, ranks, stdout=subprocess.PIPE, stderr=errors)
        out, _ = process.communicate()
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"a rank failed:\n{errors.read()[-4000:]}")
    return json.loads(out.splitlines()[-1])


def _op_table(compiled: Compiled, rows: ProfileRows, ranks: int, folder: str, repeats: int) -> Iterable[str]:
    """Predicted and measured seconds of the program's nodes, by op, the largest difference first."""
    plan, [program] = compiled.plan, compiled.programs  # its plans are of one stage
    graph = program.graph
    case = decided_case(build_case(compiled.traced.graph, rules_in_force(plan.rules)), plan.assignment)
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, plan.assignment)
    predicted = node_seconds(bucketed_model(build_cost_model(_cluster(ranks), rows), compiled.traced.graph, parse_lines(plan.constraints).zero), program, case.sites, case.signatures, strategies)
    nodes = Path(folder) / "nodes.pickle"
    nodes.write_bytes(pickle.dumps(graph))
    told = _start(folder, ranks, repeats, str(nodes))
    turns = count_microbatches(graph)
    found: dict[str, list[float]] = {}
    for node in graph.nodes:
        is_comm = node.op.startswith("comm.")
        wall_s, cpu_s = ([t[node.name][k] for t in told] for k in (0, 1))
        wall = min(wall_s) if is_comm else sum(wall_s) / len(wall_s)  # who waits for whom is no price
        update = " (update)" if node.phase.name == "UPDATE" and not is_comm else ""
        row = found.setdefault(packet_of(node.op) + update, [0, 0.0, 0.0, 0.0])
        for k, figure in enumerate((1 / times_of(node.phase, turns), predicted[node.name], wall, sum(cpu_s) / len(cpu_s))):
            row[k] += figure if k == 1 else figure * times_of(node.phase, turns)
    yield f"    {'op':44} {'nodes':>6} {'predicted ms':>13} {'measured ms':>12} {'ratio':>6} {'CPU ms':>9}"
    found["all"] = [sum(row[k] for row in found.values()) for k in range(4)]
    for op, (count, p, m, c) in sorted(found.items(), key=lambda item: (item[0] == "all", -abs(item[1][1] - item[1][2]))):
        yield f"    {op:44} {round(count):6} {p * 1e3:13.2f} {m * 1e3:12.2f} {p / m:6.2f} {c * 1e3:9.2f}"


def _cluster(ranks: int) -> Any:
    from autopar.cluster import parse_cluster

    return parse_cluster(f"cpu:{ranks}")


def _rows(path: Path, ranks: Iterable[int]) -> ProfileRows:
    """The profile, with the numbers of ranks that it lacks measured now."""
    rows = load_profile(path, machine_here())
    missing = tuple(n for n in ranks if rows is None or n not in measured_counts(rows))
    if missing or (rows is not None and not rows.finished):
        print(f"profiling this machine at {', '.join(map(str, missing or tuple(ranks)))} ranks, up to 3 minutes", flush=True)
        rows = measure_cpu(missing or tuple(ranks), lambda line: None, path)
    assert rows is not None
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=list(PLANS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--profile", type=Path, default=PROFILE_PATH)
    parser.add_argument("--fix", default="", help="added to the constraints of every plan, as in microbatches=1")
    parser.add_argument("--ops", action="store_true", help="also time the nodes of each program one by one")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        return work(asked.worker, asked.steps, asked.nodes)
    rows = _rows(asked.profile, asked.ranks)
    print(f"{'case':14} {'predicted ms':>12} {'measured ms':>12} {'spread':>7} {'again':>7} {'drift':>6} {'error':>7} {'/ drift':>8}"
          f" {'CPU ms':>8} {'predicted MiB':>14} {'peak MiB':>9} {'error':>7}  plan")  # fmt: skip
    times, sizes = [], []
    for model in asked.models:
        for ranks in asked.ranks:
            for kind in asked.plans:
                name = f"{model} {kind} {ranks}"
                fix = ",".join(filter(None, (PLANS[kind].format(n=ranks), asked.fix)))
                workload = load_workload(*MODELS[model])
                options = Options(constraints=parse_fix(fix), price=False, time_limit_s=20)
                compiled = compile_workload(workload, f"cpu:{ranks}", options, rows_path=asked.profile)
                with tempfile.TemporaryDirectory() as folder:
                    program = str(write_program(compiled.files, Path(folder) / "program", {}))
                    starts = [measure_program(program, ranks, asked.steps, rows) for _ in range(2)]
                    apart = abs(starts[0].step_s / starts[1].step_s - 1)
                    if apart > TIME_AIM:  # the machine was another one for one of them: the middle of three
                        starts.append(measure_program(program, ranks, asked.steps, rows))
                    peak = max(start.peak_bytes for start in starts)
                    starts = starts if len(starts) == 2 else [sorted(starts, key=lambda start: start.step_s)[1]]
                    both = median(s for start in starts for s in start.seconds)
                    cost = compiled.plan.cost
                    drift = fmean(start.drift for start in starts)
                    held = max(sum(pair) for pair in zip(cost.peak_bytes, cost.under_way_bytes))
                    error, size = cost.step_s / both - 1, held / peak - 1
                    print(f"{name:14} {cost.step_s * 1e3:12.1f} {both * 1e3:12.1f} {max(s.spread for s in starts):7.1%} {apart:7.1%}"
                          f" {drift:6.2f} {error:+7.1%} {(1 + error) * drift - 1:+8.1%} {fmean(s.busy_s for s in starts) * 1e3:8.1f}"
                          f" {held / 2**20:14.2f} {peak / 2**20:9.2f} {size:+7.1%}"
                          f"  {compiled.plan.labels} {compiled.plan.num_microbatches} turns", flush=True)  # fmt: skip
                    times.append(abs(error))
                    sizes.append(abs(size))
                    if asked.ops:
                        print("\n".join(_op_table(compiled, rows, ranks, program, max(3, asked.steps // 2))), flush=True)
    for what, errors, aim in (("step time", times, TIME_AIM), ("peak bytes", sizes, BYTES_AIM)):
        print(f"{what}: median error {median(errors):.1%}, {sum(e <= aim for e in errors)} of {len(errors)} within {aim:.0%}")


if __name__ == "__main__":
    main()
