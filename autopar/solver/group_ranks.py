"""The ranks of dp in groups: layouts whose axis of dp spans hosts, with that axis as two, one among hosts and one inside of them.

In: a layout. Out: the same with the ranks of dp on one host as an axis of their own, along which states may be cut that each host then holds once more (HSDP), gradients
reduced inside first, parameters gathered inside alone. What the one axis does, the two can do; their search takes longer, so that they are tried for the best layouts only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ..constraints import DATA, Constraints
from ..graph.mesh import Mesh
from .layout_prices import Tier
from .layouts import GROUP, Layout, Place, list_data_axes
from .open_layouts import Open

_MOST_GROUPED = 6
_FAR_GROUPED = 1.25  # times the best plan


def may_group_ranks(constraints: Constraints) -> bool:
    """Nobody said how far states are cut."""
    return constraints.zero is None and not constraints.stage_degrees and not constraints.pins


def is_plain(layout: Layout) -> bool:
    """One stage and one microbatch: any mesh is searched for such plans."""
    return layout.place.num_stages == 1 and layout.num_microbatches == 1


def group_place(place: Place, devices_per_host: int) -> Place | None:
    """The place with dp among hosts and inside of them; None where dp is no single axis that spans hosts, or has one rank on each."""
    axes = place.mesh.axes
    at = next((k for k, axis in enumerate(axes) if axis.name == DATA), None)
    if at is None or place.others:
        return None
    inner = prod(axis.size for axis in axes[at + 1 :])
    near = devices_per_host // inner
    if devices_per_host % inner or near < 2 or axes[at].size <= near or axes[at].size % near:
        return None
    return Place(place.num_stages, Mesh((*axes[:at], *list_data_axes(axes[at].size, near, inner, devices_per_host), *axes[at + 1 :])))


def list_groupable(every: Sequence[Open], best_s: float, devices_per_host: int) -> list[Layout]:
    """The best layouts with dp in groups, those of the largest groups first, which spare the network most: two for each number of stages and the axes inside.

    Args:
        every: all that are known.
        best_s: seconds of the best plan.
    """
    rows = sorted((e for e in every if not e.gone and e.tier is not Tier.NONE and e.likely_s <= _FAR_GROUPED * best_s), key=lambda e: e.likely_s)
    taken: dict[Place, int] = {}
    found = []
    for each in rows:
        place = group_place(each.layout.place, devices_per_host)
        if place is not None and not is_plain(each.layout) and taken.get(place, 0) < 2:
            taken[place] = taken.get(place, 0) + 1
            found.append(replace(each.layout, place=place))
    return sorted(found, key=lambda layout: -_group_size(layout.place))[:_MOST_GROUPED]


def _group_size(place: Place) -> int:
    return next(axis.size for axis in place.mesh.axes if axis.name == GROUP)
