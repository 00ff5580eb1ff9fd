"""Which tables price a collective no faster than another, and which no slower: the order of links by their own figures.

In: a `CommTable`. Out: the tables below or above it in that order, with the same ports and the same curves. A link is no faster than another where it
has no more bandwidth and no less latency; links with the same figures and a mesh beside a switch are in no order. Of links of the
user's own see `cost.own_links`. Knows neither groups nor bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..cluster import Link, list_links
from .comm_table import SHAPE_OF, CommTable, is_cube, is_measured_network, is_mesh, table_with
from .curves import Curve


def is_slower(link: Link, than: Link) -> bool:
    """By nominal figures: no better in any, worse in one; or the same, and the other one borrows its shape (a rack has more devices on the switch)."""
    ours, theirs = _figures(link), _figures(than)
    return all(a <= b for a, b in zip(ours, theirs)) and (ours != theirs or link.name in SHAPE_OF.get(than.name, ()))


@lru_cache(maxsize=4096)
def slower_tables(table: CommTable, across: bool) -> tuple[CommTable, ...]:
    """Of the links inside that are slower, with each device that was measured on them, and, across hosts, of the networks that are: all pairs, but for the table itself."""
    if not _is_ordered(table, across):
        return ()
    own = next((device for device in _owners(table, table.inside) if table.device.startswith(device)), "")
    below = [] if is_mesh(table.inside) else [link for link in _insides(table) if is_slower(link, table.inside)]
    insides = [(own, table.inside)] + [(device, link) for link in below for device in _owners(table, link)]
    networks = [table.across] + [link for link in _networks(table) if across and is_slower(link, table.across)]
    return tuple(table_with(table, device, inside, network) for device, inside in insides for network in networks)[1:]


@lru_cache(maxsize=4096)
def faster_tables(table: CommTable, across: bool) -> tuple[CommTable, ...]:
    """Of links that no curve stands for: the slowest of those with curves that are no slower."""
    known = has_curves(table, table.inside) or is_mesh(table.inside)
    insides = [table.inside] if known else _slowest(_no_slower(_insides(table), table.inside))
    networks = [table.across]
    if across and not is_measured_network(table.across):
        networks = _slowest(_no_slower(_networks(table), table.across))
    if known and networks == [table.across]:
        return ()
    return tuple(table_with(table, table.device, inside, network) for inside in insides or [table.inside] for network in networks or [table.across] if (inside, network) != (table.inside, table.across))


def _no_slower(links: Sequence[Link], link: Link) -> list[Link]:
    """Those that the figures of a link do not exceed."""
    return [other for other in links if is_slower(link, other)]


def oversubscribe(link: Link, ratio: float) -> Link:
    """A network's port where so many times what it carries is asked of it at once."""
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / ratio, oversubscription=ratio)


def is_preset(link: Link) -> bool:
    """Not of the user's own figures."""
    return any(link.name == preset.name for preset in list_links())


def has_curves(table: CommTable, link: Link) -> bool:
    """Measured curves may stand for a link inside a host."""
    return any(c.inside in (link.name, *SHAPE_OF.get(link.name, ())) for c in table.known.every)


def is_as_fast(curve: Curve, link: Link) -> bool:
    """A curve's link inside the host is no slower than another."""
    inside = next((preset for preset in list_links() if preset.name == curve.inside), None)
    if inside is None or is_mesh(inside) != is_mesh(link) and not (is_cube(link) and not is_mesh(inside)):  # a cube carries no more than a switch of as many links
        return False
    return inside.name == link.name or is_slower(link, inside)


def _figures(link: Link) -> tuple[float, float]:
    return float(f"{link.bandwidth_bytes_per_s * link.oversubscription:.9g}"), -link.latency_s  # a quotient times its divisor is not quite what was divided


def _is_ordered(table: CommTable, across: bool) -> bool:
    return is_preset(table.inside) and (not across or is_preset(table.across))


def _insides(table: CommTable) -> list[Link]:
    """Presets inside a host that curves may stand for."""
    return [link for link in list_links() if not is_mesh(link) and has_curves(table, link)]


def _networks(table: CommTable) -> list[Link]:
    """Presets between hosts that curves may stand for, as oversubscribed as the table's."""
    return [oversubscribe(link, table.across.oversubscription) for link in list_links() if is_measured_network(link)]


def _owners(table: CommTable, link: Link) -> list[str]:
    """Devices with curves of a link; a device without has the first one's."""
    return list(dict.fromkeys(c.device for c in table.known.every if c.inside == link.name)) or [""]


def _slowest(links: Sequence[Link]) -> list[Link]:
    return [link for link in links if not any(is_slower(other, link) for other in links)]
