"""How far the prices of collectives are from the measured rows that they did not see.

    python benchmarks/collective_fit.py [--data DIR] [--rows]

Four questions to `autopar.cost.collectives`, predicted over measured seconds: each row of the package left out, the others stay; each
group of a device left out with all its rows; the rows that prices do without because ranks waited in them (`curves.drop_waits`: predicted is less by that
wait); and the rows under DIR (`published/collectives.csv`, `kernels/collectives_dgx.csv`) that the
package does not have, most of them sizes that another source covers. Beside it what one latency plus one bandwidth says, the links' own
figures: what prices were before there were tables. Prints the median and the 90th percentile of |predicted / measured - 1| by device and
kind.
"""

import argparse
import csv
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from autopar.cluster import Link
from autopar.cost.collectives import collective_seconds
from autopar.cost.comm_table import comm_table
from autopar.cost.curves import KINDS, bus_factor, published_curves, read_curves

DEVICE_LINKS = {
    "A100": "nvlink3", "H100": "nvlink4", "H200": "nvlink4", "B200": "nvlink5", "MI300X": "xgmi",
    "MI355X": Link("xgmi4", 3e-6, 535.5e9, "7 links x 76.5 GB/s"),
}  # fmt: skip
RACK = Link("nvl72", 2e-6, 900e9, "NVLink 5 through one switch for 72 devices")
LAUNCH_S = 4e-6  # of the kernel: measured seconds have it, the formula of the links does not
# in the hardware column of collectives.csv -> ports per host, bytes per second of one
NETWORKS = {
    "4x100Gb": (4, 12.5e9), "32x100Gb": (8, 50e9), "8x200Gb": (8, 25e9), "8x400Gb": (8, 50e9), "p5en": (8, 50e9), "IB NDR": (8, 50e9),
}  # fmt: skip


def table_of(device, nic, curves=None, plain=False):
    inside = RACK if device.startswith("GB") else DEVICE_LINKS[device]
    across = Link("ib-400", 8e-6, nic or 50e9, "the port's data sheet")
    table = comm_table(device, inside, across, curves)
    return replace(table, curves=(), measured_across=False) if plain else table


def row_error(row, curves):
    """(table's, formula's) predicted / measured of one row (device, kind, ranks, per host, ports, port, bytes, seconds)."""
    device, kind, ranks, per_host, nics, nic, size, seconds = row
    tables = (table_of(device, nic, curves), table_of(device, nic, plain=True))
    found, plain = (float(collective_seconds(t, kind, ranks, per_host, size, nics or None)) for t in tables)
    return found / seconds, (plain + LAUNCH_S) / seconds


def points(curve):
    """Rows of a curve; of one without sizes, its bandwidth at 16 GiB."""
    sized = list(zip(curve.bytes, curve.seconds)) or [(2.0**34, 2.0**34 * bus_factor(curve.kind, curve.ranks) / curve.bus_bytes_per_s)]
    return [(curve.device, curve.kind, curve.ranks, curve.per_host, curve.nics, curve.nic_bytes_per_s, b, s) for b, s in sized]


def without_point(curve, i):
    """A curve without one row; its bandwidth is that of the largest that is left. None where nothing is."""
    if len(curve.bytes) < 2:
        return None
    sizes, seconds = (c[:i] + c[i + 1 :] for c in (curve.bytes, curve.seconds))
    return replace(curve, bytes=sizes, seconds=seconds, bus_bytes_per_s=sizes[-1] * bus_factor(curve.kind, curve.ranks) / seconds[-1])


def leave_rows_out():
    curves = published_curves()
    for at, curve in enumerate(curves):
        if curve.algorithm:  # another algorithm than the library's choice: it stands for other kinds only
            continue
        for i, row in enumerate(points(curve)):
            left = without_point(curve, i)
            yield row, row_error(row, (*curves[:at], *((left,) if left else ()), *curves[at + 1 :]))


def leave_groups_out():
    curves = published_curves()
    groups = defaultdict(list)
    for curve in curves:
        if not curve.algorithm:
            groups[curve.device, curve.kind, curve.ranks, curve.per_host, curve.nics].append(curve)
    for group in groups.values():
        rest = tuple(c for c in curves if c not in group)
        for curve in group:
            for row in points(curve):
                yield row, row_error(row, rest)


