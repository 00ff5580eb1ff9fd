"""Links of the user's own: what a collective takes over a link that is no preset, from what it takes over the presets.

In: a `CommTable` with such a link, and what each preset in its place comes to. Out: a curve. Invariants: with a preset's figures it is that preset's; more bandwidth or less latency never
makes it slower, wherever both lie.

    between    the middle of the most and the least that agree with the presets: from each preset seconds fall towards every better one along straight lines, and rise towards
               every worse one; of what this link is worse in than a preset, they rise as steeply as they do between any two. Distances are octaves of
               bandwidth and latency together; one of latency counts as much as a small message's seconds are of a message's (`_LEAST_LATENCY` at least)
    wire       never less than what is sent takes at the link's own bandwidth (`port_bytes`), but for what presets of about its bandwidth are below that (NVLS)
    beyond     above the presets' bandwidths the bytes of the fastest take as much less; over their largest latency each hop takes so much longer
    below      below the slowest preset's bandwidth its own figures say it (by formula, as of that preset), but no less than what that comes to
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, log2

import numpy as np

from ..cluster import Link, list_links
from .comm_table import CommTable, is_mesh, is_measured_network, table_with
from .curves import Knots, move_knots, raise_knots
from .link_order import is_preset, is_slower, oversubscribe
from .port_bytes import Group, port_bytes

_LOG_BYTES = np.log(2.0) * np.arange(3, 41, 0.5)
_APART = 0.3  # octaves: links that are nearer than that do not say how steeply seconds rise
_LEAST_LATENCY = 0.1  # of an octave of bandwidth counts one of latency at least, however large the message: presets that differ by nothing else are apart (assumption)
_NO_LATENCY = 1e-9
_LOCAL = "loopback"

Figures = tuple[float, ...]  # octaves: bandwidth, and latency downwards, of each link that is the user's own
Paths = tuple[np.ndarray, np.ndarray]  # octaves from each preset, increasing, and how far seconds have gone there, by preset, place and size


@dataclass(frozen=True, slots=True, eq=False)
class Presets:
    """What presets say of links in the places of the user's own, for one kind of one group.

    Args:
        places, known: figures by preset; logarithms of seconds by preset and size.
        weights: of an octave of each figure, by size.
        steep: what seconds rise by at most, per octave, by size.
        falls, climbs: from each preset towards better and worse ones.
        reached: by preset, what sends take at least, in seconds per byte, and how many times that they take.
    """

    places: np.ndarray
    known: np.ndarray
    weights: np.ndarray
    steep: np.ndarray
    falls: Paths
    climbs: Paths
    reached: tuple[tuple[float, float], ...]


def is_own(table: CommTable, across: bool) -> bool:
    """True where a link that the group goes over is no preset."""
    return not is_preset(table.inside) or (across and not is_preset(table.across))


@lru_cache(maxsize=4096)
def preset_tables(table: CommTable, across: bool) -> tuple[CommTable, ...]:
    """With presets in place of what is the user's own: switches inside a host, networks as oversubscribed as its own."""
    presets = [link for link in list_links() if link.name != _LOCAL]
    networks = [oversubscribe(link, table.across.oversubscription) for link in presets if _is_network(link)]
    insides = [link for link in presets if not _is_network(link) and not is_mesh(link)]
    insides = [table.inside] if is_preset(table.inside) else insides
    networks = networks if across and not is_preset(table.across) else [table.across]
    insides, networks = ([link for link in links if not any(is_slower(other, link) and _same(other, link) for other in links)] for links in (insides, networks))
    return tuple(table_with(table, table.device, inside, network) for inside, network in product(insides, networks))


def surround(mine: tuple[bool, bool], kind: str, group: Group, presets: Sequence[tuple[CommTable, np.ndarray]]) -> Presets:
    """What the presets say of any link in the places of the user's own.

    Args:
        mine: `own_places`.
        presets: tables (`preset_tables`), and their seconds at the sizes of `knot_bytes`.
    """
    places = np.array([_figures(other, mine) for other, _ in presets])
    known = np.log(np.array([seconds for _, seconds in presets]))
    latency = np.maximum(_LEAST_LATENCY, np.exp(np.mean(known[:, :1] - known, 0)))  # of what a message takes, what a small one does
    weights = np.where(np.arange(places.shape[1])[:, None] % 2, latency, 1.0)
    lacks = np.maximum(0.0, places[None] - places[:, None])  # [preset, than preset, figure]
    apart = lacks @ weights  # octaves by size
    rises = np.where((lacks.sum(-1) >= _APART)[..., None], known[:, None] - known[None], 0.0) / np.maximum(apart, 1e-9)
    steep = np.maximum(0.0, rises.max((0, 1)))
    room = known[:, None] - known[None] + steep * np.swapaxes(apart, 0, 1)  # by how much each may fall until it meets each other one
    falls, climbs = _paths(apart, room, steep), _paths(np.swapaxes(apart, 0, 1), np.swapaxes(room, 0, 1), steep)
    wires = [wire_s_per_byte(other, mine, kind, group) for other, _ in presets]
    reached = tuple((wire, float(np.min(seconds / knot_bytes())) / wire) for wire, (_, seconds) in zip(wires, presets) if wire)
    return Presets(places, known, weights, steep, falls, climbs, reached)


