"""The judge: seconds and bytes of given decisions, from the tables alone.

    seconds   sum over choosers  seconds[option] of all members
            + sum over groups    count x sum over the distinct wanted shardings  reshard(made -> wanted)
            - sum over phases    min(hidden share of the reshards that may hide there, compute of the phase)
    bytes(t)  every owner's bytes in the sharding in which it is made: from there until the last reader of any phase could bring a copy,
              and on to the last reader that takes it as it was made,
            + what reshards hold on their way, where an endpoint asks for them,
            + every resharded copy, from the first to the last of the endpoints of its group that want it, and, where the backward pass
              reads a view of it, on to the last that takes the view as it was made

Time has three points per node: its inputs are brought (sources and copies are held), it runs (copies and outputs), what leaves is
brought. The program brings one after another, and not again what another endpoint has brought, so the bytes here are at least its own
(but for copies of copies that views of views hang on, with recompute: the built program is measured in any case).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.transfer import HIDING_PHASES
from .overlap import compute_seconds, hiding_groups
from .problem import STORAGE, WHOLE, Endpoint, Group, Hold, Life, Owner, Problem
from .tables import NONE, WHOLE_ID


def made_id(problem: Problem, source: tuple[int, int], decisions: Sequence[int]) -> int:
    """The sharding in which a chooser's output is made."""
    return int(problem.choosers[source[0]].makes[source[1]][decisions[source[0]]])


def made_bytes(problem: Problem, owner: Owner) -> np.ndarray:
    """Bytes of one instance, per option of the chooser that makes it."""
    made = problem.choosers[owner.source[0]].makes[owner.source[1]]
    sizes = {int(i): problem.tables.local_bytes(owner.value, int(i)) for i in np.unique(made)}
    return np.array([sizes[int(i)] for i in made], dtype=float)


def wanted_id(problem: Problem, endpoint: Endpoint, decisions: Sequence[int]) -> int:
    """The sharding that an endpoint wants."""
    if endpoint.chooser == WHOLE:
        return WHOLE_ID
    chooser, option = problem.choosers[endpoint.chooser], decisions[endpoint.chooser]
    return int((chooser.makes[0] if endpoint.position == STORAGE else chooser.wants[endpoint.position])[option])


def evaluate_seconds(problem: Problem, decisions: Sequence[int]) -> float:
    """Predicted seconds of one step; infinity where a reshard is impossible."""
    total = sum(float(c.seconds[k]) for c, k in zip(problem.choosers, decisions))
    hiding, hidden = hiding_groups(problem), dict.fromkeys(HIDING_PHASES, 0.0)
    for number, group in enumerate(problem.groups):
        source = made_id(problem, group.source, decisions)
        if any(e.tied and (wanted_id(problem, e, decisions) == NONE) != (source == NONE) for e in group.endpoints):
            return float("inf")
        for target in {wanted_id(problem, e, decisions) for e in group.endpoints} - {source, NONE} if source != NONE else ():
            total += group.count * problem.tables.reshard_seconds(group.value, source, target)
            if number in hiding:
                hidden[hiding[number]] += group.count * problem.tables.hidden_seconds(group.value, source, target)
    for phase, wanted in hidden.items():
        if wanted:
            total -= min(wanted, sum(float(compute_seconds(problem, c, phase)[k]) for c, k in enumerate(decisions)))
    return total


