"""What prices the collectives of one kind of device: its links, what of them is reached, and the measured curves that may speak for them.

In: a device's name, the links inside a host and between hosts (`cluster`). Out: a `CommTable` for `cost.collectives`. Knows no group and
no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from ..cluster import Link, list_links
from ..errors import ClusterError
from .curves import Curve, published_curves

# Share of a link's nominal bandwidth that large ring collectives reach: NVLink 122 / 150 on V100, 232 / 300 on A100, 370 / 450 on H100,
# 682 / 900 on B200 and 680 / 900 on GB200 (NVLS off); PCIe 24 / 31 and 48 / 63; xGMI 313 / 448; InfiniBand 24 / 25 and 48 / 50; TCP over 100 Gb/s 10 / 12.5.
LINK_SHARE = {
    "nvlink2": 0.81, "nvlink3": 0.77, "nvlink4": 0.82, "nvlink5": 0.76, "nvlink": 0.77, "nvl72": 0.76, "pcie": 0.76, "xgmi": 0.70, "ib": 0.96, "efa": 0.96,
    "ethernet": 0.80,
}  # fmt: skip
# Of the six links of a V100 in a cube mesh, those that rings among its first so many devices use: 0 and 1, 0 and 2, 1 and 3, 2 and 3 have one between them, 0 and 3, 1 and 2 have two (NVIDIA/nccl
# issue 671, a DGX-1's topology as NCCL reads it), the other four likewise, and each has two to its image among these. Two have one link, four the two rings 0 1 2 3 and 0 2 1 3, eight
# three rings (NVIDIA: "three interwoven rings of single NVLink connections"), each in both directions; five have none, as if they had one link (assumption).
_CUBE = "nvlink2-cube"
_CUBE_LINKS = {2: 1, 3: 2, 4: 4, 5: 1, 6: 2, 7: 2, 8: 6}
# Whose rows by size stand in where a link has none, scaled to its own bandwidth: the neighbouring generations of NVLink.
SHAPE_OF = {"nvlink2": ("nvlink3",), "nvlink2-cube": ("nvlink2", "nvlink3"), "nvlink5": ("nvlink4",), "nvl72": ("nvlink5", "nvlink4")}


@dataclass(frozen=True, slots=True, eq=False)
class CurveSet:
    """Curves that tables have in common; one is another only where it is the same object."""

    every: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CommTable:
    """What prices the collectives of one kind of device and its links.

    Args:
        inside_bytes_per_s, across_bytes_per_s: that a ring reaches, per device and direction.
        curves: of this inside link and of those whose shape it may borrow, or none; of other devices, too.
        known: all curves, of other links, too (`cost.link_order`).
        measured_across: curves may stand for the links between hosts.
        ports: between hosts, for each device of a host where all of them send at once; below 1: they share.
    """

    device: str
    inside: Link
    across: Link
    inside_bytes_per_s: float
    across_bytes_per_s: float
    curves: tuple[Curve, ...]
    known: CurveSet
    measured_across: bool
    ports: float = 1.0


def comm_table(device: str, inside: Link | str, across: Link | str, curves: Sequence[Curve] | None = None, ports: float = 1.0) -> CommTable:
    """The table of a device and its links.

    Args:
        device: preset; its own rows come first, then those of others with the same inside link.
        inside, across: a preset's name, or a link with its figures. A link of the user's own ("own"), or measured here, is priced
            by formula.
        curves: instead of the package's.
        ports: between hosts, for each device.

    Raises:
        ClusterError: a name that is no preset; a link without a positive bandwidth.
    """
    inside, across = _find_link(device, inside, "links.inside"), _find_link(device, across, "links.across")
    return _table(device, inside, across, _published() if curves is None else CurveSet(tuple(curves)), ports)


def table_with(table: CommTable, device: str, inside: Link, across: Link) -> CommTable:
    """The table of other links, with the same curves and ports."""
    return _table(device, inside, across, table.known, table.ports)


def is_mesh(link: Link) -> bool:
    """Inside a host devices have links to each other, instead of one to a switch."""
    return link.name.startswith(("xgmi", _CUBE))


def is_cube(link: Link) -> bool:
    """A mesh in which a device has links to some of its host's devices, and none to others."""
    return link.name.startswith(_CUBE)


def mesh_share(link: Link, ranks: int) -> float:
    """Of the bandwidth of a device inside its host, what a group of so many neighbours has among them: all of it at a switch."""
    if is_cube(link):
        return _CUBE_LINKS.get(ranks, _CUBE_LINKS[8]) / _CUBE_LINKS[8]
    return (ranks - 1) / 7 if is_mesh(link) else 1.0


def is_measured_network(link: Link) -> bool:
    """Curves may stand for this link between hosts."""
    return link.name.startswith(("ib-", "efa"))


@lru_cache(maxsize=1)
def _published() -> CurveSet:
    return CurveSet(published_curves())


@lru_cache(maxsize=4096)
def _table(device: str, inside: Link, across: Link, known: CurveSet, ports: float) -> CommTable:
    """One object for equal clusters: prices of groups are kept by it."""
    links = (inside.name, *SHAPE_OF.get(inside.name, ()))
    curves = tuple(c for c in known.every if c.inside in links)
    reached = [link.bandwidth_bytes_per_s * link_share(link.name) for link in (inside, across)]
    return CommTable(device, inside, across, reached[0], reached[1], curves, known, is_measured_network(across), ports)


def _find_link(device: str, link: Link | str, key: str) -> Link:
    if isinstance(link, str):
        known = {preset.name: preset for preset in list_links()}
        if link not in known:
            raise ClusterError(
                f"{key}: no collectives are known for link {link!r} of {device}; missing: its latency_s and bandwidth_bytes_per_s. "
                f"Give both, as in {key} = {{ latency_s = 4e-6, bandwidth_bytes_per_s = 450e9 }}, or one of {', '.join(known)}"
            )
        return known[link]
    if not link.bandwidth_bytes_per_s > 0 or not link.latency_s >= 0 or not isfinite(link.latency_s):
        raise ClusterError(
            f"{key}: link {link.name!r} of {device}: expected bandwidth_bytes_per_s > 0 and latency_s >= 0, "
            f"found {link.bandwidth_bytes_per_s!r} and {link.latency_s!r}"
        )
    return link


def link_share(name: str) -> float:
    """1 for what was measured and for the user's own figures: those say what is reached."""
    return next((share for family, share in LINK_SHARE.items() if name.startswith(family)), 1.0)
