"""Random small models, their Triton kernels run in Triton's interpreter and compared with plain torch.

    python benchmarks/fuzz_kernels.py [--from SEED] [--count N] [--seconds S] [--compile-every N] [--keep FOLDER]
    python benchmarks/fuzz_kernels.py --file MODEL.py        # one model: a file with `workload()`, as `fuzz_models.py SEED` prints
    python benchmarks/fuzz_kernels.py --device cuda          # the kernels as a GPU runs them, beside plain torch on the CPU
    python benchmarks/fuzz_models.py SEED                    # prints the model of a seed

Of each model one step of the program for one rank is run, and everything that comes out of it compared: the loss, every gradient and every new state, or the results of a forward pass.

| stage | what is compared | largest difference |
|---|---|---|
| trace64 | the program's plain torch in float64 with plain PyTorch | 1e-10 |
| triton64 | its Triton kernels with its plain torch | 1e-10 |
| trace32 | the same two in float32, where casts to halves are real; and the dtypes | 2e-5; 1e-2 where the model has halves |
| triton32 | kernels with plain torch | 2e-4; 0.06 |
| trace16 | nothing: the program in bfloat16 is built and run as plain torch | |
| triton16 | kernels with plain torch | 0.15 |
| compile | with `--compile-every N`, of every Nth model: each kernel of the float32 program for sm_90, without a GPU | |

Differences are of the tensor's largest magnitude (at least 0.01). One counts where it is also more than 300 times what plain PyTorch's own values move when all parameters and inputs move by a
rounding. The two stages in bfloat16 run for every third seed. What torch itself refuses or has no kernel for on a CPU, and what the tracer refuses with an error of its own, is counted and passed over.

Prints a line per failure and a table. With `--keep` a model that fails is written to FOLDER beside what was found. The exit code is 1 where something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import pickle
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TRITON_INTERPRET", "0" if any("cuda" in word for word in sys.argv) else "1")  # Triton decides when it is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from autopar.codegen.emit import print_files  # noqa: E402
from autopar.errors import AutoparError  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.fuse import fuse_program  # noqa: E402
from autopar.graph.kernel import Kernel  # noqa: E402
from autopar.graph.partition import partition  # noqa: E402
from autopar.graph.program import check_program  # noqa: E402
from autopar.graph.random_plans import Assigner, plain_mesh  # noqa: E402
from autopar.graph.sections import phase_sections  # noqa: E402
from autopar.runtime import compile_program, fused, initial_state, read_program, run_ranks  # noqa: E402
from autopar.trace import Workload, float64_everywhere, trace_step  # noqa: E402
from autopar.trace.workload import find_tensors  # noqa: E402
from autopar.verify.reference import first_values  # noqa: E402
from benchmarks.fuzz_models import draw  # noqa: E402
from benchmarks.kernel_compile import compile_kernels  # noqa: E402

LIMIT_S = 90  # of one model
ROUNDINGS = 300.0  # other sums, other roundings
SMALLEST_SCALE = 1e-2
MOVES = 3  # how often plain PyTorch's values are moved
EVERY_HALF = 3  # of so many seeds one runs in bfloat16
ARCH = 90

Values = dict[str, torch.Tensor]  # "loss", "out 0", "grad NAME", "state NAME"


@dataclass(frozen=True)
class Level:
    """A precision with its tolerances: (of models without halves, with halves).

    Args:
        trace: between the program's plain torch and plain PyTorch; None: not compared.
        triton: between kernels and plain torch.
        move: what parameters and inputs are moved by, of their magnitude.
    """

    bits: int
    precision: str
    trace: tuple[float, float] | None
    triton: tuple[float, float]
    move: tuple[float, float]


LEVELS = (
    Level(64, "fp64", (1e-10, 1e-10), (1e-10, 1e-10), (2.0**-52, 2.0**-52)),
    Level(32, "fp32", (2e-5, 1e-2), (2e-4, 0.06), (2.0**-22, 2.0**-9)),
    Level(16, "bf16", None, (0.15, 0.15), (2.0**-7, 2.0**-7)),
)
STAGES = (*(f"{way}{level.bits}" for level in LEVELS for way in ("trace", "triton")), "compile")
KINDS = ("numbers", "dtype", "error")


CPU = torch.device("cpu")


@dataclass(frozen=True)
class How:
    """What is done with a model.

    Args:
        compiles: its kernels are compiled, too, without a GPU.
        device: runs the kernels; plain torch is the CPU's.
    """

    levels: tuple[Level, ...] = LEVELS
    compiles: bool = False
    device: torch.device = CPU


@dataclass(frozen=True)
class Failure:
    """`what` in one line, `detail` a traceback or a kernel's text."""

    stage: str
    kind: str
    what: str
    detail: str = ""