def own_knots(table: CommTable, across: bool, hops: tuple[float, float], wire: float, presets: Presets) -> tuple[Knots, bool]:
    """The curve over a link of the user's own; and whether its own figures count where they say more.

    Args:
        hops: that a small message makes inside a host and between hosts.
        wire: `wire_s_per_byte` of the table itself.
    """
    low, high = np.min(presets.places, 0), np.max(presets.places, 0)
    whose = own_places(table, across)
    exact = _figures(table, whose)
    own, below = np.clip(exact, low, high), any(low[k] > exact[k] for k in range(0, len(exact), 2))
    knots = Knots(_LOG_BYTES, np.maximum.accumulate(_between(own, presets)))
    wider = 2.0 ** float(own[-2] - exact[-2])  # of the network, where the group goes over one
    if wider < 1 and not below and whose[1] == across:
        knots = move_knots(knots, 1.0, wider)
    links = [(link, hop) for link, hop, mine in zip((table.inside, table.across), hops, whose) if mine]
    extra = sum(hop * max(0.0, link.latency_s - 2.0 ** -float(low[2 * k + 1])) for k, (link, hop) in enumerate(links))
    if extra > 0:
        knots = Knots(knots.log_bytes, np.log(np.maximum(np.exp(knots.log_seconds) + extra, sum(hop * link.latency_s for link, hop in links))))
    least = wire * min([1.0, *(share * max(1.0, wire / there) for there, share in presets.reached)])
    return (raise_knots(knots, Knots(_LOG_BYTES, _LOG_BYTES + np.log(least)), inf) if least else knots), below


def wire_s_per_byte(table: CommTable, mine: tuple[bool, bool], kind: str, group: Group) -> float:
    """Seconds per byte that what is sent takes at least on the links that stand where the user's own do (`own_places`)."""
    carried = zip((table.inside, table.across), port_bytes(kind, group), mine)
    return max(carries / link.bandwidth_bytes_per_s for link, carries, counts in carried if counts)


def knot_bytes() -> np.ndarray:
    """The sizes by which presets are asked."""
    return np.exp(_LOG_BYTES)


def _same(link: Link, other: Link) -> bool:
    return (link.bandwidth_bytes_per_s, link.latency_s) == (other.bandwidth_bytes_per_s, other.latency_s)


def _is_network(link: Link) -> bool:
    return is_measured_network(link) or link.name.startswith("ethernet")


def own_places(table: CommTable, across: bool) -> tuple[bool, bool]:
    """Whether the link inside a host, and the one between hosts, are the user's own."""
    return not is_preset(table.inside), across and not is_preset(table.across)


def _figures(table: CommTable, mine: tuple[bool, bool]) -> Figures:
    """Of the links that stand where the user's own do."""
    links = [link for link, counts in zip((table.inside, table.across), mine) if counts]
    return tuple(figure for link in links for figure in (log2(link.bandwidth_bytes_per_s * link.oversubscription), -log2(max(link.latency_s, _NO_LATENCY))))


def _between(own: np.ndarray, presets: Presets) -> np.ndarray:
    """Logarithms of seconds at each size, of figures that are nowhere beyond the presets'."""
    worse, better = (np.maximum(0.0, off) @ presets.weights for off in (presets.places - own, own - presets.places))  # own is, than each preset
    most = presets.known + presets.steep * worse - _along(presets.falls, better)
    least = presets.known - presets.steep * better + _along(presets.climbs, worse)
    return (np.min(most, 0) + np.max(least, 0)) / 2


def _paths(apart: np.ndarray, room: np.ndarray, steep: np.ndarray) -> Paths:
    """From 0, along straight lines, never falling and no steeper than said: to no more than the room at each place.

    Args:
        apart, room: octaves, and most there, by preset, other preset and size.
    """
    order = np.argsort(apart, axis=1, kind="stable")
    places, most = np.take_along_axis(apart, order, 1), np.take_along_axis(room, order, 1)
    most = np.maximum(0.0, np.flip(np.minimum.accumulate(np.flip(most, 1), 1), 1))
    most[places <= 0] = 0.0
    return places, steep * places + np.minimum.accumulate(most - steep * places, 1)


def _along(paths: Paths, at: np.ndarray) -> np.ndarray:
    """Of each preset's path, at so many octaves by preset and size."""
    places, most = paths
    after = np.clip((places < at[:, None]).sum(1, keepdims=True), 1, places.shape[1] - 1)
    x0, x1, y0, y1 = (np.take_along_axis(values, place, 1)[:, 0] for values in (places, most) for place in (after - 1, after))
    return y0 + (y1 - y0) * np.clip((at - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0, 1.0)


__all__ = ["Presets", "is_own", "knot_bytes", "own_knots", "own_places", "preset_tables", "surround", "wire_s_per_byte"]
