"""The front door, and the one page that lists the compiler's passes in order.

    workload --trace--> graph --fold, rules, cuts--> case --solver--> assignment --answer--> plan + program --emit--> files --> executable

In: a model, a loss, an optimizer, example inputs, a cluster. Out: a `Plan` (`plan`), the emitted files (`compile_workload`), or an
executable (`compile`). Every pass is a function of the floors below; nothing is decided here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .cache import cache_folder
from .cluster import Cluster, num_devices, parse_cluster, ports_per_device, rate_of
from .codegen.cuda_graph import check_capturable
from .codegen.emit import ModelFacts, emit_files
from .codegen.emit_stages import emit_stage_files
from .constraints import Constraints, print_constraints
from .cost.buckets import bucketed_model
from .cost.estimate import estimate_program
from .cost.machine import machine_here
from .cost.measured_file import find_measured
from .cost.model import CostModel, build_cost_model, staged_model
from .cost.prices import build_prices
from .errors import AutoparError, InfeasibleError, OptionsError, PlanError, RankError
from .graph.case import Case, build_case, case_roles, decided_case
from .graph.check_plan import check_plan
from .graph.choice import Assignment
from .graph.graph import Graph, check_graph, count_params, graph_hash
from .graph.mesh import Mesh, MeshAxis
from .graph.opportunities.find import find_opportunities
from .graph.partition import assigned_strategies, partition
from .graph.plan import Certificate, ClusterInfo, ModelInfo, Plan
from .graph.plan_json import print_plan_json
from .graph.program import Program, check_program
from .graph.registry import RuleRow, rules_in_force
from .graph.rules.random_numbers import STATE as RANDOM_STATE
from .graph.schedules.known import build_schedule
from .graph.schedules.schedule import ActionKind, Schedule
from .graph.stage_programs import StageProgram, build_stage_programs, plan_mesh
from .graph.text import print_graph, print_program
from .nearest import Means, Setting, find_nearest
from .options import Options, check_limit, opens_buckets
from .runtime import Comm, Executable, ProcessComm, initial_state, read_torchrun_env, start_process_group, state_of_module
from .solver.answer import Answered, build_answer
from .solver.answer_stages import build_staged_answer
from .solver.decide import Ask, Decision, decide
from .solver.given_stages import given_layout, price_stages
from .solver.infeasible import MemoryShortage
from .solver.layout_solve import Staged
from .solver.recognise import recognise, require_split
from .trace import Traced, Workload, trace_step
from .trace.discovery.discover import CACHE_PATH, NOT_THE_SAME, find_rows
from .trace.discovery.homes import find_homes
from .view.shown import ShownOpportunities, ShownPlan, load_plan, show_opportunities, show_plan

PROFILE_PATH = cache_folder() / "profile-cpu.json"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_INLINE_ELEMENTS = 4096  # a constant buffer up to this size is written into the program's text
Report = Callable[[str], None]


@dataclass(frozen=True)
class Compiled:
    """What compiling gives, pass by pass. `programs`: one for each pipeline stage."""

    workload: Workload
    traced: Traced
    plan: ShownPlan
    programs: tuple[Program, ...]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Planned:
    """What planning gives.

    Args:
        case: of the traced graph.
        program: None where the plan has pipeline stages; `staged_programs` builds theirs.
        dump: writes the next stage of the compiler as text, where that was asked for.
    """

    workload: Workload
    traced: Traced
    case: Case
    plan: ShownPlan
    program: Program | None
    dump: Callable[[str, Callable[[], str]], None]


def plan(
    model: torch.nn.Module,
    cluster_spec: str | Cluster,
    *,
    example_inputs: tuple | dict,
    example_targets: tuple = (),
    loss: Callable | None = None,
    optimizer: Callable | None = None,
    options: Options | None = None,
) -> ShownPlan:
    """Decide how to split a training step over a cluster; needs no processes, no GPU and no memory for weights.

    Args:
        model: any module; on the meta device it costs no memory.
        cluster_spec: `cpu:4`, `2x8xH100-80GB`, a TOML file, or a `Cluster`.
        example_inputs: what `forward` takes, a tuple or a dict of keyword arguments, with the GLOBAL batch's shapes.
        example_targets: what the loss takes after the model's output, with the global batch's shapes.
        loss: `loss(output, *targets)` returns a scalar; None: forward only.
        optimizer: a `torch.optim` class, a partial, or a callable from parameters to an optimizer.
        options: see `Options`.
    Raises:
        AutoparError: of the kind that fits; its text says what to do. `InfeasibleError` where nothing fits the memory.
    """
    workload = Workload(model=model, example_inputs=example_inputs, example_targets=example_targets, loss=loss, optimizer=optimizer)
    return plan_workload(workload, cluster_spec, _check_options(options)).plan


def _check_options(options: Options | None) -> Options:
    if options is not None and not isinstance(options, Options):
        raise OptionsError(f"options: expected autopar.Options(...), found {type(options).__name__}")
    return options or Options()


def opportunities(
    model: torch.nn.Module,
    *,
    example_inputs: tuple | dict,
    example_targets: tuple = (),
    loss: Callable | None = None,
    optimizer: Callable | None = None,
    precision: str = "fp32",
    num_ranks: int = 8,
) -> ShownOpportunities:
    """What a training step offers before any plan: how far each factor runs, what waits for what, what is rewritten where.

    Args:
        precision: `fp32`, `bf16`, `fp16` or `fp64`.
        num_ranks: among how many ranks the work is to be divided.
        Others as in `plan`.
    """
    workload = Workload(model=model, example_inputs=example_inputs, example_targets=example_targets, loss=loss, optimizer=optimizer)
    return find_workload_opportunities(workload, precision, num_ranks)


def find_workload_opportunities(
    workload: Workload, precision: str = "fp32", num_ranks: int = 8, *, report: Report | None = None, cache_path: Path | None = CACHE_PATH
) -> ShownOpportunities:
    """`opportunities` of a workload.

    Args:
        report, cache_path: as in `compile_workload`.
    """
    say = report or (lambda line: None)
    say(f"tracing {workload.name or type(workload.model).__name__} in {precision}")
    graph = trace_step(workload, precision).graph
    check_graph(graph)
    rows = find_rows(graph, (), cache_path)
    for row in rows:
        say(f"{row.origin} rule of {row.op}: {row.text}")
    return show_opportunities(find_opportunities(graph, rules_in_force(rows), num_ranks, precision))


def compile(
    model: torch.nn.Module,
    cluster_spec: str | Cluster,
    *,
    example_inputs: tuple | dict,
    example_targets: tuple = (),
    loss: Callable | None = None,
    optimizer: Callable | None = None,
    options: Options | None = None,
    given_plan: Plan | None = None,
) -> Executable:
    """Plan, emit, and start this rank's part of the program.

    Under torchrun rank 0 compiles and the others take its files, so all ranks run one plan; each makes only its own pieces of the
    states. Without torchrun the executable can be looked at and emitted (`.plan`, `.emit`); it steps if the plan has one rank.

    Args:
        given_plan: use this plan instead of solving; it must be of this model.
        Others as in `plan`.
    Raises:
        AutoparError: as in `plan`; `RankError` where torchrun's world size is not the plan's.
    """
    workload = Workload(model=model, example_inputs=example_inputs, example_targets=example_targets, loss=loss, optimizer=optimizer)
    if given_plan is not None and not isinstance(given_plan, Plan):
        raise PlanError(f"given_plan: expected a plan, found {type(given_plan).__name__}. A file is read with autopar.load_plan(path).")
    return launch(workload, cluster_spec, _check_options(options), given_plan=given_plan)


def launch(
    workload: Workload, cluster_spec: str | Cluster, options: Options, given_plan: Plan | None = None, timeout_s: float | None = None
) -> Executable:
    """The executable of a workload on this rank (see `compile`)."""
    cluster = cluster_spec if isinstance(cluster_spec, Cluster) else parse_cluster(cluster_spec)
    options = replace(options, price=False)  # nobody reads it here, and ranks wait
    env = read_torchrun_env()
    limits = {} if timeout_s is None else {"timeout_s": timeout_s}
    if env is None:
        compiled = compile_workload(workload, cluster, options, given_plan=given_plan)
        if plan_mesh(compiled.plan).axes:
            return hold_files(compiled)
        comm = start_process_group(Mesh(()), None, device_type=cluster.device.kind)
        return _make_executable(compiled.plan, compiled.files, comm, options, _given_values(compiled))
    world = Mesh((MeshAxis("world", num_devices(cluster)),)) if num_devices(cluster) > 1 else Mesh(())
    comm = start_process_group(world, env, device_type=cluster.device.kind, **limits)
    answer: object = None
    if comm.rank == 0:
        try:
            compiled = compile_workload(workload, cluster, options, given_plan=given_plan)
            answer = (compiled.plan, dict(compiled.files), _constants(compiled))
        except Exception as error:  # told to all ranks, then raised on each
            comm.share(_told(error))
            raise
    answer = comm.share(answer)
    if isinstance(answer, AutoparError):
        raise answer
    chosen, files, constants = answer
    if plan_mesh(chosen).axes:
        comm = ProcessComm(plan_mesh(chosen), comm.device, **limits)
    return _make_executable(chosen, files, comm, options, {**state_of_module(workload.model), **constants})


def _told(error: Exception) -> AutoparError:
    """Rank 0's error for the other ranks: a plain one of `errors`, which can travel whatever it carries."""
    if not isinstance(error, AutoparError):
        return RankError(f"rank 0 could not compile the model: {type(error).__name__}: {error}")
    return next(kind for kind in type(error).__mro__ if kind.__module__ == AutoparError.__module__)(str(error))


