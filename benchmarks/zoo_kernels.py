"""Kernels over the whole zoo: which groups have no Triton text, and whether every model's step gives the same numbers fused and op by op.

    python benchmarks/zoo_kernels.py [MODEL ...] [--jobs 2] [--text-only] [--device cuda] [--json FILE]

MODEL is FILE.py or FILE.py:NAME (default: every model of `tests/zoo`). Of each model:

* text: the step's distinct kernels on one device in bf16, and how many of them run as plain torch everywhere, with the reason;
* numbers: one random plan on one rank and one on two, emitted with kernels and op by op (`Options(local="ops")`), in float64 from the same states and samples: loss,
  every gradient, every new state. Relative to the larger of 1 and the tensor's largest magnitude; where that is above 1e-10, what a rounding of all that comes in moves as far
  counts as equal (a gradient that is zero but for rounding, after Adam). With TRITON_INTERPRET=1 the kernels run in Triton's interpreter instead of as plain torch,
  with `--device cuda` on a GPU, each on one rank.

Each model runs in a process of its own; a model whose library is missing is skipped with the library's name. The exit code is 1 where numbers differ or a model fails, 2 where a file is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MESHES = ((), (2,)) if os.environ.get("TRITON_INTERPRET") != "1" else ((),)  # Triton's interpreter is one for all threads
SMALL = 1e-10  # a difference up to here is a rounding
ROUNDINGS = 1000.0  # as in the tests of random plans: other sums, other roundings
SEED = 0


@dataclass
class Row:
    """What was found of one model.

    Args:
        plain: (name, reason) of its kernels without Triton text.
        kernels: distinct ones. `calls`: groups, equal ones counted again. `parts`: Triton functions beyond one for each kernel.
        differences: per mesh (largest difference, whose).
    """

    model: str
    skipped: str = ""
    failed: str = ""
    kernels: int = 0
    calls: int = 0
    parts: int = 0
    plain: list[tuple[str, str]] = field(default_factory=list)
    differences: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def worst(self) -> float:
        return max((d for d, _ in self.differences), default=0.0)


def survey(model: str, runs: bool = True, device: str = "cpu") -> Row:
    """One model, in this process. Never raises: what goes wrong is in the row."""
    import warnings

    import torch

    from autopar.errors import ModelError
    from autopar.trace.load import load_workload

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if device == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(SEED)
    row, began = Row(model), time.perf_counter()
    try:
        workload = load_workload(model)
        _count_texts(row, workload)
        if runs:
            _compare(row, workload, torch.device(device))
    except ModelError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name:
            row.skipped = missing.name.partition(".")[0]
        else:
            row.failed = str(error)
    except Exception as error:  # noqa: BLE001 - the next model goes on
        row.failed = f"{type(error).__name__}: {error}"
    row.seconds = time.perf_counter() - began
    return row


def _assigner(graph, sizes):
    from autopar.graph.case import build_case
    from autopar.graph.random_plans import Assigner, plain_mesh
    from autopar.graph.registry import rules_in_force
    from autopar.trace.discovery.discover import CACHE_PATH, find_rows

    case = build_case(graph, rules_in_force(find_rows(graph, (), CACHE_PATH)))
    return case, Assigner(case.graph, case.sites, case.signatures, plain_mesh(sizes), cuts=case.cuts)


def _program(graph, sizes, keeps_grads=True):
    from autopar.graph.partition import partition

    case, assigner = _assigner(graph, sizes)
    return partition(case.graph, case.sites, case.signatures, case.cuts, assigner.draw(random.Random(SEED)), keeps_grads)


def _count_texts(row: Row, workload) -> None:
    from autopar.codegen.kernels.parts import print_parts
    from autopar.codegen.kernels.reductions import UnsupportedError
    from autopar.graph.fuse import fuse_program
    from autopar.graph.kernel import is_kernel
    from autopar.graph.sections import phase_sections
    from autopar.trace import trace_step

    program = _program(trace_step(workload, "bf16").graph, (), keeps_grads=False)
    fused = fuse_program(program, phase_sections(program.graph))
    row.kernels, row.calls = len(fused.kernels), sum(is_kernel(node.op) for node in fused.program.graph.nodes)
    for kernel in fused.kernels:
        try:
            parts = print_parts(kernel)
            row.parts += len(parts) - 1
            row.plain += [(kernel.name, f"{part.kernel.graph.nodes[-1].op} has no Triton text") for part in parts if part.text is None]
        except UnsupportedError as error:
            row.plain.append((kernel.name, str(error)))


def _compare(row: Row, workload, device) -> None:
    from autopar.trace import trace_step
    from autopar.trace.workload import find_tensors
    from autopar.verify.reference import first_values, make_batch

    traced = trace_step(workload, "fp64")
    facts, given = first_values(workload, traced)
    inputs, targets = make_batch(workload, traced.graph, SEED, 1)
    batch = {**dict(find_tensors("input:", inputs)), **dict(find_tensors("target:", targets))}
    for sizes in MESHES if device.type == "cpu" else ((),):
        program = _program(traced.graph, sizes)
        found = _run(program, traced.graph, facts, given, batch, "kernels", device=device)
        plain = _run(program, traced.graph, facts, given, batch, "ops")
        rows = [(_difference(found[name], plain[name]), name) for name in plain]
        if max(rows)[0] > SMALL:
            moved = _run(program, traced.graph, facts, given, batch, "ops", moves=True)
            rows = [(d, name) for d, name in rows if not d <= ROUNDINGS * _difference(moved[name], plain[name])]
        row.differences.append(max(rows, default=(0.0, "nothing")))


def _run(program, graph, facts, given, batch, local, moves=False, device=None):
    """One step of an emitted program: every tensor that comes out of it, by rank and name."""
    import torch

    from autopar.codegen.emit import print_files
    from autopar.graph.sharding import parse_sharding
    from autopar.runtime import compile_program, initial_state, read_program, run_ranks
    from autopar.runtime.shards import cut

    spec = read_program(compile_program(print_files(program, graph, graph.name, "zoo", "", facts, local=local)))
    generator = torch.Generator().manual_seed(SEED)

    def moved(tensor):
        if not moves or not tensor.dtype.is_floating_point:
            return tensor
        return tensor * (1 + 2.0**-52 * torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.dtype))

    count = len(run_ranks(spec.mesh, lambda comm: None))
    states = [{n: moved(t).to(device, copy=True) for n, t in initial_state(spec, r, given, SEED).items()} for r in range(count)]
    whole = {n: moved(batch[n]) for n in spec.batch}
    parts = [{n: cut(whole[n], parse_sharding(b.sharding), spec.mesh, r).to(device, copy=True) for n, b in spec.batch.items()} for r in range(count)]

    def one(comm):
        with torch.no_grad():
            return spec.step(comm, states[comm.rank], parts[comm.rank])

    results = run_ranks(spec.mesh, one, device)
    return {f"{name} on rank {r}": t.cpu() for r in range(count) for name, t in (*_named(results[r], ""), *states[r].items())}


def _named(result, name):
    import torch

    if isinstance(result, torch.Tensor):
        return [(f"result{name}", result)]
    return [entry for k, part in enumerate(result or ()) for entry in _named(part, f"{name}.{k}")]


def _difference(found, wanted) -> float:
    """Largest difference over the larger of 1 and the largest magnitude; infinite where one is not a number and the other is."""
    import torch

    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if not wanted.numel():
        return 0.0
    if not wanted.dtype.is_floating_point and not wanted.dtype.is_complex:
        return 0.0 if torch.equal(found, wanted) else float("inf")
    same = (found == wanted) | (found != found) & (wanted != wanted)
    if bool(same.all()):
        return 0.0
    finite = wanted.isfinite()
    scale = max(1.0, float(wanted[finite].abs().max()) if bool(finite.any()) else 1.0)
    difference = float((found - wanted)[~same].abs().max()) / scale
    return difference if difference == difference else float("inf")


def run_all(models, jobs: int, runs: bool = True, device: str = "cpu", timeout_s: float = 900.0):
    """The rows, as each is done; each model in a fresh process that is copied from one with torch."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "autopar.api", "autopar.verify", "autopar.trace.load"])

    def one(model):
        inbox, outbox = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(model, runs, device, outbox), daemon=True)
        process.start()
        outbox.close()
        try:
            return inbox.recv() if inbox.poll(timeout_s) else Row(model, failed=f"took longer than {timeout_s:g} s")
        except EOFError:
            return Row(model, failed="its process ended")
        finally:
            process.kill()
            process.join()

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(one, model) for model in models]):
            yield done.result()


