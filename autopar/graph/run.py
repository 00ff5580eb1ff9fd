"""Runs: what a program took when it was run, rank by rank and step by step (`autopar run` records it, `graph.run_file` keeps it).

Every list of seconds has one entry per timed step, in order; the first steps warm up and stand apart. A run says which plan it was of by
`plan_key`, so that it is never compared with the prediction for another one unnoticed. Seconds and bytes, always.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from .machine import Machine

FORMAT = "autopar-run-1"
_DECIDES = ("mesh", "num_microbatches", "pipeline", "assignment")  # of a plan's JSON: with the graph, what makes the program


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """One action: a phase (`forward`), of one turn where the step takes its batch in turns (else 0). Of a program in stages `phase` is a
    section: of a chunk (`forward_1`), or of a backward that is split (`backward_input`)."""

    phase: str
    turn: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CommTimes:
    """The collectives of one kind along one mesh axis in one phase, all turns together; of a program in stages what it receives, too.

    Args:
        phase: "" outside of the actions.
        calls: in a step, by the phase in which they are started.
        bytes: in a step: of each call the rank's tensors, the larger of before and after.
        seconds: that the rank stands still in this phase, with the packing before and after, and with the waiting for other ranks.
        flight_s: of those that are started in this phase: the seconds that the rank stands still for them, in whichever phase, and those that they are under way while it
            does not (as if one after the other along an axis). All of it, less all of `seconds`, was hidden. Where nobody can tell when messages have come (`Run.tells`) they
            are under way until they are waited for, so that is the most. Empty where every collective of this kind and axis is waited for as soon as it is started.
    """

    phase: str
    kind: str
    axis: str
    calls: int
    bytes: int
    seconds: tuple[float, ...]
    flight_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank measured.

    Args:
        warmup_s: the steps before the timed ones.
        step_s: the timed steps.
        state_bytes, batch_bytes: parameters, buffers and optimizer states, and this rank's part of the batch: held all the time.
        peak_bytes: the most that is held at once, those included; None where the run was too short to weigh it.
    """

    rank: int
    warmup_s: tuple[float, ...]
    step_s: tuple[float, ...]
    actions: tuple[ActionTimes, ...]
    comms: tuple[CommTimes, ...]
    state_bytes: int
    batch_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Args:
        date: ISO, when it was written.
        autopar: version.
        machine: of rank 0.
        model: its name.
        plan: `plan_key`; "" where the program has no plan beside it.
        mesh: as printed (`dp=2 tp=2`).
        ranks: in order.
    """

    date: str
    autopar: str
    machine: Machine
    model: str
    plan: str
    mesh: str
    ranks: tuple[RankRun, ...]

    @property
    def tells(self) -> bool:
        """Whether it is known when messages have come: on a CPU, where gloo's threads tell."""
        return self.machine.device == "cpu"


def plan_key(plan: Mapping[str, object]) -> str:
    """What a plan's program follows from, as 16 hexadecimal digits: its graph and what was decided, not what that was predicted to cost.

    Args:
        plan: as JSON data (`plan_json.plan_to_json`, or a parsed `plan.json`).
    """
    model = plan.get("model")
    graph = [model.get("graph_hash"), model.get("precision")] if isinstance(model, Mapping) else []
    content = json.dumps([graph, [plan.get(name) for name in _DECIDES]], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