def hold_files(compiled: Compiled) -> Executable:
    """The executable of a process that is none of the plan's ranks: it can be looked at and emitted."""
    return Executable(compiled.plan, compiled.files, None, {}, given=_given_values(compiled))


def _constants(compiled: Compiled) -> dict[str, torch.Tensor]:
    return {name.rpartition("@")[0]: t for name, t in compiled.traced.constants.items()}


def _given_values(compiled: Compiled) -> dict[str, torch.Tensor]:
    return {**state_of_module(compiled.workload.model), **_constants(compiled)}


def _make_executable(chosen: Plan, files: Mapping[str, str], comm: Comm, options: Options, given: Mapping[str, torch.Tensor]) -> Executable:
    executable = Executable(chosen, files, comm, {}, seed=options.seed)  # of the model it keeps nothing
    executable.state.update(initial_state(executable.program, comm.rank, given, options.seed, comm.device))
    if any(row.why_whole == NOT_THE_SAME for row in chosen.rules):
        torch.manual_seed(options.seed)  # ops of the user's own that draw numbers: every rank runs them whole and must draw alike
    return executable


def compile_workload(
    workload: Workload,
    cluster_spec: str | Cluster,
    options: Options,
    *,
    given_plan: Plan | None = None,
    source: ModelInfo | None = None,
    report: Report | None = None,
    rows_path: Path = PROFILE_PATH,
    cache_path: Path | None = CACHE_PATH,
) -> Compiled:
    """All passes, in order: `plan_workload`, and its program (arguments as there)."""
    cluster = cluster_spec if isinstance(cluster_spec, Cluster) else parse_cluster(cluster_spec)
    kind = cluster.device.kind
    if options.cuda_graph:
        check_capturable((), kind, options.local)  # what needs no program is told before one is planned
    planned = plan_workload(workload, cluster, options, given_plan=given_plan, source=source, report=report, rows_path=rows_path, cache_path=cache_path)
    case, plan, facts, dump = planned.case, planned.plan, model_facts(planned.workload, planned.traced), planned.dump
    if plan.pipeline is not None:
        stages, schedule = staged_programs(case, plan)
        dump("program", lambda: "\n".join(print_program(stage.program) for stage in stages))
        if options.cuda_graph:
            check_capturable([stage.program.graph for stage in stages], kind, options.local)
        files = emit_stage_files(stages, case.graph, schedule, plan, facts, print_plan_json(plan), options.local)
        dump("emitted", lambda: "\n".join(files[name] for name in sorted(files) if name.startswith(("program", "stage"))))
        return Compiled(planned.workload, planned.traced, plan, tuple(stage.program for stage in stages), files)
    assert planned.program is not None
    if options.cuda_graph:
        check_capturable([planned.program.graph], kind, options.local)
    files = emit_files(planned.program, decided_case(case, plan.assignment).graph, plan, facts, print_plan_json(plan), options.local, options.cuda_graph)
    dump("emitted", lambda: files["program.py"])
    return Compiled(planned.workload, planned.traced, plan, (planned.program,), files)


