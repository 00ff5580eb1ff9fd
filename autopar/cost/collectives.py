"""Collectives: seconds by bytes, group and network, from measured curves where there are any, else from formulas.

In: a `CommTable`: links and measured curves. Out: seconds; where they come from; how far outside of what was measured they lie. Bytes are
nccl-tests' (see `cost.curves`). Invariants: seconds are continuous in bytes, never negative, never falling. One
latency plus one bandwidth leaves 11-31 % error on an all-reduce by size: hence curves. A curve's seconds include the start of the kernel;
the formula's do not.

    measured group     a straight line between measured rows, logarithm over logarithm; smaller and larger sizes follow the curve below
    other group        the nearest full curve moved (`move_knots`): small messages by latency, large ones by bytes over bus bandwidth
    bus bandwidth      inside: of the nearest measured group; a ring through a switch reaches the same at any size, a mesh (xgmi, V100's
                       cube) what the links among its ranks carry. NVLS lifts the all_reduce of large groups only: it is in the rows. The others take the ring's.
                       across: the smaller of the inside figure and the NICs that the group drives, times what the nearest group on a like
                       network reached of that
    latency            of NCCL's model: its base, and hops of a ring or a tree (`_latency`)
    no curve           latency + bytes / bandwidth with the link's own figures: the faster of ring and tree, pairwise exchange; a link of the user's own has a
                       curve made of the presets' (`cost.own_links`)

Laws between presets, for the same group and kind at any size, within 2 % (`_ordered_way`; the order of links: `cost.link_order`):

    links      one with at least the bandwidth and at most the latency of another is no slower, inside a host or between hosts
    devices    one with a faster link inside, on the same network, is no slower; of equal links each has its own rows of large messages
    ports      more of them on a host are no slower than each smaller power of two (`_fewer_ports`)
    halves     an all_gather or reduce_scatter across hosts is no dearer than the all_reduce that it is half of

They hold by construction: seconds are the least of what the slower links come to, each at least what rows of a faster one say of the same ranks or fewer
(`_floors`); a link that no curve stands for (PCIe, Ethernet) takes at least what the slowest faster one with curves does. Rows of the group itself stand.

Sources. Formulas: Thakur, Rabenseifner, Gropp 2005, sections 3-4. Hops, base latency, two hosts: NCCL, `src/graph/tuning.cc`. Rows:
`data/collectives.csv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, log, log2

import numpy as np

from ..errors import ClusterError
from .comm_table import SHAPE_OF, CommTable, CurveSet, is_mesh, link_share, mesh_share
from .curves import (
    KINDS,
    Curve,
    Knots,
    bus_factor,
    cap_knots,
    case_of,
    continue_points,
    join_points,
    knots_seconds,
    move_knots,
    move_through,
    raise_knots,
    smooth_points,
    wait_bytes,
)
from .link_order import faster_tables, is_as_fast, is_preset, slower_tables
from .own_links import Presets, is_own, knot_bytes, own_knots, own_places, preset_tables, surround, wire_s_per_byte
from .port_bytes import Group

Line = tuple[float, float]  # seconds, seconds per byte

# NCCL's own model, LL protocol: base, a hop over NVLink, a ring's and a tree's hop over the network.
_BASE_S, _INSIDE_HOP_S, _RING_HOP_S, _TREE_HOP_S = 6.6e-6, 0.6e-6, 2.7e-6, 5.0e-6
# An all_to_all inside a host reaches 640 GB/s of bus bandwidth where the ring reaches 682 (B200).
_PAIRWISE_SHARE = 640 / 682
# One connection between two hosts reached 34.7 GB/s of a 50 GB/s port (send_recv, H100): a port up to that speed is filled.
_ONE_CONNECTION_BYTES_PER_S, _ONE_CONNECTION_SHARE = 34.7e9, 34.7 / 50
# A network is like another where a port has up to this many times its bandwidth: then what was reached of it counts, and its latency.
_LIKE = 1.5
_FULL = (2**18, 2**30)  # a curve that may stand for other groups reaches from 256 KiB to 1 GiB
_FLAT = 2**12  # a message of up to 4 KiB takes what one of 8 bytes does: 79 and 69 us, 169 and 164 (H100, A100; 16 ranks on two hosts)
_SLACK = 0.01  # what the same case comes to by the curves of two links
_PORTS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # more ports of a host are no slower than each of these that is fewer
_OTHER_DEVICE = 1e-3  # octaves: the device's own rows come first where the group is as near


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How one group does one kind: all that is left to say is bytes.

    Args:
        knots, lines: the larger counts of the curve and the fastest line; formulas have lines, and a curve of faster links that they do not undercut.
        low_bytes, high_bytes: between them it was measured, at this group or at the one that stands for it.
        stretch: how many times the group or the network differs from the measured one; 1: measured; infinity: no row.
    """

    knots: Knots | None
    lines: tuple[Line, ...]
    low_bytes: float
    high_bytes: float
    stretch: float
    source: str


