"""Machines: what something was measured on, a profile or a run. Standard library only: whoever knows torch says its version and the GPU's name."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")  # Linux; elsewhere what Python knows


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured, and with what: the same for all rows of a profile, for all ranks of a run.

    Args:
        device: `cpu`, or torch's name of the GPU.
        processor, cores: of the host.
        torch, python: versions.
    """

    device: str
    processor: str
    cores: int
    torch: str
    python: str


def describe_machine(device: str, torch: str) -> Machine:
    """This machine.

    Args:
        device: `cpu`, or torch's name of a GPU of this machine.
        torch: its version.
    """
    return Machine(device, _processor(), os.cpu_count() or 1, torch, platform.python_version())


@cache
def processor_maker() -> str:
    """As the processor says it, `AuthenticAMD`; empty where the system does not tell."""
    return _read_info("vendor_id")


@cache
def processor_has(feature: str) -> bool:
    """Whether the processor says that it has these instructions, `avx512f`; False where the system does not tell."""
    return feature in _read_info("flags").split()


def _processor() -> str:
    named = _read_info("model name")
    return named or platform.processor() or platform.machine() or "unknown processor"


def _read_info(key: str) -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key) and ":" in line), "")