def plan_workload(
    workload: Workload,
    cluster_spec: str | Cluster,
    options: Options,
    *,
    given_plan: Plan | None = None,
    source: ModelInfo | None = None,
    report: Report | None = None,
    rows_path: Path = PROFILE_PATH,
    cache_path: Path | None = CACHE_PATH,
    price_only: bool = False,
) -> Planned:
    """The passes up to the plan, in order.

    Args:
        given_plan: its assignment is used instead of solving.
        source: where the model came from, to be kept in the plan (its `source`, `args`, `batch`, `seq`).
        report: told what is going on, one line each.
        rows_path: the measured figures of this machine's CPU, if `autopar profile` made them; those of GPUs lie beside it.
        cache_path: folder in which discovered rules are kept; None: nowhere.
        price_only: the constraints are a recipe whose step time is asked for: no time goes into proving how near to it the best plan under them is.
    """
    say, dump = report or (lambda line: None), _Dump(options.dump_dir)
    cluster = cluster_spec if isinstance(cluster_spec, Cluster) else parse_cluster(cluster_spec)
    precision = options.precision or ("bf16" if cluster.device.kind == "cuda" else "fp32")
    if given_plan is None and cluster.device.kind != "cpu":  # what a process has on a CPU is the user's to say
        check_limit(options.memory_bytes, cluster.device.name, cluster.device.memory_bytes, precision)
    workload = _with_norm_turns(workload, options, given_plan)
    measured = find_measured(cluster, options.measured, rows_path, machine_here(), say)
    began = time.perf_counter()

    say(f"tracing {workload.name or type(workload.model).__name__} in {precision}")
    if why := _no_rate(cluster, precision):
        say(why)
    traced = trace_step(workload, precision)
    graph = traced.graph
    check_graph(graph)
    dump("graph", lambda: print_graph(graph))
    trace_s = time.perf_counter() - began

    if given_plan is not None:
        check_belongs(given_plan, graph, cluster, precision)
    began = time.perf_counter()
    rows = find_rows(graph, given_plan.rules if given_plan is not None else (), cache_path)
    for row in rows:
        say(f"{row.origin} rule of {row.op}: {row.text}")
    case = build_case(graph, rules_in_force(rows))
    dump("fold", lambda: _print_fold(case))
    classes = len(set(case.fold.node_class))
    say(f"{len(graph.nodes)} nodes, {classes} after folding equal blocks; {count_params(graph):,} parameters")
    model = bucketed_model(build_cost_model(cluster, measured), graph, options.constraints.zero)
    rules_s = time.perf_counter() - began

    if given_plan is None:
        try:
            solved = _solve(case, cluster, model, options, say, (("trace_s", trace_s), ("rules_s", rules_s)), price_only)
        except MemoryShortage as error:
            if not options.price:
                raise
            setting = Setting(workload, precision, cluster, options, case)
            raise find_nearest(error, setting, _means_again(rows_path, cache_path), say) from None
        decision, free_s = solved
        demanded = print_constraints(options.constraints)
        if decision.staged is not None:
            staged, certificate = decision.staged, decision.certificate
        else:
            staged = None
            assert decision.assignment is not None
            case, assignment, certificate = decision.case, decision.assignment, decision.certificate
    else:
        assignment, certificate, free_s, demanded = given_plan.assignment, given_plan.solve, given_plan.free_step_s, given_plan.constraints
        staged = _price_given(case, given_plan, cluster, model) if given_plan.pipeline is not None else None
    if staged is not None:
        info, place = model_info(case, workload, precision, source), cluster_info(cluster, model, options, precision)
        chosen = build_staged_answer(case, staged, certificate, _staged_model(model, staged.layout.place.num_stages, cluster), info, place, opens_buckets(options.local))
        require_split(chosen.labels, dict(options.constraints.degrees))
        chosen = replace(chosen, rules=rows, constraints=demanded, free_step_s=free_s, summary=chosen.summary + _tell_norms(workload))
        check_plan(chosen)
        dump("assignment", lambda: _print_assignment(chosen.assignment))
        return Planned(workload, traced, case, show_plan(chosen), None, dump)
    dump("assignment", lambda: _print_assignment(assignment))

    answered = answer_of(case, assignment, certificate, cluster, model, options, precision, source, workload, rows)
    summary = answered.plan.summary + _tell_norms(workload)
    answered = replace(answered, plan=replace(answered.plan, constraints=demanded, free_step_s=free_s, summary=summary))
    check_plan(answered.plan)
    check_program(answered.program)
    dump("program", lambda: print_program(answered.program))
    return Planned(workload, traced, case, show_plan(answered.plan), answered.program, dump)


