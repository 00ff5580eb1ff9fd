"""Emit a plan in pipeline stages: one file per distinct stage, the schedule as a grid beside them, and `program.py`, which says who runs what.

In: the stage programs, the schedule, the plan, facts of the model. Out: the texts of `program.py`, `stage_N.py`, `schedule.csv`, `train.py` and `plan.json`.
A stage that runs the same program as an earlier one on blocks of other numbers has no file of its own (`alike`). Invariant: the messages of all stages,
taken in the order of the texts and of the schedule, arrive; a program that could wait for ever is not emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..graph.fuse import fuse_program
from ..graph.graph import Graph, entering_values
from ..graph.in_place import add_in_place
from ..graph.kernel import Kernel
from ..graph.mesh import Mesh, print_mesh
from ..graph.node import Phase, get_arg
from ..graph.overlap_memory import overlap_within
from ..graph.plan import Plan
from ..graph.schedules.schedule import Schedule, print_csv
from ..graph.sections import Section
from ..graph.stage_programs import STAGES, StageProgram, pipeline_mesh
from ..graph.stages import COPY
from ..graph.tensor import STATE_KINDS
from ..graph.turns import RECEIVE
from ..options import opens_buckets
from .alike import find_shift
from .body import Body, print_bodies
from .delivery import check_messages
from .emit import (
    ModelFacts,
    explain_padding,
    find_room,
    kernel_files,
    mesh_text,
    plan_notes,
    print_aliases,
    print_batch,
    print_homes,
    print_imports,
    print_states,
    print_train,
    turn_boxes,
    what_blocks_keep,
    wrap,
)

SCHEDULE = "schedule.csv"

_PROGRAM_HEADER = '''"""{name}: one training step on {cluster} in {count} pipeline stages, each on {mesh}.

{summary}

Made by autopar from a plan (plan.json beside this file, `autopar show plan.json`). It is yours: read it, edit it, own it.
The ranks are the stages, one after the other, each on its mesh. What a stage does is in its file, when it does it in {schedule}: a row for each stage,
`0F1` is the forward of chunk 0 of the model on microbatch 1, B its backward, I and W the backward for inputs and for weights.
"""

from autopar.runtime import Batch, Stage

import {files}
'''

_STAGE_HEADER = '''"""Stage {number} of {count} of {name}: {modules}.{also}

