"""From a model to a proven plan: seconds by phase, CPU seconds, peak memory, gap.

    python benchmarks/solve_time.py [CASE ...] [--time-limit S]

Each case runs in a process of its own, so that peak memory is its own; CPU seconds are those of the whole process, imports included. `32x8`
after a case's name fixes the mesh, so that only shardings are chosen; the others choose the mesh, too. Prints a table.
"""

import argparse
import platform
import resource
import subprocess
import sys
import time

LLAMA = ("llama", dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256))
CASES = {  # model, global batch, sequence, cluster, mesh (None: chosen)
    "gpt2-small cpu:4": (("gpt", (12, 768, 12, 50257)), 8, 512, "cpu:4", None),
    "gpt2-small 8xH100": (("gpt", (12, 768, 12, 50257)), 64, 1024, "8xH100-80GB", None),
    "gpt2-small 2x8xH100": (("gpt", (12, 768, 12, 50257)), 64, 1024, "2x8xH100-80GB", None),
    "llama3-8b 32x8": (LLAMA, 64, 8192, "32x8xH100-80GB", (32, 8)),
    "llama3-8b": (LLAMA, 64, 8192, "32x8xH100-80GB", None),
    "gpt3-175b": (("gpt", (96, 12288, 96, 51200)), 1536, 2048, "128x8xA100-80GB", None),
    "gpt-1t": (("gpt", (128, 25600, 160, 51200)), 3072, 2048, "384x8xA100-80GB", None),
}
DEFAULT = list(CASES)[:5]  # the others take minutes


def build_workload(spec: tuple, batch: int, seq: int):  # noqa: ANN201 - torch is imported inside
    import torch

    from autopar.demo.model import Gpt, token_loss
    from autopar.trace import Workload
    from autopar.trace.build import build_lightly

    kind, sizes = spec
    if kind == "gpt":
        layers, hidden, heads, vocab = sizes
        model, init = build_lightly(lambda: Gpt(vocab, seq, layers, hidden, heads))
        loss = token_loss
    else:
        import transformers

        config = transformers.LlamaConfig(max_position_embeddings=seq, rope_theta=5e5, use_cache=False, **sizes)

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lm = transformers.LlamaForCausalLM(config)

            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                return self.lm(input_ids=tokens).logits

        model, init = build_lightly(Logits)
        loss = lambda logits, tokens: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # noqa: E731
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    return Workload(model=model, example_inputs=(tokens,), example_targets=(tokens,), loss=loss, optimizer=torch.optim.AdamW, init=init)


def run_case(name: str, time_limit_s: float, verbose: bool = False) -> None:
    from autopar.cluster import parse_cluster
    from autopar.constraints import Constraints
    from autopar.cost.buckets import bucketed_model
    from autopar.cost.meshes import list_meshes
    from autopar.cost.model import build_cost_model
    from autopar.cost.prices import build_prices
    from autopar.graph.case import build_case
    from autopar.graph.mesh import axis_sizes, print_mesh
    from autopar.solver.decide import Ask, decide
    from autopar.solver.layouts import print_layout
    from autopar.solver.search import Question, search
    from autopar.trace import trace_step

    spec, batch, seq, cluster_spec, sizes = CASES[name]
    cluster = parse_cluster(cluster_spec)
    began = time.perf_counter()
    workload = build_workload(spec, batch, seq)
    marks = [("load", time.process_time())]
    graph = trace_step(workload, "bf16" if cluster.device.kind == "cuda" else "fp32").graph
    marks.append(("trace", time.process_time()))
    case = build_case(graph)
    marks.append(("rules", time.process_time()))
    model = bucketed_model(build_cost_model(cluster), graph)
    say = (lambda line: print(f"{time.perf_counter() - began:6.1f} s  {line}", flush=True)) if verbose else lambda line: None
    if sizes is not None:
        meshes = [m for m in list_meshes(cluster) if axis_sizes(m) == sizes]
        question = Question(case.graph, case.sites, case.signatures, case.cuts, case.fold, cluster.device.memory_bytes, model.reserve_bytes)
        prices = lambda m: build_prices(model, m, case.graph, case.sites, case.signatures)  # noqa: E731
        found = search(question, meshes, prices, time_limit_s=time_limit_s, report=say)
        where, again = print_mesh(found.assignment.mesh), len(found.assignment.again)
    else:
        found = decide(Ask(case, model, Constraints(), cluster.device.memory_bytes, time_limit_s, None, say))
        stages = [found.assignment] if found.staged is None else [s.assignment for s in found.staged.stages]
        where = print_layout(found.staged.layout) if found.staged is not None else f"{print_mesh(stages[0].mesh)}, {stages[0].microbatches} mb"
        again = sum(len(a.again) for a in stages)
    marks.append(("search", time.process_time()))
    certificate = found.certificate
    steps = " ".join(f"{what} {now - before:.1f}" for (what, now), before in zip(marks, [0.0, *(t for _, t in marks)]))
    inner = " ".join(f"{key.removesuffix('_s')} {value:.1f}" for key, value in certificate.phases)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{name:20} {time.perf_counter() - began:7.1f} {used.ru_utime + used.ru_stime:7.1f} {used.ru_maxrss / 1e6:6.2f} {certificate.objective_s * 1e3:10.1f} "
        f"{certificate.gap:8.3%} {again:6} {len(certificate.pruned):6}  {where}; {steps} ({inner})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--verbose", action="store_true", help="what each mesh gave")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := [name for name in asked.cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if asked.one:
        from autopar.collector import rare_collections

        with rare_collections():  # as the command line does, imports included
            run_case(asked.cases[0], asked.time_limit, asked.verbose)
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{'case':20} {'wall s':>7} {'CPU s':>7} {'GB':>6} {'step ms':>10} {'gap':>8} {'again':>6} {'pruned':>6}  plan; CPU s by step (wall s of the search)", flush=True)
    for name in asked.cases or DEFAULT:
        subprocess.run([sys.executable, __file__, name, "--one", "--time-limit", str(asked.time_limit), *(["--verbose"] if asked.verbose else [])], check=False)


if __name__ == "__main__":
    main()