@dataclass
class Tally:
    """What was done; `runs` by stage, `passed` by the reason why a model or a level of it was passed over."""

    models: int = 0
    kernels: int = 0
    compiled: int = 0
    late: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(frozen=True)
class Built:
    """A program for one rank, ready to run. `params`: whose gradients it returns, in order; None: it is a forward pass."""

    spec: object
    params: tuple[str, ...] | None
    given: Values
    samples: Values
    kernels: tuple[Kernel, ...]


class LateError(Exception):
    """A model took longer than LIMIT_S."""


class PassedOver(Exception):
    """A level of a model cannot go on; what is wrong with it is noted."""


def mend_interpreter() -> None:
    """Spread values over a block as they are: Triton's interpreter makes numbers of truth values, which `(scalar == y) | block` then refuses."""

    def create_splat(self, ret_ty, arg):
        value = np.asarray(arg.data).reshape(-1)[0]
        return TensorHandle(np.full(ret_ty.shape, value, dtype=value.dtype), arg.dtype.scalar)

    InterpreterBuilder.create_splat = create_splat


def load(path: Path) -> Workload:
    names: dict = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names["workload"]()


def build(workload: Workload, precision: str) -> Built:
    traced = trace_step(workload, precision)
    case = build_case(traced.graph)
    assigner = Assigner(case.graph, case.sites, case.signatures, plain_mesh(()), cuts=case.cuts)
    program = partition(case.graph, case.sites, case.signatures, case.cuts, assigner.draw(random.Random(0)), bool(traced.graph.loss))
    check_program(program)
    facts, given = first_values(workload, traced)
    spec = read_program(compile_program(print_files(program, traced.graph, traced.graph.name, "fuzz", "", facts, local="kernels")))
    batch = {**dict(find_tensors("input:", workload.example_inputs)), **dict(find_tensors("target:", workload.example_targets))}
    values = {value.name: value for value in traced.graph.values}
    samples = {name: batch[name].to(getattr(torch, values[name].dtype)) if name in values else batch[name] for name in spec.batch}
    params = tuple(values[p].storage if p in values else p for p, _ in traced.graph.grads) if traced.graph.loss else None
    kernels = tuple(fuse_program(program, phase_sections(program.graph)).kernels)
    return Built(spec, params, given, {name: strided_like(t, batch[name]) for name, t in samples.items()}, kernels)


def run(built: Built, runs_triton: bool, device: torch.device) -> Values:
    """Everything that comes out of one step."""
    states = {name: t.to(device, copy=True) for name, t in initial_state(built.spec, 0, built.given, 0).items()}
    samples = {name: strided_like(t.to(device), t) for name, t in built.samples.items()}
    product = fused.runs_triton
    fused.runs_triton = product if runs_triton else lambda x: False

    def one(comm):
        with torch.no_grad():
            return built.spec.step(comm, states, samples)

    try:
        results = list(flatten(run_ranks(built.spec.mesh, one, device)[0]))
    finally:
        fused.runs_triton = product
    if built.params is None:
        found = {f"out {k}": t for k, t in enumerate(results)}
    else:
        found = {"loss": results[0], **{f"grad {name}": t for name, t in zip(built.params, results[1:])}}
    return {name: t.cpu() for name, t in (*found.items(), *((f"state {name}", t) for name, t in states.items()))}


