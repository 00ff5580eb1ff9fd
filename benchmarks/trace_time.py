"""From a model to a folded graph: CPU seconds by stage, peak memory, nodes. Shapes of published models, on the meta device, in bf16.

    python benchmarks/trace_time.py [CASE ...]

Each case runs in a process of its own, so that peak memory is its own. Prints a table. "plain" traces every block and every update, without
copies.
"""

import platform
import resource
import subprocess
import sys
import time

CASES = {  # model type, layers, hidden, heads, other fields, vocab, sequence
    "GPT-3 175B": ("gpt2", 96, 12288, 96, {}, 51200, 2048),
    "Llama-3 405B": ("llama", 126, 16384, 128, {"intermediate_size": 53248, "num_key_value_heads": 8}, 128256, 8192),
    "GPT 1T": ("gpt2", 128, 25600, 160, {}, 51200, 2048),
    "Llama-3 8B": ("llama", 32, 4096, 32, {"intermediate_size": 14336, "num_key_value_heads": 8}, 128256, 8192),
}


def run_case(name: str, is_plain: bool) -> None:
    import torch
    import transformers

    from autopar.graph.repeats import fold_graph
    from autopar.trace import capture, trace_step
    from autopar.trace.build import build_lightly
    from autopar.trace.load import token_cross_entropy
    from autopar.trace.updating import update
    from autopar.trace.workload import Workload

    if is_plain:
        capture._FEWEST_BLOCKS = None
        update.choose_samples = lambda *_: {}
    kind, layers, hidden, heads, fields, vocab, sequence = CASES[name]
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=hidden, n_layer=layers, n_head=heads, n_positions=sequence, vocab_size=vocab, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
        )
    else:
        config = transformers.LlamaConfig(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=vocab, max_position_embeddings=sequence, **fields
        )
    config.use_cache = False
    _ = transformers.GPT2LMHeadModel, transformers.LlamaForCausalLM  # imports them, which is not what is measured
    start = time.process_time()
    model, init = build_lightly(lambda: transformers.AutoModelForCausalLM.from_config(config))
    built = time.process_time()
    tokens = torch.zeros(8, sequence, dtype=torch.int64)
    workload = Workload(model, {"input_ids": tokens}, (tokens,), token_cross_entropy, torch.optim.AdamW, init, name)
    graph = trace_step(workload, "bf16").graph
    traced = time.process_time()
    folded = fold_graph(graph)
    end = time.process_time()
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    num_folded = len(set(folded.node_class))
    label = f"{name}{' plain' if is_plain else ''}"
    print(
        f"{label:20} {len(graph.nodes):7d} {num_folded:7d} {built - start:7.2f} {traced - built:7.2f} {end - traced:7.2f} {end - start:7.2f} "
        f"{peak_gb:7.2f}",
        flush=True,
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        run_case(sys.argv[2], sys.argv[3] == "plain")
        return
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}; CPU seconds")
    print(f"{'case':20} {'nodes':>7} {'folded':>7} {'build':>7} {'trace':>7} {'fold':>7} {'all':>7} {'peak GB':>7}", flush=True)
    for name in sys.argv[1:] or CASES:
        for how in ("copied", "plain"):
            subprocess.run([sys.executable, __file__, "--one", name, how], check=True)


if __name__ == "__main__":
    main()
