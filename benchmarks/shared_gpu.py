"""Several ranks on one GPU: the emitted programs, with their Triton kernels, beside plain PyTorch. Numbers only: nothing is timed.

    python benchmarks/shared_gpu.py                          # needs one CUDA device; gloo and nccl, 2 and 4 ranks
    python benchmarks/shared_gpu.py --backends gloo --ranks 2
    python benchmarks/shared_gpu.py --device cpu             # the same programs for the CPU, by gloo

A small GPT, AdamW, the same weights and batch for all, on one device by plain PyTorch in float32 and on the ranks by each plan. By default ranks that share a GPU talk by gloo
(`runtime.launch`). nccl refuses a GPU that another rank of the same host has; here each rank says that it is another host (NCCL_HOSTID), so nccl carries everything by sockets on the
loopback interface: slowly, but by its own collectives, on its own streams, with its own events.

    off       the largest difference of a loss from plain PyTorch's, relative, over the steps (tolerances: 1e-5 in float32, 3e-3 in bf16)

Ends with 1 where a case fails or is off by more, with 2 where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent))  # torchrun starts this file by its path

from autopar.api import compile_workload, hold_files  # noqa: E402
from autopar.cli.torchrun import finish, start_torchrun  # noqa: E402
from autopar.constraints import parse_fix  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import Executable, compile_program, initial_state, read_files, read_program, read_torchrun_env, start_process_group, state_of_module, stop_process_group  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from benchmarks.gpu import find_preset  # noqa: E402
from benchmarks.peers import single_peers  # noqa: E402
from benchmarks.step_time import stop_after  # noqa: E402

SIZES = {"batch": 8, "seq": 64, "vocab": 512, "layers": 2, "hidden": 64, "heads": 4}
STEPS = 5
TOLERANCE = {"fp32": 1e-5, "bf16": 3e-3}
LIMIT_S = 150.0
_COMPILING = threading.Lock()  # cases run side by side; the compiler is one after the other


@dataclass(frozen=True)
class Case:
    """A plan in a precision by a backend.

    Args:
        graph: replayed as a CUDA graph (nccl alone can be captured).
    """

    fix: str
    ranks: int
    backend: str
    precision: str
    graph: bool = False

    def __str__(self) -> str:
        return f"{self.backend}, {self.ranks} ranks, {self.fix}, {self.precision}{', CUDA graph' * self.graph}"


def list_cases(backends: list[str]) -> Iterator[Case]:
    for backend in backends:
        for precision in TOLERANCE:
            for fix in ("dp=2,zero=0", "dp=2,zero=1", "dp=2,zero=3", "tp=2", "pp=2,microbatch=2"):
                yield Case(fix, 2, backend, precision)
            for fix in ("dp=2,tp=2,zero=3", "pp=2,dp=2,microbatch=2"):
                yield Case(fix, 4, backend, precision)
        if backend == "nccl":
            yield from (Case(fix, 2, backend, "bf16", graph=True) for fix in ("dp=2,zero=3", "tp=2"))


def make_workload() -> Workload:
    """The same weights and batch in every process."""
    torch.manual_seed(0)
    return demo.build(**SIZES)


# --- one rank ---------------------------------------------------------------------------------------------------------------------


def work(folder: Path, backend: str, device_type: str) -> None:
    """One rank; rank 0 prints the losses, as JSON."""
    env = read_torchrun_env()
    assert env is not None
    if backend == "nccl":
        os.environ |= {"NCCL_HOSTID": f"rank-{env.rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        torch.cuda.set_device(env.local_rank % torch.cuda.device_count())
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl", timeout=timedelta(seconds=LIMIT_S))
    files = read_files(folder)
    spec = read_program(compile_program(files))
    comm = start_process_group(spec.mesh, env, LIMIT_S, device_type)
    workload = make_workload()
    executable = Executable(None, files, comm, initial_state(spec, comm.rank, state_of_module(workload.model), device=comm.device))
    assert isinstance(workload.example_inputs, tuple)
    batch = executable.local_batch(*(t.to(comm.device) for t in (*workload.example_inputs, *workload.example_targets)))
    losses = [float(executable.step(*batch)) for _ in range(STEPS)]
    told = comm.collect(losses)
    if comm.rank == 0:
        print(json.dumps(told), flush=True)
    comm.barrier()
    stop_process_group()
    os._exit(0)  # all is said: threads of the groups may abort an exiting process


# --- all ranks --------------------------------------------------------------------------------------------------------------------


def plain_losses() -> list[float]:
    """By eager PyTorch in float32, on the CPU."""
    build = next(build for name, build in single_peers(make_workload()).items() if name.startswith("eager"))
    step = build()
    return [float(step()) for _ in range(STEPS)]


def run_case(case: Case, cluster: str, device_type: str, wanted: list[float]) -> tuple[str, float | None]:
    """What there is to say, and how far off its losses are; None where it failed."""
    options = Options(precision=case.precision, constraints=parse_fix(case.fix), price=False, time_limit_s=20.0, cuda_graph=case.graph)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with _COMPILING:
            hold_files(compile_workload(make_workload(), cluster, options, cache_path=None)).emit(folder)
        process = start_torchrun([str(HERE), "--work", folder, "--backends", case.backend, "--device", device_type], case.ranks, stdout=out, stderr=errors)
        with stop_after(process, LIMIT_S):
            finish(process)
        for stream in (out, errors):
            stream.seek(0)
        line = next((line for line in out.read().splitlines() if line.startswith("[[")), None)
        if process.returncode or line is None:
            return f"failed ({process.returncode}), or took more than {LIMIT_S:g} s:\n{errors.read()[-1500:]}", None
    off = max(abs(a / b - 1) for rank in json.loads(line) for a, b in zip(rank, wanted, strict=True))
    return f"off {off:.1e}", off


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", choices=("gloo", "nccl"), help="default: both; on the CPU gloo")
    parser.add_argument("--ranks", nargs="+", type=int, choices=(2, 4), default=[2, 4])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int, default=4, help="cases at once; on the CPU 1")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("shared_gpu.py: needs one CUDA device and a torch built for it, and torch finds none here; --device cpu runs the programs of a CPU", file=sys.stderr)
        return 2
    backends = asked.backends or (["gloo", "nccl"] if asked.device == "cuda" else ["gloo"])
    if asked.work is not None:
        work(asked.work, backends[0], asked.device)
    torch.set_num_threads(2)
    wanted = plain_losses()
    preset = f"x{find_preset(torch.cuda.get_device_name(0))}" if asked.device == "cuda" else ""
    cases = [case for case in list_cases(backends) if case.ranks in asked.ranks]
    print(f"plain PyTorch: {' '.join(f'{loss:.6f}' for loss in wanted)}", flush=True)
    wrong = 0
    with ThreadPoolExecutor(asked.jobs if asked.device == "cuda" else 1) as pool:
        jobs = {case: pool.submit(run_case, case, f"1x{case.ranks}{preset}" if preset else f"cpu:{case.ranks}", asked.device, wanted) for case in cases}
        for case, job in jobs.items():
            said, off = job.result()
            wrong += off is None or not off <= TOLERANCE[case.precision]
            print(f"{str(case):56} {said}", flush=True)
    print(f"{len(cases) - wrong} of {len(cases)} within {' and '.join(f'{t:g} in {p}' for p, t in TOLERANCE.items())}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
