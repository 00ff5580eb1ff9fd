"""Random legal plans of real models, run as emitted on all ranks in one process: how many, how many differ from the traced step.

    python benchmarks/random_plans.py [PLANS_PER_MODEL]

Prints a table. One mismatch is a bug of the compiler; its model, mesh and seed are printed.
"""

import platform
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from autopar.graph.repeats import fold_graph  # noqa: E402
from tests.codegen.random_plans import Assigner, Control  # noqa: E402

MODELS = ("mlp", "tied", "gpt2", "llama", "bert", "vit", "resnet")
MESHES = ((2,), (4,), (2, 2), (2, 2, 2))
TOLERANCE = 1e-9  # of the larger of 1 and the tensor's largest magnitude, float64


def run_model(name: str, count: int) -> tuple[int, int]:
    """(plans run, mismatches)."""
    control = Control(name)
    fold = fold_graph(control.graph)
    assigners = {sizes: Assigner(control.graph, sizes) for sizes in MESHES}
    wrong = 0
    for number in range(count):
        sizes = MESHES[number % len(MESHES)]
        assigner = assigners[sizes]
        difference, whose = control.worst(assigner.program(assigner.draw(random.Random(number), fold if number % 2 else None)))
        if difference > TOLERANCE:
            print(f"MISMATCH {name} mesh {sizes} seed {number}: {whose} is {difference:.1e} off")
            wrong += 1
    return count, wrong


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'model':8} {'plans':>6} {'wrong':>6} {'seconds':>8}")
    total = failed = 0
    for name in MODELS:
        began = time.perf_counter()
        done, wrong = run_model(name, count)
        total, failed = total + done, failed + wrong
        print(f"{name:8} {done:6} {wrong:6} {time.perf_counter() - began:8.1f}", flush=True)
    print(f"{'all':8} {total:6} {failed:6}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