def held_bytes(problem: Problem, decisions: Sequence[int]) -> np.ndarray:
    """Bytes held at each point of time (`problem.MOMENTS` per node)."""
    count = max(1, problem.num_points)
    change = np.zeros(count + 1, dtype=np.int64)

    turns, waiting = problem.turns, 0

    def add(first: int, last: int, size: int, kept: bool = False) -> None:
        nonlocal waiting
        change[min(max(0, first), count - 1)] += size
        change[min(last, count - 1) + 1] -= size
        if turns.waits(first, last, kept):
            waiting += size

    for owner in problem.owners:
        size = problem.tables.local_bytes(owner.value, made_id(problem, owner.source, decisions))
        for life in owner.lives:
            add(life.first, held_until(problem, life, owner.source, decisions), size, kept=True)
            for other, last in _viewed_copies(problem, life, owner.source, decisions).items():
                add(life.certain + 1, last, problem.tables.local_bytes(owner.value, other))
    for group in problem.groups:
        source = made_id(problem, group.source, decisions)
        for target, who in copies_of(problem, group, decisions).items():
            size = problem.tables.local_bytes(group.value, target)
            extra = problem.tables.transient_bytes(group.value, source, target) if np.isfinite(problem.tables.reshard_seconds(group.value, source, target)) else 0
            for spans in group.spans:
                add(min(spans[k][0] for k in who), max(spans[k][1] for k in who), size)
                for first in {spans[k][0] for k in who} if extra else ():
                    add(first, first, extra)
    others = int(np.ceil((turns.in_flight - 1) * waiting))  # of the microbatches beside the one at hand
    change[max(0, turns.first)] += others
    change[turns.last + 1] -= others
    return np.cumsum(change[:count])


def share_bytes(problem: Problem, decisions: Sequence[int]) -> tuple[int, int, int]:
    """Bytes at the peak by how they grow: (held all the time, per microbatch in flight, the rest), of what is held as it was made."""
    turns, always, waiting = problem.turns, 0, 0
    for owner in problem.owners:
        size = problem.tables.local_bytes(owner.value, made_id(problem, owner.source, decisions))
        for life in owner.lives:
            last = held_until(problem, life, owner.source, decisions)
            if life.first < 0 or (life.first == turns.first and last > turns.last >= 0):
                always += size
            elif turns.waits(life.first, last, True):
                waiting += size
    peak = int(held_bytes(problem, decisions).max())
    return always, waiting, max(0, peak - always - waiting)


def held_until(problem: Problem, life: Life, source: tuple[int, int], decisions: Sequence[int]) -> int:
    """The last point of time at which a value is held as it was made."""
    made = made_id(problem, source, decisions)
    until = life.certain
    for hold in life.longer:
        if hold.last > until and _holds(problem, hold, made, decisions):
            until = hold.last
    return until


def _viewed_copies(problem: Problem, life: Life, source: tuple[int, int], decisions: Sequence[int]) -> dict[int, int]:
    """Sharding -> last point of time at which a copy is held because the backward pass reads a view of it."""
    made, found = made_id(problem, source, decisions), {}
    for hold in life.longer:
        group = problem.groups[hold.group]
        there = made_id(problem, group.source, decisions)
        viewed = [a for a, view in hold.via if view == there]
        if there != NONE and viewed and made not in viewed and hold.last > life.certain:
            wanted = wanted_id(problem, group.endpoints[hold.endpoint], decisions)
            if wanted == there or (not hold.as_made and wanted != NONE):
                found[viewed[0]] = max(found.get(viewed[0], -1), hold.last)
    return found


def _holds(problem: Problem, hold: Hold, made: int, decisions: Sequence[int]) -> bool:
    group = problem.groups[hold.group]
    wanted, there = wanted_id(problem, group.endpoints[hold.endpoint], decisions), made_id(problem, group.source, decisions)
    if there == NONE or ((made, there) not in hold.via if hold.via else made != there):  # not there, or a view of a copy
        return False
    return wanted == there or (not hold.as_made and wanted != NONE)


def copies_of(problem: Problem, group: Group, decisions: Sequence[int]) -> dict[int, list[int]]:
    """Wanted sharding -> endpoints (by number) that want it, without the sharding in which the value is made."""
    source = made_id(problem, group.source, decisions)
    found: dict[int, list[int]] = {}
    for k, endpoint in enumerate(group.endpoints):
        target = wanted_id(problem, endpoint, decisions)
        if target != source and NONE not in (target, source):
            found.setdefault(target, []).append(k)
    return found
