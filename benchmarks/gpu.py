"""One GPU: autopar's program for a single device beside eager PyTorch and torch.compile, in bf16, and the bandwidth of its fused kernels.

    python benchmarks/gpu.py                     # needs one CUDA device; some minutes
    python benchmarks/gpu.py --dry-run           # the same on the CPU at tiny sizes: that it runs, no figures
    python benchmarks/gpu.py --models resnet50 vit-base bert-base   # any of `gpu_models.py`

GPT-2 medium with a batch of 16 x 1024 (`--models gpt-small`: one whose step is shorter than asking for it), and the blocks of a 1B Llama with the batch that fills a quarter of the device's memory. Weights and activations are bf16, masters
and moments float32, and the loss reads float32, for all alike: the peers hold their masters beside the model, and AdamW is fused. All are on the device together and take turns; before
that each is weighed (`benchmarks.weigh`), and its first losses are compared.

    step, spread          median over the rounds, and interquartile range over it
    ready                 seconds until its first four steps were done: planning, compiling, finding sizes of blocks
    peak                  bytes of the caching allocator during a step, states and batch with them
    / compile, / eager    step over theirs (aims: at most 1.0 and 0.75)
    of copy               bandwidth of a kernel of the emitted `kernels.py` over that of a copy of 1 GiB on this device (aim: at least 85 %; `benchmarks.kernels`), and over that
                          of a copy that moves as many bytes as the kernel: what starting and ending cost is in both then

Ends with 2 where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autopar.api import compile_workload  # noqa: E402
from autopar.cluster import name_preset  # noqa: E402
from autopar.demo import model as demo  # noqa: E402
from autopar.graph.machine import describe_machine  # noqa: E402
from autopar.graph.mesh import Mesh  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.runtime import Executable, initial_state, start_process_group, state_of_module  # noqa: E402
from autopar.trace import Workload  # noqa: E402
from benchmarks import llama  # noqa: E402
from benchmarks.device_time import list_device_time  # noqa: E402
from benchmarks.gpu_models import MODELS  # noqa: E402
from benchmarks.kernels import Measured, measure_copy, measure_kernels  # noqa: E402
from benchmarks.peers import single_peers  # noqa: E402
from benchmarks.rounds import spread, time_rounds  # noqa: E402
from benchmarks.weigh import Step, weigh  # noqa: E402

GPT_SMALL = {"batch": 8, "seq": 256, "vocab": 4096, "layers": 6, "hidden": 256, "heads": 4}  # so small that asking takes longer than doing
GPT2_MEDIUM = {"batch": 16, "seq": 1024, "vocab": 50257, "layers": 24, "hidden": 1024, "heads": 16}
SHARE = 0.25  # of the device's memory, for the batch of the Llama
WEIGHED_STEPS, LOSS_TOLERANCE = 4, 2e-2  # bf16 has 8 bits: where a loss jumps, eager and torch.compile were 0.8 % apart
COPY_BYTES = 2**30
COMPILE_AIM, EAGER_AIM, COPY_AIM = 1.0, 0.75, 0.85


@dataclass(frozen=True)
class Setting:
    """Where it runs, and at what sizes.

    Args:
        cluster: as `autopar plan --cluster` takes it.
        memory_bytes: of the device.
        backend: of torch.compile.
        where: say which kernels each contender's time goes to.
    """

    device: torch.device
    cluster: str
    memory_bytes: int
    backend: str
    small: dict[str, int]
    gpt: dict[str, int]
    llama: dict[str, int]
    copy_bytes: int
    rounds: int
    steps: int
    where: bool = False


def dry_setting() -> Setting:
    """The CPU, tiny; the backend makes no code, so that no compiler is needed."""
    gpt = {"batch": 2, "seq": 16, "vocab": 64, "layers": 2, "hidden": 32, "heads": 2}
    blocks = {"seq": 16, "layers": 2, "hidden": 32, "wide": 64, "heads": 4, "kv_heads": 2}
    return Setting(torch.device("cpu"), "cpu:1", 4 * 2**20, "aot_eager", gpt, gpt, blocks, 2**16, rounds=2, steps=1)


def cuda_setting(cluster: str | None, rounds: int, steps: int) -> Setting:
    device = torch.device("cuda", 0)
    memory = torch.cuda.get_device_properties(device).total_memory
    found = cluster or f"1x1x{find_preset(torch.cuda.get_device_name(device))}"
    return Setting(device, found, memory, "inductor", GPT_SMALL, GPT2_MEDIUM, llama.LLAMA_1B, COPY_BYTES, rounds, steps)


def find_preset(name: str) -> str:
    """The device preset for torch's name of a GPU."""
    found = name_preset(name)
    if found is None:
        raise SystemExit(f"gpu.py: no preset, or more than one, for {name!r}: say --cluster 1x1xNAME, or a TOML file that describes it")
    return found