def run_eager(workload: Workload, bits: int, move: float = 0.0, seed: int = 0) -> Values:
    """Plain PyTorch's values, in float64 or as the model has them, after its parameters and inputs are moved by so much of their magnitude."""
    generator = torch.Generator().manual_seed(seed)

    def made(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t.detach().clone()
        t = t.detach().double() if bits == 64 else t.detach().clone()
        return t * (1 + move * torch.randint(-1, 2, t.shape, generator=generator).to(t.dtype)) if move else t

    model = copy.deepcopy(workload.model)
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = torch.nn.Parameter(made(param), requires_grad=param.requires_grad)
    inputs = [strided_like(made(x), x) for x in workload.example_inputs]
    with float64_everywhere() if bits == 64 else contextlib.nullcontext():
        if workload.loss is None:
            with torch.no_grad():
                return {f"out {k}": t.clone() for k, t in enumerate(flatten(model(*inputs)))}
        optimizer = workload.optimizer(list(model.parameters()))
        loss = workload.loss(model(*inputs))
        loss.backward()
        found = {"loss": loss.detach(), **{f"grad {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}
        optimizer.step()
    return {**found, **{f"state {name}": p.detach() for name, p in model.named_parameters()}}


def strided_like(t: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the model's own input."""
    if like.is_contiguous():
        return t.clone()
    if like.dim() > 1 and like.transpose(0, -1).is_contiguous():
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    return t.repeat_interleave(2, -1)[..., ::2]


def flatten(result: object) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif result is not None:
        for part in result.values() if isinstance(result, dict) else result:
            yield from flatten(part)


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest one over the largest magnitude; infinite where shapes differ, or one is not a number and the other is."""
    if found.shape != wanted.shape:
        return float("inf")
    a, b = found.detach().double(), wanted.detach().double()
    same = (a == b) | (a != a) & (b != b)
    if bool(same.all()):
        return 0.0
    finite = b[b.isfinite()]
    scale = max(SMALLEST_SCALE, float(finite.abs().max()) if finite.numel() else 0.0)
    worst = float((a - b)[~same].abs().max()) / scale
    return worst if worst == worst else float("inf")


def compare(found: Values, wanted: Values, tolerance: float, moved: Callable[[], list[tuple[Values, Values]]]) -> str:
    """The worst values that differ, in words; nothing where none does. States and gradients that only one side has are not compared.

    Args:
        moved: [(plain PyTorch's values, moved ones)], asked only where a difference is beyond the tolerance.
    """
    rows = [(difference(found[name], want), name) for name, want in wanted.items() if name in found]
    rows = [(worst, name) for worst, name in rows if not worst <= tolerance]
    if rows:
        rows = [(worst, name) for worst, name in rows if not worst <= ROUNDINGS * max(difference(m[k], base[k]) for base, m in moved() for k in names_like(name, base))]
    rows += [(float("inf"), f"{name} is missing") for name in wanted if name not in found and not name.startswith(("grad ", "state "))]
    return ", ".join(f"{name}: {worst:.2g}" for worst, name in sorted(rows, reverse=True)[:4])


def names_like(name: str, base: Values) -> list[str]:
    """Plain PyTorch's values that tell how sure one of the program is: of an optimizer's state its parameter and gradient."""
    if name in base:
        return [name]
    param = name.rpartition(":")[2].removeprefix("state ")
    return [found for found in (f"state {param}", f"grad {param}") if found in base] or list(base)


def compare_dtypes(found: Values, wanted: Values) -> str:
    return ", ".join(f"{name}: {found[name].dtype}, expected {want.dtype}" for name, want in wanted.items() if name in found and found[name].dtype != want.dtype)


def describe_error(error: BaseException) -> str:
    """Type, first line and the product's innermost frames."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(ROOT / "autopar")]
    places = " < ".join(f"{Path(f.filename).name}:{f.name}" for f in ours[:-4:-1])
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:150] if str(error).strip() else ''} at {places}"


@contextlib.contextmanager
def noted(stage: str, failures: list[Failure], tally: Tally) -> Iterator[None]:
    """What goes wrong inside is a failure of the stage, or a reason to pass over.

    Raises:
        PassedOver: something went wrong.
    """
    try:
        tally.runs[stage] += 1
        yield
    except LateError:
        raise
    except Exception as error:  # of any kind: what breaks is what is looked for
        text = str(error)
        if isinstance(error, AutoparError):
            tally.passed["the tracer refuses: " + re.sub(r"\S*/\S+|[\d.]+", "N", f"{type(error).__name__}: {text}".splitlines()[0])[:140]] += 1
        elif re.search(r"not implemented for|mixed dtype \(CPU\)", text):  # torch's own words: plain PyTorch cannot run this model either
            tally.passed["torch has no kernel on a CPU"] += 1
        else:
            failures.append(Failure(stage, "error", describe_error(error), traceback.format_exc()))
        raise PassedOver from error


def check(path: Path, tally: Tally, how: How) -> list[Failure]:
    """What is wrong of a file with a model."""
    torch.manual_seed(0)
    failures: list[Failure] = []
    workload = load(path)
    text = path.read_text(encoding="utf-8").rpartition("class M(")[2]
    has_halves = any(word in text for word in ("half()", "bfloat16)", "float16"))
    try:
        for bits in (64, 32):
            run_eager(workload, bits)
    except LateError:
        raise
    except Exception:  # of any kind: the model is not one
        tally.passed["torch refuses"] += 1
        return []
    for level in how.levels:
        with contextlib.suppress(PassedOver):
            check_level(workload, level, has_halves, failures, tally, how)
    return failures


def check_level(workload: Workload, level: Level, has_halves: bool, failures: list[Failure], tally: Tally, how: How) -> None:
    """Add what is wrong of the program in this precision.

    Raises:
        PassedOver: something broke; it is among the failures.
    """

    @cache
    def moved() -> list[tuple[Values, Values]]:
        base = run_eager(workload, level.bits)
        return [(base, run_eager(workload, level.bits, level.move[has_halves], seed)) for seed in range(1, MOVES + 1)]

    def hold(stage: str, found: Values, wanted: Values, tolerance: float, checks_dtypes: bool) -> None:
        for kind, what in (("numbers", compare(found, wanted, tolerance, moved)), ("dtype", compare_dtypes(found, wanted) if checks_dtypes else "")):
            if what:
                failures.append(Failure(stage, kind, what))

    stage = f"trace{level.bits}"
    with noted(stage, failures, tally):
        built = build(workload, level.precision)
        tally.kernels += len(built.kernels) if level.bits == 64 else 0
        plain = run(built, False, CPU)
        if level.trace:
            hold(stage, plain, run_eager(workload, level.bits), level.trace[has_halves], level.bits == 32)
    if how.compiles and level.bits == 32:
        check_compiled(built.kernels, failures, tally)
    stage = f"triton{level.bits}"
    with noted(stage, failures, tally):
        hold(stage, run(built, True, how.device), plain, level.triton[has_halves], True)


def check_compiled(kernels: tuple[Kernel, ...], failures: list[Failure], tally: Tally) -> None:
    """In a process of its own: with the interpreter on nothing compiles."""
    tally.runs["compile"] += 1
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": folder}
        given, found = Path(folder, "kernels.pickle"), Path(folder, "found.pickle")
        given.write_bytes(pickle.dumps(kernels))
        call = f"from benchmarks.fuzz_kernels import compile_pickled; compile_pickled({str(given)!r}, {str(found)!r})"
        done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            failures.append(Failure("compile", "error", f"exit code {done.returncode}: {''.join(done.stderr.strip().splitlines()[-1:])[:150]}", done.stderr))
            return
        count, broken = pickle.loads(found.read_bytes())
    tally.compiled += count
    failures += broken


def compile_pickled(given: str, found: str) -> None:
    """Compile the kernels of a file; (how many Triton functions compiled, failures) go into another."""
    count, broken = 0, []
    for kernel in pickle.loads(Path(given).read_bytes()):
        try:
            count += len(compile_kernels([kernel], [ARCH]))
        except Exception as error:  # of any kind: the next kernel goes on
            broken.append(Failure("compile", "error", f"{kernel.name}: {str(error).strip().splitlines()[-1][:150] if str(error).strip() else type(error).__name__}", traceback.format_exc()))
    Path(found).write_bytes(pickle.dumps((count, broken)))


def check_in_time(path: Path, tally: Tally, how: How) -> list[Failure]:
    """`check`, for at most LIMIT_S."""

    def stop(*_):
        raise LateError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        return check(path, tally, how)
    except LateError:
        tally.late += 1
        print(f"LATE {path.stem}: took longer than {LIMIT_S} s", flush=True)
        return []
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def report(name: str, failures: list[Failure], tally: Tally) -> None:
    for failure in failures:
        tally.failures[failure.stage, failure.kind] += 1
        print(f"FAILED {name} {failure.stage} {failure.kind}: {failure.what}", flush=True)


def keep(path: Path, failures: list[Failure], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder)
    text = "\n\n".join(f"{f.stage} {f.kind}: {f.what}\n{f.detail}".strip() for f in failures)
    (folder / f"{path.stem}.txt").write_text(text + "\n", encoding="utf-8")


def run_seeds(asked: argparse.Namespace, tally: Tally) -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(asked.first, asked.first + asked.count):
            if time.perf_counter() - began > asked.seconds:
                break
            path = Path(folder) / f"model_{seed}.py"
            path.write_text(draw(seed).source(), encoding="utf-8")
            tally.models += 1
            levels = LEVELS if seed % EVERY_HALF == 0 else tuple(level for level in LEVELS if level.bits > 16)
            try:
                failures = check_in_time(path, tally, How(levels, bool(asked.compile_every) and seed % asked.compile_every == 0, asked.device))
            except KeyboardInterrupt:
                print("interrupted: what was done until now")
                break
            report(path.stem, failures, tally)
            if failures and asked.keep:
                keep(path, failures, asked.keep)


def print_table(tally: Tally, seconds: float) -> None:
    print(f"{'stage':9}{'models':>8}" + "".join(f"{kind:>9}" for kind in KINDS))
    for stage in STAGES:
        print(f"{stage:9}{tally.runs[stage]:8}" + "".join(f"{tally.failures[stage, kind]:9}" for kind in KINDS))
    print(f"{tally.models} models, {tally.kernels} kernels, {tally.compiled} compiled, {tally.failures.total()} failures, {tally.late} too long, {seconds:.0f} s")
    for reason, count in tally.passed.most_common():
        print(f"  {reason}, {count} times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=40, help="models")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no model after so many")
    parser.add_argument("--compile-every", type=int, default=0, metavar="N", help="compile the kernels of every Nth seed (0: of none)")
    parser.add_argument("--file", type=Path, help="check this model instead of random ones, and print tracebacks")
    parser.add_argument("--device", type=torch.device, default=CPU, help="cuda: a GPU runs the kernels, not Triton's interpreter")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write models that fail to this folder")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # a convolution in float32 is one
    mend_interpreter()
    tally, began = Tally(), time.perf_counter()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, triton {triton.__version__}")
    if asked.file:
        tally.models = 1
        failures = check_in_time(asked.file, tally, How(LEVELS, bool(asked.compile_every), asked.device))
        report(asked.file.stem, failures, tally)
        for detail in (failure.detail for failure in failures if failure.detail):
            print(detail)
        if failures and asked.keep:
            keep(asked.file, failures, asked.keep)
    else:
        run_seeds(asked, tally)
    print_table(tally, time.perf_counter() - began)
    return int(tally.failures.total() > 0 or tally.late > 0)


if __name__ == "__main__":
    sys.exit(main())