def collective_seconds(
    table: CommTable, kind: str, ranks: int, per_host: int, sizes: np.ndarray | float, nics: float | None = None
) -> np.ndarray:
    """Seconds of one collective per entry of `sizes`.

    Args:
        kind: of `KINDS`.
        ranks: of the group; 2 for a send_recv.
        per_host: of them on one host. `ranks` in all: nothing leaves the host.
        sizes: bytes in nccl-tests' sense: all_reduce the buffer, all_gather the gathered whole, reduce_scatter the whole input,
            all_to_all one rank's buffer, send_recv the message.
        nics: ports per host that the group drives; None: those of its ranks on a host (`table.ports`). More where NVLink carries to other
            devices' ports (NCCL's PXN).
    """
    return way_seconds(collective_way(table, kind, ranks, per_host, nics), sizes)


def explain_collective(
    table: CommTable, kind: str, ranks: int, per_host: int, size: float, nics: float | None = None
) -> tuple[float, str, float]:
    """(seconds, where they come from, how many times outside of what was measured: 1 inside of it, infinity without any row)."""
    way = collective_way(table, kind, ranks, per_host, nics)
    seconds = float(way_seconds(way, size))
    outside = max(1.0, size / way.high_bytes, way.low_bytes / size if size else 1.0) if way.knots else 1.0
    return seconds, way.source, max(outside, way.stretch)


def way_seconds(way: Way, sizes: np.ndarray | float, start_s: float = 0.0) -> np.ndarray:
    """Seconds per entry of `sizes` (bytes). `start_s`: of a kernel, which curves have in them and formulas do not."""
    sizes = np.asarray(sizes, dtype=float)
    curve = knots_seconds(way.knots, sizes) if way.knots is not None else 0.0
    return np.maximum(curve, np.minimum.reduce([start_s + fixed + per_byte * sizes for fixed, per_byte in way.lines]) if way.lines else 0.0)


@lru_cache(maxsize=2**14)
def collective_way(table: CommTable, kind: str, ranks: int, per_host: int, nics: float | None = None) -> Way:
    """`collective_seconds` of one group, but for the bytes."""
    if kind not in KINDS:
        raise ClusterError(f"collective {kind!r}: expected one of {', '.join(KINDS)}")
    if ranks < 2:
        return Way(None, ((0.0, 0.0),), 0.0, inf, 1.0, "one rank: nothing is sent")
    per_host = min(per_host, ranks)
    return _ordered_way(table, kind, Group(ranks, per_host, 0 if per_host == ranks else nics or per_host * table.ports))


def _own_way(table: CommTable, kind: str, group: Group) -> tuple[Way, float]:
    """By the rows of a group, or of the nearest; and the bytes from which it has rows of its own."""
    exact = [c for c in _curves(table, kind, group.hosts > 1) if _is_same(table, c, group)]
    if not exact or not exact[0].bytes:
        return _unmeasured_way(table, kind, group), inf
    exact = [c for c in exact if c.bytes]
    sizes, seconds = join_points(exact)
    middle = smooth_points(sizes, seconds)
    below = above = None
    if sizes[0] > _FULL[0]:
        below = _guide(table, kind, group, (sizes[0], float(np.exp(middle.log_seconds[0]))))
    if sizes[-1] < _FULL[1]:
        above = _guide(table, kind, group, (sizes[-1], float(np.exp(middle.log_seconds[-1]))))
    source = "measured: " + "; ".join(dict.fromkeys(f"{c.source} ({_name(c)})" for c in exact))
    knots, slower = continue_points(middle, below, above), _slower(table, kind, group)
    if slower > 1:
        # in the curve of the port itself the bytes take so many times as long; what a small message takes stays as it is
        knots, source = move_knots(knots, 1.0, slower), f"{source}; bytes take {slower:.3g} times as long in an oversubscribed network"
    return Way(knots, (), float(sizes[0]) / slower, float(sizes[-1]) / slower, slower, source), float(sizes[0]) / slower