class Masters:
    """AdamW on float32 copies of a model's bf16 parameters: what autopar's bf16 programs do, spelled by hand."""

    def __init__(self, params: Iterable[nn.Parameter], **settings: Any) -> None:
        self.params = list(params)
        self.masters = [nn.Parameter(p.detach().float()) for p in self.params]
        self.optimizer = torch.optim.AdamW(self.masters, **settings)

    @torch.no_grad()
    def step(self) -> None:
        for master, p in zip(self.masters, self.params):
            master.grad, p.grad = None if p.grad is None else p.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_copy_(self.params, self.masters)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None


# --- one model --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contender."""

    name: str
    step_s: float
    spread: float
    peak_bytes: int
    ready_s: float


@dataclass(frozen=True)
class Case:
    """One model: its contenders, and what became of its kernels."""

    model: str
    sizes: dict[str, int]
    rows: tuple[Row, ...]
    kernels: tuple[Measured, ...]
    missing: tuple[str, ...]
    where: tuple[str, ...] = ()

    def step_s(self, word: str) -> float:
        return next(row.step_s for row in self.rows if word in row.name)


def measure_case(name: str, build: Callable[[int], Workload], batch: int | None, sizes: dict[str, int], setting: Setting, graph: bool = False) -> Case:
    """Weigh, compare and time all on one model.

    Args:
        build: the workload of a batch size, on the CPU.
        batch: None: as many as fill `SHARE` of the memory.
        graph: autopar's program as a CUDA graph, too.
    """
    batch = batch or _fitting_batch(build, setting)
    torch.manual_seed(0)
    workload = build(batch)
    _round_weights(workload.model)
    losses, peaks, ready = {}, {}, {}
    executables = {}
    for who in ("autopar", *(("autopar, CUDA graph",) if graph and setting.device.type == "cuda" else ())):
        began = time.perf_counter()
        executables[who] = _compile(workload, setting, cuda_graph=who != "autopar")
        ready[who] = time.perf_counter() - began
    emitted = {who: functools.partial(_emitted, executable, workload, setting) for who, executable in executables.items()}
    builders: dict[str, Callable[[], Step]] = {**emitted, **_peers(workload, setting)}
    runs: dict[str, Step] = {}
    for who, build_step in builders.items():
        began = time.perf_counter()
        runs[who], losses[who], peaks[who] = weigh(build_step, WEIGHED_STEPS, setting.device)
        ready[who] = ready.get(who, 0.0) + time.perf_counter() - began
    _check_losses(losses, name)
    times = time_rounds(runs, setting.steps, lambda: _settle(setting), lambda: _settle(setting), lambda done, took: done < setting.rounds)
    rows = tuple(Row(who, median(t.seconds), spread(t.seconds), peaks[who], ready[who]) for who, t in times.items())
    where = tuple(f"{who}: {line}" for who in runs for line in list_device_time(runs[who])) if setting.where else ()
    namespace = executables["autopar"].program.step.__globals__
    kernels = next((value for key, value in namespace.items() if isinstance(value, ModuleType) and "kernels" in key), None)
    if kernels is None:
        return Case(name, {**sizes, "batch": batch}, rows, (), ("the emitted program has no kernels.py",), where)
    measured, missing = measure_kernels(kernels, namespace, runs["autopar"], setting.device)
    return Case(name, {**sizes, "batch": batch}, rows, tuple(measured), tuple(missing), where)


@torch.no_grad()
def _round_weights(model: nn.Module) -> None:
    """Weights that bf16 holds exactly: everybody's masters begin with the same numbers."""
    for p in model.parameters():
        p.copy_(p.bfloat16())


