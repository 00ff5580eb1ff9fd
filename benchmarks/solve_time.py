"""From a model to a proven plan: seconds by phase, CPU seconds, peak memory, gap.

    python benchmarks/solve_time.py [CASE ...]

Each case runs in a process of its own, so that peak memory is its own. Prints a table.
"""

import platform
import resource
import subprocess
import sys
import time

CASES = {  # layers, hidden, heads, vocab, batch, seq, cluster
    "gpt2-small cpu:4": (12, 768, 12, 50257, 8, 512, "cpu:4"),
    "gpt2-small 8xH100": (12, 768, 12, 50257, 64, 1024, "8xH100-80GB"),
    "gpt2-small 2x8xH100": (12, 768, 12, 50257, 64, 1024, "2x8xH100-80GB"),
    "gpt2-xl 8xA100": (48, 1600, 25, 50257, 16, 1024, "8xA100-80GB"),
}


def run_case(name: str) -> None:
    import torch

    import autopar
    from autopar.demo.model import Gpt, token_loss

    layers, hidden, heads, vocab, batch, seq, cluster = CASES[name]
    began = time.perf_counter()
    with torch.device("meta"):
        model = Gpt(vocab, seq, layers, hidden, heads)
    tokens = torch.zeros(batch, seq, dtype=torch.int64)
    plan = autopar.plan(model, cluster, example_inputs=(tokens,), example_targets=(tokens,), loss=token_loss, optimizer=torch.optim.AdamW)
    phases = " ".join(f"{key.removesuffix('_s')} {value:.1f}" for key, value in plan.solve.phases)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s, peak_gb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6
    wall_s = time.perf_counter() - began
    print(f"{name:22} {wall_s:7.1f} {cpu_s:7.1f} {peak_gb:6.2f} {plan.cost.step_s * 1e3:10.1f} {plan.solve.gap:8.3%}  {phases}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        run_case(sys.argv[2])
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{'case':22} {'wall s':>7} {'CPU s':>7} {'GB':>6} {'step ms':>10} {'gap':>8}  phases (s)", flush=True)
    for name in sys.argv[1:] or CASES:
        subprocess.run([sys.executable, __file__, "--one", name], check=True)


if __name__ == "__main__":
    main()
