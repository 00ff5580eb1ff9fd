"""The short form: `cpu:4`, `2x8xH100-80GB`, `8xH100-80GB`, `2xDGX-H100`. A path goes to `file`."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from ..errors import ClusterError
from .file import read_file
from .nouns import Cluster, Machine
from .presets import check_joined, device_links, find_device, find_link, list_devices, list_machines, list_short_names

FORMS = (
    "cpu:4, 2x8xH100-80GB (hosts x devices x type), 8xH100-80GB (one host), 2xDGX-H100 (hosts x machine), or the path of a TOML file"
)


def parse_cluster(text_or_path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from its short text or its TOML file.

    Raises:
        ClusterError: names the place, what was expected and what was found.
    """
    if not isinstance(text_or_path, (str, os.PathLike)) or not isinstance(os.fspath(text_or_path), str):
        raise ClusterError(f"cluster: expected {FORMS}; found {type(text_or_path).__name__} {text_or_path!r}")
    text = os.fspath(text_or_path).strip()
    if text.endswith(".toml") or "/" in text or os.sep in text or Path(text).is_file():
        return read_file(text, FORMS)
    cpu = re.fullmatch(r"cpu(?::(.*))?", text)
    if cpu:
        if cpu[1] is None:
            raise ClusterError("cluster 'cpu': expected the number of ranks, as in cpu:4")
        return _preset_cluster(text, 1, _parse_count(cpu[1], text, "the number of ranks"), "cpu")
    count, _, name = text.partition("x")
    machine = next((m for m in list_machines() if m.name == name), None)
    if machine and _is_number(count):
        return _machine_cluster(text, _parse_count(count, text, "the number of hosts"), machine)
    parts = text.split("x", 2)
    if len(parts) == 3 and _is_number(parts[1]):
        hosts, devices, name = parts
    elif len(parts) >= 2 and _is_number(parts[0]):
        hosts, devices = "1", count
    else:
        raise ClusterError(f"cluster {text!r}: expected {FORMS}{_suggest(text)}")
    num_hosts = _parse_count(hosts, text, "the number of hosts")
    return _preset_cluster(text, num_hosts, _parse_count(devices, text, "the number of devices per host"), name)


def _suggest(text: str) -> str:
    """What a text that is no cluster may have meant."""
    machines = [m.name for m in list_machines()]
    known = [*(d.name for d in list_devices()), *list_short_names(), *machines]
    close = difflib.get_close_matches(text.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    name = next((k for k in known if close and k.lower() == close[0]), "")
    if name in machines:
        return f"; did you mean 1x{name} (one such machine)?"
    return f"; did you mean {name}:4?" if name == "cpu" else f"; did you mean 8x{name}?" if name else ""


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?\d+(\.\d*)?\s*", text) is not None


def _parse_count(text: str, spec: str, what: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ClusterError(f"cluster {spec!r}: {what}: expected a positive whole number, found {text!r}")
    return int(text)


def _preset_cluster(spec: str, num_hosts: int, devices: int, name: str) -> Cluster:
    if any(name == m.name for m in list_machines()):
        raise ClusterError(f"cluster {spec!r}: {name} is a whole host: expected hosts x machine, as in {num_hosts}x{name}")
    device = find_device(name, f"cluster {spec!r}", {})
    inside, across = (find_link(link, spec) for link in device_links(device.name))
    check_joined(inside, num_hosts, devices, device.name, f"cluster {spec!r}")
    return Cluster(spec, num_hosts, devices, device, inside, across)


def _machine_cluster(spec: str, num_hosts: int, machine: Machine) -> Cluster:
    nics = None if machine.nics == machine.devices else machine.nics
    device = find_device(machine.device, spec, {})
    return Cluster(spec, num_hosts, machine.devices, device, find_link(machine.inside, spec), find_link(machine.across, spec), nics)