def _with_norm_turns(workload: Workload, options: Options, given_plan: Plan | None) -> Workload:
    """The workload with the statistics of batch norm that the options, or the given plan, ask for."""
    if given_plan is not None:
        return replace(workload, norm_turns=given_plan.model.norm_turns)
    return replace(workload, norm_turns=options.constraints.microbatches or 1) if options.batchnorm == "microbatch" else workload


def _tell_norms(workload: Workload) -> str:
    """A sentence of the plan's summary."""
    return f" Batch norm takes its statistics from each of {workload.norm_turns} microbatches, not from the whole batch." if workload.norm_turns > 1 else ""


def _price_given(case: Case, plan: Plan, cluster: Cluster, model: CostModel) -> Staged:
    """What a given plan in pipeline stages decides, with its prices."""
    pipeline = plan.pipeline
    assert pipeline is not None
    layout = given_layout(plan.assignment, pipeline)
    return price_stages(case, plan.assignment, layout, pipeline.starts, _staged_model(model, plan.num_stages, cluster))


def _staged_model(model: CostModel, num_stages: int, cluster: Cluster) -> CostModel:
    """With the link between stages."""
    return staged_model(model, num_stages, num_devices(cluster))


def staged_programs(case: Case, plan: Plan, keep_grads: bool = False) -> tuple[tuple[StageProgram, ...], Schedule]:
    """The programs of a plan in pipeline stages, and what its stages do when.

    Args:
        case: of the traced graph.
        keep_grads: as of `partition`.
    Raises:
        PlanError: the plan is not of this graph.
    """
    pipeline = plan.pipeline
    assert pipeline is not None
    schedule = build_schedule(pipeline.kind, plan.num_stages, plan.assignment.microbatches, pipeline.chunks)
    splits = any(action.kind is ActionKind.W for row in schedule.actions for action in row)
    stages = build_stage_programs(case, plan.assignment, pipeline.starts, schedule.rank_of, splits, keep_grads)
    for stage in stages:
        check_program(stage.program)
    return stages, schedule