# --- links beside each other --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2**14)
def _ordered_way(table: CommTable, kind: str, group: Group) -> Way:
    """No slower than over slower links and, over those that no curve stands for or that are the user's own, no faster than over faster ones; across hosts half of an all_reduce no slower than the whole; no slower than through fewer ports.

    Rows of the group itself stand.
    """
    across = group.hosts > 1
    way, rows_from = _placed_way(table, kind, group)
    fewer = _fewer_ports(table, kind, group)
    if is_own(table, across):
        presets = _surroundings(preset_tables(table, across), own_places(table, across), kind, group)
        knots, figures = own_knots(table, across, _hops(kind, group), wire_s_per_byte(table, own_places(table, across), kind, group), presets)
        return replace(way, knots=knots if fewer is None else cap_knots(knots, [fewer], inf), lines=way.lines if figures else ())
    if way.knots is None:
        least = [knots for knots in (_ordered_way(other, kind, group).knots for other in faster_tables(table, across)) if knots is not None]
        for knots in least:
            way = replace(way, knots=knots if way.knots is None else raise_knots(way.knots, knots, inf))
        return way
    slower = [_placed_way(other, kind, group)[0].knots for other in slower_tables(table, across)]
    slower = [Knots(knots.log_bytes, knots.log_seconds + (_SLACK if across else 0.0)) for knots in slower if knots is not None]
    least = cap_knots(way.knots, slower, rows_from)
    way = _lowered(way, least, "over slower links")
    if fewer is not None:
        least = cap_knots(least, [fewer], rows_from)
        way = _lowered(way, least, "through fewer ports")
    if across and kind in ("all_gather", "reduce_scatter"):
        whole = _ordered_way(table, "all_reduce", group).knots
        way = way if whole is None else _lowered(way, cap_knots(least, [whole], inf), "an all_reduce")
    return way


@lru_cache(maxsize=2**12)
def _surroundings(tables: tuple[CommTable, ...], mine: tuple[bool, bool], kind: str, group: Group) -> Presets:
    """Prices of the presets in the places of links of the user's own."""
    return surround(mine, kind, group, [(other, way_seconds(_ordered_way(other, kind, group), knot_bytes())) for other in tables])


def _fewer_ports(table: CommTable, kind: str, group: Group) -> Knots | None:
    """What the same comes to through the next fewer ports of `_PORTS`, and no less than what rows say of these; None: there are no fewer, or no curve."""
    ports = max((ports for ports in _PORTS if ports < group.nics * (1 - 1e-9)), default=0.0)
    knots = _ordered_way(table, kind, replace(group, nics=ports)).knots if ports and group.hosts > 1 and kind != "send_recv" else None
    for rows in _floors(table, kind, group) if knots is not None else ():
        knots = raise_knots(knots, rows, inf)
    return knots


def _hops(kind: str, group: Group) -> tuple[float, float]:
    """That a small message makes inside a host, and between hosts, by a tree."""
    ways = 2 if kind == "all_reduce" else 1
    inside, across = (1, 1) if kind == "send_recv" else (ways * ceil(log2(group.per_host)), ways * ceil(log2(group.hosts)))
    return (0, across) if group.hosts > 1 and group.per_host == 1 else (inside, across if group.hosts > 1 else 0)


def _lowered(way: Way, knots: Knots, said: str) -> Way:
    """The way with a curve that is nowhere above its own."""
    assert way.knots is not None
    lower = np.any(knots_seconds(way.knots, np.exp(knots.log_bytes)) > 1.01 * np.exp(knots.log_seconds))
    return replace(way, knots=knots, source=f"{way.source}; small messages no more than {said}") if lower else way