`comm` knows the rank's place on the mesh, sends to and receives from other stages; `state` holds this rank's pieces of parameters, buffers and
optimizer states by name, `batch` its piece of the batch. A sharding has one placement per axis of the stage's mesh ({mesh}): R replicated,
P partial (a sum that is still owed), S1/64 the digit of dim 1 at stride 64.{padding}
"""

import torch

{imports}

aten = torch.ops.aten
'''


@dataclass(frozen=True, slots=True)
class Shared:
    """Which file a stage runs. `shift`: family of blocks -> what to add to its numbers in the file."""

    stage: int
    shift: Mapping[str, int]


def emit_stage_files(
    stages: Sequence[StageProgram], whole: Graph, schedule: Schedule, plan: Plan, facts: ModelFacts, plan_text: str, local: str = "kernels"
) -> dict[str, str]:
    """The files of a program in stages: name -> text.

    Args:
        stages: in order (`graph.stage_programs`).
        whole: the traced graph.
        schedule: of compute actions; rank r runs the r-th stage.
        facts, plan_text, local: as of `emit.emit_files`.
    """
    modules = [", ".join(row.modules) for row in plan.pipeline.stages] if plan.pipeline else []
    files = print_stages(stages, whole, schedule, plan.model.name, plan.cluster.spec, plan.summary, facts, plan_notes(plan), modules, local, find_room(plan))
    return {**files, "train.py": print_train(plan), "plan.json": plan_text}


def print_stages(
    stages: Sequence[StageProgram],
    whole: Graph,
    schedule: Schedule,
    name: str,
    cluster: str,
    summary: str,
    facts: ModelFacts,
    notes: Mapping[str, str] = MappingProxyType({}),
    modules: Sequence[str] = (),
    local: str = "kernels",
    rooms: Sequence[int | None] = (),
) -> dict[str, str]:
    """`program.py`, the stage files, their kernels and the schedule from their parts, for callers that have no plan.

    Args:
        local: as of `Options`.
        rooms: of each stage, the bytes that collectives which are started ahead may hold (`overlap_within`).
    Raises:
        ProgramError: the messages of the stages would not all arrive.
    """
    stages, kernels = _prepare(stages, rooms or [None] * len(stages), local)
    bodies = [print_bodies(s.program, s.graph.grads, notes, s.sections, True, kernels) for s in stages]
    check_messages([body.messages for body in bodies], schedule)
    shared = _share(stages, facts)
    files = {"program.py": _print_program(stages, shared, whole, schedule, name, cluster, summary, facts)}
    for k in dict.fromkeys(row.stage for row in shared):
        also = _also(shared, k)
        files[f"{_file(k)}.py"] = _print_stage(stages[k], bodies[k], k, len(stages), name, modules[k] if modules else "a part of the model", also, facts)
    return {**files, **kernel_files(kernels, local), SCHEDULE: print_csv(schedule)}


def _prepare(stages: Sequence[StageProgram], rooms: Sequence[int | None], local: str) -> tuple[list[StageProgram], tuple[Kernel, ...]]:
    """The stages with their communication overlapped and their groups as kernels, which they share."""
    found: list[StageProgram] = []
    kernels: tuple[Kernel, ...] = ()
    for stage, room in zip(stages, rooms):
        program, sections = add_in_place(*overlap_within(stage.program, stage.sections, room, opens_buckets(local)))
        if local != "ops":
            fused = fuse_program(program, sections, taken=kernels, segments=local == "inductor")
            program, sections, kernels = fused.program, fused.sections, fused.kernels
        found.append(replace(stage, program=program, sections=sections))
    return found, kernels


def _share(stages: Sequence[StageProgram], facts: ModelFacts) -> list[Shared]:
    """For each stage the file that it runs."""
    found: list[Shared] = []
    for k, stage in enumerate(stages):
        for other in dict.fromkeys(row.stage for row in found):
            shift = find_shift(stage, stages[other], facts.inits)
            if shift is not None:
                found.append(Shared(other, shift))
                break
        else:
            found.append(Shared(k, {}))
    return found


def _file(stage: int) -> str:
    return f"stage_{stage}"


def _also(shared: Sequence[Shared], stage: int) -> str:
    others = [(k, row) for k, row in enumerate(shared) if row.stage == stage and k != stage]
    if not others:
        return ""
    told = [f"stage {k} ({', '.join(f'{family}: numbers {add:+d}' for family, add in row.shift.items())})" for k, row in others]
    return f" Also run by {', '.join(told)}: names here are those of stage {stage}."


def _print_program(
    stages: Sequence[StageProgram],
    shared: Sequence[Shared],
    whole: Graph,
    schedule: Schedule,
    name: str,
    cluster: str,
    summary: str,
    facts: ModelFacts,
) -> str:
    mesh = stages[0].program.mesh
    files = ", ".join(dict.fromkeys(_file(row.stage) for row in shared))
    header = _PROGRAM_HEADER.format(
        name=name, cluster=cluster, count=len(stages), mesh=_mesh_words(mesh), summary=wrap(summary), schedule=SCHEDULE, files=files
    )
    rows = []
    for row in shared:
        shift = f", shift={dict(row.shift)!r}" if any(row.shift.values()) else ""
        rows.append(f"    Stage({_file(row.stage)}{shift}),")
    chunks = [f"CHUNKS = {schedule.rank_of!r}  # the stage that runs each chunk of the model", ""] if _goes_otherwise(schedule) else []
    has_loss = any(stage.program.graph.loss for stage in stages)
    everywhere = ",".join("R" for _ in pipeline_mesh(mesh, len(stages)).axes)
    inputs = set(whole.inputs)
    batch = [
        f'    "{v.name}": Batch({v.shape!r}, "{v.dtype}", "{everywhere}"),' for v in whole.values if v.name in inputs and v.kind not in STATE_KINDS
    ]
    lines = [
        f"MESH = {mesh_text(pipeline_mesh(mesh, len(stages)))}", "",
        "STAGES = (  # `shift`: what to add to the numbers of these blocks in the names of the file", *rows, ")", "", *chunks,
        f'SCHEDULE = "{SCHEDULE}"', "",
        f"MICROBATCHES = {schedule.num_microbatches}  # into so many the files of the stages cut the batch", "",
        "# whole; of what a stage reads, its file says how ranks hold it", "BATCH = {", *batch, "}", "", print_aliases(facts), "", *_print_outputs(stages, facts), "",
        "def step(comm, state, batch):",
        f'    """One step on this rank: that of its stage. Rewrites `state` in place, returns the {"loss" if has_loss else "outputs"}."""',
        f'    stage = STAGES[comm.coordinate("{STAGES}")]',
        *_print_return(stages),
    ]  # fmt: skip
    return f"{header}\n" + "\n".join(lines) + "\n"


def _goes_otherwise(schedule: Schedule) -> bool:
    """True where the chunks of the model do not go round the stages."""
    return any(rank != chunk % schedule.num_ranks for chunk, rank in enumerate(schedule.rank_of))


def _print_outputs(stages: Sequence[StageProgram], facts: ModelFacts) -> list[str]:
    """The constants that say what `step` returns beside the loss; none where that is nothing."""
    rows: dict[int, str] = {}
    for number, stage in enumerate(stages):
        values = {v.name: v for v in stage.graph.values}
        for place, output in zip(stage.outputs, stage.graph.outputs, strict=True):
            rows[place] = f'    ({number}, {values[output].shape!r}, "{values[output].dtype}"),'
    if not rows:
        return []
    returned = [f"OUTPUT = {facts.output!r}  # the model's output, with the number of each tensor that `step` returns"]
    lines = ["OUTPUTS = (  # of each tensor that leaves the step: the stage that makes it, its whole shape and dtype", *(rows[k] for k in sorted(rows)), ")", ""]
    return [*lines, *(returned if not any(stage.graph.loss for stage in stages) else []), ""]


def _print_return(stages: Sequence[StageProgram]) -> list[str]:
    """The last lines of `step`: what stages return, shared."""
    text = "stage.step(comm, state, batch)"
    maker = next((k for k, stage in enumerate(stages) if stage.program.graph.loss), None)
    if maker is not None:
        loss = stages[maker].program.graph
        dtype = next(v.dtype for v in loss.values if v.name == loss.loss)
        text = f'comm.share_loss({text}, stage={maker}, dtype="{dtype}")'
    if any(stage.outputs for stage in stages):
        text = f"comm.share_outputs({text}, OUTPUTS)"
    return [f"    return {text}"]


def _mesh_words(mesh: Mesh) -> str:
    return f"mesh {print_mesh(mesh)}" if mesh.axes else "one rank"


def _print_stage(stage: StageProgram, body: Body, number: int, count: int, name: str, modules: str, also: str, facts: ModelFacts) -> str:
    program = stage.program
    copies = tuple(sorted({v.storage for v in entering_values(program.graph) if v.kind in STATE_KINDS and COPY in v.name}))
    tables = [
        *print_states(program, facts), "", *print_batch(program), "",
        f"COPIES = {copies!r}  # states that are kept here, too, and updated by another stage", "",
        *_print_messages(body),
    ]  # fmt: skip
    sections = [s for s in body.sections if s.phase is not Phase.PREPARE]
    table = ", ".join(f'"{s.name}": {s.name}' for s in sections)
    step = _print_step(program.graph, body, sections)
    parts = [*print_homes(facts), "\n".join(tables), *("\n" + f for f in body.functions), f"\nSECTIONS = {{{table}}}  # those that the schedule asks for", "\n" + step]
    header = _STAGE_HEADER.format(
        number=number, count=count, name=name, modules=modules, also=also and f"\n\n{also.strip()}", mesh=_mesh_words(program.mesh).removeprefix("mesh "),
        imports=print_imports("\n".join(parts)), padding=explain_padding(program),
    )  # fmt: skip
    return "\n".join(part.rstrip() + "\n" for part in [header, *parts])


def _print_messages(body: Body) -> list[str]:
    """The constants that say what comes and goes, in order."""
    lines = ["SENDS = {  # section -> (how many stages ahead, number of the message)"]
    waits = ["WAITS = {  # section -> what it receives, told alike"]
    receives = ["RECEIVES = {  # (from how many stages ahead, number of the message) -> shape and dtype of this rank's piece"]
    for section, nodes in body.messages.items():
        sent = [(get_arg(n, "stage"), get_arg(n, "message")) for n in nodes if n.op != RECEIVE]
        if sent:
            lines.append(f'    "{section.name}": {sent!r},')
        if len(sent) < len(nodes):
            awaited = [(get_arg(n, "stage"), get_arg(n, "message")) for n in nodes if n.op == RECEIVE]
            waits.append(f'    "{section.name}": {awaited!r},')
        for n in nodes:
            if n.op == RECEIVE:
                dtype = get_arg(n, "dtype")
                receives.append(f'    ({get_arg(n, "stage")}, {get_arg(n, "message")}): ({get_arg(n, "shape")!r}, "{dtype.name.removeprefix("torch.")}"),')
    return [*lines, "}", *waits, "}", *receives, "}", ""]


def _print_step(graph: Graph, body: Body, sections: Sequence[Section]) -> str:
    phases = {n.phase for n in graph.nodes}
    lines = ["def step(comm, state, batch):", '    """One step of this stage: its sections in the order of the schedule."""', "    grads = {}  # what outlives a microbatch"]
    boxes = turn_boxes(phases, body)
    names = ["kept", *(name for name, _, _ in boxes.blocks)]
    alone = "," if len(names) == 1 else ""
    lines += [*boxes.prepare, "    turns = {}  # microbatch -> what its sections leave for each other"]
    lines += ["    for section, turn in comm.actions():", "        if turn not in turns:"]
    lines += [f"            {name} = {new}  # {what_blocks_keep(family)}" for name, family, new in boxes.blocks]
    lines += [f"            turns[turn] = {', '.join([boxes.kept, *names[1:]])}{alone}", f"        {', '.join(names)}{alone} = turns[turn]"]
    arguments = ", ".join(["comm, state, batch, grads, kept, turn", *names[1:]])
    lines += [f"        SECTIONS[section]({arguments})", "        if comm.is_over(turn):", "            del turns[turn]"] if sections else ["        pass"]
    gone = ["turns", *names, *boxes.ready]
    lines.append("    " + "; ".join(f"{name} = None" for name in gone))
    if Phase.UPDATE in phases:
        lines.append(f"    update({body.update_boxes})")
    leaving = [body.leaving.get(name, f'grads["{name}"]') for name in (*([graph.loss] if graph.loss else []), *graph.outputs)]
    loss = leaving[0] if graph.loss else "None"
    rest = leaving[1:] if graph.loss else leaving
    lines.append(f"    return {loss}" + (f", ({', '.join(rest)},)" if rest else ""))
    return "\n".join(lines)
