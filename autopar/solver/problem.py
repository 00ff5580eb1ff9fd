"""The problem of one mesh as tables: who chooses, what each choice makes and wants, who reads what, and what it costs.

The nouns that the integer program, the memory rows and the judge of an answer are built from (`build` makes them). Everything is over
classes of the fold:

    chooser   a class of nodes (options: strategies), a cluster of such classes, or a class of graph inputs (options: storage shardings)
    port      what a chooser makes at one output, or wants at one input, as a sharding id per option
    group     instances of one value class that are read, in one phase, by the same set of endpoints: they share reshards, one per
              wanted sharding (the law of `graph.partition`); `count` of them pay it, in each turn anew

What may be recomputed (`again`) has each option twice: made once and kept, or made again for the backward pass in the same sharding. A port
is then NONE where the choice makes nothing there or reads nothing there: that costs and holds nothing. The backward pass reads such a value
from two groups, as kept and as made again, of which one is NONE.

The new version of a state must reach the storage of that state: an endpoint whose chooser is the input class. The loss and outputs must
be whole: an endpoint without a chooser. Invariant: a problem with the identity fold has exactly the semantics of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph.graph import Graph
from ..graph.mesh import Mesh
from ..graph.node import Phase
from ..graph.plan import Pruned
from ..graph.sharding import Sharding
from ..graph.strategy import Strategy
from ..graph.tensor import Value
from .tables import Tables

WHOLE = -1  # the chooser of an endpoint that wants the whole value
BRING, RUN, AFTER, MOMENTS = 0, 1, 2, 3  # at each node: its inputs are brought, it runs, what leaves is brought from where it was made
STORAGE = -1  # the position of an endpoint that is a state's storage


@dataclass(frozen=True, slots=True)
class Part:
    """A class of nodes, or of inputs, that a chooser decides for.

    Args:
        node: index of the node that stands for the class; -1 for an input.
        members: names of all its nodes, or inputs.
        options: strategies, or storage shardings, one per option of the chooser.
        makes, wants: port number in the chooser of the first output and of the first input.
        again: the options with recompute (`Chooser.num_kept`) run these nodes again; else they run once there, too.
    """

    node: int
    members: tuple[str, ...]
    options: tuple[Strategy, ...] | tuple[Sharding, ...]
    makes: int
    wants: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Chooser:
    """One decision: for a class of nodes or of inputs, or for a cluster of such classes.

    Args:
        parts: for whom it decides; all parts have as many options as the chooser.
        seconds: of all members together, per option.
        makes: per output of each part, the sharding id per option.
        wants: per input of each part, the sharding id per option.
        num_kept: so many options come first that make their values once; the others are the same, with recompute of all parts that may be.
    """

    parts: tuple[Part, ...]
    seconds: np.ndarray
    makes: tuple[np.ndarray, ...]
    wants: tuple[np.ndarray, ...]
    num_kept: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who wants a value: input `position` of a chooser's nodes, the storage of an input chooser, or nobody but the end (whole).

    `tied`: it reads exactly where the value is there (a view of what is made again).
    """

    chooser: int
    position: int
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Instances of a value class with the same readers in one phase.

    Args:
        value: the value that stands for the class.
        source: (chooser, output) that makes it.
        phase: in which the reshards happen.
        endpoints: who wants it.
        spans: per instance and endpoint, (first, last) point of time between which a copy made for this endpoint is held.
        names: of the value of each instance.
        times: that each instance is resharded in a step: once per turn inside of the turns; of numbers that are sent with others, or are there already, a share (`small_reductions`).
        made: the phase in which the value comes to be, in the form that is read; None: it enters the step.
    """

    value: Value
    source: tuple[int, int]
    phase: Phase
    endpoints: tuple[Endpoint, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]
    times: float = 1
    names: tuple[str, ...] = ()
    made: Phase | None = None

    @property
    def count(self) -> float:
        """How many reshards of a step one wanted sharding stands for."""
        return len(self.spans) * self.times


@dataclass(frozen=True, slots=True)
class Hold:
    """Held until `last` if this endpoint takes the value as it was made; not `as_made`: if it reads it at all.

    `via`: the endpoint reads a view of it; pairs of (sharding of what is viewed, sharding that the view then has).
    """

    group: int
    endpoint: int
    last: int
    as_made: bool = True
    via: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """When a value is held as it was made.

    Args:
        first, certain: points of time from which and until which it is held whatever its readers want.
        longer: what else holds it.
    """

    first: int
    certain: int
    longer: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """A value class that owns bytes, and the life of each instance."""

    value: Value
    source: tuple[int, int]
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class Turns:
    """When the turns are, and what other microbatches hold meanwhile.

    Args:
        first, last: moments of the turns; (0, -1) without turns.
        turn: the first moment of the backward pass.
        in_flight: so many microbatches at most are between their forward and their backward, this one included (on a pipeline stage).
        weight: what one turn counts in the objective.
    """

    first: int = 0
    last: int = -1
    turn: int = 0
    in_flight: float = 1.0
    weight: float = 1.0

    def waits(self, first: int, last: int, kept: bool = False) -> bool:
        """True where what is held so long is held by every microbatch in flight. `kept`: it is there from the turn on."""
        return self.first <= first and (first < self.turn or (kept and first == self.turn)) and self.turn <= last <= self.last


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about one mesh. `shardings` gives the sharding of each id; `num_points`: of time, three per node of the whole graph."""
    graph: Graph
    mesh: Mesh
    shardings: tuple[Sharding, ...]
    choosers: tuple[Chooser, ...]
    groups: tuple[Group, ...]
    owners: tuple[Owner, ...]
    num_points: int
    pruned: tuple[Pruned, ...]
    tables: Tables
    turns: Turns

    @property
    def can_recompute(self) -> bool:
        """Some value may be made again."""
        return any(chooser.num_kept < len(chooser.seconds) for chooser in self.choosers)