def _means_again(rows_path: Path, cache_path: Path | None) -> Means:
    """The passes up to the solver, to be run again with something changed."""

    def model_of(s: Setting) -> CostModel:
        rows = find_measured(s.cluster, s.options.measured, rows_path, machine_here(), lambda line: None)
        return bucketed_model(build_cost_model(s.cluster, rows), s.case.graph, s.options.constraints.zero)

    def trace(workload: Workload, precision: str) -> Case:
        graph = trace_step(workload, precision).graph
        check_graph(graph)
        return build_case(graph, rules_in_force(find_rows(graph, (), cache_path)))

    def solve(s: Setting) -> tuple[float, int]:
        decision, _ = _solve(s.case, s.cluster, model_of(s), replace(s.options, price=False), lambda line: None, ())
        if decision.staged is not None:
            return decision.staged.step_s, max(stage.memory.peak_bytes for stage in decision.staged.stages if stage.memory is not None)
        assert decision.assignment is not None
        return estimate(s, decision.assignment)

    def estimate(s: Setting, assignment: Assignment) -> tuple[float, int]:
        case = decided_case(s.case, assignment)
        strategies = assigned_strategies(case.graph, case.sites, case.signatures, case.cuts, assignment)
        program = partition(case.graph, case.sites, case.signatures, case.cuts, assignment)
        cost = estimate_program(model_of(s), program, case.sites, case.signatures, strategies)
        return cost.step_s, max(cost.peak_bytes)

    return Means(trace, solve, estimate)


