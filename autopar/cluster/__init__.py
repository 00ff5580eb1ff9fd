"""Clusters: what the user's text or TOML file says of the machines, with the origin of every figure.

In: `cpu:4`, `2x8xH100-80GB` (hosts x devices x type), `8xH100-80GB` (one host), `2xDGX-H100` (hosts x machine), or the path of a TOML
file. Out: a `Cluster`, planned as equal hosts of equal devices. Everything that is wrong is a `ClusterError` that names the file, the
key, what was expected and what was found. Figures are nominal (data sheets); how much of them is reached is the cost model's business.

Rooms: `nouns`, `presets` (the figures and their sources), `text` (the short form), `file` (the TOML form), `units` (numbers in a wrong
unit), `mixed` (hosts of different kinds). `docs/clusters.md` says it to people.
"""

from __future__ import annotations

from .nouns import Cluster, Device, Link, Machine, num_devices, ports_per_device, power_share, rate_of
from .presets import device_links, list_devices, list_links, list_machines, name_preset
from .text import parse_cluster

__all__ = [
    "Cluster", "Device", "Link", "Machine", "device_links", "list_devices", "list_links", "list_machines", "name_preset", "num_devices",
    "parse_cluster", "ports_per_device", "power_share", "rate_of",
]  # fmt: skip
