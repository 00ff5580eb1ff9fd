"""Random legal plans, run as emitted on all ranks in one process: how many, how many differ from the traced step.

    python benchmarks/random_plans.py [--models N] [--plans N] [--zoo N] [--only NAME ...] [--seed N]

Every other plan takes the batch in two or four turns, where the model and its batch allow that. Three kinds of
models: random small ones (`--models` of them, `--plans` plans each), the small models of the tracer's tests (`--plans` plans
each), and the zoo (`--zoo` plans of each model; 0: none). Prints a table. One mismatch is a bug of the compiler; its model, mesh and seed
are printed.
"""

import argparse
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from autopar.errors import AutoparError  # noqa: E402
from autopar.graph.case import build_case  # noqa: E402
from autopar.graph.random_plans import list_turns  # noqa: E402
from autopar.graph.repeats import fold_graph  # noqa: E402
from autopar.graph.turns import count_microbatches  # noqa: E402
from autopar.options import Options  # noqa: E402
from autopar.trace import Workload, load_workload  # noqa: E402
from autopar.verify import describe_failure, verify_workload  # noqa: E402
from autopar.zoo import list_models  # noqa: E402
from tests.codegen.random_models import make_random_workload  # noqa: E402
from tests.codegen.random_plans import Assigner, Control  # noqa: E402
from tests.trace import zoo as small  # noqa: E402

SMALL = ("mlp", "tied", "gpt2", "llama", "bert", "vit", "resnet")
MESHES = ((2,), (4,), (2, 2), (3,), (2, 2, 2))
TOLERANCE = 1e-8  # of the larger of 1 and the tensor's largest magnitude, float64


def run_model(name: str, make: Callable[[], Workload], count: int, seed: int) -> tuple[int, int, int]:
    """(plans run, of them in turns, mismatches)."""
    torch.manual_seed(0)
    control = Control(make())
    counts = [count_microbatches(case.graph) for case in list_turns(build_case(control.graph))]
    assigners: dict[tuple[bool, int, tuple[int, ...]], Assigner] = {}
    wrong = in_turns = 0
    for number in range(count):
        sizes = MESHES[(seed + number) % len(MESHES)]
        again, turns = number % 4 > 1, counts[(seed + number) // 2 % len(counts)] if number % 2 else 1
        if (again, turns, sizes) not in assigners:
            assigners[again, turns, sizes] = Assigner(control.graph, sizes, recompute=random.Random(seed) if again else None, turns=turns)
        assigner = assigners[again, turns, sizes]
        program = assigner.program(assigner.draw(random.Random(1000 * seed + number), fold_graph(assigner.graph) if number // 4 % 2 else None))
        difference, whose = control.worst(program, assigner.graph)
        in_turns += turns > 1
        if not difference <= TOLERANCE:
            print(f"MISMATCH {name} mesh {sizes} seed {seed} plan {number} in {turns} turns: {whose} is {difference:.1e} off", flush=True)
            wrong += 1
    return count, in_turns, wrong


def run_zoo_model(name: str, make: Callable[[], Workload], count: int) -> tuple[int, int, int]:
    """(plans run, of them in turns, mismatches): beside the solver's own plan, against plain PyTorch over two steps."""
    report = verify_workload(make(), "cpu:4", Options(time_limit_s=2.0), random_plans=count)
    if report.failures:
        print(f"MISMATCH {name}: {describe_failure(report)}", flush=True)
    return count + 1, report.plans_in_turns, len({failure.plan for failure in report.failures})


def list_work(asked: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Workload], int, int]]:
    """(kind, name, factory, plans, seed)."""
    for k in range(asked.models):
        yield "random", f"random {asked.seed + k}", lambda k=k: make_random_workload(asked.seed + k, 10 + k % 8), asked.plans, asked.seed + k
    for name in SMALL:
        yield "small", name, getattr(small, name), asked.plans, asked.seed
    for spec in list_models(()) if asked.zoo else ():
        yield "zoo", spec.rpartition("/")[2], lambda spec=spec: load_workload(spec), asked.zoo, asked.seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--plans", type=int, default=8)
    parser.add_argument("--zoo", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'models':8} {'tried':>6} {'plans':>7} {'turns':>6} {'wrong':>6} {'failed':>6} {'seconds':>8}")
    rows: dict[str, list[float]] = {}
    for kind, name, make, plans, seed in list_work(asked):
        if asked.only and not any(part in name for part in asked.only):
            continue
        began = time.perf_counter()
        row = rows.setdefault(kind, [0, 0, 0, 0, 0, 0.0])
        try:
            row[0] += 1
            done, in_turns, wrong = run_zoo_model(name, make, plans) if kind == "zoo" else run_model(name, make, plans, seed)
            row[1] += done
            row[2] += in_turns
            row[3] += wrong
        except AutoparError as error:
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            row[4] += 1
        except KeyboardInterrupt:
            print("interrupted: what was done until now")
            break
        row[5] += time.perf_counter() - began
    for kind, (models, plans, in_turns, wrong, failed, seconds) in rows.items():
        print(f"{kind:8} {models:6} {plans:7} {in_turns:6} {wrong:6} {failed:6} {seconds:8.1f}")
    plans, in_turns, wrong, failed = (sum(row[k] for row in rows.values()) for k in (1, 2, 3, 4))
    print(f"{'all':8} {sum(row[0] for row in rows.values()):6} {plans:7} {in_turns:6} {wrong:6} {failed:6}")
    return int(wrong > 0 or failed > 0)


if __name__ == "__main__":
    sys.exit(main())