def _compile(workload: Workload, setting: Setting, cuda_graph: bool = False) -> Executable:
    options = Options(precision="bf16", memory_bytes=setting.memory_bytes, price=False, time_limit_s=30.0, cuda_graph=cuda_graph)
    compiled = compile_workload(workload, setting.cluster, options)
    return Executable(compiled.plan, compiled.files, start_process_group(Mesh(()), None, device_type=setting.device.type), {})


def _emitted(executable: Executable, workload: Workload, setting: Setting) -> Step:
    """The step of the emitted program, its states with it."""
    assert isinstance(workload.example_inputs, tuple)
    executable.state.update(initial_state(executable.program, 0, state_of_module(workload.model), device=setting.device))
    batch = executable.local_batch(*(t.to(setting.device, copy=True) for t in (*workload.example_inputs, *workload.example_targets)))
    return lambda: executable.step(*batch)


def _peers(workload: Workload, setting: Setting) -> dict[str, Callable[[], Step]]:
    compute = workload.loss
    assert compute is not None and isinstance(workload.example_inputs, tuple) and isinstance(workload.optimizer, functools.partial)
    there = replace(
        workload,
        model=copy.deepcopy(workload.model).to(setting.device, torch.bfloat16),
        example_inputs=tuple(t.to(setting.device, torch.bfloat16 if t.is_floating_point() else t.dtype) for t in workload.example_inputs),
        example_targets=tuple(t.to(setting.device) for t in workload.example_targets),
        loss=lambda output, *targets: compute(output.float(), *targets),
        optimizer=functools.partial(Masters, **workload.optimizer.keywords),
    )
    return {name: build for name, build in single_peers(there, setting.backend).items() if "fused" in name}


