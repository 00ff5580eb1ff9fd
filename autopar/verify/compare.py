"""Comparing: the program of a plan on all ranks in one process, step by step beside plain PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..api import compile_workload, staged_programs
from ..cluster import Cluster, num_devices, parse_cluster
from ..codegen.emit import ModelFacts, print_files
from ..codegen.emit_stages import print_stages
from ..errors import ModelError
from ..graph.case import Case, build_case, copy_case, decided_case
from ..graph.graph import Graph
from ..graph.mesh import Mesh, num_ranks, print_mesh
from ..graph.partition import partition
from ..graph.plan import Plan
from ..graph.program import Program, check_program
from ..graph.random_plans import Assigner, StagedAssigner, count_stages, draw_pipeline, draw_recomputed, list_turns, mesh_shapes, plain_mesh
from ..graph.recompute import recomputed_names
from ..graph.registry import rules_in_force
from ..graph.rules.random_numbers import STATE as RANDOM_STATE
from ..graph.sharding import Sharding, is_uneven, parse_sharding
from ..graph.stage_programs import plan_mesh
from ..options import Options
from ..runtime import ProgramSpec, compile_program, here, initial_state, open_stages, read_program, run_ranks
from ..runtime.shards import cut, join
from ..trace import Traced, Workload
from ..trace.discovery.discover import NOT_THE_SAME
from ..trace.workload import find_tensors
from .findings import Findings
from .reference import Reference, first_values, make_batch, real_model
from .report import VerifyReport, join_reports, name_plan

STEPS = 2


def verify_workload(
    workload: Workload,
    cluster: str | Cluster,
    options: Options | None = None,
    report: Callable[[str], None] | None = None,
    random_plans: int = 0,
) -> VerifyReport:
    """Plan, build and run a workload's program in float64 and compare it with plain PyTorch.

    Args:
        cluster: as `autopar.plan` takes it.
        options: the precision is always float64; as that doubles every byte, the memory limit is doubled too, so that the splits are
            those of a plan in fp32; it is less where all ranks together would not fit this machine.
        report: told what is going on, one line each.
        random_plans: so many legal plans of the same step are drawn (seeds 0, 1, ... on one, two and three axes in turn) and compared, too:
            the compiler must be right for any plan, not only for the one that looks good.
    Raises:
        ModelError: plain PyTorch takes another way through the model than its trace did, or an op of the user's is not the same twice.
        InputError: plain PyTorch cannot run it on its example inputs, or gives NaN.
        AutoparError: as in `autopar.plan`.
    """
    say = report or (lambda line: None)
    found = cluster if isinstance(cluster, Cluster) else parse_cluster(cluster)
    options = options or Options()
    limit = 2 * (options.memory_bytes or found.device.memory_bytes)
    room = _room_per_rank(workload, num_devices(found))
    if room is not None and room < limit:
        say(f"planning for {room / 2**20:,.0f} MiB per rank, so that all {num_devices(found)} ranks and the reference fit this machine")
        limit = room
    compiled = compile_workload(workload, found, replace(options, precision="fp64", memory_bytes=limit), report=say)
    _refuse_unrepeatable(compiled.plan)
    workload = compiled.workload
    reports = [compare_plan(workload, compiled.traced, compiled.plan, options.seed, say)]
    case = build_case(compiled.traced.graph, rules_in_force(compiled.plan.rules))
    for name, plan in draw_plans(case, compiled.plan, num_devices(found), random_plans):
        say(name)
        reports.append(name_plan(compare_plan(workload, compiled.traced, plan, options.seed), name))
    return join_reports(reports)


def draw_plans(case: Case, plan: Plan, ranks: int, count: int) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of so many random legal plans of the same step, in one, two or four microbatches where it can be; half of them recompute
    something, half of each let equal blocks decide alike, as the solver does. Every third is in pipeline stages where a step can be.

    Args:
        case: of the traced step.
    """
    shapes, turns = mesh_shapes(ranks), list_turns(case) if count else ()
    forms: dict[tuple[int, int], tuple[Case, tuple[str, ...]]] = {}
    assigners: dict[tuple[int, int, tuple[int, ...]], Assigner] = {}
    for number in range(count):
        staged = _draw_staged(turns, plan, ranks, number) if number % 3 == 2 else None
        if staged is not None:
            yield staged
            continue
        sizes, again = shapes[number % len(shapes)], number // len(shapes) % 2
        turn = random.Random(number).randrange(len(turns))
        if (turn, again) not in forms:
            names = recomputed_names(draw_recomputed(turns[turn].graph, case.rules, random.Random(0) if again else None))
            forms[turn, again] = copy_case(turns[turn], names), names
        found, names = forms[turn, again]
        if (turn, again, sizes) not in assigners:
            assigners[turn, again, sizes] = Assigner(found.graph, found.sites, found.signatures, plain_mesh(sizes), names, found.cuts)
        assignment = assigners[turn, again, sizes].draw(random.Random(number), found.fold if number // len(shapes) // 2 % 2 else None)
        yield _named(replace(plan, assignment=assignment, num_microbatches=assignment.microbatches, num_stages=1, pipeline=None), number)


def _draw_staged(turns: Sequence[Case], plan: Plan, ranks: int, number: int) -> tuple[str, Plan] | None:
    """A random plan in pipeline stages, cut anywhere or (half of them) where the solver may cut; None where these ranks or the model cannot be divided."""
    rng = random.Random(number)
    turned = rng.choice(turns)
    counts = [n for n in (2, 3, 4) if ranks % n == 0]
    pipeline = draw_pipeline(turned.graph, rng, rng.random() < 0.5, counts) if counts else None
    if pipeline is None:
        return None
    stages = count_stages(pipeline)
    mesh = plain_mesh((ranks // stages,) if ranks > stages else ())
    again, fold = rng if rng.random() < 0.5 else None, turned.fold if rng.random() < 0.5 else None
    assignment = StagedAssigner(turned, pipeline, mesh, again, fold).draw(rng)
    return _named(replace(plan, assignment=assignment, num_microbatches=assignment.microbatches, num_stages=stages, pipeline=pipeline), number)


def _named(plan: Plan, number: int) -> tuple[str, Plan]:
    told = f", {plan.pipeline.kind}" if plan.pipeline is not None else ""
    told += f", {plan.num_microbatches} microbatches" if plan.num_microbatches > 1 else ""
    told += f", {len(plan.assignment.again)} nodes run again" if plan.assignment.again else ""
    return f"random plan {number} on {print_mesh(plan_mesh(plan))}{told}", plan


def _refuse_unrepeatable(plan: Plan) -> None:
    """Raise `ModelError` where an op of the user's own gives other numbers each time: nothing says which are right."""
    for row in plan.rules:
        if row.why_whole == NOT_THE_SAME:
            raise ModelError(
                f"{plan.model.name}: {row.op} gives other numbers on the same data each time, so there is nothing to compare with; give it its "
                "random numbers as an argument (torch.rand outside of the op), or switch them off"
            )


def _room_per_rank(workload: Workload, num_ranks: int) -> int | None:
    """What each rank may hold so that all of them, as threads of this process, fit its machine beside the reference.

    The reference holds parameters, gradients and two moments in float64, and the program's gradients while they are compared: 40 bytes
    per parameter. None where the machine does not say what is free.
    """
    try:
        free = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    reference = 40 * sum(p.numel() for p in workload.model.parameters())
    return max(int((0.8 * free - reference) / num_ranks), 1 << 20)


def compare_plan(workload: Workload, traced: Traced, plan: Plan, seed: int, say: Callable[[str], None] = lambda line: None) -> VerifyReport:
    """Compare the program of any float64 plan of a workload with plain PyTorch (see `verify_workload`)."""
    graph, mesh = traced.graph, plan_mesh(plan)
    facts, given = first_values(workload, traced)
    emitted = _build_program(graph, plan, facts)
    program = emitted.spec
    ranks = range(num_ranks(mesh))
    local = [initial_state(program, rank, given, seed) for rank in ranks]
    found = Findings()
    with real_model(workload, graph, facts, given, seed) as model:
        reference = Reference(model, workload, seed)
        for step in range(1, STEPS + 1):
            inputs, targets = make_batch(workload, graph, seed, step)
            say(f"step {step}: {len(ranks)} ranks")
            whole = dict(find_tensors("input:", inputs)) | dict(find_tensors("target:", targets))
            parts = [{n: cut(whole[n], parse_sharding(b.sharding), mesh, r) for n, b in here(program, r).batch.items()} for r in ranks]
            made, returned = _run(emitted, mesh, local, parts, bool(graph.loss))
            say(f"step {step}: plain PyTorch")
            outputs, grads = reference.forward_backward(inputs, targets)
            for rank, mine in enumerate(made):  # every rank has all of it
                for k, (ours, theirs) in enumerate(zip(mine, outputs, strict=True)):
                    found.note(*(("loss", f"loss on rank {rank}") if graph.loss else ("output", f"output {k}")), step, ours, theirs)
            ours_by_name = dict(zip(emitted.names, returned))
            for name in {**ours_by_name, **grads}:
                if name not in ours_by_name or name not in grads:
                    side = "the program" if name in ours_by_name else "plain PyTorch"
                    raise ModelError(f"{name}: only {side} gives it a gradient; is its requires_grad changed while the step runs?")
                found.note("gradient", name, step, ours_by_name[name], grads[name])
            reference.update(ours_by_name)
            _check_draws({name: t for pieces in local for name, t in pieces.items()}, reference.draws.count)
            _compare_states(found, program, mesh, local, reference, step)
    return found.report(plan, len(ranks), STEPS)


@dataclass(frozen=True, slots=True)
class _Emitted:
    """The plan's program as emitted, which also returns every gradient.

    Args:
        names: of the parameters whose gradients it returns, stage by stage; of a forward-only program nothing.
        returned: per stage, how its ranks hold these gradients: (whole shape, sharding on the mesh of the stage).
    """

    spec: ProgramSpec
    names: tuple[str, ...]
    returned: tuple[tuple[tuple[tuple[int, ...], Sharding], ...], ...]


def _build_program(graph: Graph, plan: Plan, facts: ModelFacts) -> _Emitted:
    traced = build_case(graph, rules_in_force(plan.rules))
    if plan.pipeline is not None:
        stages, schedule = staged_programs(traced, plan, keep_grads=True)
        files = print_stages(stages, graph, schedule, plan.model.name, plan.cluster.spec, plan.summary, facts)
        names = tuple(p.rpartition("@")[0] for stage in stages for p, _ in stage.graph.grads)
        return _Emitted(read_program(compile_program(files)), names, tuple(_returned(stage.program, len(stage.graph.grads)) for stage in stages))
    case = decided_case(traced, plan.assignment)
    program = partition(case.graph, case.sites, case.signatures, case.cuts, plan.assignment, keep_grads=True)
    check_program(program)
    files = print_files(program, case.graph, plan.model.name, plan.cluster.spec, plan.summary, facts)
    names = tuple(p.rpartition("@")[0] for p, _ in graph.grads)
    return _Emitted(read_program(compile_program(files)), names, (_returned(program, len(graph.grads)),))


def _returned(program: Program, num_grads: int) -> tuple[tuple[tuple[int, ...], Sharding], ...]:
    place, shapes = {local: (whole, s) for local, whole, s in program.shardings}, dict(program.whole)
    return tuple((shapes[place[name][0]], place[name][1]) for name in program.graph.outputs[len(program.graph.outputs) - num_grads :])


def _run(
    emitted: _Emitted, mesh: Mesh, local: list[dict[str, Tensor]], parts: list[dict[str, Tensor]], has_loss: bool
) -> tuple[list[tuple[Tensor, ...]], list[Tensor]]:
    """One step of all ranks.

    Returns:
        of each rank what the user gets: the loss, or the outputs of a forward-only program; gradients, whole, joined from all ranks.
    """

    def one(comm: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        open_stages(comm, emitted.spec)
        result = emitted.spec.step(comm, local[comm.rank], parts[comm.rank])
        if not has_loss:
            return result or (), ()
        loss, grads = result if isinstance(result, tuple) else (result, ())
        return (loss.clone(),), grads

    results = run_ranks(mesh, one)
    made = [mine for mine, _ in results]
    held = [list(tensors) for _, tensors in results]
    del results
    whole = []
    staged = len(emitted.returned) > 1
    inside = Mesh(mesh.axes[1:]) if staged else mesh
    size = num_ranks(inside)
    for stage, rows in enumerate(emitted.returned):
        for shape, sharding in rows:  # piece by piece, so that pieces and wholes are never all there at once
            whole.append(join([pieces.pop(0) for pieces in held[stage * size : (stage + 1) * size]], shape, sharding, inside))
    return made, whole


def _check_draws(state: Mapping[str, Tensor], count: int) -> None:
    """Raise `ModelError` where plain PyTorch did not draw as often as the trace did; then it went another way, too."""
    if RANDOM_STATE in state and int(state[RANDOM_STATE]) != count:
        ours = int(state[RANDOM_STATE])
        raise ModelError(
            f"plain PyTorch has drawn {abs(count - ours)} {'more' if count > ours else 'fewer'} random tensors than the traced step, so it takes "
            "another way through the model: a random number of Python decides, or what it does depends on data. Switch that off to compare."
        )


def _compare_states(found: Findings, program: ProgramSpec, mesh: Mesh, local: list[dict[str, Tensor]], reference: Reference, step: int) -> None:
    names = {"param": "parameter", "buffer": "buffer", "optim": "optimizer state"}
    own = [here(program, rank) for rank in range(len(local))]
    for name, state in program.states.items():
        theirs = reference.state(state.kind, name)
        if theirs is None or tuple(theirs.shape) != state.shape:
            continue  # a constant of the program, or a number that only the program keeps as a tensor
        for rank, pieces in enumerate(local):  # every rank's own piece: copies must not drift apart
            if own[rank].holds(name):
                sharding = parse_sharding(own[rank].states[name].sharding)
                mine, wanted = pieces[name], cut(theirs.detach(), sharding, mesh, rank)
                if is_uneven(sharding):  # an update may leave anything in padding
                    inside = cut(torch.ones(theirs.shape, dtype=torch.bool), sharding, mesh, rank)
                    mine, wanted = mine[inside], wanted[inside]
                found.note(names[state.kind], name, step, mine, wanted)
