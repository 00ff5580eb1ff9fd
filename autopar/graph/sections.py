"""Sections: the parts of a step that run at once. A schedule's actions are sections; so are what runs before and after the turns.

In: the local graph of a program. Out: for each node its section. Without a pipeline the sections are the phases. A stage that runs several chunks of the
model has a forward and a backward section for each; where a schedule splits the backward, what leads to another stage (`input`) comes first, and what only
the weights need (`weight`) may wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .graph import Graph
from .node import Phase
from .schedules.schedule import Action, ActionKind, Schedule, numbers_on_ranks
from .turns import SEND

INPUT, WEIGHT = "input", "weight"
_ORDER = {phase: k for k, phase in enumerate(Phase)}


class Calls(Protocol):
    """A node of a graph, or of a plan: when it runs which op, of what it makes what."""

    @property
    def phase(self) -> Phase: ...
    @property
    def op(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Section:
    """Args:
    chunk: number of the chunk on its stage, None where the stage has one.
    part: of a backward that is split: `INPUT` or `WEIGHT`.
    """

    phase: Phase
    chunk: int | None = None
    part: str = ""

    @property
    def name(self) -> str:
        """`forward`, `backward_1`, `backward_weight`: the name of its function."""
        return "_".join(str(p) for p in (self.phase.value, self.part, self.chunk) if p not in ("", None))


_PARTS = {ActionKind.F: (Phase.FORWARD, ""), ActionKind.B: (Phase.BACKWARD, ""), ActionKind.I: (Phase.BACKWARD, INPUT), ActionKind.W: (Phase.BACKWARD, WEIGHT)}


def section_of(action: Action, schedule: Schedule) -> Section:
    """The section that an action runs."""
    phase, part = _PARTS[action.kind]
    return Section(phase, numbers_on_ranks(schedule.rank_of)[action.stage] if schedule.num_stages > schedule.num_ranks else None, part)


def phase_sections(graph: Graph) -> tuple[Section, ...]:
    """Each phase is a section."""
    return tuple(Section(node.phase) for node in graph.nodes)


def stage_sections(graph: Graph, chunk_of: Mapping[str, int], chunks: int, splits_backward: bool) -> tuple[Section, ...]:
    """The sections of a stage.

    Args:
        chunk_of: node -> the chunk on its stage, for nodes of forward and backward.
        splits_backward: whether the schedule has actions I and W.
    """
    late = weight_nodes(graph.nodes) if splits_backward else frozenset()
    found = []
    for node in graph.nodes:
        if node.phase in (Phase.PREPARE, Phase.UPDATE):
            found.append(Section(node.phase))
            continue
        part = (WEIGHT if node.name in late else INPUT) if splits_backward and node.phase is Phase.BACKWARD else ""
        found.append(Section(node.phase, chunk_of[node.name] if chunks > 1 else None, part))
    return tuple(found)


def list_sections(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections in the order in which one microbatch goes through them: forward from the first chunk to the last, backward from the last to the first;
    for the weights maybe earlier (`list_overtaken`)."""

    def place(section: Section) -> tuple[int, bool, int]:
        chunk = section.chunk or 0
        return _ORDER[section.phase], section.part == WEIGHT, -chunk if section.phase is Phase.BACKWARD else chunk

    return tuple(sorted(dict.fromkeys(sections), key=place))


def list_overtaken(section: Section, sections: Iterable[Section]) -> tuple[Section, ...]:
    """Those that stand before a section in `list_sections`, and yet may run after it: the weights of a chunk need not wait for the inputs of the chunks before."""
    if section.part != WEIGHT:
        return ()
    return tuple(s for s in sections if s.part == INPUT and (s.chunk or 0) < (section.chunk or 0))


def weight_nodes(nodes: Sequence[Calls]) -> frozenset[str]:
    """Backward nodes from which nothing leads to another stage: they can wait (the weight gradients).

    Args:
        nodes: of a stage, in order: of its graph, or as its plan tells them.
    """
    needed: set[str] = set()
    found = set()
    for node in reversed(nodes):
        if node.phase is Phase.BACKWARD and node.op != SEND and not needed.intersection(node.outputs):
            found.add(node.name)
        elif node.phase is Phase.BACKWARD:
            needed.update(node.inputs)
    return frozenset(found)
