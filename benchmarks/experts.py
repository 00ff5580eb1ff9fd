"""Never worse than an expert: published layouts given as constraints, beside what is chosen freely.

    python benchmarks/experts.py [ROW_ID ...] [--rows PATH.csv] [--time-limit S] [--out PATH.json]

Each row of the table (`benchmarks/data/experts.csv`, or any CSV with its columns) is solved twice by the search that `autopar plan` runs:
with the expert's choice as constraints, and with none. The free solve knows nothing of the other one. A row runs in a process of its own.
What is found is kept in the JSON file as it comes; rows that are there already are not solved again. Prints a Markdown table and a summary.

Predicted seconds are the cost model's, of both. "error" is the constrained prediction against the published step; `~` where the published
FLOP/s do not say what they count (those stay out of the median). CPU seconds: of both solves, tracing not counted.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.published_rows import (
    NotExpressible,
    Row,
    build_workload,
    cluster_of,
    constraints_of,
    precision_of,
    published_seconds,
    read_rows,
    select_rows,
    sizes_of,
    with_half_rates,
)  # fmt: skip

TABLE = Path(__file__).parent / "data" / "experts.csv"
SAME = 1e-6  # of the step: rounding, not a difference
_MOST_SAID = 240  # characters of a refusal in the table; the JSON file has all
_COLUMNS = (
    "row", "model", "devices", "expert's layout", "predicted s", "published s", "error", "free layout", "free s", "free / expert",
    "CPU s (limit)", "how the free one differs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Solved:
    """One solve.

    Args:
        why: there is no plan, because; "" where there is one, and then all that follows is its.
        degrees: work of an axis (`data`, `tensor`, ...) -> ranks.
        again: share of the forward matmul FLOPs that run again for the backward pass.
        bubble_s: what the slowest pipeline stage waits.
    """

    why: str
    cpu_s: float
    step_s: float = 0.0
    bound_s: float = 0.0
    stages: int = 1
    chunks: int = 1
    degrees: tuple[tuple[str, int], ...] = ()
    microbatches: int = 1
    zero: int = 0
    again: float = 0.0
    bubble_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the table. `why`: it could not be asked; `expert`, `free`: None then."""

    id: str
    model: str
    devices: str
    asked: str
    why: str = ""
    published_s: float | None = None
    published_is_certain: bool = False
    expert: Solved | None = None
    free: Solved | None = None
    time_limit_s: float = 0.0


def compare(row: Row, time_limit_s: float, verbose: bool = False) -> Compared:
    """Solve a row with the expert's constraints and without."""
    from autopar.constraints import Constraints, print_constraints
    from autopar.cost.model import build_cost_model
    from autopar.graph.case import build_case
    from autopar.trace import trace_step

    try:
        sizes, precision, cluster, constraints = sizes_of(row), precision_of(row), cluster_of(row), constraints_of(row)
    except NotExpressible as error:
        return Compared(row.id, row.get("model"), row.get("n_gpus"), "", str(error))
    published_s, is_certain = published_seconds(row, sizes)
    case = build_case(trace_step(build_workload(sizes), precision).graph)
    model = with_half_rates(build_cost_model(cluster))
    found = [solve(case, model, c, time_limit_s, verbose) for c in (constraints, Constraints())]
    asked = ",".join(print_constraints(constraints))
    return Compared(row.id, row.get("model"), cluster.spec, asked, "", published_s, is_certain, *found, time_limit_s)


def solve(case, model, constraints, time_limit_s: float, verbose: bool) -> Solved:  # noqa: ANN001 - autopar is imported inside
    """One solve, as `autopar plan` does it."""
    from autopar.errors import AutoparError
    from autopar.solver.decide import Ask, decide

    began, began_s = time.process_time(), time.monotonic()

    def report(line: str) -> None:
        if verbose:
            print(f"{time.monotonic() - began_s:5.0f} s  {line}", file=sys.stderr, flush=True)

    try:
        decision = decide(Ask(case, model, constraints, model.cluster.device.memory_bytes, time_limit_s, None, report))
    except AutoparError as error:
        return Solved(f"{type(error).__name__}: {str(error).splitlines()[0]}", time.process_time() - began)
    return describe(decision, time.process_time() - began)