@lru_cache(maxsize=2**14)
def _placed_way(table: CommTable, kind: str, group: Group) -> tuple[Way, float]:
    """Of these links alone, and the bytes from which the group has rows of its own."""
    way, rows_from = _capped_way(table, kind, group)
    return (way if way.knots is None else _raised_way(table, kind, group, way, rows_from)), rows_from


@lru_cache(maxsize=64)
def _rows_across(known: CurveSet, kind: str) -> tuple[tuple[Curve, Knots], ...]:
    """Curves between hosts that have small messages, as floors of other groups.

    They say nothing of smaller messages than theirs, and no more than what fewer of the same ports took for as many ranks.
    """
    full = [c for c in known.every if (c.kind, c.algorithm) == (kind, "") and c.bytes and c.bytes[0] <= _FULL[0] and c.per_host < c.ranks]
    found = []
    for curve in full:
        rows = smooth_points(*join_points([curve]))
        if curve.bytes[0] > _FLAT:
            rows = Knots(np.append(rows.log_bytes[0] - 0.2, rows.log_bytes), np.append(rows.log_seconds[0] - 10, rows.log_seconds))
        for other in full:
            if (other.ranks, other.per_host, other.nic_bytes_per_s) == (curve.ranks, curve.per_host, curve.nic_bytes_per_s) and other.nics < curve.nics:
                rows = cap_knots(rows, [smooth_points(*join_points([other]))], other.bytes[-1])
        found.append((curve, rows))
    return tuple(found)


def _floors(table: CommTable, kind: str, group: Group) -> list[Knots]:
    """What rows say of the same ranks or fewer of them, over ports and a link inside that are no slower."""
    return [
        rows
        for curve, rows in _rows_across(table.known, kind)
        if curve.ranks <= group.ranks and curve.per_host <= group.per_host and ceil(curve.ranks / curve.per_host) <= group.hosts
        if curve.nics >= group.nics and curve.nic_bytes_per_s * (1 + 1e-9) >= _port_bytes_per_s(table) and is_as_fast(curve, table.inside)
    ]


# --- groups beside each other -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _capped_way(table: CommTable, kind: str, group: Group) -> tuple[Way, float]:
    """Inside a host small messages take no longer than among more ranks that were measured, and half of an all_reduce no longer than the whole. Rows of the group itself yield to rows alone."""
    way, rows_from = _own_way(table, kind, group)
    if way.knots is None or group.hosts > 1:
        return way, rows_from
    bounds: list[tuple[Knots | None, str, float]] = []
    for ranks, curves in _measured_groups(table, kind).items():
        if ranks > group.ranks and not is_mesh(table.inside):
            source = f"{curves[0].source} ({_name(curves[0])})"
            bounds += [(smooth_points(*join_points(curves)), source, inf), (_capped_way(table, kind, Group(ranks, ranks, 0))[0].knots, source, rows_from)]
    if kind in ("all_gather", "reduce_scatter"):
        bounds.append((collective_way(table, "all_reduce", group.ranks, group.per_host).knots, "an all_reduce", rows_from))
    for most, source, below in bounds:
        if most is not None:
            way = _lowered(way, cap_knots(way.knots, [most], min(below, wait_bytes(most) * (1 + 1e-6))), source)
    return way, rows_from


def _raised_way(table: CommTable, kind: str, group: Group, way: Way, rows_from: float) -> Way:
    """Where a group has no rows of its own, small messages take no less than among fewer ranks of a host that were measured; and across hosts nothing takes less than among as many ranks inside of one
    (the largest measured there, where it has more)."""
    assert way.knots is not None
    measured = _measured_groups(table, kind)
    if group.hosts == 1:
        for ranks in measured:
            fewer = collective_way(table, kind, ranks, ranks).knots if ranks < group.ranks else None
            if fewer is not None:
                way = replace(way, knots=raise_knots(way.knots, fewer, min(rows_from, wait_bytes(fewer))))
        return way
    for rows in _floors(table, kind, group):
        way = replace(way, knots=raise_knots(way.knots, rows, rows_from))
    inside = min(group.ranks, max([*measured, *_measured_groups(table, "all_reduce")], default=1))
    least = collective_way(table, kind, inside, inside).knots
    return way if least is None or rows_from < inf else replace(way, knots=raise_knots(way.knots, least, inf))


