"""Exposed communication: what plans say, and what the order of their programs gives on a simulated cluster.

    python benchmarks/overlap.py [NAME ...] [--time-limit S]

A plan says that so much of a phase's communication hides behind its compute (`cost.estimate`). Its program starts collectives at certain places, several tensors
as one, and waits for them at others. `cost.program_order` walks through that order on a device that computes and communicates; both have the same prices of ops and
links. Aim: the same exposed communication within 5 %.

    plan, program    milliseconds of a step; `exposed`: by how much communication lengthens it; of step: the difference over the step
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))

from autopar.api import plan_workload  # noqa: E402
from autopar.cluster import parse_cluster  # noqa: E402
from autopar.codegen.emit import find_room  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.cost.buckets import bucketed_model  # noqa: E402
from autopar.cost.estimate import node_seconds  # noqa: E402
from autopar.cost.model import build_cost_model  # noqa: E402
from autopar.cost.program_order import ProgramOrder, replay_order  # noqa: E402
from autopar.graph.case import decided_case  # noqa: E402
from autopar.graph.partition import assigned_strategies  # noqa: E402
from autopar.graph.plan import Plan  # noqa: E402
from autopar.options import Options  # noqa: E402
from benchmarks.solve_time import LLAMA, build_workload  # noqa: E402

MEDIUM = ("gpt", (24, 1024, 16, 50257))
CASES = {  # model, global batch, sequence, cluster, what is fixed
    "medium dp": (MEDIUM, 64, 1024, "8xH100-80GB", "dp=8,zero=0"),
    "medium zero=1": (MEDIUM, 64, 1024, "8xH100-80GB", "dp=8,zero=1"),
    "medium zero=2": (MEDIUM, 64, 1024, "8xH100-80GB", "dp=8,zero=2"),
    "medium zero=3": (MEDIUM, 64, 1024, "8xH100-80GB", "dp=8,zero=3"),
    "medium tp=8": (MEDIUM, 64, 1024, "8xH100-80GB", "tp=8"),
    "medium tp=8 sequence": (MEDIUM, 64, 1024, "8xH100-80GB", "tp=8,sequence_parallel=1"),
    "medium tp=2 zero=3": (MEDIUM, 64, 1024, "2x8xH100-80GB", "tp=2,dp=8,zero=3"),
    "medium dp turns": (MEDIUM, 128, 1024, "8xH100-80GB", "dp=8,zero=0,microbatch=4"),
    "medium zero=1 turns": (MEDIUM, 128, 1024, "8xH100-80GB", "dp=8,zero=1,microbatch=4"),
    "medium zero=2 turns": (MEDIUM, 128, 1024, "8xH100-80GB", "dp=8,zero=2,microbatch=4"),
    "medium zero=3 turns": (MEDIUM, 128, 1024, "8xH100-80GB", "dp=8,zero=3,microbatch=4"),
    "medium zero=3 PCIe": (MEDIUM, 64, 1024, "4xRTX4090", "dp=4,zero=3"),
    "llama3-8b zero=3": (LLAMA, 32, 4096, "4x8xH100-80GB", "dp=32,zero=3"),
    "llama3-8b tp=8": (LLAMA, 32, 4096, "4x8xH100-80GB", "dp=4,tp=8,zero=1"),
    "llama3-8b sequence": (LLAMA, 32, 4096, "4x8xH100-80GB", "dp=4,tp=8,zero=1,sequence_parallel=1"),
}


@dataclass(frozen=True)
class Row:
    name: str
    plan: Plan
    program: ProgramOrder


def measure(name: str, time_limit_s: float) -> Row:
    """A case's plan, and its program's order."""
    spec, batch, seq, cluster, fix = CASES[name]
    options = Options(constraints=parse_fix(fix), time_limit_s=time_limit_s)
    planned = plan_workload(build_workload(spec, batch, seq), cluster, options)
    case = decided_case(planned.case, planned.plan.assignment)
    model = bucketed_model(build_cost_model(parse_cluster(cluster)), case.graph)
    strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, planned.plan.assignment)
    seconds = node_seconds(model, planned.program, case.sites, case.signatures, strategies)
    return Row(name, planned.plan, replay_order(model, planned.program, seconds, find_room(planned.plan)[0]))


def print_rows(rows: list[Row]) -> None:
    print(f"{'case':24}{'plan':>10}{'exposed':>10}{'program':>10}{'exposed':>10}{'hidden':>8}{'difference':>12}{'of step':>9}")
    for row in rows:
        planned, found = row.plan.cost, row.program
        difference = found.exposed_s - planned.exposed_comm_s
        share = difference / planned.exposed_comm_s if planned.exposed_comm_s else 0.0
        hidden = 1 - found.exposed_s / found.comm_s if found.comm_s else 0.0
        figures = f"{planned.step_s * 1e3:10.2f}{planned.exposed_comm_s * 1e3:10.2f}{found.step_s * 1e3:10.2f}{found.exposed_s * 1e3:10.2f}"
        print(f"{row.name:24}{figures}{hidden:8.0%}{share:+12.1%}{difference / planned.step_s:+9.1%}", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--time-limit", type=float, default=60.0)
    given = parser.parse_args(words)
    unknown = [name for name in given.names if name not in CASES]
    if unknown:
        parser.error(f"case {', '.join(unknown)}: expected some of {', '.join(CASES)}")
    rows = []
    for name in given.names or CASES:
        print(f"{name}: {CASES[name][3]}, {CASES[name][4]}", file=sys.stderr, flush=True)
        rows.append(measure(name, given.time_limit))
    print_rows(rows)


if __name__ == "__main__":
    main()
