"""Stage programs: a plan in pipeline stages as one program per stage, with the sections that a schedule's actions run and the messages between stages.

In: the case of the traced graph, the assignment of all stages, where they begin. Out: a `StageProgram` for each. Invariants:

* what a stage runs is what the solver priced: its own graph (`graph.stages`), partitioned on the mesh of a stage;
* a message is told by the stage that it comes from (as so many stages ahead or back) and its number among what that stage sends to this one, so equal
  stages have equal programs. Each rank sends its own piece to the rank at the same place on the mesh of the other stage;
* all ranks are one mesh whose outermost axis is the stages (`pipeline_mesh`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..constraints import PIPELINE
from ..errors import PlanError, ProgramError
from .case import Case, build_case, copy_case, split_case
from .choice import Assignment
from .chunk_times import NO_CHUNKS
from .graph import Graph, producer_table
from .mesh import Mesh, MeshAxis
from .node import Phase
from .partition import partition
from .plan import Plan
from .program import Program
from .schedules.schedule import numbers_on_ranks
from .sections import Section, list_overtaken, list_sections, stage_sections
from .stages import COPY, Stage, cut_stages, sum_at_home
from .turns import LOOP, RECEIVE, SEND

STAGES = PIPELINE  # the mesh axis of the stages


@dataclass(frozen=True, slots=True)
class StageProgram:
    """One stage, as each of its ranks executes it.

    Args:
        program: its sends and receives have `stage` (so many ahead, negative: back), `message` (number) and `turn` (whether once per turn).
        graph: the stage's whole graph.
        sections: of each node of the program.
        outputs: the places, among the outputs of the step, of those that this stage makes.
    """

    program: Program
    graph: Graph
    sections: tuple[Section, ...]
    outputs: tuple[int, ...] = ()


def pipeline_mesh(mesh: Mesh, num_stages: int) -> Mesh:
    """All ranks: the stages, each on its mesh."""
    return Mesh((MeshAxis(STAGES, num_stages), *mesh.axes)) if num_stages > 1 else mesh


def plan_mesh(plan: Plan) -> Mesh:
    """All ranks of a plan."""
    return pipeline_mesh(plan.assignment.mesh, plan.num_stages)


def stage_cases(turns: Case, assignment: Assignment, starts: Sequence[str], ranks: Sequence[int]) -> tuple[tuple[Stage, Case, Assignment], ...]:
    """Each stage, the case of its graph with its copies, and its own part of the assignment.

    Args:
        turns: the case of the graph in turns.
        Others as of `build_stage_programs`.
    """
    storages, strategies = dict(assignment.storages), dict(assignment.strategies)
    found = []
    for stage in cut_stages(turns.graph, starts, ranks):
        mine = build_case(stage.graph, turns.rules)
        own = {n.name for n in stage.graph.nodes}
        mine = copy_case(mine, tuple(name for name in assignment.again if name in own))
        missing = [n for n in mine.graph.inputs if n not in storages] + [n.name for n in mine.graph.nodes if n.name not in strategies]
        if missing:
            raise PlanError(f"{turns.graph.name}: the plan has no choice for {missing[0]}, which is on stage {len(found)}")
        part = replace(
            assignment,
            storages=tuple((n, storages[n]) for n in mine.graph.inputs),
            strategies=tuple((n.name, strategies[n.name]) for n in mine.graph.nodes),
            again=tuple(name for name in assignment.again if name in own),
        )
        found.append((stage, mine, part))
    return tuple(found)


def build_stage_programs(
    case: Case, assignment: Assignment, starts: Sequence[str], ranks: Sequence[int], splits_backward: bool = False, keep_grads: bool = False
) -> tuple[StageProgram, ...]:
    """The programs of all stages.

    Args:
        case: of the traced graph.
        assignment: of all stages.
        starts: forward nodes at which the second and every later chunk begins.
        ranks: the stage of each chunk (`schedules.known.chunk_ranks`, or `rank_of` of the schedule).
        splits_backward: the schedule runs backward for inputs and for weights apart.
        keep_grads: as of `partition`.
    Raises:
        PlanError: the assignment is not that of these stages.
    """
    turns = split_case(case, assignment.microbatches)
    parts = stage_cases(turns, assignment, starts, ranks)
    numbers = _number_messages([stage for stage, _, _ in parts])
    sections_of = section_finder(turns.graph, starts, ranks, len(parts), splits_backward)
    found = []
    for number, (_, mine, part) in enumerate(parts):
        program = partition(mine.graph, mine.sites, mine.signatures, mine.cuts, part, keep_grads)
        program = _tell_messages(program, number, numbers)
        sections = sections_of(program)
        _check_sections(program.graph, sections)
        outputs = tuple(k for k, name in enumerate(turns.graph.outputs) if name in mine.graph.outputs)
        found.append(StageProgram(program, mine.graph, sections, outputs))
    _check_ends(found)
    return tuple(found)


def section_finder(turns: Graph, starts: Sequence[str], ranks: Sequence[int], num_stages: int, splits_backward: bool) -> Callable[[Program], tuple[Section, ...]]:
    """What gives each node of a stage's program its section.

    Args:
        turns: the graph in turns that was cut.
        Others as of `build_stage_programs`.
    """
    chunks = _chunk_table(turns, starts, tuple(ranks))
    return lambda program: stage_sections(program.graph, program_chunks(program, chunks), (len(starts) + 1) // num_stages, splits_backward)


def _check_ends(stages: Sequence[StageProgram]) -> None:
    """Raise `ProgramError` where a message is split in one way where it is sent and in another where it is received."""
    sent: dict[tuple[int, int, object], str] = {}
    received: dict[tuple[int, int, object], str] = {}
    for number, stage in enumerate(stages):
        shardings = {local: str(sharding) for local, _, sharding in stage.program.shardings}
        for node in stage.program.graph.nodes:
            if node.op in (SEND, RECEIVE):
                args = dict(node.args)
                other = number + int(args["stage"])  # type: ignore[call-overload]
                if node.op == SEND:
                    sent[number, other, args["message"]] = shardings[node.inputs[0]]
                else:
                    received[other, number, args["message"]] = shardings[node.outputs[0]]
    for key, sharding in sent.items():
        if received.get(key) != sharding:
            raise ProgramError(f"message {key[2]} from stage {key[0]} to stage {key[1]} is sent as {sharding} and received as {received.get(key)}")


def _number_messages(stages: Sequence[Stage]) -> dict[str, tuple[int, int, int]]:
    """Name of a send or receive -> (source, target, its number among what goes from the one to the other)."""
    found: dict[str, tuple[int, int, int]] = {}
    counts: dict[tuple[int, int], int] = {}
    for stage in stages:
        rows = {f"send_{crossing.sent}": crossing for crossing in stage.sent}
        for node in stage.graph.nodes:
            if node.op == SEND:
                crossing = rows[node.name]
                ends = (crossing.source, crossing.target)
                number = counts[ends] = counts.get(ends, -1) + 1
                found[node.name] = found[f"receive_{crossing.value}_on_{crossing.target}"] = (*ends, number)
    return found


def _tell_messages(program: Program, stage: int, numbers: dict[str, tuple[int, int, int]]) -> Program:
    """The program whose sends and receives say which message they are. They, and what brings their values into place, are of no module: where
    a block is the first or last of its stage, it is still like the others."""
    received = {o for n in program.graph.nodes if n.op == RECEIVE for o in n.outputs}
    nodes = []
    for node, origin in zip(program.graph.nodes, program.origins):
        if node.op in (SEND, RECEIVE):
            source, target, number = numbers[node.name]
            other = target if node.op == SEND else source
            args = (*((k, v) for k, v in node.args if k != "stage"), ("stage", other - stage), ("message", number), ("turn", node.phase in LOOP))
            node = replace(node, args=args, path="", source="")
        elif node.op.startswith("comm.") and (origin.node in numbers or origin.value in received):
            node = replace(node, path="", source="")
        nodes.append(node)
    return replace(program, graph=replace(program.graph, nodes=tuple(nodes)))


def _chunk_table(graph: Graph, starts: Sequence[str], ranks: tuple[int, ...]) -> dict[str, int]:
    """Node of the graph in turns -> the chunk of its stage that runs it; those that run on every stage that reads them are left out."""
    graph, table = sum_at_home(graph, starts, ranks)
    numbers = numbers_on_ranks(ranks)
    return {node.name: numbers[chunk] for node, chunk in zip(graph.nodes, table) if chunk >= 0}


def crossing_chunks(turns: Graph, starts: Sequence[str], ranks: Sequence[int], graphs: Sequence[Graph]) -> tuple[Mapping[str, int], ...]:
    """For each stage: node of its graph -> its chunk on that stage, sends and receives among them; nothing where each stage has one.

    Args:
        turns: the graph in turns that was cut.
        graphs: of all stages.
        Others as of `build_stage_programs`.
    """
    if len(ranks) == len(graphs):
        return (NO_CHUNKS,) * len(graphs)
    chunks = _chunk_table(turns, starts, tuple(ranks))
    return tuple(_chunk_of(graph, [node.name for node in graph.nodes], chunks) for graph in graphs)


def program_chunks(program: Program, chunk_of: Mapping[str, int]) -> dict[str, int]:
    """Node of a program -> the chunk of its stage that runs it.

    Args:
        chunk_of: node of the graph that it was made of -> its chunk.
    """
    return _chunk_of(program.graph, [origin.node or node.name for node, origin in zip(program.graph.nodes, program.origins)], chunk_of)


def _chunk_of(graph: Graph, names: Sequence[str], chunks: Mapping[str, int]) -> dict[str, int]:
    """Node -> its chunk; what has none of its own goes with the first to run of its readers, and what the turns do not read (a send) with what made
    its value. `names`: of each node in the graph that was cut."""
    found: dict[str, int] = {}
    for node, name in zip(graph.nodes, names):
        known = chunks.get(name.partition(COPY)[0])  # of a copy none: it runs when it is read
        if known is not None and node.op not in (SEND, RECEIVE) and not node.op.startswith("comm."):
            found[node.name] = known
    makers = producer_table(graph)
    sends = [node for node in graph.nodes if node.op == SEND]
    for node in sends:
        chain = [node]
        while chain[-1].op == SEND or (chain[-1].op.startswith("comm.") and chain[-1].name not in found):
            chain.append(graph.nodes[makers[chain[-1].inputs[0]][0]])
        found.update({n.name: found.get(chain[-1].name, 0) for n in chain})
    read: dict[tuple[str, Phase], list[int]] = {}
    for node in reversed(graph.nodes):
        if node.name not in found:
            turns = [(phase, read.get((out, phase))) for phase in (node.phase, Phase.BACKWARD) for out in node.outputs]
            found.update({node.name: max(rows) if phase is Phase.BACKWARD else min(rows) for phase, rows in reversed(turns) if rows})
        for name in node.inputs if node.name in found else ():
            read.setdefault((name, node.phase), []).append(found[node.name])
    for node in graph.nodes:
        made = makers.get(node.inputs[0]) if node.inputs else None
        found.setdefault(node.name, found[graph.nodes[made[0]].name] if made else 0)
    return found


def _check_sections(graph: Graph, sections: Sequence[Section]) -> None:
    """Raise `ProgramError` where a section needs what a later one makes."""
    order = {section: k for k, section in enumerate(list_sections(sections))}
    makers = producer_table(graph)
    for node, section in zip(graph.nodes, sections):
        for name in node.inputs:
            made = sections[makers[name][0]] if name in makers else section
            if order[made] > order[section] or made in list_overtaken(section, order):
                raise ProgramError(f"{graph.name}: {node.name} of {section.name} reads {name}, which {made.name} may make only later")