def _measured_groups(table: CommTable, kind: str) -> dict[int, list[Curve]]:
    """Ranks -> curves of groups inside of a host with rows by size: of its own link, else of the one whose shape it borrows."""
    found: dict[int, list[Curve]] = {}
    for inside in (table.inside.name, *SHAPE_OF.get(table.inside.name, ())):
        for curve in _curves(table, kind, False, inside=inside) if not found else ():
            if curve.bytes:
                found.setdefault(curve.ranks, []).append(curve)
    return found


def _name(curve: Curve) -> str:
    place = "one host" if curve.ranks == curve.per_host else f"{curve.per_host} per host"
    return f"{curve.device}, {curve.kind}, {curve.ranks} ranks, {place}"


# --- groups that were not measured ------------------------------------------------------------------------------------------------


def _curves(table: CommTable, kind: str, across: bool, algorithm: str = "", inside: str = "") -> list[Curve]:
    """Of one kind and span, the device's own first; of the table's inside link, or of another."""
    if across and not table.measured_across:
        return []
    inside = inside or table.inside.name
    found = [
        c for c in table.curves if (c.inside, c.kind, c.algorithm) == (inside, kind, algorithm) and (c.ranks > c.per_host) == across
    ]
    return sorted(found, key=lambda c: not table.device.startswith(c.device))


def _is_same(table: CommTable, curve: Curve, group: Group) -> bool:
    if (curve.ranks, curve.per_host) != (group.ranks, group.per_host):
        return False
    return group.hosts == 1 or (_is_like(table, curve) and _octaves(_net(table, group), curve.nics * curve.nic_bytes_per_s) <= log2(_LIKE))


def _is_like(table: CommTable, curve: Curve) -> bool:
    return curve.nics > 0 and _octaves(_port_bytes_per_s(table), curve.nic_bytes_per_s) <= log2(_LIKE)


def _port_bytes_per_s(table: CommTable) -> float:
    """Nominal, of a port itself: an oversubscribed network has the latencies of its ports, so it is known by them."""
    return table.across.bandwidth_bytes_per_s * table.across.oversubscription


def _net(table: CommTable, group: Group) -> float:
    """Nominal, of the ports of one host, per direction."""
    return group.nics * _port_bytes_per_s(table)


def _slower(table: CommTable, kind: str, group: Group) -> float:
    """So many times longer than through its ports alone the network takes for the bytes: no more than it is oversubscribed, less where something else is as slow."""
    if group.hosts == 1 or table.across.oversubscription == 1:
        return 1.0
    return _across_rule(table, kind, group, _port_bytes_per_s(table)) / _across_rule(table, kind, group, table.across.bandwidth_bytes_per_s)


def _octaves(a: float, b: float) -> float:
    return abs(log2(a / b))


def _distance(table: CommTable, curve: Curve, group: Group) -> float:
    """Octaves between a measured group and another."""
    own = 0.0 if table.device.startswith(curve.device) else _OTHER_DEVICE
    octaves = own + _octaves(curve.ranks, group.ranks)
    if group.hosts > 1:
        hosts = ceil(curve.ranks / curve.per_host)
        octaves += _octaves(hosts, group.hosts) + _octaves(curve.nics * curve.nic_bytes_per_s, _net(table, group))
    return octaves


def _nearest(table: CommTable, curves: Sequence[Curve], group: Group) -> Curve | None:
    return min(curves, key=lambda c: _distance(table, c, group), default=None)


def _unmeasured_way(table: CommTable, kind: str, group: Group) -> Way:
    bus, said, bus_stretch = _bus_bandwidth(table, kind, group)
    knots = _guide(table, kind, group, None)
    if knots is None:
        source = f"formula: {table.inside.source}" + (f"; across: {table.across.source}" if group.hosts > 1 else "")
        lines = _lines(table, kind, group, bus)
        presets = is_preset(table.inside) and (group.hosts == 1 or is_preset(table.across))
        if kind in ("all_gather", "reduce_scatter") and presets:  # an all_reduce has both in it
            lines += _lines(table, "all_reduce", group, _bus_bandwidth(table, "all_reduce", group)[0])
        return Way(None, lines, 0.0, inf, bus_stretch, source + said)
    shape = _shape(table, kind, group)
    low, high = np.exp(knots.log_bytes[[0, -1]])
    # another kind of the same group counts as twice as far; bandwidth without a row is the data sheet's: the curve's distance stands
    stretch = max(1.0 if shape.kind == kind else 2.0, 2 ** _distance(table, shape, group), bus_stretch if said else 1.0)
    said = said or f"; bandwidth: {(table.across if group.hosts > 1 else table.inside).source}"
    return Way(knots, (), low, high, stretch, f"scaled from {shape.source} ({_name(shape)}){said}")


