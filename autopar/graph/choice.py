"""Choices: what a solver decides, and nothing else. A graph, a mesh and an `Assignment` determine the program completely."""

from __future__ import annotations

from dataclasses import dataclass

from .mesh import Mesh
from .sharding import Sharding


@dataclass(frozen=True, slots=True)
class Assignment:
    """The solver's decisions over one mesh.

    Args:
        mesh: the ranks.
        storages: (graph input, sharding) for every input: how states are stored between steps, how the batch arrives.
        strategies: (node, choices per mesh axis) for every node, in graph order (texts of `graph.strategy`).
        again: forward nodes that are run again for the backward pass (`graph.recompute`); their copies are nodes, too.
        microbatches: turns in which the step takes its batch (`graph.microbatch`); the nodes are those of that graph.
    """

    mesh: Mesh
    storages: tuple[tuple[str, Sharding], ...]
    strategies: tuple[tuple[str, tuple[str, ...]], ...]
    again: tuple[str, ...] = ()
    microbatches: int = 1
