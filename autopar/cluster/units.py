"""Numbers of a TOML file, and what betrays a wrong unit.

No machine that trains is slower than these bounds, and none is faster: outside of them the unit is wrong, not the machine.

    bandwidth of links and memory   1e6 to 1e15 bytes/s    450 was meant as GB/s or Gb/s, 25000 as MB/s
    FLOP/s                          1e7 to 1e18            989 was meant as TFLOP/s, 989000 as GFLOP/s
    memory                          2^24 to 2^50 bytes     80 was meant as GiB, 81559 as MiB
    latency, launch                 at most 0.1 s          8 was meant as microseconds
    watts of one device             10 to 10,000           0.7 was meant as kW, 700000 as mW
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ..errors import ClusterError

GIB, MIB = 2**30, 2**20


def show(found: object) -> str:
    """A TOML value as people wrote it."""
    if found is None:
        return "nothing"
    if isinstance(found, (dict, list)):
        return "a table" if isinstance(found, dict) else "a list"
    if isinstance(found, str):
        return f'"{found}"'
    return str(found).lower() if isinstance(found, bool) else str(found)


def read_number(table: Mapping[str, object], name: str, where: str, zero: bool = False) -> float:
    """A positive number.

    Args:
        where: file and table, for the message.
        zero: it may be 0.

    Raises:
        ClusterError: it is none.
    """
    found = table.get(name)
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) <= sys.float_info.max
    if not good or found < 0 or (found == 0 and not zero):  # type: ignore[operator]
        wanted = "a number that is not negative" if zero else "a positive number"
        raise ClusterError(f"{where}.{name}: expected {wanted}, found {show(found)}")
    return float(found)  # type: ignore[arg-type]


def read_whole(table: Mapping[str, object], name: str, where: str) -> int:
    """A positive whole number; see `read_number`."""
    found = table.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ClusterError(f"{where}.{name}: expected a positive whole number, found {show(found)}")
    return found


def read_bandwidth(table: Mapping[str, object], name: str, where: str) -> float:
    """Bytes per second; see `read_number`."""
    value = read_number(table, name, where)
    if value >= 1e6:
        return _at_most(value, 1e15, "bytes per second", f"{where}.{name}")
    if value < 1e4:
        meant = f"{value:g}e9 ({value:g} GB/s), or {value / 8:g}e9 ({value:g} Gb/s)"
    else:
        meant = f"{value:g}e6 ({value:g} MB/s)"
    raise ClusterError(f"{where}.{name}: expected bytes per second, at least 1e6, found {value:g} bytes/s; did you mean {meant}?")


def read_memory_bandwidth(table: Mapping[str, object], name: str, where: str) -> float:
    """Bytes per second; see `read_number`."""
    value = read_number(table, name, where)
    if value >= 1e9:
        return _at_most(value, 1e15, "bytes per second", f"{where}.{name}")
    # the slowest memory has tens of GB/s, the fastest some TB/s
    meant = f"{value:g}e12 ({value:g} TB/s)" if value < 20 else f"{value:g}e9 ({value:g} GB/s)" if value < 2e4 else f"{value / 1e6:g}e12 ({value:.0f} MB/s)"
    raise ClusterError(f"{where}.{name}: expected bytes per second, at least 1e9, found {value:g} bytes/s; did you mean {meant}?")


def read_flops(table: Mapping[str, object], name: str, where: str) -> float:
    """FLOP per second; see `read_number`."""
    value = read_number(table, name, where)
    if value >= 1e7:
        return _at_most(value, 1e18, "FLOP per second", f"{where}.{name}")
    meant = f"{value:g}e12 ({value:g} TFLOP/s)" if value < 1e4 else f"{value:g}e9 ({value:g} GFLOP/s)"
    raise ClusterError(f"{where}.{name}: expected FLOP per second, at least 1e7, found {value:g} FLOP/s; did you mean {meant}?")


def read_bytes(table: Mapping[str, object], name: str, where: str) -> int:
    """Bytes; see `read_number`."""
    value = read_number(table, name, where)
    if value >= 2**24:
        return int(_at_most(value, 2**50, "bytes", f"{where}.{name}"))
    unit, size = ("GiB", GIB) if value < 4096 else ("MiB", MIB)
    raise ClusterError(
        f"{where}.{name}: expected bytes, at least {2**24} (16 MiB), found {value:g} bytes; "
        f"did you mean {int(value * size)} ({value:g} {unit})?"
    )


def read_seconds(table: Mapping[str, object], name: str, where: str) -> float:
    """Seconds of a latency or a launch, 0 among them; see `read_number`."""
    value = read_number(table, name, where, zero=True)
    if value > 0.1:
        raise ClusterError(f"{where}.{name}: expected seconds, at most 0.1, found {value:g} s; did you mean {value:g}e-6 ({value:g} us)?")
    return value


def read_watts(table: Mapping[str, object], name: str, where: str) -> float:
    """Watts of one device; see `read_number`."""
    value = read_number(table, name, where)
    if 10 <= value <= 1e4:
        return value
    meant = f"{1000 * value:g} ({value:g} kW)" if value < 10 else f"{value / 1000:g} ({value:g} mW)"
    raise ClusterError(f"{where}.{name}: expected watts of one device, 10 to 10000, found {value:g} W; did you mean {meant}?")


def _at_most(value: float, most: float, unit: str, where: str) -> float:
    if value > most:
        raise ClusterError(f"{where}: expected {unit}, at most {most:g}, found {value:g}; no machine has as much")
    return value
