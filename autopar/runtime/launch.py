"""Start and end: what torchrun tells a process, and the process group that it makes of it.

The environment is read in one function, which only the outermost caller (`api`, `run_training`) calls.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import RankError
from ..graph.mesh import Mesh, num_ranks, print_mesh
from .allocator import keep_pages
from .comm import TIMEOUT_S, Comm, ProcessComm, world_size_text
from .last_words import listen, stop_listening
from .threads import solo_comm


@dataclass(frozen=True)
class TorchrunEnv:
    """Which process this is, and where the others meet."""

    rank: int
    local_rank: int
    world_size: int
    address: str
    port: int
    error_file: str | None = None  # where torchrun looks for what this rank ended with
    local_size: int = 1  # processes of this host


def read_torchrun_env(environ: Mapping[str, str] = os.environ) -> TorchrunEnv | None:
    """What torchrun put into the environment; None where this process was not started by it.

    Raises:
        RankError: the variables are there but are no numbers.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    local_size = environ.get("LOCAL_WORLD_SIZE", "1")
    if not local_size.isdecimal():
        raise RankError(f"LOCAL_WORLD_SIZE: expected a number, as torchrun sets it, found {local_size!r}")
    try:
        rank = int(environ["RANK"])
        return TorchrunEnv(
            rank,
            int(environ.get("LOCAL_RANK", rank)),
            int(environ["WORLD_SIZE"]),
            environ.get("MASTER_ADDR", "127.0.0.1"),
            int(environ.get("MASTER_PORT", "29500")),
            environ.get("TORCHELASTIC_ERROR_FILE"),
            int(local_size),
        )
    except ValueError as error:
        raise RankError(f"RANK, LOCAL_RANK, WORLD_SIZE, MASTER_PORT: expected numbers, as torchrun sets them: {error}") from None


def start_process_group(mesh: Mesh, env: TorchrunEnv | None, timeout_s: float = TIMEOUT_S, device_type: str = "cpu") -> Comm:
    """Join the other ranks, and give this rank's end of the mesh.

    Args:
        mesh: of the plan.
        env: from `read_torchrun_env`.
        timeout_s: a collective that waits longer for another rank fails with `RankError`.
        device_type: `cpu` (gloo) or `cuda` (nccl, and gloo for what lives on the CPU). Where a host has fewer GPUs than processes they share them, and gloo carries all, by
            way of the host's memory: nccl refuses a GPU that another rank has. That is for trying a program out.
    Raises:
        RankError: the number of processes is not the plan's, or the others do not come.
    """
    found = env.world_size if env else 1
    if found != num_ranks(mesh):
        if env is None:
            need = num_ranks(mesh)
            raise RankError(
                f"the plan needs {need} ranks (mesh {print_mesh(mesh)}), this is one process that torchrun did not start: "
                f"use torchrun --nproc-per-node {need}"
            )
        raise RankError(world_size_text(mesh, found))
    if device_type == "cpu":
        device, shared = torch.device("cpu"), False
        keep_pages()
    else:
        gpus = max(1, torch.cuda.device_count())
        device, shared = torch.device(device_type, env.local_rank % gpus if env else 0), env is not None and env.local_size > gpus
        torch.cuda.set_device(device)
    if found == 1:
        return solo_comm(mesh, device)
    assert env is not None
    if not dist.is_initialized():
        _join(env, timeout_s, "gloo" if device.type == "cpu" or shared else "cpu:gloo,cuda:nccl")
    listen(env.rank, env.error_file)
    return ProcessComm(mesh, device, timeout_s)


def stop_process_group() -> None:
    """Leave the process group, if there is one, and SIGTERM to its own. Also after a failure: gloo's threads, left alone, may abort the exiting process."""
    stop_listening()
    if dist.is_initialized():
        try:
            dist.destroy_process_group()
        except RuntimeError:  # the others are gone already, and what failed has been said
            pass


def _join(env: TorchrunEnv, timeout_s: float, backend: str) -> None:
    atexit.register(stop_process_group)
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{env.address}:{env.port}",
            rank=env.rank,
            world_size=env.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise RankError(f"rank {env.rank} could not meet the other {env.world_size - 1} ranks at {env.address}:{env.port} in {timeout_s:g} s ({first})") from None
