"""The TOML form of a cluster.

In: a path. Out: a `Cluster`. `docs/clusters.md` lists the keys. Everything that is wrong is a `ClusterError` that names file and key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import ClusterError
from .mixed import HostKind, print_kinds, slowest_across, slowest_device, slowest_link
from .nouns import Cluster, Device, Link, power_share
from .presets import LAUNCH_S, PORT_OF, check_joined, check_one_maker, device_links, find_device, find_link, find_machine, list_links, nearest
from .units import read_bandwidth, read_bytes, read_flops, read_memory_bandwidth, read_number, read_seconds, read_watts, read_whole, show

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

_TOP_KEYS = ["hosts", "devices", "links"]
_HOST_KEYS = ["count", "devices", "device", "machine", "nics", "power_w"]
_DEVICE_KEYS = ["kind", "memory_bytes", "flops_per_s", "memory_bytes_per_s", "launch_s", "source", "board_power_w"]
_LINKS_KEYS = ["inside", "across", "oversubscription"]
_LINK_KEYS = ["latency_s", "bandwidth_bytes_per_s", "source"]
_DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
# A board cannot be held far below its full power (nvidia-smi refuses): less is a slip of the pen.
_LEAST_POWER_SHARE = 0.1
_MOST_OVERSUBSCRIBED = 1000.0  # networks are built for 1 to some tens


def read_file(path: str, forms: str) -> Cluster:
    """Read a cluster from its TOML file.

    Args:
        forms: what a cluster may be, for the message where there is no such file.
    """
    data = _load(path, forms)
    _check_keys(data, _TOP_KEYS, path, "")
    devices = _table(data.get("devices", {}), path, "devices")
    own = {name: _read_device(name, table, path) for name, table in devices.items()}
    links = _table(data.get("links", {}), path, "links")
    _check_keys(links, _LINKS_KEYS, path, "links")
    kinds = _read_hosts(data.get("hosts"), path, own, links)
    num_hosts, per_host = sum(kind.count for kind in kinds), kinds[0].devices
    _check_links(kinds, path, num_hosts)
    device = slowest_device([kind.device for kind in kinds], print_kinds(kinds))
    inside = slowest_link([kind.inside for kind in kinds]) if all(kind.inside for kind in kinds) else None
    across, nics = slowest_across(kinds) if all(kind.across for kind in kinds) else (None, None)
    ratio = _read_oversubscription(links, path)
    if across is not None and num_hosts > 1 and ratio is not None:
        across = _oversubscribe(across, ratio)
    # a link that nothing crosses may be left out: the other one stands for it
    one = inside or across or Link("none", 0.0, math.inf, "one device: nothing is sent")
    return Cluster(path, num_hosts, per_host, device, inside or one, across or one, nics)


def _load(path: str, forms: str) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors on Windows begin a file with a mark
            return tomllib.loads(file.read())
    except FileNotFoundError:
        raise ClusterError(f"{path}: no such file; expected {forms}") from None
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: not valid TOML: {error}") from None


def _table(found: object, path: str, key: str) -> dict[str, object]:
    if not isinstance(found, dict):
        raise ClusterError(f"{path}: {key}: expected a table, found {show(found)}")
    return found


def _check_keys(table: Mapping[str, object], known: list[str], path: str, key: str) -> None:
    for name in table:
        if name not in known:
            place = f"{key}.{name}" if key else name
            raise ClusterError(f"{path}: {place}: unknown key; expected one of {', '.join(known)}{nearest(name, known)}")


def _need_keys(table: Mapping[str, object], needed: Sequence[str], path: str, key: str) -> None:
    """Where several are missing, all of them are named; of one its reader says what it has to be."""
    missing = [name for name in needed if name not in table]
    if len(missing) > 1:
        raise ClusterError(f"{path}: {key}: expected {', '.join(needed)}, found no {', '.join(missing)}")


def _text(table: Mapping[str, object], name: str, path: str, key: str, wanted: str) -> str:
    found = table.get(name)
    if not isinstance(found, str) or not found.strip():
        raise ClusterError(f"{path}: {key}.{name}: expected {wanted}, found {show(found)}")
    return found


# --- devices ------------------------------------------------------------------------------------------------------------------------


def _read_device(name: str, found: object, path: str) -> Device:
    key = f"devices.{name}"
    where = f"{path}: {key}"
    table = _table(found, path, key)
    _check_keys(table, _DEVICE_KEYS, path, key)
    _need_keys(table, ["memory_bytes", "flops_per_s", "memory_bytes_per_s", "source"], path, key)
    kind = table.get("kind", "cuda")
    if kind not in ("cpu", "cuda"):
        raise ClusterError(f'{where}.kind: expected "cpu" or "cuda", found {show(kind)}')
    rates = _table(table.get("flops_per_s"), path, f"{key}.flops_per_s")
    _check_keys(rates, _DTYPES, path, f"{key}.flops_per_s")
    if not rates:
        raise ClusterError(f"{where}.flops_per_s: expected at least one dtype, as in {{ bfloat16 = 989e12 }}, found none")
    return Device(
        name,
        str(kind),
        read_bytes(table, "memory_bytes", where),
        tuple((dtype, read_flops(rates, dtype, f"{where}.flops_per_s")) for dtype in rates),
        read_memory_bandwidth(table, "memory_bytes_per_s", where),
        read_seconds(table, "launch_s", where) if "launch_s" in table else LAUNCH_S,
        _text(table, "source", path, key, "where the figures come from, as text"),
        read_watts(table, "board_power_w", where) if "board_power_w" in table else None,
    )


def _limit_power(device: Device, table: Mapping[str, object], where: str) -> Device:
    """The device at the power that its hosts allow it."""
    if "power_w" not in table:
        return device
    power, full = read_watts(table, "power_w", where), device.board_power_w
    if full is None:
        raise ClusterError(
            f"{where}.power_w: the full power of {device.name} is not known: describe it as [devices.NAME] with board_power_w, "
            "the watts at which its flops_per_s hold"
        )
    if not _LEAST_POWER_SHARE * full <= power <= full:
        raise ClusterError(
            f"{where}.power_w: expected watts of one {device.name}, {_LEAST_POWER_SHARE * full:g} to its full {full:g}, found {power:g}"
        )
    if power == full:
        return device
    limited = replace(device, power_w=power)
    said = f"; at {power:g} of {full:g} W: matmuls at {power_share(limited):.3f} of their rate"
    return replace(limited, source=device.source + said)


# --- hosts --------------------------------------------------------------------------------------------------------------------------


def _read_hosts(found: object, path: str, own: Mapping[str, Device], links: Mapping[str, object]) -> list[HostKind]:
    if not isinstance(found, list) or not found:
        raise ClusterError(f"{path}: hosts: expected at least one [[hosts]] table with count, devices and device, found {show(found)}")
    kinds = [_read_host_kind(item, path, f"hosts[{i}]", own, links) for i, item in enumerate(found)]
    if len({kind.devices for kind in kinds}) > 1:
        raise ClusterError(
            f"{path}: hosts: expected the same number of devices on every host, found {print_kinds(kinds)}; set devices to "
            f"{min(kind.devices for kind in kinds)} on all of them (the others stay idle), or plan each kind of host alone"
        )
    if len({kind.device.kind for kind in kinds}) > 1:
        raise ClusterError(
            f"{path}: hosts: one program runs on cpu or on cuda devices, found {print_kinds(kinds)}; plan each kind of host alone"
        )
    check_one_maker([kind.device for kind in kinds], print_kinds(kinds), f"{path}: hosts")
    for i, kind in enumerate(kinds):
        if kind.inside is not None:
            check_joined(kind.inside, kind.count, kind.devices, kind.device.name, f"{path}: hosts[{i}]")
    return kinds


def _read_host_kind(item: object, path: str, key: str, own: Mapping[str, Device], links: Mapping[str, object]) -> HostKind:
    where = f"{path}: {key}"
    table = _table(item, path, key)
    _check_keys(table, _HOST_KEYS, path, key)
    _need_keys(table, ["count", "machine"] if "machine" in table else ["count", "devices", "device"], path, key)
    nics: int | None = None
    if "machine" in table:
        twice = next((name for name in ("devices", "device") if name in table), None)
        if twice:
            raise ClusterError(f"{where}.{twice}: a machine says its devices; expected machine, or devices and device, found both")
        machine = find_machine(_text(table, "machine", path, key, "the name of a machine"), f"{where}.machine")
        device, devices, usual = find_device(machine.device, where, own), machine.devices, (machine.inside, machine.across)
        nics = None if machine.nics == machine.devices else machine.nics
    else:
        device = find_device(_text(table, "device", path, key, "the name of a device"), f"{where}.device", own)
        devices, usual = read_whole(table, "devices", where), ("", "") if device.name in own else device_links(device.name)
        if "nics" in table:
            usual = usual[0], PORT_OF.get(usual[1], usual[1])
    if "nics" in table:
        nics = read_whole(table, "nics", where)
    return HostKind(
        read_whole(table, "count", where),
        devices,
        _limit_power(device, table, where),
        nics,
        _read_link(links.get("inside", usual[0]), path, "links.inside"),
        _read_link(links.get("across", usual[1]), path, "links.across"),
    )


# --- links --------------------------------------------------------------------------------------------------------------------------


def _read_link(found: object, path: str, key: str) -> Link | None:
    """A preset, or figures; None where neither the file nor the presets say."""
    if found == "":
        return None
    if isinstance(found, str):
        return find_link(found, f"{path}: {key}")
    where = f"{path}: {key}"
    table = _table(found, path, key)
    _check_keys(table, _LINK_KEYS, path, key)
    _need_keys(table, ["latency_s", "bandwidth_bytes_per_s"], path, key)
    source = _text(table, "source", path, key, "where the figures come from, as text") if "source" in table else where
    return Link("own", read_seconds(table, "latency_s", where), read_bandwidth(table, "bandwidth_bytes_per_s", where), source)


def _check_links(kinds: Sequence[HostKind], path: str, num_hosts: int) -> None:
    """What is crossed must have figures."""
    for kind in kinds:
        needed = (("links.inside", kind.inside, kind.devices > 1), ("links.across", kind.across, num_hosts > 1))
        missing = [key for key, link, crossed in needed if link is None and crossed]
        if missing:
            raise ClusterError(
                f"{path}: {' and '.join(missing)}: expected a preset ({', '.join(link.name for link in list_links())}) or "
                f"{{ latency_s = ..., bandwidth_bytes_per_s = ... }}, found nothing; {kind.device.name} has no default"
            )


def _read_oversubscription(links: Mapping[str, object], path: str) -> float | None:
    """What hosts can send over what the network carries; None: not said."""
    if "oversubscription" not in links:
        return None
    ratio = read_number(links, "oversubscription", f"{path}: links")
    if ratio < 1:
        raise ClusterError(
            f"{path}: links.oversubscription: expected what hosts can send over what the network carries, at least 1, found {ratio:g}; "
            f"did you mean {1 / ratio:g}?"
        )
    if ratio > _MOST_OVERSUBSCRIBED:
        raise ClusterError(f"{path}: links.oversubscription: expected what hosts can send over what the network carries, up to {_MOST_OVERSUBSCRIBED:g}, found {ratio:g}")
    return ratio


def _oversubscribe(across: Link, ratio: float) -> Link:
    """The port where all hosts send at once through a network that cannot carry it all. Racks are not told apart: always divided."""
    said = f"; divided by {ratio:g}: oversubscribed where all hosts send at once (racks are not told apart)"
    return replace(across, bandwidth_bytes_per_s=across.bandwidth_bytes_per_s / ratio, source=across.source + said, oversubscription=ratio)
