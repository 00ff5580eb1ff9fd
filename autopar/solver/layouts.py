"""Layouts: the ways to divide the devices among pipeline stages and, inside of each stage, among axes with roles; and the batch into microbatches.

In: the cluster's size, the model's roles and units, constraints. Out: `Layout`s, each with a time that no plan of it beats. Inside a stage an axis
splits the batch (dp) and another, between the devices that are closest, anything else (tp): the search space of a layout is named by that. One for the sequence
(sp) is between the two, where its degree is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod

import numpy as np

from ..constraints import DATA, FORWARD_ONLY, IN_CHUNKS, PIPELINE, ROLES, SEQUENCE, TENSOR, Constraints, axis_role
from ..graph.mesh import Mesh, MeshAxis, num_ranks, print_mesh
from ..graph.roles import Roles
from ..graph.schedules.known import chunk_ranks, is_grid, kind_name, runs_backward, splits_backward, why_impossible
from .role_meshes import SPARE

GROUP = f"{DATA}_2"  # the inner axis of dp, where it has two
_MOST_CHUNKS = 8  # that are tried where nobody asks for more


@dataclass(frozen=True, slots=True)
class Place:
    """Where the stages are: how many, and the mesh of each.

    Args:
        mesh: of all stages but the others.
        others: (number, mesh) of the stages on which the same axes have other roles.
    """

    num_stages: int
    mesh: Mesh
    others: tuple[tuple[int, Mesh], ...] = ()

    def stage_mesh(self, stage: int) -> Mesh:
        """The mesh of one stage."""
        return dict(self.others).get(stage, self.mesh)

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """Those that differ."""
        return tuple(dict.fromkeys((self.mesh, *(mesh for _, mesh in self.others))))


@dataclass(frozen=True, slots=True)
class Layout:
    """A place, the number of microbatches, the schedule, and how many chunks each rank of the pipeline runs (1: one stage a rank)."""

    place: Place
    num_microbatches: int
    schedule: str = "1f1b"
    chunks: int = 1


def print_layout(layout: Layout) -> str:
    """`pp=8 dp=16 tp=8, 96 microbatches, interleaved 2`."""
    place = layout.place
    stages = f"pp={place.num_stages} " if place.num_stages > 1 else ""
    others = "".join(f" (stage {number} {print_mesh(mesh)})" for number, mesh in place.others)
    turns = f"{layout.num_microbatches} microbatch{'es' if layout.num_microbatches > 1 else ''}"
    how = f", {kind_name(layout.schedule)}{f' {layout.chunks}' if layout.chunks > 1 else ''}" if place.num_stages > 1 else ""
    return f"{stages}{print_mesh(place.mesh)}{others}, {turns}{how}"


def layout_ranks(layout: Layout) -> tuple[int, ...]:
    """Which stage runs each chunk."""
    return chunk_ranks(layout.schedule, layout.place.num_stages, layout.chunks)


def list_places(num_devices: int, devices_per_host: int, num_units: int, constraints: Constraints, spare: int = 1) -> tuple[Place, ...]:
    """Every number of stages that the devices and the units allow, and every dp x tp inside, tp within a host unless its degree is named; sp as it is named.

    Args:
        spare: so many times as many devices as there are split anything.
    """
    degrees = dict(constraints.degrees)
    needed, sp = _needed_roles(constraints), degrees.get(SEQUENCE, 1)
    found = []
    for stages in divisors(num_devices):
        inside = num_devices // stages
        if inside % (spare * sp):
            continue
        if not least_stages(constraints) <= stages <= num_units or degrees.get(PIPELINE, stages) != stages or (inside % devices_per_host and devices_per_host % inside):
            continue
        for tp in divisors(inside // spare // sp):
            dp = inside // spare // sp // tp
            near = devices_per_host % tp == 0
            if degrees.get(TENSOR, tp) != tp or degrees.get(DATA, dp) != dp or not (near or TENSOR in degrees):
                continue
            rows = {row.number: row for row in constraints.stage_degrees}
            every = all(s in rows for s in range(stages))  # then no stage is left to be divided as the others
            if rows and (any(row.dp * row.tp != inside for row in rows.values()) or spare * sp > 1 or (every and tp != rows[0].tp)):
                continue
            if dp % (constraints.dp_shard or 1):
                continue
            if any({DATA: dp, TENSOR: tp, SEQUENCE: sp, PIPELINE: stages}.get(role, 1) == 1 for role in needed) or (constraints.only is not None and tp > 1):
                continue
            axes = [MeshAxis(SPARE, spare, "inside" if devices_per_host % inside == 0 else "across")] if spare > 1 else []
            axes += list_data_axes(dp, constraints.dp_shard or dp, tp * sp, devices_per_host)
            axes += [MeshAxis(SEQUENCE, sp, "inside" if devices_per_host % (tp * sp) == 0 else "across")] if sp > 1 else []
            axes += [MeshAxis(TENSOR, tp, "inside" if near else "across")] if tp > 1 else []
            if not rows:
                found.append(Place(stages, Mesh(tuple(axes))))
            elif (meshes := _divide(inside, (tp, *(row.tp for row in rows.values())), devices_per_host)) is not None:
                found.append(Place(stages, meshes[0], tuple((number, mesh) for number, mesh in zip(rows, meshes[1:]) if mesh != meshes[0])))
    return tuple(found)


def list_data_axes(dp: int, group: int, inner: int, devices_per_host: int) -> list[MeshAxis]:
    """The axes of `dp` ranks of which so many neighbours are a group: one where that is all of them, none of one rank.

    Args:
        inner: ranks inside of a step of dp.
    """

    def axis(name: str, size: int, inside: int) -> list[MeshAxis]:
        return [MeshAxis(name, size, "inside" if devices_per_host % inside == 0 else "across")] if size > 1 else []

    if group == dp:
        return axis(DATA, dp, inner * dp)
    return [*axis(DATA, dp // group, inner * dp), *axis(GROUP, group, inner * group)]


def vary_place(place: Place, tps: Sequence[int], devices_per_host: int) -> Place | None:
    """The place with so many ranks of tp on each stage, the closest ones, and dp along the others; None where these are all the same, or no grid of ranks has all."""
    usual = max(tps, key=tps.count)
    meshes = _divide(num_ranks(place.mesh), (usual, *tps), devices_per_host)
    if meshes is None or len(set(tps)) == 1:
        return None
    return Place(place.num_stages, meshes[0], tuple((stage, mesh) for stage, mesh in enumerate(meshes[1:]) if mesh != meshes[0]))


def divide_stage(ranks: int, devices_per_host: int) -> dict[int, Mesh]:
    """Every number of ranks of tp within a host -> the mesh of a stage with that."""
    found = {tp: _divide(ranks, (tp,), devices_per_host) for tp in divisors(gcd(ranks, devices_per_host))}
    return {tp: meshes[0] for tp, meshes in found.items() if meshes is not None}


def _divide(ranks: int, tps: Sequence[int], devices_per_host: int) -> tuple[Mesh, ...] | None:
    """One grid of ranks as several meshes, with so many ranks of tp each, the closest ones; None where there is no such grid: one must divide the next."""
    steps = sorted({1, *tps, ranks})
    if any(b % a for a, b in zip(steps, steps[1:])):
        return None
    rows = [(b // a, b, "inside" if devices_per_host % b == 0 else "across") for a, b in zip(steps, steps[1:])][::-1]
    found = []
    for tp in tps:
        count: dict[str, int] = {}
        axes = []
        for size, inner, link in rows:
            role = TENSOR if inner <= tp else DATA
            count[role] = count.get(role, 0) + 1
            axes.append(MeshAxis(role if count[role] == 1 else f"{role}_{count[role]}", size, link))
        found.append(Mesh(tuple(axes)))
    return tuple(found)


def _needed_roles(constraints: Constraints) -> frozenset[str]:
    """Roles that a layout must have."""
    found = [*constraints.require, *(role for role, degree in constraints.degrees if degree > 1), *(pin.on for pin in constraints.pins if pin.on in ROLES)]
    found += [DATA] * bool(constraints.zero) + [TENSOR] * bool(constraints.sequence_parallel)
    found += [PIPELINE] * ((constraints.vpp or 1) > 1 or constraints.schedule is not None or least_stages(constraints) > 1)
    return frozenset(found)


def least_stages(constraints: Constraints) -> int:
    """As many as it takes to have those that are named."""
    return max([1, *(row.stage + 1 for row in constraints.module_stages), *(max(2, row.number + 1) for row in constraints.stage_degrees)])


def list_turns(place: Place, batch: int, constraints: Constraints) -> tuple[int, ...]:
    """Every number of microbatches of which each rank of dp gets the same number of samples."""
    dp, most = data_degree(place.mesh), max(map(data_degree, place.meshes))  # the others divide the largest
    if batch % most:
        return ()
    count, size = constraints.microbatches, constraints.microbatch
    return tuple(n for n in divisors(batch // most) if count in (None, n) and (size is None or n * dp * size == batch))


def num_samples(roles: Roles) -> int:
    """By which dp and turns must divide: of several inputs what their batches have in common; 1 where nothing is a batch (a model of one sample)."""
    return gcd(*(size for _, _, size in roles.batch)) or 1


def working_ranks(place: Place) -> int:
    """Ranks of a stage that do not all do the same."""
    return num_ranks(working_mesh(place))


def working_mesh(place: Place) -> Mesh:
    """The mesh of a stage without its spare axis."""
    return Mesh(tuple(a for a in place.mesh.axes if a.name != SPARE))


def data_degree(mesh: Mesh) -> int:
    """Ranks of a stage that divide the batch."""
    return prod(a.size for a in mesh.axes if axis_role(a.name) == DATA)


def tensor_degree(mesh: Mesh) -> int:
    """Ranks of a stage that divide anything but the batch."""
    return prod(a.size for a in mesh.axes if axis_role(a.name) == TENSOR)


def list_schedules(place: Place, turns: int, num_units: int, constraints: Constraints, trains: bool = True) -> Iterator[Layout]:
    """The schedules of a place: the named one, else 1F1B and interleaved; of a model that is not trained the forward alone, in any number of chunks."""
    if place.num_stages == 1:
        yield Layout(place, turns)
        return
    asked, chunks = constraints.schedule, constraints.vpp
    named = ("interleaved",) if chunks and chunks > 1 else ("1f1b",) if chunks == 1 else ("1f1b", "interleaved")
    for kind in (asked,) if asked else named if trains else (FORWARD_ONLY,):
        if runs_backward(kind) is not trains:
            continue
        most = num_units // place.num_stages
        if is_grid(kind) or chunks is not None:  # told
            counts = range(1, most + 1)
        else:
            counts = range(1, min(most, _MOST_CHUNKS if kind in (*IN_CHUNKS, FORWARD_ONLY) else 1) + 1)
        for count in counts:
            if chunks not in (None, count):
                continue
            if why_impossible(kind, place.num_stages, turns, count) is None:
                yield Layout(place, turns, kind, count)


def least_seconds(layout: Layout, turn_s: float, extra_s: float = 0.0) -> float:
    """No pipeline is faster that needs `turn_s` for one microbatch on all stages together, wherever the cuts are.

    Stage s runs all M microbatches, after the stages before it have run their first forward and before they run their last backward:
    M t_s + sum of t_i before it. The largest of these is least where all are equal: M T / (M - M (1 - 1/M)^S), with T = sum of t_s. Of v interleaved
    chunks a rank `_least_in_chunks` says it. With other chunks, or a backward that is split, only M T / S holds; so it does with what stages do once, beside which others may drain.

    Args:
        extra_s: of all stages together, once per step.
    """
    count, stages = layout.num_microbatches, layout.place.num_stages
    if stages == 1:
        return count * turn_s + extra_s
    plain = (count * turn_s + extra_s) / stages
    if splits_backward(layout.schedule) or (layout.chunks > 1 and layout.schedule != "interleaved"):
        return plain
    if layout.chunks > 1:
        return max(plain, turn_s * _least_in_chunks(stages, count, layout.chunks))
    return max(plain, turn_s / (1.0 - (1.0 - 1.0 / count) ** stages))


@lru_cache(maxsize=1 << 12)
def _least_in_chunks(stages: int, count: int, chunks: int) -> float:
    """What one second of a microbatch on all stages together costs a step at least, in v interleaved chunks a rank, however long each of them is.

    For each chunk c, of rank s: a microbatch comes through all chunks before it; from then on rank s runs whatever it runs, but for the S forwards of each of its earlier chunks that came
    before, and the S backwards of each that come after; then the last microbatch goes back through the chunks before c. The average of these paths by weights w is a bound. It
    counts two chunks of one rank, c - S and c, equally often where w_c is the mean of the S - 1 weights before it; so the weights of the first chunks give all others,
    and are those with which all ranks count equally often. That is a little more than 1 / (v - v (1 - 1/(v M))^S), which holds for equal chunks.
    """
    weights = np.eye(stages * chunks, stages)  # of each chunk, by those of the first of each rank
    for c in range(stages, stages * chunks):
        weights[c] = weights[c - stages + 1 : c].mean(axis=0)
    last = weights[-stages:]
    after = np.cumsum(last[::-1], axis=0)[::-1] - last  # of the chunks behind
    counts = count * weights.reshape(chunks, stages, stages).sum(axis=0) + after  # of the last chunk of each rank, so of all
    found = weights @ np.linalg.solve(counts, np.ones(stages))
    return float(1.0 / found.sum()) if found.min() >= 0 else count / stages


def turn_weight(layout: Layout) -> float:
    """What a second of each microbatch on the slowest stage adds to the step: its own turns and the fill and drain of equal stages."""
    return layout.num_microbatches + (layout.place.num_stages - 1) / layout.chunks


def divisors(number: int) -> Iterator[int]:
    """In ascending order."""
    return (d for d in range(1, number + 1) if number % d == 0)


def inner_constraints(constraints: Constraints, mesh: Mesh) -> Constraints:
    """What holds inside of a stage: the degrees of its axes, and what the user said of everything else."""
    sizes = {role: prod(a.size for a in mesh.axes if axis_role(a.name) == role) for role in (DATA, TENSOR, SEQUENCE)}
    degrees = tuple((role, size) for role, size in sizes.items())
    return replace(constraints, degrees=degrees, microbatch=None, microbatches=None, schedule=None, vpp=None, only=None, require=(), module_stages=(), stage_degrees=())


def stage_roles(
    roles: Roles, names: dict[str, int], nodes: tuple[tuple[str, str, tuple[str, ...]], ...], renamed: dict[str, str]
) -> Roles:
    """The roles of a graph that is part of another.

    Args:
        names: node of the other graph -> its number.
        nodes: (own name, name in the other graph, all values around it) of each node of the part.
        renamed: value of the part -> value of the other graph, where the names differ.
    """
    pieces = {**roles.pieces, **{new: roles.pieces[old] for new, old in renamed.items() if old in roles.pieces}}
    splits = []
    for _, name, around in nodes:
        if name in names:
            splits.append(roles.splits[names[name]])
        else:
            splits.append(frozenset(role for value in around for *_, role in pieces.get(value, ())))
    of_params = frozenset(k for k, (_, name, _) in enumerate(nodes) if names.get(name, -1) in roles.of_params)
    samples, featured = (frozenset(own for own, name, _ in nodes if name in some) for some in (roles.samples, roles.featured))
    return Roles(pieces, tuple(splits), of_params, roles.batch, roles.sequence, samples, featured)
