"""Which machine this is: what a profile is of, and what a profile must be of to be read here. Needs no torch to be imported where it is
installed as a package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ..graph.machine import Machine, describe_machine


def machine_here(device: str = "cpu") -> Machine:
    """This machine.

    Args:
        device: `cpu`, or torch's name of a GPU of this machine.
    """
    try:
        torch = version("torch")
    except PackageNotFoundError:  # a checkout of torch
        import torch as imported

        torch = imported.__version__
    return describe_machine(device, torch)
