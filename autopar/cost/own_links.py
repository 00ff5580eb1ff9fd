"""Links of the user's own: what a collective takes over a link that is no preset, from what it takes over the presets.

In: a `CommTable` with such a link, and what each preset in its place comes to. Out: a curve. Invariants: with a preset's figures it is that preset's; more bandwidth or less latency never
makes it slower, wherever both lie.

    between    of all that rises as steeply as the presets do, by how much worse one link is than another (`_worse`), the middle of the most and the least: at each size
               the least that a preset comes to with what this link is worse than it, and the most that one comes to without what it is worse than this link
    beyond     above the presets' bandwidths the bytes of the fastest take as much less; over their largest latency each hop takes so much longer
    below      below the slowest preset's bandwidth its own figures say it (by formula, as of that preset), but no less than what that comes to
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log2

import numpy as np

from ..cluster import Link, list_links
from .comm_table import CommTable, is_mesh, is_measured_network, table_with
from .curves import Knots, move_knots
from .link_order import is_preset, is_slower, oversubscribe

_LOG_BYTES = np.log(2.0) * np.arange(3, 41, 0.5)
_APART = 0.3  # octaves: links that are nearer than that do not say how steeply seconds rise
_NO_LATENCY = 1e-9
_LOCAL = "loopback"

Figures = tuple[float, ...]  # octaves: bandwidth, and latency downwards, of each link that is the user's own


def is_own(table: CommTable, across: bool) -> bool:
    """True where a link that the group goes over is no preset."""
    return not is_preset(table.inside) or (across and not is_preset(table.across))


def preset_tables(table: CommTable, across: bool) -> tuple[CommTable, ...]:
    """With presets in place of what is the user's own: switches inside a host, networks as oversubscribed as its own."""
    presets = [link for link in list_links() if link.name != _LOCAL]
    networks = [oversubscribe(link, table.across.oversubscription) for link in presets if _is_network(link)]
    insides = [link for link in presets if not _is_network(link) and not is_mesh(link)]
    insides = [table.inside] if is_preset(table.inside) else insides
    networks = networks if across and not is_preset(table.across) else [table.across]
    insides, networks = ([link for link in links if not any(is_slower(other, link) and _same(other, link) for other in links)] for links in (insides, networks))
    return tuple(table_with(table, table.device, inside, network) for inside, network in product(insides, networks))


def own_knots(table: CommTable, across: bool, hops: tuple[float, float], presets: Sequence[tuple[CommTable, np.ndarray]]) -> tuple[Knots, bool]:
    """The curve over a link of the user's own; and whether its own figures count where they say more.

    Args:
        hops: that a small message makes inside a host and between hosts.
        presets: tables (`preset_tables`), and their seconds at the sizes of `knot_bytes`.
    """
    places = [_figures(table, other, across) for other, _ in presets]
    known = np.log(np.array([seconds for _, seconds in presets]))
    low, high = np.min(places, 0), np.max(places, 0)
    exact = _figures(table, table, across)
    own, below = tuple(np.clip(exact, low, high)), any(low[k] > exact[k] for k in range(0, len(exact), 2))
    steep = np.zeros(len(_LOG_BYTES))
    for i, j in product(range(len(places)), repeat=2):
        if (apart := _worse(places[i], places[j])) >= _APART:
            steep = np.maximum(steep, (known[i] - known[j]) / apart)
    most = np.min([known[i] + steep * _worse(own, place) for i, place in enumerate(places)], 0)
    least = np.max([known[i] - steep * _worse(place, own) for i, place in enumerate(places)], 0)
    knots = Knots(_LOG_BYTES, np.maximum.accumulate((most + least) / 2))
    whose = _whose(table, across)
    wider = 2.0 ** float(own[-2] - exact[-2])  # of the network, where the group goes over one
    if wider < 1 and not below and whose[1] == across:
        knots = move_knots(knots, 1.0, wider)
    links = [(link, hop) for link, hop, mine in zip((table.inside, table.across), hops, whose) if mine]
    extra = sum(hop * max(0.0, link.latency_s - 2.0 ** -float(low[2 * k + 1])) for k, (link, hop) in enumerate(links))
    if extra > 0:
        knots = Knots(knots.log_bytes, np.log(np.maximum(np.exp(knots.log_seconds) + extra, sum(hop * link.latency_s for link, hop in links))))
    return knots, below


def knot_bytes() -> np.ndarray:
    """The sizes by which presets are asked."""
    return np.exp(_LOG_BYTES)


def _same(link: Link, other: Link) -> bool:
    return (link.bandwidth_bytes_per_s, link.latency_s) == (other.bandwidth_bytes_per_s, other.latency_s)


def _is_network(link: Link) -> bool:
    return is_measured_network(link) or link.name.startswith("ethernet")


def _whose(table: CommTable, across: bool) -> tuple[bool, bool]:
    """Whether the link inside a host, and the one between hosts, are the user's own."""
    return not is_preset(table.inside), across and not is_preset(table.across)


def _figures(table: CommTable, other: CommTable, across: bool) -> Figures:
    """Of the links of another table that stand where the user's own do in the first."""
    links = [link for link, mine in zip((other.inside, other.across), _whose(table, across)) if mine]
    return tuple(figure for link in links for figure in (log2(link.bandwidth_bytes_per_s * link.oversubscription), -log2(max(link.latency_s, _NO_LATENCY))))


def _worse(place: Figures, than: Figures) -> float:
    """How far one is below another, in octaves of all figures together."""
    return float(sum(max(0.0, there - here) for here, there in zip(place, than)))


__all__ = ["is_own", "knot_bytes", "own_knots", "preset_tables"]
