"""Overlap: of which groups the reshards hide behind compute, in which phase, and how much compute each chooser has there.

In: a `Problem`. Out: what the integer program and the judge of an answer both need for

    seconds = compute + communication - hidden,   hidden of a phase <= compute of that phase

By the law of `graph.transfer`, applied to where `graph.partition` puts the reshards; `cost.estimate` applies it to the program.
"""

from __future__ import annotations

import numpy as np

from ..graph.node import Phase
from ..graph.strategy import Strategy
from ..graph.tensor import Kind
from ..graph.transfer import HIDING_PHASES, may_hide, outside_blocks
from ..graph.turns import count_microbatches, times_of
from .problem import Chooser, Problem


def hiding_groups(problem: Problem) -> dict[int, Phase]:
    """Group number -> the phase behind whose compute its reshards may hide; the others block."""
    grads = {grad for _, grad in problem.graph.grads}
    turns, outside = count_microbatches(problem.graph), outside_blocks(problem.graph)
    found = {}
    for number, group in enumerate(problem.groups):
        phase = group.phase
        if phase is Phase.UPDATE and group.value.kind is Kind.GRAD and group.value.name in grads:
            made = group.made or phase  # the program brings it as soon as it is made, or after the last of the turns
            phase = made if turns == 1 or made not in HIDING_PHASES else phase
        if may_hide(group.value, phase, outside, group.made):
            found[number] = phase
    return found


def compute_seconds(problem: Problem, number: int, phase: Phase) -> np.ndarray:
    """Seconds of a chooser's nodes in a phase, per option; what is made again counts in the backward pass, too."""
    chooser = problem.choosers[number]
    phases = {problem.graph.nodes[p.node].phase if p.node >= 0 else Phase.UPDATE for p in chooser.parts}
    count = chooser.num_kept
    apart = len(phases) > 1 or (count < len(chooser.seconds) and not all(p.again for p in chooser.parts))
    if apart:
        once = _seconds_by_part(problem, chooser, phase)
    else:
        once = chooser.seconds * (phase in phases)
        once[count:] /= 2
    if phase is Phase.BACKWARD and count < len(once):
        forward = _seconds_by_part(problem, chooser, Phase.FORWARD, True) if apart else chooser.seconds / 2
        once[count:] += forward[count:]
    return once


def _seconds_by_part(problem: Problem, chooser: Chooser, phase: Phase, again: bool = False) -> np.ndarray:
    """Of a cluster whose parts differ: of its nodes in this phase, run once; with `again` of those that are run again."""
    total = np.zeros(len(chooser.seconds))
    turns = problem.turns.weight
    for part in chooser.parts:
        if problem.graph.nodes[part.node].phase is phase and (part.again or not again):
            options = [option for option in part.options if isinstance(option, Strategy)]
            count = len(part.members) * times_of(phase, turns)
            total += count * np.array(problem.tables.prices.node_seconds(part.node, options), dtype=float)
    return total