def _shape(table: CommTable, kind: str, group: Group) -> Curve | None:
    """The full curve that stands for a group without one: of the same kind, or of send_recv for all_to_all, or of all_reduce."""
    kinds = {"send_recv": ("send_recv",), "all_to_all": ("all_to_all", "send_recv", "all_reduce")}.get(kind, (kind, "all_reduce"))
    for like in dict.fromkeys(kinds):
        for inside in (table.inside.name, *SHAPE_OF.get(table.inside.name, ())):
            full = [c for c in _curves(table, like, group.hosts > 1, "", inside) if c.bytes and c.bytes[0] <= _FULL[0]]
            # a message between two has no latency of many hops: its largest rows, 64 MiB, are bandwidth already
            full = [c for c in full if like == "send_recv" or c.bytes[-1] >= _FULL[1]]
            if full:
                return _nearest(table, full, group)
    return None


def _same_case(table: CommTable, curve: Curve) -> list[Curve]:
    """Other curves of the same group."""
    return [c for c in table.curves if c is not curve and c.bytes and case_of(c) == case_of(curve)]


def _guide(table: CommTable, kind: str, group: Group, through: tuple[float, float] | None) -> Knots | None:
    """The nearest full curve, moved to this group; None without any (then the formula, where a measured point asks for a curve).

    Args:
        through: (bytes, seconds) that were measured.
    """
    shape = _shape(table, kind, group)
    bus = _bus_bandwidth(table, kind, group)[0]
    if shape is None:
        if through is None:
            return None
        fixed = min(line[0] for line in _lines(table, kind, group, bus))
        steps = np.exp2(np.arange(8, 40, 0.5))
        per_byte = max(through[1] - fixed, 0.0) / through[0]
        return Knots(np.log(steps), np.log(min(fixed, through[1]) + per_byte * steps))
    knots = smooth_points(*join_points([shape, *_same_case(table, shape)]))  # sizes that the full one lacks
    there = Group(shape.ranks, shape.per_host, shape.nics)
    smallest = float(np.exp(knots.log_seconds[0]))
    before, after = _latency(shape.kind, there), _latency(kind, group)
    latency = max(1 + (after - before) / smallest, min(1.0, after / before))
    if group.hosts > 1 and kind != "send_recv" and not _is_like(table, shape):
        # many hops over another network (161 us between two hosts on the first EFA): its latency, not the measured one's
        latency = min(line[0] for line in _lines(table, kind, group, bus)) / smallest
        knots = Knots(knots.log_bytes, np.where(knots.log_bytes <= log(_FLAT) + 1e-9, knots.log_seconds[0], knots.log_seconds))
    volume = bus_factor(kind, group.ranks) / bus * shape.bus_bytes_per_s / bus_factor(shape.kind, shape.ranks)
    if through is None:
        return move_knots(knots, latency, volume)
    return move_through(knots, latency, volume, *through)


def _latency(kind: str, group: Group) -> float:
    """Seconds of a small message, as NCCL's model has it. Measured ones are longer: what they exceed it by stays as it is."""
    n, hosts = group.ranks, group.hosts
    ring = (n - hosts) * _INSIDE_HOP_S + (hosts - 1) * _RING_HOP_S
    if kind == "send_recv":
        return _BASE_S + (_RING_HOP_S if hosts > 1 else _INSIDE_HOP_S)
    if kind == "all_reduce":
        tree = (group.per_host - 1) * _INSIDE_HOP_S + ceil(log2(hosts)) * _TREE_HOP_S
        return _BASE_S + 2 * min(ring, tree)
    return _BASE_S + ring


# --- bandwidth ----------------------------------------------------------------------------------------------------------------------