def describe(decision, cpu_s: float) -> Solved:  # noqa: ANN001
    """What was chosen, in the words of the field."""
    from autopar.graph.case import copy_case, decided_case, split_case
    from autopar.graph.mesh import axis_sizes
    from autopar.solver.recognise import recognise

    staged, step_s, bound_s = decision.staged, decision.certificate.objective_s, decision.certificate.lower_bound_s
    if staged is None:
        assignment, case = decision.assignment, decided_case(decision.case, decision.assignment)
        again = again_share([(split_case(decision.case, assignment.microbatches), assignment.again)])
    else:
        stage = staged.stages[len(staged.stages) // 2]
        assignment, case = stage.assignment, copy_case(stage.case, stage.assignment.again)
        again = again_share([(s.case, s.assignment.again) for s in staged.stages])
    labels, _ = recognise(case.graph, case.sites, case.signatures, case.cuts, assignment)
    degrees: Counter[str] = Counter()
    zero = 0
    for (_, words), size in zip(labels, axis_sizes(assignment.mesh)):
        work = "+".join(w for w in words if not w.startswith("zero-")) or "replicated"
        degrees[work] = degrees[work] * size if work in degrees else size
        zero = max([zero, *(int(w[-1]) for w in words if w.startswith("zero-"))])
    said = {"step_s": step_s, "bound_s": bound_s, "degrees": tuple(degrees.items()), "zero": zero, "again": again}
    if staged is None:
        return Solved("", cpu_s, microbatches=assignment.microbatches, **said)
    layout = staged.layout
    stages = {"stages": layout.place.num_stages, "chunks": layout.chunks, "microbatches": layout.num_microbatches}
    return Solved("", cpu_s, bubble_s=staged.bubble_s, **stages, **said)


def again_share(parts) -> float:  # noqa: ANN001
    """Of the forward matmul FLOPs, over (case, names of what runs again)."""
    from autopar.cost.ops import node_flops
    from autopar.graph.node import Phase
    from autopar.graph.rule import is_contraction

    work = again = 0.0
    for case, names in parts:
        wanted = set(names)
        for node, site, signature in zip(case.graph.nodes, case.sites, case.signatures):
            if node.phase is Phase.FORWARD and is_contraction(signature):
                flops = node_flops(signature, site)
                work, again = work + flops, again + flops * (node.name in wanted)
    return again / work if work else 0.0


# --- the table -------------------------------------------------------------------------------------------------------------------


def print_solved(found: Solved) -> str:
    """`pp 2 x 3, data 32, tensor 8, 48 microbatches, ZeRO-1, 100 % again`."""
    parts = [f"pp {found.stages}" + (f" x {found.chunks}" if found.chunks > 1 else "")] if found.stages > 1 else []
    parts += [f"{work} {size}" for work, size in found.degrees]
    parts += [f"{found.microbatches} microbatches"] if found.microbatches > 1 else []
    parts += [f"ZeRO-{found.zero}"] if found.zero else []
    return ", ".join([*parts, *([f"{found.again:.0%} again"] if found.again >= 0.005 else [])]).replace("%", " %")


def print_difference(expert: Solved, free: Solved) -> str:
    """`fewer stages (4 to 1), more data (32 to 128), less recompute (100 % to 0 %)`; and what a bubble that went away had cost."""
    if abs(free.step_s - expert.step_s) <= SAME * expert.step_s:
        return "the same time"
    parts = []

    def say(what: str, before: float, after: float, form: str = "{:.0f}") -> None:
        if form.format(before) != form.format(after):
            word = "more" if after > before else "fewer" if what in ("stages", "microbatches") else "less"
            parts.append(f"{word} {what} ({form.format(before)} to {form.format(after)})".replace("%", " %"))

    say("stages", expert.stages, free.stages)
    works = dict.fromkeys(work for work, _ in (*expert.degrees, *free.degrees))
    for work in works:
        say(work, dict(expert.degrees).get(work, 1), dict(free.degrees).get(work, 1))
    say("microbatches", expert.microbatches, free.microbatches)
    say("chunks a rank", expert.chunks, free.chunks)
    say("ZeRO", expert.zero, free.zero)
    say("recompute", expert.again, free.again, "{:.0%}")
    say("bubble", expert.bubble_s / expert.step_s, free.bubble_s / free.step_s, "{:.0%}")
    return ", ".join(parts) or "shardings inside of the layout"


def print_row(found: Compared) -> tuple[str, ...]:
    """The cells."""
    head = (found.id, found.model, found.devices)
    if found.why or found.expert is None or found.free is None:
        return (*head, found.asked, "", "", "", "", "", "", "", found.why or "not solved")
    expert, free, published = found.expert, found.free, found.published_s
    cpu = f"{expert.cpu_s + free.cpu_s:.0f} ({found.time_limit_s:.0f})"
    shown = "" if published is None else f"{published:.2f}"
    sure = "" if found.published_is_certain else "~"
    error = "" if published is None or expert.why else f"{sure}{expert.step_s / published - 1:+.0%}".replace("%", " %")
    mine = ("", "") if free.why else (print_solved(free), f"{free.step_s:.3f}")
    if expert.why:
        also = f"; free: {free.why}" if free.why else ""
        return (*head, found.asked, "none", shown, "", *mine, "", cpu, _short(f"expert: {expert.why}{also}"))
    asked = f"{found.asked}: {print_solved(expert)}"
    if free.why:
        return (*head, asked, f"{expert.step_s:.3f}", shown, error, "none", "", "", cpu, _short(f"WORSE: free: {free.why}"))
    ratio, worse = f"{free.step_s / expert.step_s:.3f}", "" if is_kept(found) else "WORSE: "
    return (*head, asked, f"{expert.step_s:.3f}", shown, error, *mine, ratio, cpu, worse + print_difference(expert, free))


def _short(why: str) -> str:
    return shorten(why, _MOST_SAID, placeholder=" ...")


def is_kept(found: Compared) -> bool | None:
    """The free solve is not worse than the expert; None where there is nothing to compare."""
    if found.expert is None or found.free is None or found.expert.why:
        return None
    return not found.free.why and found.free.step_s <= found.expert.step_s * (1 + SAME)


def print_summary(rows: Sequence[Compared]) -> str:
    """One line."""
    judged = [r for r in rows if is_kept(r) is not None]
    kept = sum(bool(is_kept(r)) for r in judged)
    errors = [abs(r.expert.step_s / r.published_s - 1) for r in judged if r.expert and r.published_s and r.published_is_certain]
    median = f"{statistics.median(errors):.0%} over {len(errors)} rows".replace("%", " %") if errors else "none to compare with"
    refused = sum(bool(r.expert and r.expert.why) for r in rows)
    ratios = [r.free.step_s / r.expert.step_s for r in judged if r.free and r.expert and not r.free.why]
    middle = f", median ratio {statistics.median(ratios):.3f}" if ratios else ""
    left = f"{refused} expert layouts have no plan, {sum(bool(r.why) for r in rows)} were not asked"
    return f"{len(rows)} rows: free <= expert in {kept} of {len(judged)}{middle}; {left}; median |error| against published steps {median}"


def print_table(rows: Sequence[Compared]) -> str:
    """In Markdown."""
    lines = [_COLUMNS, ("---",) * len(_COLUMNS), *(print_row(r) for r in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


# --- one row, all rows -----------------------------------------------------------------------------------------------------------


def read_compared(found: Mapping) -> Compared:
    """From JSON."""

    def solved(name: str) -> Solved | None:
        return Solved(**{**found[name], "degrees": tuple(map(tuple, found[name]["degrees"]))}) if found[name] else None

    return Compared(**{**found, "expert": solved("expert"), "free": solved("free")})


def run_apart(row: Row, path: Path, time_limit_s: float, row_limit_s: float, verbose: bool) -> Compared:
    """`compare` in a process of its own."""
    command = [sys.executable, __file__, row.id, "--rows", str(path), "--time-limit", str(time_limit_s), "--one"]
    command += ["--verbose"] if verbose else []
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=row_limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Compared(row.id, row.get("model"), row.get("n_gpus"), "", f"stopped after {row_limit_s:.0f} s")
    if done.returncode:
        why = f"the solver failed (exit status {done.returncode}); its error is above"
        return Compared(row.id, row.get("model"), row.get("n_gpus"), "", why)
    return read_compared(json.loads(done.stdout.splitlines()[-1]))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ROW_ID", help="rows to solve; all where none is named")
    parser.add_argument("--rows", type=Path, default=TABLE, metavar="PATH", help=f"the table (default: {TABLE.name})")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="wall time of each solve (default: 60)")
    parser.add_argument("--row-limit", type=float, default=1800.0, metavar="S", help="a row is stopped then (default: 1800)")
    parser.add_argument("--out", type=Path, metavar="PATH", help="what is found is kept in this JSON file, and not solved again")
    parser.add_argument("--verbose", action="store_true", help="what each mesh and layout gave, and when (wall time)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    rows = select_rows(read_rows(asked.rows), asked.ids)
    if asked.one:
        print(json.dumps(asdict(compare(rows[0], asked.time_limit, asked.verbose))))
        return
    known = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    kept = {name: read_compared(found) for name, found in known.items()}
    for row in rows:
        if row.id not in kept:
            kept[row.id] = run_apart(row, asked.rows, asked.time_limit, asked.row_limit, asked.verbose)
            if asked.out:
                asked.out.write_text(json.dumps({k: asdict(v) for k, v in kept.items()}, indent=1) + "\n")
            said = [f"{name}: {cell}" for name, cell in zip(_COLUMNS, print_row(kept[row.id])) if cell]
            print("; ".join(said), file=sys.stderr, flush=True)
    found = [kept[row.id] for row in rows]
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {asked.rows.name}")
    print(print_table(found))
    print(print_summary(found))


if __name__ == "__main__":
    main()
