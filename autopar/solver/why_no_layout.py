"""Why there is no layout: which words leave no stages, no microbatches or no schedule, and what there is instead.

In: constraints under which `layouts` lists nothing. Out: a text. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod

from ..constraints import DATA, FORWARD_ONLY, PIPELINE, SEQUENCE, TENSOR, Constraints, print_constraints
from ..errors import ScheduleError
from ..graph.mesh import print_mesh
from ..graph.schedules.known import grid_sizes, is_grid, kind_name, runs_backward, why_impossible
from .layouts import Place, least_stages, list_places, list_schedules, list_turns

_MOST_SHOWN = 6


def why_no_layout(num_devices: int, devices_per_host: int, num_units: int, batch: int, constraints: Constraints, trains: bool = True) -> str:
    """The first thing that cannot be.

    Args:
        num_units: of the model, between which it may be cut.
        batch: samples, of which each rank of dp gets the same number in each microbatch.
    """
    places = list_places(num_devices, devices_per_host, num_units, constraints)
    if not places and least_stages(constraints) > 1:
        free = replace(constraints, module_stages=(), stage_degrees=())
        there = [p for p in list_places(num_devices, devices_per_host, num_units, free) if p.num_stages > 1]
        if there:
            said = ", ".join(print_constraints(Constraints(module_stages=constraints.module_stages, stage_degrees=constraints.stage_degrees)))
            more = f"{least_stages(constraints)} stages or more" + (", each of dp x tp devices of which tp divides that of the others" if constraints.stage_degrees else "")
            return f"{said}: needs {more}; {_offer(map(_print_place, there))}"
    if not places:
        named = [(role, degree) for role, degree in constraints.degrees if role in (PIPELINE, DATA, TENSOR, SEQUENCE) and degree > 1]
        free = replace(constraints, degrees=tuple((role, degree) for role, degree in constraints.degrees if (role, degree) not in named))
        said = " x ".join(f"{role}={degree}" for role, degree in named)
        total = prod(degree for _, degree in named)
        makes = f"{said} {'make' if len(named) > 1 else 'makes'} {total} rank{'s' if total > 1 else ''}, the cluster has {num_devices}"
        needs = _why_no_axis(constraints, lambda c: bool(list_places(num_devices, devices_per_host, num_units, c)))
        wrong = makes if num_devices % total else _why_no_stages(num_devices, devices_per_host, constraints) or f"{said or 'what is asked'} leaves no mesh{needs}"
        there = [_print_place(p) for p in list_places(num_devices, devices_per_host, num_units, free) if p.num_stages > 1 or PIPELINE not in dict(named)]
        return f"{wrong}; {_offer(there)}"
    plain = replace(constraints, microbatches=None, microbatch=None)
    split = [(p, n) for p in places for n in list_turns(p, batch, constraints)]
    if not split:
        rows = [(p, [n for n in list_turns(p, batch, plain) if any(list_schedules(p, n, num_units, constraints, trains))]) for p in places]
        there = [f"{_print_place(p)} with {', '.join(map(str, counts))} microbatches" for p, counts in rows if counts]
        return f"{_why_no_turns(batch, constraints)}; {_offer(there)}"
    reasons: dict[str, None] = {}
    for place, turns in split:
        if not any(list_schedules(place, turns, num_units, constraints, trains)):
            reasons.update(dict.fromkeys(_why_no_schedule(place, turns, num_units, constraints, trains)))
    return "; ".join(list(reasons)[:2]) or "no schedule fits"


def _why_no_stages(num_devices: int, devices_per_host: int, constraints: Constraints) -> str:
    """Of stages that would have some whole hosts and a part of one: "" where they would not."""
    stages = dict(constraints.degrees).get(PIPELINE, 1)
    inside = num_devices // stages
    if num_devices % stages or inside % devices_per_host == 0 or devices_per_host % inside == 0:
        return ""
    return f"pp={stages} gives each stage {inside} of the {num_devices} devices; a stage is some whole hosts (of {devices_per_host} devices), or divides one evenly"


def _why_no_axis(constraints: Constraints, has_places: Callable[[Constraints], bool]) -> str:
    """A word that is about an axis that the degrees leave no rank for: "" where none is."""
    for word, role in (("zero", DATA), ("sequence_parallel", TENSOR)):
        said = getattr(constraints, word)
        if said and has_places(replace(constraints, **{word: None})):
            return f" that has an axis of {role}, which {word}={int(said)} is about (leave {word} out)"
    return ""


def _why_no_turns(batch: int, constraints: Constraints) -> str:
    names = ("microbatches", "microbatch")
    told = [(name, count) for name in names if (count := getattr(constraints, name)) is not None]
    data = [(role, degree) for role, degree in constraints.degrees if role == DATA]
    asked = [*told, *data]
    total = prod(count for _, count in asked)
    if len(told) == len(names) and (total != batch if data else batch % total):
        each = "" if data else " for each rank of dp"
        return f"{' x '.join(f'{name}={count}' for name, count in asked)} are {total} samples{each}, the batch has {batch}"
    return f"{', '.join(f'{name}={count}' for name, count in told) or 'dp'}: the batch of {batch} samples does not divide so"


def _why_no_schedule(place: Place, turns: int, num_units: int, constraints: Constraints, trains: bool) -> Iterator[str]:
    chunks = constraints.vpp or 1
    kind = constraints.schedule or (FORWARD_ONLY if not trains else "interleaved" if chunks > 1 else "1f1b")
    if runs_backward(kind) is not trains:
        has = "has no loss, so nothing goes backward" if not trains else "is trained, so every forward needs its backward"
        fits = f"take {FORWARD_ONLY}, or leave it out" if not trains else "take another, or leave it out"
        yield f"schedule={kind_name(kind)}: the model {has}; {fits}"
        return
    if kind == "interleaved" and constraints.vpp is None:
        chunks = 2
    if is_grid(kind):
        try:
            ranks, microbatches, chunks = grid_sizes(kind)
        except ScheduleError as error:
            yield str(error)
            return
        if (ranks, microbatches) != (place.num_stages, turns) or constraints.vpp not in (None, chunks):
            yield f"the schedule of your own is one of pp={ranks}, microbatches={microbatches}, vpp={chunks}; the devices, the batch or another word leave none of these"
            return
    why = why_impossible(kind, place.num_stages, turns, chunks)
    if why is not None:
        yield why
    if place.num_stages * chunks > num_units:
        parts = f"{place.num_stages} stages of {chunks} chunks need {place.num_stages * chunks} parts"
        yield f"{parts}, the model can be cut into {num_units} (between its numbered modules)"


def _print_place(place: Place) -> str:
    return f"pp={place.num_stages} {print_mesh(place.mesh)}" if place.mesh.axes else f"pp={place.num_stages}"


def _offer(there: Iterable[str]) -> str:
    found = list(there)
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return f"what there is: {'; '.join(found[:_MOST_SHOWN])}{more}" if found else "leave some of it out"
