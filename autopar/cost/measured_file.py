"""The profile that prices are read from: what it must have, and what is said where it has less.

In: a cluster, this machine, where profiles are kept. Out: rows, or None where there are none. A profile in which no op was measured is an error: all of its prices would be
assumptions. What is missing beyond that is said, a line each, for what was not measured is priced by formula.

    cpu   this machine's profile prices ops and collectives; one of an earlier autopar's format that nobody asked for is left aside, which is said
    GPUs  the profile of such a GPU gives their level (`calibrated`): the one that was asked for, a file or the name of a device in the package (`data/profile-*.json`); else the
          one that `autopar profile` left in the cache. One that is faster than the device's data sheet, or far slower than any such device, is an error
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..cluster import Cluster, Device, list_devices, name_preset, rate_of
from ..errors import ClusterError
from ..graph.machine import Machine
from .calibrated import matmul_levels
from .device_rates import find_device_rates
from .matmul import find_matmul_rates
from .rows import SUSTAINED, ProfileRows, disturbed_text, memory_bytes_per_s, missing_kinds, op_work
from .rows_file import EarlierFormat, load_profile, machine_difference

_AGAIN = "run `autopar profile` again"
_DATA = Path(__file__).parent / "data"
_MOST_OF_SHEET, _LEAST_LEVEL = 1.05, 0.25  # a clock's doubt; what a device that computes for nobody else is above


def find_measured(cluster: Cluster, asked: str | None, path: str | os.PathLike[str], here: Machine, say: Callable[[str], None]) -> ProfileRows | None:
    """The profile that prices this cluster.

    Args:
        asked: a file, or the name of a device that was measured for the package; None: what the cache has.
        path: of this machine's profile of its CPU; profiles of GPUs lie beside it.
    Raises:
        ClusterError: what was asked for is not there, or is of other devices; or as of `load_profile`.
    """
    device = cluster.device
    if device.kind == "cpu":
        if asked is not None and not os.path.isfile(asked):
            raise ClusterError(f"measured: expected a file that `autopar profile` wrote on this machine, found {asked!r}")
        try:
            return load_measured(path if asked is None else asked, here, say)
        except EarlierFormat:
            if asked is not None:
                raise
            say(f"{os.fspath(path)}: not used: of an earlier autopar; {_AGAIN}, or delete the file")
            return None
    found = _packaged_or_file(asked) if asked is not None else _cached(device.name, Path(path).parent)
    rows = load_profile(found) if found is not None else None
    if rows is None:
        return None
    measured = name_preset(rows.machine.device)
    if measured is None or measured != device.name:
        known = "no preset's name" if measured is None else measured
        raise ClusterError(f"{found}: a profile of {rows.machine.device} ({known}), and the cluster's devices are {device.name}: expected one of {device.name}; {_AGAIN} there")
    if find_device_rates(device) is None:
        say(f"{found}: not used: {device.name} has figures of its own in this cluster, and no table of kernels to which a level belongs")
        return None
    _check_level(rows, device, found)
    for line in _list_lacks(rows) if found.parent != _DATA else ():
        say(f"{found}: {line}")
    say(f"priced at the level of {rows.machine.device} in {found}")
    return rows


def _check_level(rows: ProfileRows, device: Device, found: Path) -> None:
    """Raise `ClusterError` where no device of this kind can have been measured so."""
    _require_ops(rows, found)
    preset = next(preset for preset in list_devices() if preset.name == device.name)
    for row in rows.ops:
        if row.family.startswith("matmul") and row.seconds is not None:
            reached, most = op_work(row.family, row.dtype, row.shape)[0] / row.seconds, _MOST_OF_SHEET * rate_of(preset, row.dtype)
            if reached > most:
                raise ClusterError(
                    f"{found}: a matmul of {' x '.join(map(str, row.shape))} in {row.dtype} at {reached / 1e12:.4g} TFLOP/s: expected at most the {rate_of(preset, row.dtype) / 1e12:.4g} of {device.name}'s "
                    f"data sheet; {_AGAIN} there, or delete the file"
                )
    if (reached := memory_bytes_per_s(rows.ops)) > _MOST_OF_SHEET * preset.memory_bytes_per_s:
        raise ClusterError(f"{found}: memory at {reached / 1e9:.4g} GB/s: expected at most the {preset.memory_bytes_per_s / 1e9:.4g} of {device.name}'s data sheet; {_AGAIN} there, or delete the file")
    for dtype, level in matmul_levels(find_matmul_rates(device.name), rows).items():
        if level < _LEAST_LEVEL:
            raise ClusterError(
                f"{found}: {dtype} matmuls at {level:.2g} of what {device.name} reaches in published tables: expected at least {_LEAST_LEVEL:g}. Something else ran, or the device was held back; "
                f"{_AGAIN} while it is idle, or delete the file"
            )


def _list_lacks(rows: ProfileRows) -> tuple[str, ...]:
    """What a profile of a GPU does not say."""
    families = {row.family for row in rows.ops if row.seconds is not None}
    lacks = [] if rows.finished else [f"measuring was interrupted; {_AGAIN}"]
    lacks += [] if "matmul" in families or SUSTAINED in families else ["no matmul was measured: they stay at the level of published tables"]
    lacks += [] if SUSTAINED in families or "matmul" not in families else ["no matmul that runs for seconds was measured: those of 16 bits are at the level of single calls, which is higher"]
    lacks += [] if memory_bytes_per_s(rows.ops) else ["no copy was measured: memory stays as published"]
    return tuple(lacks)


def _packaged_or_file(asked: str) -> Path:
    for path in (_packaged(asked), Path(asked)):
        if path.is_file():
            return path
    raise ClusterError(f"measured: expected a file that `autopar profile` wrote, or a device that was measured for the package ({', '.join(list_packaged())}), found {asked!r}")


def list_packaged() -> tuple[str, ...]:
    """Devices whose profiles the package has."""
    return tuple(path.stem.partition("-")[2].upper() for path in sorted(_DATA.glob("profile-*.json")))


def _packaged(name: str) -> Path:
    return _DATA / f"profile-{name.lower()}.json"


def load_packaged(name: str) -> ProfileRows:
    """The profile of a device that the package has."""
    rows = load_profile(_packaged(name))
    assert rows is not None, name
    return rows


def _cached(name: str, folder: Path) -> Path | None:
    """The profile of such a GPU beside this machine's."""
    return next((path for path in sorted(folder.glob("profile-*.json")) if name_preset(path.stem.partition("-")[2]) == name), None)


