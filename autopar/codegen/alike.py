"""Alike: whether two stages run the same program on states of other names, so that one file serves both.

In: two stage programs. Out: by how much the numbers of each family of blocks differ (`transformer.h`: 3), or nothing. The test is exact: with its names
put for those of the other, position by position, a stage has equal nodes, shapes, shardings and sections.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..graph.graph import Graph, entering_values
from ..graph.node import Node
from ..graph.repeats import block_of, shift_name
from ..graph.stage_programs import StageProgram
from ..graph.stages import COPY
from ..graph.tensor import STATE_KINDS


def find_shift(stage: StageProgram, other: StageProgram, inits: Mapping[str, tuple]) -> dict[str, int] | None:
    """Family of blocks -> its numbers in `stage` less those in `other`; None where they are not alike.

    Args:
        inits: state -> how its first value is made; it must be made alike, too.
    """
    mine, theirs = stage.program.graph, other.program.graph
    if len(mine.nodes) != len(theirs.nodes) or stage.sections != other.sections or stage.program.mesh != other.program.mesh:
        return None
    names = dict(zip(mine.inputs, theirs.inputs))
    for a, b in zip(mine.nodes, theirs.nodes):
        names.update(zip(a.outputs, b.outputs))
    if any(_differ(a, b, names) for a, b in zip(mine.nodes, theirs.nodes)) or not _same_ends(mine, theirs, names):
        return None
    if [(names[n], str(s)) for n, _, s in stage.program.shardings] != [(n, str(s)) for n, _, s in other.program.shardings]:
        return None
    shift = _shift_of_states(mine, theirs)
    if shift is None or any(_shown(a.path, shift) != b.path or a.source != b.source for a, b in zip(mine.nodes, theirs.nodes)):
        return None
    pairs = [(a, b) for a, b in zip(mine.values, theirs.values) if a.kind in STATE_KINDS]
    return shift if all(_same_init(inits.get(a.storage), inits.get(b.storage), shift) for a, b in pairs) else None


def _differ(a: Node, b: Node, names: Mapping[str, str]) -> bool:
    return a.op != b.op or a.args != b.args or a.phase is not b.phase or tuple(names[n] for n in a.inputs) != b.inputs


def _same_ends(mine: Graph, theirs: Graph, names: Mapping[str, str]) -> bool:
    """Equal values in equal places, and equal ends: updates, loss, outputs."""
    facts = [[(v.shape, v.dtype, v.kind, v.version, COPY in v.name) for v in graph.values] for graph in (mine, theirs)]
    batches = [[v.name.partition(COPY)[0] for v in entering_values(graph) if v.kind not in STATE_KINDS] for graph in (mine, theirs)]
    ends = tuple((names[a], names[b]) for a, b in mine.updates) == theirs.updates and (names[mine.loss] if mine.loss else "") == theirs.loss
    return facts[0] == facts[1] and batches[0] == batches[1] and ends and tuple(names[o] for o in mine.outputs) == theirs.outputs


def _shift_of_states(mine: Graph, theirs: Graph) -> dict[str, int] | None:
    shift: dict[str, int] = {}
    pairs = [(a.storage, b.storage) for a, b in zip(mine.values, theirs.values) if a.name in mine.inputs and a.kind in STATE_KINDS]
    for a, b in pairs:
        here, there = (block_of(name.rpartition(":")[2], mine.sequences) for name in (a, b))
        if a != b and (here is None or there is None or here[0] != there[0]):
            return None
        if here is not None and there is not None and shift.setdefault(here[0], here[1] - there[1]) != here[1] - there[1]:
            return None
    return shift if all(_shown(a, shift) == b for a, b in pairs) else None


def _shown(name: str, shift: Mapping[str, int]) -> str:
    """A state's name or a path as the other stage's file has it."""
    return shift_name(name, {family: -add for family, add in shift.items()})


def _same_init(mine: tuple | None, theirs: tuple | None, shift: Mapping[str, int]) -> bool:
    if mine is not None and mine[:1] == ("copy",):
        mine = (mine[0], _shown(mine[1], shift))
    return mine == theirs
