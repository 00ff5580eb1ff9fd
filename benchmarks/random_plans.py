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
from autopar.graph.tensor import STATE_KINDS  # noqa: E402
from autopar.runtime.execute import run_graph  # noqa: E402
from autopar.trace import trace_step  # noqa: E402
from tests.codegen.random_plans import Assigner, run_source, source_of  # noqa: E402
from tests.trace import zoo  # noqa: E402
from tests.trace.compare import batch, first_states  # noqa: E402

MODELS = ("mlp", "tied", "gpt2", "llama", "bert", "vit", "resnet")
MESHES = ((2,), (4,), (2, 2), (2, 2, 2))
TOLERANCE = 1e-9  # of the larger of 1 and the tensor's largest magnitude, float64


def differs(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if not wanted.numel():
        return False
    return bool((found.double() - wanted.double()).abs().max() > TOLERANCE * max(1.0, float(wanted.abs().max())))


def run_model(name: str, count: int) -> tuple[int, int]:
    """(plans run, mismatches)."""
    torch.manual_seed(0)
    workload = getattr(zoo, name)()
    traced = trace_step(workload, "fp64")
    graph = traced.graph
    env = first_states(workload, traced, torch.float64)
    _, _, named = batch(workload, traced, True, 1)
    expected = run_graph(graph, {k: v.clone() for k, v in {**env, **named}.items()})
    storage = {v.name: v.storage for v in graph.values if v.kind in STATE_KINDS}
    states = {storage[n]: env[n] for n in graph.inputs if n in storage}
    fold = fold_graph(graph)
    wrong = 0
    assigners: dict[tuple[int, ...], Assigner] = {}
    for number in range(count):
        sizes = MESHES[number % len(MESHES)]
        assigner = assigners.get(sizes) or assigners.setdefault(sizes, Assigner(graph, sizes))
        program = assigner.program(assigner.draw(random.Random(number), fold if number % 2 else None))
        results, after = run_source(source_of(graph, program), program, graph, {k: v.clone() for k, v in states.items()}, named)
        bad = any(differs(loss, expected[graph.loss]) for loss, _ in results)
        bad |= any(differs(g, expected[wanted]) for g, (_, wanted) in zip(results[0][1], graph.grads))
        bad |= any(differs(after[storage[old]], expected[new]) for old, new in graph.updates)
        if bad:
            print(f"MISMATCH {name} mesh {sizes} seed {number}")
        wrong += bad
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
