"""Transfers: which communications may wait for others and run beside compute, told from the value that moves and the phase.

    STATE      a parameter or buffer, or the new version of one or of an optimizer state: known before the step begins, so a runtime can gather it ahead of
               its use, many small ones in one bucket
    GRAD       a parameter's final gradient: nobody needs it before the update, so its reduction can trail behind the backward pass
    BLOCKING   everything else: the next node waits for it; but what the backward pass gathers of what was there before it (the input of a linear, cut along the sequence, for the weight's gradient) can be
               gathered while the nodes before its reader run

The unit within which communication hides behind compute is the phase: what a runtime fetches ahead for one block runs beside the compute
of the block before; what is in no block (an embedding, a head) is fetched when it is needed. The solver's objective, its judge and the estimate of a program all ask here, so that they agree.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

from .graph import Graph, entering_values
from .node import Phase
from .repeats import state_blocks
from .reshard import StepKind
from .tensor import STATE_KINDS, Kind, Value


class Transfer(enum.Enum):
    """What kind of thing a reshard moves."""

    __hash__ = object.__hash__  # enum's own is Python's, and these are in most keys

    BLOCKING = "blocking"
    STATE = "state"
    GRAD = "grad"


HIDING_PHASES = (Phase.FORWARD, Phase.BACKWARD)  # the update is short, and what it makes is needed at once


def transfer_of(value: Value) -> Transfer:
    """The transfer of whatever brings this value (of the whole graph) to another sharding. What an update reads of an optimizer's states is brought for each parameter where it is read: nothing
    runs beside it, and it joins no message."""
    if value.kind is Kind.OPTIM and not value.version:
        return Transfer.BLOCKING
    if value.kind in STATE_KINDS:
        return Transfer.STATE
    return Transfer.GRAD if value.kind is Kind.GRAD else Transfer.BLOCKING


def outside_blocks(graph: Graph) -> frozenset[str]:
    """States that enter a graph of blocks and belong to none of them: an embedding, a head. Nothing runs before the first of them is there, and a program fetches the
    next block ahead, nothing else. None of a graph without blocks."""
    blocks = state_blocks(graph)
    return frozenset(value.name for value in entering_values(graph) if blocks and value.kind in STATE_KINDS and value.storage not in blocks)


def find_hiding(moved: Transfer, kinds: Sequence[StepKind]) -> tuple[bool, ...]:
    """Of the steps of one reshard (several that are one collective count once), which the program runs beside compute where the value may hide (`graph.overlap`).

    A state is gathered ahead as far as the first collectives go: what must be cut or moved between ranks after them, and then gathered again, waits for its reader. What of a gradient
    is not reduced last is waited for at once, for something stands behind it. Of anything else a gather is started early that reads the value itself.
    """
    if moved is Transfer.BLOCKING:
        return tuple(k == 0 and kind is StepKind.ALL_GATHER for k, kind in enumerate(kinds))
    if moved is Transfer.STATE:
        first = next((k for k, kind in enumerate(kinds) if kind not in (StepKind.SLICE, StepKind.KEEP)), len(kinds))
        return tuple(k == first and kind is StepKind.ALL_GATHER for k, kind in enumerate(kinds))
    last = next((k for k in range(len(kinds), 0, -1) if kinds[k - 1] not in (StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE)), 0)
    return tuple(moved is Transfer.GRAD and k >= last for k in range(len(kinds)))


def may_hide(value: Value, phase: Phase, outside: Collection[str], made: Phase | None) -> bool:
    """True where what brings the value may run beside the compute of the phase in which it stands.

    A new version of a state leaves where it is made: nothing after it in the step is left to hide it.

    Args:
        outside: states of the graph for which there is nothing to hide behind (`outside_blocks`).
        made: the phase in which the value comes to be; None: it enters the step.
    """
    moved = transfer_of(value)
    if moved is Transfer.BLOCKING:
        return phase is Phase.BACKWARD and made is not Phase.BACKWARD
    return phase in HIDING_PHASES and (moved is Transfer.GRAD or (moved is Transfer.STATE and value.version == 0 and value.name not in outside))