def _solve(
    case: Case, cluster: Cluster, model: CostModel, options: Options, say: Report, phases: tuple[tuple[str, float], ...], price_only: bool = False
) -> tuple[Decision, float | None]:
    """The answer under the user's constraints, and the seconds of a step without them (None: nobody asked)."""
    limit = options.memory_bytes or cluster.device.memory_bytes
    ask = Ask(case, model, options.constraints, limit, options.time_limit_s, None, say, price_only)
    found = decide(ask)
    found, free_s = replace(found, certificate=replace(found.certificate, phases=(*phases, *found.certificate.phases))), None
    if options.price and options.constraints:
        say("solving again without the constraints")
        began, free_s = time.perf_counter(), found.certificate.objective_s  # what obeys is free to be chosen, too, also where the free search was late
        try:
            free_s = min(free_s, decide(replace(ask, constraints=Constraints(), price_only=False)).certificate.objective_s)
        except InfeasibleError:
            pass  # then the constrained plan is the best that is known
        phases = (*found.certificate.phases, ("price_s", time.perf_counter() - began))
        found = replace(found, certificate=replace(found.certificate, phases=phases))
    return found, free_s


def answer_of(
    case: Case,
    assignment: Assignment,
    certificate: Certificate,
    cluster: Cluster,
    model: CostModel,
    options: Options,
    precision: str,
    source: ModelInfo | None,
    workload: Workload,
    rows: tuple[RuleRow, ...] = (),
) -> Answered:
    """The plan and program of an assignment; `rows` are the rules that the table lacks (`find_rows`)."""
    info = model_info(case, workload, precision, source)
    case = decided_case(case, assignment)
    labels, summary = recognise(case.graph, case.sites, case.signatures, case.cuts, assignment, case_roles(case))
    require_split(labels, dict(options.constraints.degrees))
    prices = build_prices(model, assignment.mesh, case.graph, case.sites, case.signatures)
    answered = build_answer(
        case, assignment, certificate, model, prices, labels, summary, info, cluster_info(cluster, model, options, precision), opens=opens_buckets(options.local)
    )
    return replace(answered, plan=replace(answered.plan, rules=rows))


def _no_rate(cluster: Cluster, precision: str) -> str:
    """What is said where a device has no figure for the matmuls of a precision; nothing where it has."""
    dtype = _DTYPES.get(precision, "float32")
    lacks = [part.name for part in cluster.device.parts or (cluster.device,) if dtype not in dict(part.flops_per_s)]
    other = "; --precision fp16 has one" if precision == "bf16" and not _no_rate(cluster, "fp16") else ""
    return f"{' and '.join(dict.fromkeys(lacks))}: no figure for {dtype}: its matmuls are counted at {rate_of(cluster.device, dtype) / 1e12:.4g} TFLOP/s{other}" if lacks else ""


def model_info(case: Case, workload: Workload, precision: str, source: ModelInfo | None) -> ModelInfo:
    """The plan's record of the model."""
    info = ModelInfo(workload.name or case.graph.name, count_params(case.graph), graph_hash(case.graph), precision, norm_turns=workload.norm_turns, sequences=case.graph.sequences)
    return info if source is None else replace(info, source=source.source, args=source.args, batch=source.batch, seq=source.seq)


def cluster_info(cluster: Cluster, model: CostModel, options: Options, precision: str) -> ClusterInfo:
    """The plan's record of the cluster."""
    device = cluster.device
    return ClusterInfo(
        cluster.spec, num_devices(cluster), cluster.num_hosts, device.name, options.memory_bytes or device.memory_bytes,
        rate_of(device, _DTYPES.get(precision, "float32")), device.memory_bytes_per_s,
        cluster.inside.latency_s, cluster.inside.bandwidth_bytes_per_s,
        cluster.across.latency_s, cluster.across.bandwidth_bytes_per_s * ports_per_device(cluster),
        model.source, model.exposed_share, options.measured or "",
    )  # fmt: skip