def _bus_bandwidth(table: CommTable, kind: str, group: Group) -> tuple[float, str, float]:
    """(bus bandwidth of large messages, where it comes from, how many times the group differs from the measured one)."""
    if group.hosts == 1:
        return _inside_bus(table, kind, group.ranks)
    rule = _across_rule(table, kind, group, table.across.bandwidth_bytes_per_s)
    # two hosts exchange in another way than many (`_across_rule`): what one of them reaches says nothing of the other
    like = [c for c in _curves(table, kind, True) if _is_like(table, c) and (c.ranks > 2 * c.per_host) == (group.hosts > 2)]
    row = _nearest(table, like, group)
    if row is None:
        return rule, "", inf
    there = _across_rule(table, row.kind, Group(row.ranks, row.per_host, row.nics), row.nic_bytes_per_s)
    reached = row.bus_bytes_per_s / there
    return rule * reached, f"; bandwidth: {row.source} ({_name(row)})", 2 ** _distance(table, row, group)


def _across_rule(table: CommTable, kind: str, group: Group, nic_bytes_per_s: float) -> float:
    """The smaller of what a host carries inside and what its ports do.

    Between two hosts every byte of an all_reduce leaves each host only once.
    """
    nic = nic_bytes_per_s * link_share(table.across.name)
    if kind == "send_recv":
        alone = max(min(nic, _ONE_CONNECTION_BYTES_PER_S), nic_bytes_per_s * _ONE_CONNECTION_SHARE) if table.measured_across else nic
        return min(1.0, group.nics) * alone if group.nics else alone
    inside = _inside_bus(table, kind, group.per_host)[0] if group.per_host > 1 else inf
    if kind == "all_to_all":
        return min(inside, nic * group.nics / group.per_host)
    once = kind == "all_reduce" and group.hosts == 2 and table.measured_across
    return min(inside, group.nics * nic * (bus_factor(kind, group.ranks) if once else 1.0))


@lru_cache(maxsize=4096)
def _inside_bus(table: CommTable, kind: str, ranks: int) -> tuple[float, str, float]:
    """Bus bandwidth of large messages inside a host; see `_bus_bandwidth`."""
    group = Group(ranks, ranks, 0)
    mesh = mesh_share(table.inside, ranks)
    large = [c for c in _curves(table, kind, False) if not c.bytes or c.bytes[-1] >= 2**28]
    share = 1.0
    if kind != "all_reduce" and not large:
        large = _curves(table, "all_reduce", False, "ring") or _curves(table, "all_reduce", False)
        large = [c for c in large if not c.bytes or c.bytes[-1] >= 2**28]
        share = _PAIRWISE_SHARE if kind == "all_to_all" else 1.0
    row = _nearest(table, large, group)
    if row is None:
        return table.inside_bytes_per_s * mesh * share, "", inf
    mesh /= mesh_share(table.inside, row.ranks)
    return row.bus_bytes_per_s * mesh * share, f"; bandwidth: {row.source} ({_name(row)})", 2 ** _distance(table, row, group)


# --- formulas -----------------------------------------------------------------------------------------------------------------------


def _lines(table: CommTable, kind: str, group: Group, bus: float) -> tuple[Line, ...]:
    """(seconds, seconds per byte) of each way to do it with the links' own figures; the fastest is taken."""
    n, g, hosts = group.ranks, group.per_host, group.hosts
    hop, far = table.inside.latency_s, table.across.latency_s
    ring_s = (n - hosts) * hop + (hosts - 1) * far
    if kind == "send_recv":
        return ((far if hosts > 1 else hop, 1 / bus),)
    if kind == "all_reduce":
        tree_s = ceil(log2(g)) * hop + ceil(log2(hosts)) * far
        return (2 * ring_s, bus_factor(kind, n) / bus), (2 * tree_s, 2 / bus)
    if kind == "all_to_all" and not is_preset(table.across):
        # pairwise: each rank's own port carries what leaves the host, both ways run at once
        away = (n - g) / n / (table.across_bytes_per_s * group.nics / g) if hosts > 1 else 0.0
        return ((ring_s, max((g - 1) / n / table.inside_bytes_per_s, away)),)
    return ((ring_s, bus_factor(kind, n) / bus),)
