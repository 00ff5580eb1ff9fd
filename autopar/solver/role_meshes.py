"""Meshes whose axes have roles: every way to give the degrees that a user named to the axes of a mesh.

In: meshes, constraints, what roles the model has. Out: meshes in which an axis with a role is named by it (`dp`, `tp`, a second one `dp_2`) and
the others keep their names. A role's degree is the product of its axes. Where no role is named the meshes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import log, prod

from ..constraints import DATA, PIPELINE, ROLES, SEQUENCE, TENSOR, Constraints, axis_role
from ..errors import ConstraintError
from ..graph.mesh import Mesh, num_ranks
from ..graph.roles import Roles

_MOST_SHOWN = 4
_WORDS = {DATA: "batch", SEQUENCE: "sequence"}


SPARE = "spare"  # an axis along which all ranks do the same: what a model is too small to be split among


def data_axes(mesh: Mesh) -> tuple[int, ...]:
    """The axes of dp, by index."""
    return tuple(k for k, axis in enumerate(mesh.axes) if axis_role(axis.name) == DATA)


def cut_axes(mesh: Mesh, constraints: Constraints) -> tuple[int, ...] | None:
    """The axes of dp along which ZeRO cuts: all, or the innermost that make `dp_shard` ranks together; None where none make so many."""
    axes = data_axes(mesh)
    if constraints.dp_shard is None:
        return axes
    ends = (axes[k:] for k in range(len(axes)))
    return next((end for end in ends if prod(mesh.axes[a].size for a in end) == constraints.dp_shard), None)


def named_degrees(constraints: Constraints, ranks: int) -> dict[str, int]:
    """Role -> degree where the user said one; 1: no axis has it."""
    found = {role: degree for role, degree in constraints.degrees if role != PIPELINE}
    if constraints.only is not None:
        found = {TENSOR: 1, SEQUENCE: 1, **found, DATA: found.get(DATA, ranks)}
    return found


def rest_roles(constraints: Constraints, roles: Roles, ranks: int) -> tuple[str, ...]:
    """What an axis without a role of its own may do: every role of the model that no word is about."""
    taken = {*named_degrees(constraints, ranks), *_needed(constraints), *_spoken(constraints)}
    return tuple(role for role in roles.available() if role not in taken)


def _needed(constraints: Constraints) -> tuple[str, ...]:
    """Roles that must have an axis although no degree is named."""
    found = [*constraints.require, *(pin.on for pin in constraints.pins if pin.on in ROLES)]
    found += [DATA] * bool(constraints.zero) + [TENSOR] * bool(constraints.sequence_parallel)
    return tuple(dict.fromkeys(found))


def _spoken(constraints: Constraints) -> tuple[str, ...]:
    """Roles of which it must be known which axes have them, if any."""
    return (*((DATA,) if constraints.zero is not None else ()), *((TENSOR,) if constraints.sequence_parallel is not None else ()))


def label_meshes(meshes: Sequence[Mesh], constraints: Constraints, roles: Roles) -> tuple[Mesh, ...]:
    """The meshes to search.

    Args:
        meshes: all of the same number of ranks.
    Raises:
        ConstraintError: the model lacks a role, its batch does not divide, or the degrees do not multiply to the ranks.
    """
    ranks = num_ranks(meshes[0])
    degrees = named_degrees(constraints, ranks)
    needed = tuple(role for role in _needed(constraints) if role not in degrees)
    open_ = tuple(role for role in _spoken(constraints) if role not in degrees)  # of whatever degree, 1 included
    labels = [role for role in (DATA, TENSOR, SEQUENCE) if degrees.get(role, 1) > 1 or role in needed or role in open_]
    check_sequence(constraints, roles)
    for role in labels:
        if role not in roles.available():
            if role in needed or role in degrees:
                raise ConstraintError(_why_missing(role, f"{role}={degrees[role]}" if role in degrees else f"an axis of {role}"))
    labels = [role for role in labels if role in roles.available()]
    _check_sizes(degrees, roles, ranks)
    rest = rest_roles(constraints, roles, ranks)
    found: dict[tuple, Mesh] = {}
    for mesh in meshes:
        for names in product([*labels, *([""] if rest or not labels else [])], repeat=len(mesh.axes)):
            own = {role: prod(a.size for a, name in zip(mesh.axes, names) if name == role) for role in labels}
            fits = all(own.get(role, 1) == degree for role, degree in degrees.items()) and all(own[role] > 1 for role in needed)
            if fits and all(not _why_size(role, degree, roles) for role, degree in own.items()):
                named = _rename(mesh, names)
                cut = cut_axes(named, constraints)
                if cut is not None:
                    found.setdefault(_kind(mesh, [f"{name}, cut" if k in cut and constraints.dp_shard else name for k, name in enumerate(names)]), named)
    if not rest and not labels and ranks > 1:
        raise ConstraintError(f"{_print(degrees)}: no role is left for the {ranks} ranks of the cluster; leave one of them free")
    if not found and constraints.dp_shard is not None:
        free = label_meshes(meshes, replace(constraints, dp_shard=None), roles)  # which says what else is wrong
        raise ConstraintError(_why_no_groups(constraints.dp_shard, free))
    if not found:
        raise ConstraintError(_why_none(degrees, needed, ranks, rest, roles))
    return tuple(found.values())


def _why_no_groups(number: int, meshes: Sequence[Mesh]) -> str:
    """Of a number of ranks that share states: what else it could be. Args: meshes: those that there are without it."""
    sizes = [[mesh.axes[a].size for a in data_axes(mesh)] for mesh in meshes]
    fits = sorted({prod(row[k:]) for row in sizes for k in range(len(row))})
    return f"dp_shard={number}: no mesh of this cluster has groups of {number} neighbours among the ranks of dp; expected one of {', '.join(map(str, fits))}, or another dp"


def _kind(mesh: Mesh, names: Sequence[str]) -> tuple:
    """Equal for meshes that differ by the order of their axes alone; between hosts it counts how many ranks lie inside of a step of the axis."""
    inner = [prod(a.size for a in mesh.axes[k + 1 :]) for k in range(len(mesh.axes))]
    return tuple(sorted((role, a.size, a.link, 0 if a.link == "inside" else step) for role, a, step in zip(names, mesh.axes, inner)))


def _rename(mesh: Mesh, names: Sequence[str]) -> Mesh:
    count: dict[str, int] = {}
    axes = []
    for axis, role in zip(mesh.axes, names):
        if role:
            count[role] = count.get(role, 0) + 1
            axis = replace(axis, name=role if count[role] == 1 else f"{role}_{count[role]}")
        axes.append(axis)
    return Mesh(tuple(axes))


def _print(degrees: Mapping[str, int]) -> str:
    return ", ".join(f"{role}={degree}" for role, degree in degrees.items())


def check_sequence(constraints: Constraints, roles: Roles) -> None:
    """Words about the sequence are for models that have one, whatever the mesh. Without one `sequence_parallel` would split what every op has, its features, to the harm of all.

    Raises:
        ConstraintError: the model has none.
    """
    if not roles.sequence and constraints.sequence_parallel:
        raise ConstraintError(_why_missing(SEQUENCE, "sequence_parallel=1"))
    if not roles.sequence and (degree := dict(constraints.degrees).get(SEQUENCE, 1)) > 1:
        raise ConstraintError(_why_missing(SEQUENCE, f"{SEQUENCE}={degree}"))


def _why_missing(role: str, said: str) -> str:
    why = "no dim of its batch inputs is one (docs/constraints.md says how it is found)"
    return f"{said}: the model has no {_WORDS[role]} to split: {why}; leave it out"


def _why_size(role: str, degree: int, roles: Roles) -> str:
    """Why the batch or the sequence cannot be split among so many ranks: "" where it can."""
    places = roles.batch if role == DATA else roles.sequence if role == SEQUENCE else ()
    wrong = [place for place in places if place[2] % degree]
    if not wrong or (role == SEQUENCE and len(wrong) < len(places)):
        return ""
    name, dim, size = wrong[0]
    return f"the {_WORDS[role]} has size {size} (dim {dim} of {name}), which does not divide by {degree}"


def _check_sizes(degrees: Mapping[str, int], roles: Roles, ranks: int) -> None:
    for role, degree in degrees.items():
        why = _why_size(role, degree, roles)
        if why:
            size = (roles.batch if role == DATA else roles.sequence)[0][2]
            fits = ", ".join(f"{role}={d}" for d in _divisors(size) if d > 1 and ranks % d == 0) or f"{role}=1"
            raise ConstraintError(f"{role}={degree}: {why}; what divides it: {fits}, or give another --batch or --seq")


def _divisors(number: int) -> Iterator[int]:
    return (d for d in range(1, number + 1) if number % d == 0)


def _why_none(degrees: Mapping[str, int], needed: Sequence[str], ranks: int, rest: Sequence[str], roles: Roles) -> str:
    large = {role: degree for role, degree in degrees.items() if degree > 1}
    total = prod(large.values())
    said = " x ".join([*(f"{role}={degree}" for role, degree in large.items()), *(f"{role} (2 or more)" for role in needed)])
    free = [*needed, *(role for role in rest)]
    fits = []
    for choice in product(*(tuple(_divisors(ranks)) for _ in large)):
        own = dict(zip(large, choice))
        left = ranks // prod(choice) if ranks % prod(choice) == 0 else 0
        enough = left >= 2 ** len(needed) and (free or left == 1)
        if left and enough and all(d > 1 for d in choice) and not any(_why_size(role, d, roles) for role, d in own.items()):
            fits.append((sum(abs(log(d / large[role])) for role, d in own.items()), own))
    fits.sort(key=lambda item: item[0])
    shown = "; ".join(_print(own).replace(", ", ",") for _, own in fits[:_MOST_SHOWN])
    leave = "leave it out" if len(degrees) + len(needed) == 1 else "leave one of them out"
    cure = f"what fits: {shown}; or {leave}" if shown else leave
    wrong = f"{'make' if len(large) + len(needed) > 1 else 'makes'} {total} ranks, the cluster has {ranks}"
    if total < ranks and not free:
        wrong += ", and no other role may take the rest"
    elif total <= ranks:
        wrong = f"cannot be laid out on the {ranks} ranks of the cluster"
    return f"{said} {wrong}; {cure}"
