"""Starting the ranks of a program on this machine with torchrun, over loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import IO


def start_torchrun(
    script: Sequence[str], num_ranks: int, stdout: int | IO | None = None, stderr: int | IO | None = None, loopback: bool = True
) -> subprocess.Popen[str]:
    """Start the ranks; the caller waits for the process.

    Args:
        script: path of a Python file and its arguments, or `-m`, a module and its arguments.
        num_ranks: all on this machine.
        stdout, stderr: where the ranks' output goes, as `subprocess.Popen` takes them; None: where ours goes.
        loopback: gloo talks over the loopback interface only.
    """
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(num_ranks),
        "--master-addr", "127.0.0.1", "--master-port", str(_free_port()), *script,
    ]  # fmt: skip
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_ranks)))
    environment.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, by which a recorded run weighs memory, tells nothing on stderr
    if loopback:
        environment.setdefault("GLOO_SOCKET_IFNAME", _loopback_name())
    return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment, text=True)


def finish(process: subprocess.Popen[str]) -> int:
    """Wait for the ranks; on an interrupt they get theirs too, and are stopped if they do not heed it.

    Returns:
        torchrun's exit code.
    """
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _loopback_name() -> str:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "lo")
