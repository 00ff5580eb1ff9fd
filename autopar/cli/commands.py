"""The work behind each command: words in, `Outcome` out. Heavy imports are inside, so that `--help` stays instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..constraints import names_layout
from ..errors import AutoparError, OptionsError, PlanError, RankError, VerificationError
from ..options import Options
from .asked import (
    Asked,
    check_file_place,
    check_folder_place,
    cluster_again,
    is_plan_file,
    load_again,
    load_asked,
    need_cluster,
    refuse_given,
)
from .outcome import DONE, NEGATIVE, Outcome, Talk

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.plan import Plan
    from ..view.explain_name import NameReport
    from ..zoo import ZooOptions


def make_plan(asked: Asked, cluster: str, options: Options, output: str | None, html: str | None, say: Talk) -> Outcome:
    """`autopar plan`."""
    from ..cluster import parse_cluster

    check_file_place(output, "-o")
    check_file_place(html, "--html")
    found = parse_cluster(cluster)
    say(f"loading {asked.model}")
    from ..api import plan_workload

    workload, source = load_asked(asked)
    plan = plan_workload(workload, found, options, source=source, report=say).plan
    written = _write(plan, output, html)
    return _plan_outcome(plan, written)


def trace_model(asked: Asked, options: Options, ranks: int, html: str | None, say: Talk) -> Outcome:
    """`autopar trace`."""
    if ranks < 1:
        raise OptionsError(f"--ranks: expected a positive whole number, found {ranks}")
    check_file_place(html, "--html")
    say(f"loading {asked.model}")
    from ..api import find_workload_opportunities

    workload, _ = load_asked(asked)
    found = find_workload_opportunities(workload, options.precision or "fp32", ranks, report=say)
    if html is not None:
        found.to_html(html)

    def show(console: Console) -> None:
        from ..view.trace_terminal import print_opportunities

        print_opportunities(found, console)
        if html is not None:
            console.print()
            console.print(f"wrote {html}", soft_wrap=True, markup=False)

    return Outcome(found.to_json, show)


def show_plan(path: str, html: str | None) -> Outcome:
    """`autopar show`."""
    from ..graph.plan_json import load_plan

    check_file_place(html, "--html")
    plan = load_plan(path)
    return _plan_outcome(plan, _write(plan, None, html))


def _write(plan: Plan, output: str | None, html: str | None) -> tuple[str, ...]:
    """Write what was asked for; the page is made first, so that nothing is written where it cannot be."""
    from ..graph.plan_json import save_plan

    if html is not None:
        from ..view.html import save_html

        save_html(plan, html)
    if output is not None:
        save_plan(plan, output)
    return tuple(p for p in (output, html) if p is not None)


def _plan_outcome(plan: Plan, written: Sequence[str]) -> Outcome:
    from ..graph.plan_json import plan_to_json

    def show(console: Console) -> None:
        from ..view.terminal import print_plan

        print_plan(plan, console)
        if written:
            console.print()
        for path in written:
            console.print(f"wrote {path}", soft_wrap=True, markup=False)

    return Outcome(lambda: plan_to_json(plan), show)


def compare_plans(first: str, second: str) -> Outcome:
    """`autopar diff`."""
    from ..graph.plan_json import load_plan
    from ..view.diff_plans import diff_plans
    from ..view.diff_terminal import diff_to_json, print_diff

    diff = diff_plans(load_plan(first), load_plan(second))
    return Outcome(lambda: diff_to_json(diff), lambda console: print_diff(diff, (first, second), console))


def explain_plan(path: str, name: str | None, memory: bool, quick: bool, time_limit: float | None, say: Talk) -> Outcome:
    """`autopar explain`.

    Args:
        quick: the prices that the plan has, nothing is solved.
        time_limit: seconds for each alternative.
    """
    from ..graph.plan_json import load_plan

    if memory == (name is not None):
        found = f"both --memory and {name!r}" if memory else "neither"
        raise OptionsError(f"explain: expected a NAME (a parameter, tensor or op; * for any part) or --memory, found {found}")
    if time_limit is not None and not time_limit > 0:
        raise OptionsError(f"--time-limit: expected a positive number of seconds, found {time_limit:g}")
    plan = load_plan(path)
    if name is None:
        from ..view.explain_memory import explain_memory
        from ..view.memory_terminal import peak_to_json, print_peak

        report = explain_memory(plan)
        return Outcome(lambda: peak_to_json(report), lambda console: print_peak(report, console))
    from ..view.explain_name import explain_name
    from ..view.name_terminal import names_to_json, print_names

    reports = explain_name(plan, name)
    if not quick:
        reports = _solve_again(plan, path, reports, time_limit, say)
    return Outcome(lambda: names_to_json(reports), lambda console: print_names(reports, console))


def _solve_again(plan: Plan, path: str, reports: tuple[NameReport, ...], time_limit: float | None, say: Talk) -> tuple[NameReport, ...]:
    """The reports with their alternatives solved again; where the model cannot be made again they say so."""
    from ..alternatives import FROM_OBJECTS, TIME_LIMIT_S, price_alternatives, set_up

    try:
        if not plan.model.source:
            raise PlanError(FROM_OBJECTS)
        say(f"making {plan.model.name} again from {plan.model.source}")
        workload, _ = load_again(plan, path)
        benches = set_up(plan, workload, cluster_again(plan, path), report=say)
    except AutoparError as error:
        return tuple(replace(report, why_not=str(error)) for report in reports)
    return price_alternatives(benches, reports, time_limit or TIME_LIMIT_S, say)


def emit_program(word: str, asked: Asked, cluster: str | None, options: Options, given: Sequence[str], folder: str, say: Talk) -> Outcome:
    """`autopar emit`.

    Args:
        word: MODEL or PLAN.
        given: flags that a plan already decides and that were given all the same.
    """
    from ..graph.mesh import num_ranks
    from ..graph.stage_programs import plan_mesh

    check_folder_place(folder, "-o")
    if is_plan_file(word):
        refuse_given(word, given)
        from ..graph.plan_json import load_plan

        plan = load_plan(word)
        options = replace(options, precision=plan.model.precision, memory_bytes=plan.cluster.memory_bytes)
        say(f"making {plan.model.name} again from {plan.model.source}")
        workload, source = load_again(plan, word)
        found = cluster_again(plan, word)
    else:
        plan, found = None, need_cluster(word, cluster)
        say(f"loading {asked.model}")
        workload, source = load_asked(asked)
    from ..api import compile_workload, hold_files
    from ..runtime.folder import WEIGHTS

    compiled = compile_workload(workload, found, options, given_plan=plan, source=source, report=say)
    written = hold_files(compiled).emit(folder)
    weights = [WEIGHTS] if (written / WEIGHTS).exists() else []
    ranks = num_ranks(plan_mesh(compiled.plan))
    sizes = {name: text.count("\n") for name, text in compiled.files.items()}

    def show(console: Console) -> None:
        for name, lines in sizes.items():
            console.print(f"wrote {Path(folder) / name} ({lines:,} lines)", soft_wrap=True, markup=False)
        if weights:
            console.print(f"wrote {Path(folder) / WEIGHTS} (first values that no recipe makes)", soft_wrap=True, markup=False)
        console.print(f"start it with: autopar run {folder}", soft_wrap=True, markup=False)

    return Outcome(lambda: {"directory": folder, "num_ranks": ranks, "files": {**sizes, **{name: None for name in weights}}}, show)


def simulate_step(
    word: str, asked: Asked, cluster: str | None, options: Options, given: Sequence[str], trace: str | None, against: str | None, say: Talk
) -> Outcome:
    """`autopar simulate`.

    Args:
        word: MODEL or PLAN.
        given: flags that a plan already decides and that were given all the same.
        trace: where the step goes as a trace.
        against: a recorded run to compare with.
    """
    from ..cost.simulate import simulate_plan
    from ..graph.run_file import load_run
    from ..view.chrome_trace import save_trace
    from ..view.simulation_terminal import print_simulation, simulation_to_json

    check_file_place(trace, "--trace")
    run = None if against is None else load_run(against)
    if is_plan_file(word):
        refuse_given(word, given)
        from ..graph.plan_json import load_plan

        plan = load_plan(word)
    else:
        found = need_cluster(word, cluster)
        say(f"loading {asked.model}")
        from ..api import plan_workload

        workload, source = load_asked(asked)
        plan = plan_workload(workload, found, options, source=source, report=say, price_only=names_layout(options.constraints)).plan
    simulation = simulate_plan(plan)
    left_out = "" if trace is None else save_trace(simulation, plan.model.name, trace)
    from ..cost.against import compare_run
    from ..view.against_terminal import comparison_to_json, print_comparison

    compared = None if run is None else compare_run(plan, simulation, run, against or "")

    def show(console: Console) -> None:
        if run is not None and compared is not None:
            print_comparison(plan, run, compared, console)
        else:
            print_simulation(plan, simulation, console)
        if trace is not None:
            console.print()
            console.print(f"wrote {trace}; open it at ui.perfetto.dev or chrome://tracing", soft_wrap=True, markup=False)
            if left_out:
                console.print(left_out, soft_wrap=True, markup=False)

    extra = {} if compared is None else {"against": comparison_to_json(compared)}
    return Outcome(lambda: {**simulation_to_json(plan, simulation), **extra}, show)


def run_program(folder: str, words: Sequence[str], record: str | None, no_record: bool, profile: str | None, as_json: bool, say: Talk) -> Outcome:
    """`autopar run`.

    Args:
        words: for its train.py.
        record: where what the steps take goes; None: into the folder.
        profile: where a trace of one step goes; None: nowhere.
    """
    from ..graph.mesh import num_ranks
    from ..runtime import compile_program, read_files, read_program
    from .recorded import describe_hidden, file_mark, find_record_place, find_trace_place
    from .torchrun import finish, start_torchrun

    files = read_files(folder)
    ranks = num_ranks(read_program(compile_program(files)).mesh)
    if "train.py" not in files:
        raise RankError(f"{folder}: has no train.py to start; emit it again with `autopar emit`, or start your own with torchrun --nproc-per-node {ranks}")
    target = find_record_place(folder, files["train.py"], record, no_record, say)
    trace = find_trace_place(folder, files["train.py"], profile)
    say(f"starting {ranks} rank{'s' if ranks > 1 else ''} with torchrun")
    script = [str((Path(folder) / "train.py").resolve()), *words]
    before = file_mark(target)
    script += [*(["--record", str(target)] if target else []), *(["--profile", str(trace)] if trace else [])]
    code = finish(start_torchrun(script, ranks, stdout=sys.__stderr__ if as_json else sys.__stdout__))
    written = str(target) if target is not None and file_mark(target) != before else None
    if written is not None:
        say(f"recorded {written}; compare with: autopar simulate {Path(folder) / 'plan.json'} --against {written}")
        for line in describe_hidden(written):
            say(line)
    if trace is not None and trace.exists():
        say(f"traced one step: {trace}{' (other ranks beside it)' if ranks > 1 else ''}; open it in https://ui.perfetto.dev")
    return Outcome(lambda: {"directory": folder, "num_ranks": ranks, "exit_code": code, "record": written, "profile": str(trace) if trace else None}, lambda console: None, code=code)


def verify_model(asked: Asked, cluster: str, options: Options, random_plans: int, say: Talk) -> Outcome:
    """`autopar verify`."""
    from ..cluster import parse_cluster

    found = parse_cluster(cluster)
    say(f"loading {asked.model}")
    from ..verify import describe_failure, report_to_json, verify_workload
    from .tables import print_report

    workload, _ = load_asked(asked)
    report = verify_workload(workload, found, options, report=say, random_plans=random_plans)
    failure = describe_failure(report)
    return Outcome(lambda: report_to_json(report), lambda console: print_report(report, console), VerificationError(failure) if failure else None)


def run_zoo(words: Sequence[str], options: ZooOptions, jobs: int, say: Talk) -> Outcome:
    """`autopar zoo`."""
    import time

    from ..cluster import parse_cluster
    from ..zoo import list_models
    from ..zoo import run_zoo as run
    from .zoo_table import ZooTable, print_zoo_end, zoo_to_json

    for name, value in (("--jobs", jobs), ("--time-limit", options.time_limit_s), ("--model-limit", options.model_limit_s)):
        if not value > 0:
            raise OptionsError(f"{name}: expected a positive number, found {value:g}")
    for cluster in (options.cluster, *options.plan_for):
        parse_cluster(cluster)
    models = list_models(words)
    table = ZooTable(models, options)
    say.show(table.print_head)
    began, rows = time.perf_counter(), []
    for row in run(models, options, jobs):
        rows.append(row)
        say.show(lambda console: table.print_row(rows[-1], console))
    seconds = time.perf_counter() - began
    code = NEGATIVE if any(row.problems for row in rows) else DONE
    return Outcome(lambda: zoo_to_json(rows, options, seconds), lambda console: print_zoo_end(rows, options, seconds, console), code=code)


def run_demo(folder: str, steps: int, say: Talk) -> Outcome:
    """`autopar demo`."""
    if steps < 1:
        raise OptionsError(f"--steps: expected a positive whole number, found {steps}")
    check_folder_place(folder, "--out")
    from ..demo.run import check_result, result_to_json
    from ..demo.run import run_demo as run
    from .tables import print_demo, print_demo_plan
    from .torchrun import start_torchrun

    def show_plan(plan: Plan, data_parallel_bytes: int) -> None:
        say.show(lambda console: print_demo_plan(plan, data_parallel_bytes, console))

    result = run(folder, steps, say, show_plan, start_torchrun)
    return Outcome(lambda: result_to_json(result), lambda console: print_demo(result, console), check_result(result))