def _fitting_batch(build: Callable[[int], Workload], setting: Setting) -> int:
    """The batch at which eager PyTorch's peak is `SHARE` of the memory, from its peaks at 1 and 2; at least 1."""
    peaks = []
    for batch in (1, 2):
        eager = next(make for name, make in _peers(build(batch), setting).items() if "eager" in name)
        _, _, peak = weigh(eager, 3, setting.device)
        peaks.append(peak)
    one, more = peaks[0], max(1, peaks[1] - peaks[0])
    return max(1, 1 + int((SHARE * setting.memory_bytes - one) // more))


def _settle(setting: Setting) -> None:
    if setting.device.type == "cuda":
        torch.cuda.synchronize(setting.device)


def _check_losses(losses: dict[str, list[float]], where: str) -> None:
    first = losses["autopar"]
    if any(not math.isclose(a, b, rel_tol=LOSS_TOLERANCE) for other in losses.values() for a, b in zip(first, other, strict=True)):
        lines = "\n".join(f"  {name:28} {' '.join(f'{x:.5f}' for x in row)}" for name, row in losses.items())
        raise SystemExit(f"{where}: the contenders do not compute the same (first losses, tolerance {LOSS_TOLERANCE:g}):\n{lines}")


# --- the table --------------------------------------------------------------------------------------------------------------------


def print_case(case: Case, copy_bytes_per_s: float) -> Iterable[str]:
    """The lines of one model."""
    yield f"{case.model}: {','.join(f'{k}={v}' for k, v in case.sizes.items())}"
    yield f"  {'':28} {'step ms':>9} {'spread':>7} {'peak GiB':>9} {'ready s':>8} {'/ compile':>10} {'/ eager':>8}"
    for row in case.rows:
        yield (
            f"  {row.name:28} {row.step_s * 1e3:9.2f} {row.spread:7.1%} {row.peak_bytes / 2**30:9.3g} {row.ready_s:8.1f} {row.step_s / case.step_s('compile'):10.3f}"
            f" {row.step_s / case.step_s('eager'):8.3f}"
        )
    for kernel in case.kernels:
        share = kernel.bytes_per_s / copy_bytes_per_s
        yield f"  {kernel.name:28} {kernel.num_bytes / 2**20:9.3g} MiB in {kernel.seconds * 1e6:9.1f} us: {kernel.bytes_per_s / 1e9:8.3g} GB/s, {share:.1%} of copy, {kernel.copy_s / kernel.seconds:.1%} of one as large"
    yield from (f"  kernels: {line}" for line in case.missing)
    yield from (f"  {line}" for line in case.where)


def print_aims(cases: list[Case], copy_bytes_per_s: float) -> Iterable[str]:
    """What was aimed at, and how many rows reach it."""
    ours = [(case.step_s("autopar") / case.step_s("compile"), case.step_s("autopar") / case.step_s("eager")) for case in cases]
    shares = [kernel.bytes_per_s / copy_bytes_per_s for case in cases for kernel in case.kernels]
    yield f"step / torch.compile at most {COMPILE_AIM:g}: {sum(c <= COMPILE_AIM for c, _ in ours)} of {len(ours)}; / eager at most {EAGER_AIM:g}: {sum(e <= EAGER_AIM for _, e in ours)}"
    alike = [kernel.copy_s / kernel.seconds for case in cases for kernel in case.kernels]
    reached = [sum(share >= COPY_AIM for share in found) for found in (shares, alike)]
    yield f"kernels at {COPY_AIM:.0%} of a copy of {COPY_BYTES / 2**30:g} GiB: {reached[0]} of {len(shares)}; of one of as many bytes: {reached[1]}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt-small", "gpt2-medium", "llama-blocks", *MODELS), default=["gpt2-medium", "llama-blocks"])
    parser.add_argument("--cuda-graph", action="store_true", help="autopar's program as a CUDA graph, too")
    parser.add_argument("--cluster", help="what the plan is for; default: the preset of the device that torch finds")
    parser.add_argument("--batch", type=int, help="of llama-blocks; default: what fills a quarter of the memory, which takes some seconds to find")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5, help="of each contender in each round")
    parser.add_argument("--where", action="store_true", help="list the kernels that each contender's time goes to; not with --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU at tiny sizes")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    asked = parser.parse_args(words)
    if asked.dry_run and (large := [name for name in asked.models if name in MODELS]):
        parser.error(f"--dry-run: {', '.join(large)} has one size, which is for a GPU; expected gpt-small, gpt2-medium or llama-blocks")
    if not asked.dry_run and not torch.cuda.is_available():
        print("gpu.py: needs one CUDA device and a torch built for it, and torch finds none here; --dry-run goes the same way on the CPU", file=sys.stderr)
        raise SystemExit(2)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which weighs on the CPU, else tells of itself on stderr
    setting = dry_setting() if asked.dry_run else cuda_setting(asked.cluster, asked.rounds, asked.steps)
    setting = replace(setting, where=asked.where and not asked.dry_run)
    name = "cpu" if setting.device.type == "cpu" else torch.cuda.get_device_name(setting.device)
    machine = describe_machine(name, str(torch.__version__))
    copying = measure_copy(setting.copy_bytes, setting.device)
    if not asked.json:
        print(f"{machine.device}, {machine.processor}, torch {machine.torch}; copy {copying / 1e9:.3g} GB/s; bf16, plan for {setting.cluster}", flush=True)

    def gpt(name: str, sizes: dict[str, int]) -> Case:
        return measure_case(name, lambda batch: demo.build(**{**sizes, "batch": batch}), sizes["batch"], sizes, setting, asked.cuda_graph)

    jobs: dict[str, Callable[[], Case]] = {
        "gpt-small": lambda: gpt("gpt-small", setting.small),
        "gpt2-medium": lambda: gpt("gpt2-medium", setting.gpt),
        "llama-blocks": lambda: measure_case("llama-blocks", lambda batch: llama.build(batch=batch, **setting.llama), asked.batch, setting.llama, setting, asked.cuda_graph),
        **{name: functools.partial(measure_case, name, model.build, model.batch, {}, setting, asked.cuda_graph) for name, model in MODELS.items()},
    }
    cases = []
    for model in asked.models:
        cases.append(jobs[model]())
        if not asked.json:
            print("\n".join(print_case(cases[-1], copying)), flush=True)
    if not asked.json:
        print("\n".join(print_aims(cases, copying)))
    else:
        print(json.dumps({"machine": asdict(machine), "copy_bytes_per_s": copying, "dry": asked.dry_run, "cases": [asdict(case) for case in cases]}))


if __name__ == "__main__":
    main()