def load_measured(path: str | os.PathLike[str], here: Machine, say: Callable[[str], None]) -> ProfileRows | None:
    """The rows of this machine's profile.

    Args:
        say: told what the profile lacks, one line each.
    Raises:
        ClusterError: as of `load_profile`; or no op was measured.
    """
    rows = load_profile(path, here)
    if rows is None:
        return None
    _require_ops(rows, path)
    for line in list_gaps(rows, here):
        say(f"{os.fspath(path)}: {line}")
    return rows


def _require_ops(rows: ProfileRows, path: str | os.PathLike[str]) -> None:
    if all(row.seconds is None for row in rows.ops):
        failed = f"{len(rows.ops)} rows of ops, none with seconds ({rows.ops[0].error})" if rows.ops else "no rows of ops"
        raise ClusterError(f"{os.fspath(path)}: not a profile to price with: expected measured ops, found {failed}; {_AGAIN}, or delete the file")


def list_gaps(rows: ProfileRows, here: Machine) -> tuple[str, ...]:
    """What makes a profile of a CPU say less of this machine than it could: other versions, an early end, kinds of rows that it has not, something else that ran."""
    found = []
    if versions := machine_difference(here, rows.machine, ("torch", "python")):
        found.append(f"measured with other versions ({versions}); {_AGAIN}")
    missing = missing_kinds(rows)
    if missing:
        found.append(f"not measured, so priced by formula: {', '.join(missing)}; {_AGAIN}")
    elif not rows.finished:
        found.append(f"measuring was interrupted: shapes between the measured ones are farther apart; {_AGAIN}")
    if disturbed := disturbed_text(rows):
        found.append(f"{disturbed}; delete the file and {_AGAIN} while nothing else does")
    return tuple(found)