def waiting_rows():
    for curve, kept in zip(read_curves(), published_curves()):
        for row in points(curve) if curve.bytes else ():
            if row[6] not in kept.bytes:
                yield row, row_error(row, None)


def unseen_rows(data):
    """Rows of the two files that the package lacks and that name a device, a group and a network."""
    seen = {(c.device, c.kind, c.ranks, c.per_host, round(b)) for c in read_curves() for b in c.bytes}
    for name, parse in (("published/collectives.csv", published_row), ("kernels/collectives_dgx.csv", kernel_row)):
        if not (data / name).is_file():
            continue
        with (data / name).open(newline="") as file:
            for found in csv.DictReader(file):
                row = parse(found)
                if row is not None and (*row[:4], round(row[6])) not in seen:
                    yield row, row_error(row, None)


def kernel_row(found):
    """A host of the A100s has one port of about 100 Gb/s (their largest messages say so), one of the H100s one of 400 Gb/s per device."""
    device, ranks, per_host = found["device"].upper(), int(found["ranks"]), int(found["ranks_per_host"])
    network = (0, 0.0) if ranks == per_host else (1, 12.5e9) if device == "A100" else (1, 50e9)
    return device, found["collective"], ranks, per_host, *network, float(found["bytes"]), float(found["seconds"])


def published_row(found):
    kind, hardware = found["collective"], found["hardware"]
    device = re.match(r"(?:DGX )?(GB\d00|[ABH]\d00|MI\d+X)", hardware)
    network = next((ports for name, ports in NETWORKS.items() if name in hardware), (0, 0.0))
    if kind not in KINDS or not device or not found["n_gpus"] or not found["size_bytes"] or "off" in found["algo"]:
        return None
    ranks, nodes, size = int(found["n_gpus"]), int(found["nodes"] or 0), float(found["size_bytes"])
    per_host = min(ranks, 8)
    if device[1].startswith("GB"):
        racks = re.search(r"(\d+) racks", hardware)
        per_host = ranks // int(racks[1]) if racks else ranks
        network = (per_host, 50e9 if device[1] == "GB300" else 100e9) if racks else network
    elif nodes > 1:
        per_host = ranks // nodes
    if per_host < ranks and not network[0]:
        return None
    bus = float(found["busbw_gbs"] or 0) * 1e9
    seconds = float(found["time_us"]) * 1e-6 if found["time_us"] else size * bus_factor(kind, ranks) / bus if bus else 0.0
    coarse = not found["time_us"] or "derived" in found["notes"]
    if seconds <= 0 or (coarse and bus < 0.3e9):  # a time derived from one or two digits
        return None
    return device[1], kind, ranks, per_host, network[0], network[1], size, seconds


def report(title, rows, show):
    groups = defaultdict(list)
    for row, ratios in rows:
        device, kind, ranks, per_host = row[:4]
        groups[device, kind, "inside" if ranks == per_host else "across"].append(ratios)
        groups["all", "", ""].append(ratios)
        if show:
            said = f"{device:7} {kind:14} {ranks:5} ranks {per_host:3} per host {row[6]:14.0f} B {row[7] * 1e6:11.1f} us"
            print(f"  {said}  x{ratios[0]:.3f}  x{ratios[1]:.3f}")
    print(f"{title}: |predicted / measured - 1|, median and 90th percentile")
    print(f"  {'device':8}{'kind':16}{'span':9}{'rows':>5}   {'tables':>15}   {'one latency, one bandwidth':>26}")
    for key, ratios in groups.items():
        errors = np.abs(np.array(ratios) - 1) * 100
        low, high = np.percentile(errors, [50, 90], axis=0)
        print(f"  {key[0]:8}{key[1]:16}{key[2]:9}{len(ratios):5}   {low[0]:6.1f} % {high[0]:5.1f} %   {low[1]:17.1f} % {high[1]:5.1f} %")
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--rows", action="store_true", help="print every row")
    arguments = parser.parse_args()
    report("One row left out", leave_rows_out(), arguments.rows)
    report("One group left out", leave_groups_out(), arguments.rows)
    report("Rows in which ranks waited", waiting_rows(), arguments.rows)
    unseen = list(unseen_rows(arguments.data))
    if unseen:
        report(f"Rows of {arguments.data.name} that the package does not have", unseen, arguments.rows)