def check_belongs(given: Plan, graph: Graph, cluster: Cluster, precision: str) -> None:
    """Raise `PlanError` where a plan is of another model, precision or cluster."""
    if given.model.precision != precision:
        raise PlanError(f"the plan was made in {given.model.precision}, now {precision} is asked for; pass --precision {given.model.precision}")
    found = graph_hash(graph)
    if given.model.graph_hash != found:
        raise PlanError(
            f"the plan belongs to another model: it was made for graph {given.model.graph_hash} ({given.model.name}), this one is {found} "
            f"({graph.name}); plan it again with `autopar plan`"
        )
    if given.cluster.num_devices != num_devices(cluster) or given.cluster.device != cluster.device.name:
        raise PlanError(
            f"the plan belongs to another cluster: {given.cluster.num_devices} x {given.cluster.device}, this one has "
            f"{num_devices(cluster)} x {cluster.device.name}; plan it again with `autopar plan`"
        )


def model_facts(workload: Workload, traced: Traced) -> ModelFacts:
    """What the program must know of the model beside its graph."""
    named = {name for name, _ in workload.model.named_buffers(remove_duplicate=False)}
    transient = frozenset((named - set(workload.model.state_dict())) | {name.rpartition("@")[0] for name in traced.constants})
    return ModelFacts(_initial_recipes(workload, traced), traced.param_aliases, transient | {RANDOM_STATE}, traced.output_spec,
                      find_homes(traced.graph, workload.model))  # fmt: skip


def _initial_recipes(workload: Workload, traced: Traced) -> dict[str, tuple]:
    """State storage -> how its first value is made (`runtime.initial`), from what building and tracing recorded."""
    recipes: dict[str, tuple] = {}
    for name, ops in workload.init.items():
        recipes[name] = tuple((op, *args) for op, args in ops) or ("zeros",)
    tensors = {name: t for name, t in state_of_module(workload.model).items() if not t.is_meta}
    constants = {name.rpartition("@")[0]: t for name, t in traced.constants.items()}
    buffers = {name for name, _ in workload.model.named_buffers(remove_duplicate=False)}
    for name, tensor in (*((n, t) for n, t in tensors.items() if n in buffers), *constants.items()):
        if tensor.numel() <= _INLINE_ELEMENTS:
            recipes[name] = ("tensor", tuple(tensor.detach().flatten().tolist()))
    recipes[RANDOM_STATE] = ("seed",)
    for storage, (how, what) in traced.init_optim.items():
        recipes[storage] = ("copy", what) if how == "param" else (how, what) if what else ("zeros",)
    return recipes


class _Dump:
    """Writes each stage of the compiler as a numbered text file, where a folder is given."""

    def __init__(self, directory: str | os.PathLike | None) -> None:
        self._directory = Path(directory) if directory else None
        self._count = 0

    def __call__(self, name: str, text: Callable[[], str]) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._count += 1
        (self._directory / f"{self._count:02d}-{name}.txt").write_text(text())


def _print_fold(case: Case) -> str:
    lines = [f"{len(case.graph.nodes)} nodes, {len(set(case.fold.node_class))} decide"]
    for repeat in case.repeats:
        numbers = [block.index for block in repeat.blocks]
        lines.append(f"{repeat.family or '(numbered)'}  {repeat.phase.value:9} x{len(numbers)}  {len(repeat.blocks[0].nodes)} nodes each  blocks {numbers}")
    return "\n".join(lines) + "\n"


def _print_assignment(assignment: Assignment) -> str:
    lines = [f"store {name}: {sharding}" for name, sharding in assignment.storages]
    lines += [f"{name}: {' '.join(choices)}" for name, choices in assignment.strategies]
    return "\n".join(lines) + "\n"


__all__ = ["Compiled", "Executable", "Options", "Plan", "Workload", "compile", "Planned", "compile_workload", "launch", "load_plan", "opportunities", "plan", "plan_workload"]
