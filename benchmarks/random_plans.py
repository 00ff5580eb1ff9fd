"""Random legal plans, run as emitted on all ranks in one process: how many, how many differ from the traced step.

    python benchmarks/random_plans.py [--models N] [--plans N] [--zoo N] [--stages] [--only NAME ...] [--seed N]

Every other plan takes the batch in two or four turns, where the model and its batch allow that. Three kinds of
models: random small ones (`--models` of them, `--plans` plans each), the small models of the tracer's tests (`--plans` plans
each), and the zoo (`--zoo` plans of each model; 0: none). Prints a table. One mismatch is a bug of the compiler; its model, mesh and seed
are printed.

With `--stages` every plan is in pipeline stages that begin at any nodes: two to four stages of one or two chunks, every schedule, one or two ranks each;
half of them recompute something, a quarter lets equal blocks decide alike, also across stages. The models are the random ones, the small ones, and those of
`tests/codegen/crossing_models.py` and of the tests of microbatches. What the compiler refuses is counted by reason; a run that hangs is one that fails.
"""

import argparse
import platform
import random
import re
import sys
import time
import warnings
import zlib
from collections import Counter
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
from tests.codegen import crossing_models, test_turns  # noqa: E402
from tests.codegen.random_models import make_random_workload  # noqa: E402
from tests.codegen.random_plans import Assigner, Control, Hung, draw_staged  # noqa: E402
from tests.trace import zoo as small  # noqa: E402

SMALL = ("mlp", "tied", "gpt2", "llama", "bert", "vit", "resnet")
MESHES = ((2,), (4,), (2, 2), (3,), (2, 2, 2))
TOLERANCE, STAGED_TOLERANCE = 1e-8, 1e-10  # of the larger of 1 and the tensor's largest magnitude, float64


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


def run_in_stages(name: str, make: Callable[[], Workload], count: int, seed: int) -> Counter:
    """How many plans were run, in turns, interleaved, recomputed, refused (with the reasons), wrong, hung, broken."""
    torch.manual_seed(0)
    control = Control(make())
    case = build_case(control.graph)
    turns, found = list_turns(case), Counter()
    first = 1000 * seed + zlib.crc32(name.encode()) % 10**6  # another schedule and other cuts for each model
    for number in range(first, first + count):
        what = f"{name} plan {number}"
        try:
            plan = draw_staged(turns, number)
            if plan is None:
                continue
            what += f" ({plan})"
            emitted = control.staged(plan, case)
        except AutoparError as error:
            print(f"REFUSED {what}: {error}", flush=True)
            found["refused"] += 1
            found["refused: " + re.sub(r"\w*\d\w*", "N", f"{type(error).__name__}: {error}".splitlines()[0])] += 1
            continue
        found["plans"] += 1
        found["turns"] += plan.assignment.microbatches > 1
        found["chunks"] += plan.pipeline.chunks > 1
        found["again"] += bool(plan.assignment.again)
        try:
            difference, whose = control.worst_staged(*emitted)
        except Hung as error:
            print(f"HUNG {what}: {error}", flush=True)
            found["hung"] += 1
        except Exception as error:  # of any kind: an emitted program that breaks is what is looked for
            print(f"BROKEN {what}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            found["broken"] += 1
        else:
            if not difference <= STAGED_TOLERANCE:
                print(f"MISMATCH {what}: {whose} is {difference:.1e} off", flush=True)
                found["wrong"] += 1
    return found


def run_all_in_stages(asked: argparse.Namespace) -> int:
    """Print a row per kind of models; 1 where a plan was wrong, hung or broke."""
    columns = ("models", "plans", "turns", "chunks", "again", "refused", "wrong", "hung", "broken")
    print(f"{'models':9}" + "".join(f"{c if c != 'models' else 'tried':>8}" for c in columns) + f"{'seconds':>9}")
    rows: dict[str, Counter] = {}
    for kind, name, make, plans, seed in list_work(asked):
        if asked.only and not any(part in name for part in asked.only):
            continue
        began = time.perf_counter()
        try:
            found = run_in_stages(name, make, plans, seed)
        except KeyboardInterrupt:
            print("interrupted: what was done until now")
            break
        row = rows.setdefault(kind, Counter())
        row.update({**found, "models": 1})
        row["seconds"] += time.perf_counter() - began
    rows["all"] = sum(rows.values(), Counter())
    for kind, row in rows.items():
        print(f"{kind:9}" + "".join(f"{row[c]:8}" for c in columns) + f"{row['seconds']:9.1f}")
    for reason, count in sorted(rows["all"].items()):
        if reason.startswith("refused: "):
            print(f"  {reason}, {count} times")
    return int(any(rows["all"][c] for c in ("wrong", "hung", "broken")))


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
    for name, make in {**test_turns.MODELS, **crossing_models.MODELS}.items() if asked.stages else ():
        yield "crossing", name, make, asked.plans, asked.seed
    for spec in list_models(()) if asked.zoo and not asked.stages else ():
        yield "zoo", spec.rpartition("/")[2], lambda spec=spec: load_workload(spec), asked.zoo, asked.seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=50)
    parser.add_argument("--plans", type=int, default=8)
    parser.add_argument("--zoo", type=int, default=0)
    parser.add_argument("--stages", action="store_true", help="plans in pipeline stages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if asked.stages:
        return run_all_in_stages(asked)
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
