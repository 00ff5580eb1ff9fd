"""Frames: what all functions of one program need to know while they are printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.node import Node, Phase
from ..graph.program import Program
from ..graph.sections import Section
from .crossings import Crossings
from .loops import Item


@dataclass(slots=True)
class Frame:
    """Made by `body.print_bodies`, which fills what only printing tells (`loop_names`, `stored`)."""

    program: Program
    graph: Graph
    items: dict[Section, list[Item]]
    crossings: Crossings
    containers: dict[str, str]  # family -> Python name of its list of dicts
    grad_keys: dict[str, str]  # value read by the update -> its key in `grads`
    state_keys: dict[str, str]  # graph input -> text that reads it
    uses: dict[str, list[int]]
    dead: frozenset[str]
    in_turns: bool
    leaving: frozenset[str]  # what the user gets, where sections pass it on in `kept`
    tail: tuple[int, ...]  # nodes of the update phase on which what the user gets depends
    update_boxes: str  # what the function of the update takes
    leaving_keys: dict[str, str]  # what the user gets, where sections pass it on in `grads` -> its key there
    loop_names: list[str]
    stored: set[str]  # values that `forward` or `backward` has put into `kept`
    notes: Mapping[str, str]
    lists: frozenset[str]  # ops of kernels that take lists
    own: frozenset[str]  # values that nothing else has a part of, and one node alone reads (`graph.own`)


def is_taken_by_update(frame: Frame, name: str) -> bool:
    """True where the update of a parameter takes this value out of `grads`."""
    return any(frame.graph.nodes[i].phase is Phase.UPDATE and i not in frame.tail for i in frame.uses[name])


def last_uses(graph: Graph, nodes: tuple[int, ...]) -> dict[str, int]:
    """Value -> the place, among these nodes, of the last that reads it."""
    return {name: p for p, i in enumerate(nodes) for name in graph.nodes[i].inputs}


def dead_here(frame: Frame, node: Node) -> frozenset[str]:
    """Of the outputs of a node that has several, those that nobody reads."""
    return frozenset(o for o in node.outputs if o in frame.dead and len(node.outputs) > 1)


def reserved_names(frame: Frame) -> tuple[str, ...]:
    """Python names that no value may have in the functions of sections."""
    return (*frame.containers.values(), *(["turn"] if frame.in_turns else []))
