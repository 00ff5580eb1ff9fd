"""One rank of the demo: `python -m autopar.demo.worker FOLDER STEPS`, started by torchrun.

It runs the emitted program of FOLDER on real text and tells the demo, on rank 0's stdout, one JSON object per line: every step, then what
was measured on each rank.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import AutoparError
from ..runtime import Executable, compile_program, read_files, read_program, read_torchrun_env, start_process_group, stop_process_group
from ..runtime.pending import Pending
from ..runtime.recording import list_sections
from .text import draw_batches, load_text

TIMEOUT_S = 60.0
DATA_SEED = 1


class GradientWatch:
    """Weighs what is in an executable's `grads` when its `update` begins: the gradients as they are held between backward and update."""

    def __init__(self, executable: Executable) -> None:
        self.bytes = 0
        assert executable.comm is not None
        program = next(table for table, name in list_sections(executable.program, executable.comm) if name == "update")
        update = program["update"]

        def weighed(comm: Any, state: Mapping[str, Tensor], grads: dict[str, Any], *more: Any) -> None:
            held = {key: g.wait() if isinstance(g, Pending) else g for key, g in grads.items()}
            grads.update({key: Pending(lambda x=held[key]: x) for key, g in grads.items() if isinstance(g, Pending)})  # the update waits for it again
            storages = [x.untyped_storage() for x in held.values()]
            del held
            self.bytes = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
            update(comm, state, grads, *more)

        program["update"] = weighed


def train(folder: str, steps: int) -> None:
    """Run the steps."""
    env = read_torchrun_env()
    files = read_files(folder)
    mesh = read_program(compile_program(files)).mesh
    comm = start_process_group(mesh, env, TIMEOUT_S)
    executable = Executable(None, files, comm)
    watch = GradientWatch(executable)
    batch, seq = next(iter(executable.program.batch.values())).shape
    for number, (tokens, targets) in zip(range(steps), draw_batches(load_text(), batch, seq, DATA_SEED)):
        began = time.perf_counter()
        loss = float(executable.step(tokens, targets))
        if comm.rank == 0:
            print(json.dumps({"step": number, "loss": loss, "seconds": time.perf_counter() - began}), flush=True)
    measured = comm.collect({**executable.num_bytes(), "grad": watch.bytes})
    if comm.rank == 0:
        print(json.dumps({"measured": measured}), flush=True)
    stop_process_group()


if __name__ == "__main__":
    try:
        train(sys.argv[1], int(sys.argv[2]))
    except AutoparError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        stop_process_group()
        raise SystemExit(2) from None