def _child(model, runs, device, outbox) -> None:
    outbox.send(survey(model, runs, device))


def find_models(words):
    """FILE.py:NAME of every model meant.

    Raises:
        ModelError: a file is missing, or holds no model.
    """
    from autopar.errors import ModelError
    from autopar.zoo import list_models

    found = list_models(words)
    for model in found:
        path = Path(model.rpartition(":")[0])
        if not path.is_file():
            raise ModelError(f"{path}: no such file (looked in {Path.cwd()}); expected a FILE.py of models, or FILE.py:NAME")
    return found


def main(words: list[str] | None = None) -> int:
    from autopar.errors import ModelError

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--text-only", action="store_true", help="count texts, run nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="runs the kernels; op by op is the CPU's")
    parser.add_argument("--json", help="write all rows to this file, too")
    asked = parser.parse_args(words)
    try:
        models = find_models(asked.models)
    except ModelError as error:
        print(f"zoo_kernels.py: {error}", file=sys.stderr)
        return 2
    rows = []
    print(f"{'model':52} kernels  plain  difference on 1 and 2 ranks  seconds")
    for row in run_all(models, asked.jobs, not asked.text_only, asked.device):
        rows.append(row)
        told = "  ".join(f"{d:.1e}" for d, _ in row.differences)
        note = f"skipped: {row.skipped}" if row.skipped else row.failed.splitlines()[0][:150] if row.failed else ""
        whose = "; ".join(name for d, name in row.differences if d > SMALL)
        print(f"{row.model:52} {row.kernels:7}  {len(row.plain):5}  {told:27}  {row.seconds:7.1f}  {note}{whose}", flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    done = [r for r in rows if not r.skipped and not r.failed]
    total, calls, plain = (sum(counts) for counts in zip(*((r.kernels, r.calls, len(r.plain)) for r in done))) if done else (0, 0, 0)
    print(f"\n{len(done)} models, {total} distinct kernels ({calls} groups); {plain} without Triton text ({sum(bool(r.plain) for r in done)} models); {sum(r.parts for r in done)} Triton functions more, where one does not do")
    for reason, count in Counter(reason for r in done for _, reason in r.plain).most_common():
        print(f"{count:5}  {reason}")
    wrong = [r for r in done if r.worst > SMALL]
    failed = [r for r in rows if r.failed]
    print(f"{len(wrong)} models whose numbers differ, {len(failed)} failed, {len(rows) - len(done) - len(failed)} skipped")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
