"""Published training runs: a row of a table as a model, a cluster, constraints, and the seconds that its step took.

In: a CSV with a header; the columns read here are those of `data/experts.csv` (others are passed over). Out: `Row`s, and what can be made
of each. A row that our search has no words for is a `NotExpressible` with the reason. Imports no torch until a model is built.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autopar.cluster import Cluster, Device, Link, parse_cluster
from autopar.constraints import Constraints, constrain
from autopar.cost.model import CostModel
from autopar.errors import ConstraintError

# Layers of Llama-like models that tables do not print: (hidden, layers) -> feed-forward width, key-value heads.
# Source: arXiv:2307.09288 (Llama 2: 7B, 13B; 70B has 8 key-value heads as Llama 3's), arXiv:2407.21783 Table 3 (8B, 70B, 405B).
_LLAMA_2 = {(4096, 32): (11008, 32), (5120, 40): (13824, 40), (8192, 80): (28672, 8)}
_LLAMA_3 = {(4096, 32): (14336, 8), (8192, 80): (28672, 8), (16384, 126): (53248, 8)}
# Decoders that tables only name: (pattern of the name, layers, hidden, heads, vocabulary). Source: as above; arXiv:2005.14165 Table 2.1 (GPT-3 175B);
# vocabularies 128256 (Llama 3) and 32000 (Llama 2) as their model cards print them, GPT-3's as below. BigScience's by the table in all of its scripts
# (bigscience-workshop/bigscience, experiments/gpt2-meg/meg_gpt2_perf_n16.slurm; its 22B, 24B, 50B and 78B are not there).
_NAMED = (
    (r"llama ?2.*\b7b", 32, 4096, 32, 32000), (r"llama ?2.*\b13b", 40, 5120, 40, 32000), (r"llama ?2.*\b70b", 80, 8192, 64, 32000),
    (r"llama ?3.*\b8b", 32, 4096, 32, 128256), (r"llama ?3.*\b70b", 80, 8192, 64, 128256), (r"llama ?3.*\b405b", 126, 16384, 128, 128256),
    (r"gpt ?3.*\b175b", 96, 12288, 96, 51200),
    *((rf"gpt2 like {size}b", layers, hidden, 32, 51200) for size, hidden, layers in (
        (r"7\.5", 4096, 36), ("18", 6144, 40), ("25", 7168, 40), ("30", 7168, 48), ("39", 8192, 48), ("52", 8192, 64), ("65", 9216, 64), ("97", 11264, 64),
        ("116", 12288, 64), ("206", 16384, 64),
    )),
)  # fmt: skip
_VOCAB = 51200  # where a table prints none: GPT-2's 50257 as Megatron-LM pads it for 8 ranks (arXiv:2104.04473 section 5)

_RACK = 64  # of a rack's 72 devices, those that jobs of 64, 128, 256 take
# Words of the hardware column, first match wins -> preset, link between hosts where it is not the preset's.
_AWS_P3 = Link("aws-25", 30e-6, 25e9 / 8 / 8, "AWS p3.16xlarge: 25 Gb/s for 8 devices; latency of kernel TCP, assumption")
_JEAN_ZAY = Link(
    "omnipath", 10e-6, 55.0766e9 / 8 * 2 * 63 / 64 / 4,
    "BigScience on Jean Zay (experiments/bandwidth/README.md): an all-reduce of 64 V100 on 16 hosts ran at 55.0766 Gb/s, of 4 ports of 100 Gb/s a host; latency: assumption",
)  # fmt: skip
_HARDWARE: tuple[tuple[str, str, Link | None], ...] = (
    ("V100-16GB AWS p3", "V100-16GB", _AWS_P3),
    ("V100-SXM3-32GB DGX-2", "V100-32GB", None),  # 8 ports of 100 Gb/s for 16 devices: the preset's 6.25 GB/s (arXiv:1910.02054)
    ("V100-SXM2 4/node Jean Zay", "V100-32GB", _JEAN_ZAY),  # its table of 16 GB does not say which rows it has
    ("V100-32GB 4/node Jean Zay", "V100-32GB", _JEAN_ZAY),
    ("V100-16GB", "V100-16GB", None),
    ("V100-32GB", "V100-32GB", None),
    ("A100-40GB", "A100-40GB", None),
    ("A100-80GB", "A100-80GB", None),
    ("H100-80GB", "H100-80GB", None),
    ("DGX-H100", "H100-80GB", None),
    ("H100-96GB", "H100-80GB", None),  # its memory and power in the same words
    ("H200", "H200-141GB", None),
    ("GB200", "GB200", None),
    ("GB300", "GB300", None),
    ("B200", "B200", None),
    ("B300", "B300", None),
    ("MI300X", "MI300X", None),
    ("MI355X", "MI355X", None),
    ("L40S", "L40S", None),
    ("RTX 4090", "RTX4090", None),
    ("H100", "H100-PCIe", None),  # of those with PCIe alone
)
_CARDS = frozenset(("H100-PCIe", "L40S", "RTX4090"))  # presets whose devices have PCIe and nothing else


_OFFLOADS = re.compile(r"(Opt|Par) Offl=Y|PA_CPU=Y|CPU offload True")


class NotExpressible(Exception):
    """Why a row cannot be asked."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published run. `text`: all columns as they are printed; "" where nothing is."""

    id: str
    text: Mapping[str, str]

    def get(self, name: str) -> str:
        return self.text.get(name, "").strip()

    def count(self, name: str) -> int | None:
        return int(self.get(name)) if re.fullmatch(r"\d+", self.get(name)) else None

    def need(self, name: str) -> int:
        found = self.count(name)
        if found is None:
            raise NotExpressible(f"{name} is not printed")
        return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder. `kind`: `gpt` (layer norms, GELU, learned positions) or `llama` (RMS norms, SwiGLU, rotary positions, grouped keys)."""

    kind: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    wide: int
    vocab: int
    seq: int
    batch: int


def read_rows(path: Path) -> tuple[Row, ...]:
    """All rows of a table."""
    with path.open(newline="") as file:
        rows = tuple(Row(r["row_id"], {k: v or "" for k, v in r.items() if k}) for r in csv.DictReader(file))
    twice = {r.id for r in rows if sum(o.id == r.id for o in rows) > 1}
    if twice:
        raise ValueError(f"{path}: row_id {', '.join(sorted(twice))}: expected once, found more often")
    return rows


def sizes_of(row: Row) -> Sizes:
    """The model of a row."""
    if row.get("family") != "dense":
        raise NotExpressible(f"family {row.get('family')!r}: only dense decoders are built here")
    named = next((sizes for pattern, *sizes in _NAMED if re.search(pattern, row.get("model").lower().replace("_", " ").replace("-", " "))), None)
    if named is None or row.count("layers") or "not named" in row.get("model"):
        named = [row.need("layers"), row.need("hidden"), row.need("heads"), row.count("vocab") or _VOCAB]
    layers, hidden, heads, vocab = named
    if "llama" not in row.get("model").lower():
        return Sizes("gpt", layers, hidden, heads, heads, 4 * hidden, vocab, row.need("seq_len"), row.need("global_bs"))
    known = _LLAMA_2 if "llama2" in row.get("model").lower().replace(" ", "") else _LLAMA_3
    if (hidden, layers) not in known:
        raise NotExpressible(f"{row.get('model')} with {layers} layers of {hidden}: its feed-forward width is not printed")
    wide, keys = known[hidden, layers]
    return Sizes("llama", layers, hidden, heads, keys, wide, vocab, row.need("seq_len"), row.need("global_bs"))


def precision_of(row: Row) -> str:
    """`bf16` or `fp32`; fp16 stands as bf16, which moves as many bytes, and tf32 is fp32 with other matmuls (`with_tf32_rates`)."""
    said = row.get("precision").lower()
    if "fp8" in said or "fp4" in said or "float8" in said:
        raise NotExpressible(f"precision {row.get('precision')}: matmuls narrower than 16 bits are not traced")
    if said and not re.search(r"fp16|bf16|16-bit|^fp32$|^tf32$", said):
        raise NotExpressible(f"precision {row.get('precision')}: not a word of 16 or 32 bits that is known here")
    return "fp32" if said in ("fp32", "tf32") else "bf16"


def cluster_of(row: Row) -> Cluster:
    """The cluster of a row."""
    words = row.get("hardware")
    slot = "pcie" in words.lower() and not re.search("sxm|nvlink|[dh]gx", words.lower())
    found = next(((preset, across) for key, preset, across in _HARDWARE if key in words and (preset in _CARDS if slot else preset != "H100-PCIe")), None)
    if found is None:
        raise NotExpressible(f"hardware {words!r}: no preset")
    preset, across = found
    devices = row.need("n_gpus")
    per_host = row.count("gpus_per_node") or (_RACK if preset.startswith("GB") else 8)
    if devices < per_host:
        per_host = devices
    if devices % per_host:
        raise NotExpressible(f"{devices} devices on hosts of {per_host}: only equal hosts are planned")
    cluster = parse_cluster(f"{devices // per_host}x{per_host}x{preset}")
    rates = dict(cluster.device.flops_per_s)
    device = _as_worded(cluster.device, words)
    device = replace(device, flops_per_s=tuple({**rates, "bfloat16": rates["float16"]}.items()))  # V100: fp16 stands as bf16
    return replace(cluster, device=device, across=across or cluster.across)


def _as_worded(device: Device, words: str) -> Device:
    """The device with the memory, its speed and the power that the words say: `H100-96GB HBM2e 2.4TB/s 500W`. A board's GB are nearly GiB (the presets)."""
    found = re.search(r"-(\d+)GB \S+ ([\d.]+)TB/s (\d+)W", words)
    if found is None:
        return device
    return replace(device, memory_bytes=int(found[1]) * 2**30, memory_bytes_per_s=float(found[2]) * 1e12, power_w=float(found[3]))


def with_half_rates(model: CostModel, share: float = 1.0) -> CostModel:
    """The cost model with rates of 16 bits, bfloat16 as float16 (V100 has no bfloat16), of whose seconds a matmul takes this share.

    Attention keeps its own: its level is that of float16.
    """
    return _with_rate(model, "bfloat16", 1 / share)


def with_tf32_rates(model: CostModel) -> CostModel:
    """The cost model with matmuls and convolutions of float32 at half of the rate of 16 bits, as the data sheet of A100 has it (156 of 312 TFLOP/s)."""
    return _with_rate(model, "float32", 0.5)


def _with_rate(model: CostModel, dtype: str, times: float) -> CostModel:
    """With matmuls of a dtype at so many times the rate of float16."""
    if model.rates is None:
        return model
    levels = dict(model.rates.flops_per_s)
    flops = tuple({**levels, dtype: levels["float16"] * times}.items())
    return replace(model, flops_per_s=flops, rates=replace(model.rates, flops_per_s=flops))


def zero_of(row: Row) -> int | None:
    """The ZeRO stage, as our words have it; None: not printed."""
    said = row.get("zero_stage") or {"Alpa data_parallel": "0", "Alpa zero_2": "2", "Alpa zero_3": "3"}.get(row.get("framework"), "")
    if re.fullmatch(r"[0-3]", said):
        return int(said)
    if re.fullmatch(r"[+-]?[\d.]+", said):
        raise NotExpressible(f"zero_stage {said}: ZeRO has stages 0 to 3")
    if "params not resharded" in said:
        return 2
    if row.get("framework").startswith("Megatron + Deepspeed ZeRO"):
        return 3  # its branch is Megatron-LM-v1.1.5-ZeRO3 (BigScience, experiments/gpt2.md)
    return 1 if said.startswith("distributed optimizer") else 3 if re.fullmatch(r"megatron-fsdp column=[1-9]\d*", said) else None


def constraints_of(row: Row) -> Constraints:
    """The expert's choice. What the table omits stays free; so does recompute that is told op by op (`per-op SAC`), for which there is no word."""
    if "do not use" in row.get("notes"):
        raise NotExpressible(row.get("notes"))
    if _OFFLOADS.search(row.get("notes")) or ("Full Offload" in row.get("framework") and "Offl=" not in row.get("notes")):
        raise NotExpressible("states on the host have no word among the constraints")
    if row.get("refused"):
        raise NotExpressible(row.get("refused"))
    said = _said_degrees(row)
    degrees = {role: row.count(role) or said.get(role) for role in ("dp", "tp", "pp")}
    if (row.count("ep") or 1) > 1:
        raise NotExpressible("expert parallelism has no word among the constraints")
    words: dict[str, object] = {role: n for role, n in degrees.items() if n is not None}
    if (row.count("cp") or 1) > 1:
        words["sp"] = row.count("cp")
    if not words:
        raise NotExpressible("no degree is printed")
    given = [int(str(n)) for n in words.values()]
    product = 1
    for n in given:
        product *= n
    whole = {"dp", "tp", "pp"} <= words.keys()  # else what is not printed is what is left, and free
    if len(given) >= 3 and (product != row.need("n_gpus") if whole else row.need("n_gpus") % product):
        raise NotExpressible(f"the degrees {words} make {product} devices, printed are {row.need('n_gpus')}")
    if turns := row.count("turns"):
        words["microbatches"] = turns
    elif batch := row.count("micro_bs"):
        pp = degrees["pp"] or 1
        if pp > 1 and row.get("framework").startswith("torchtitan"):
            batch = max(1, batch // pp)  # it prints the local batch, which goes through the stages in as many microbatches as there are stages (`pipeline_parallel_microbatches`)
        words["microbatch"] = batch
    if degrees["pp"] != 1 and row.count("vpp") or (degrees["pp"] or 1) > 1 and row.get("source_id") == "bigsci":
        words["vpp"] = row.count("vpp") or 1  # BigScience's scripts ask Megatron-LM for one chunk a stage (experiments/gpt2-meg)
    zero, again = zero_of(row), row.get("recompute")
    if zero == 3 and (degrees["pp"] or 1) > 1 and row.get("framework").startswith("torchtitan"):
        zero = 1  # beside stages it keeps what it has gathered for all microbatches, and their gradients whole until the last one (`reshard_after_forward_policy`, `default` is `not pp_enabled`)
    recompute = "selective" if again.startswith("selective") else {"full": "full", "yes": "full", "none": "none"}.get(again)
    if recompute == "selective" and row.get("framework").startswith("torchtitan"):
        recompute = None  # its own: every second matmul and attention are kept, op by op (torchtitan/distributed/activation_checkpoint.py)
    if zero is not None and not (zero and degrees["dp"] == 1):
        words["zero"] = zero
    if recompute:
        words["recompute"] = recompute
    if row.get("seq_par") in ("yes", "no") and (degrees["tp"] or 1) > 1:
        words["sequence_parallel"] = row.get("seq_par") == "yes"
    elif row.get("framework").startswith("torchtitan") and (degrees["tp"] or 1) > 1:
        words["sequence_parallel"] = True  # its tensor parallelism splits norms along the sequence, always (`apply_tp`, torchtitan/parallelisms/parallelize_llama.py)
    try:
        return constrain(**words)
    except ConstraintError as error:
        raise NotExpressible(str(error)) from None


def _said_degrees(row: Row) -> dict[str, int]:
    """Degrees that follow from the number of devices or from the framework's name: Alpa's ablations have operators split alone, or stages alone, or batches."""
    devices, framework = row.count("n_gpus") or 0, row.get("framework")
    if devices == 1 or "inter_only" in framework:
        return {"dp": 1, "tp": 1, "pp": devices} if devices else {}
    if re.search(r"Alpa (data_parallel|zero_[23])", framework):
        return {"dp": devices, "tp": 1, "pp": 1}
    if framework.startswith("HF + Deepspeed Zero 3"):
        return {"dp": devices, "tp": 1, "pp": 1}  # "DP=GPUs" (BigScience, experiments/gpt2.md)
    return {"pp": 1} if re.search(r"Alpa (intra_only|auto_sharding)", framework) else {}


def flops_of(sizes: Sizes, again: bool) -> float:
    """Matmul FLOPs of a step: 6 per weight and token, attention without its mask; with recompute the layers' forward pass once more.

    Source: arXiv:2104.04473 equation 3, which this is for `gpt` with `again`.
    """
    h, s = sizes.hidden, sizes.seq
    up = 3 if sizes.kind == "llama" else 2
    layer = 2 * h * h + 2 * h * h * sizes.key_heads / sizes.heads + up * h * sizes.wide
    forward = sizes.layers * (2 * layer + 4 * h * s)
    return sizes.batch * s * ((4 if again else 3) * forward + 6 * sizes.vocab * h)


def published_seconds(row: Row, sizes: Sizes) -> tuple[float | None, bool]:
    """Seconds of a step as published (None: not), and whether that is certain: FLOP/s that do not say what they count are not."""

    def number(name: str) -> float | None:
        return float(row.get(name)) if re.fullmatch(r"\d+(\.\d+)?", row.get(name)) else None

    if number("iter_time_s"):
        return number("iter_time_s"), True
    samples, tokens, rate = number("samples_per_s_total"), number("tokens_per_s_per_gpu"), number("tflops_per_gpu")
    kind = row.get("tflops_kind")
    if samples:
        return sizes.batch / samples, True
    if tokens:
        return sizes.batch * sizes.seq / (tokens * row.need("n_gpus")), True
    if not rate:
        return None, False
    counts_again = "recompute" in kind or (kind != "model" and row.get("recompute") in ("full", "yes"))
    return flops_of(sizes, counts_again) / (rate * 1e12 * row.need("n_gpus")), kind == "model" or "recompute" in kind


def build_workload(sizes: Sizes, as_megatron: bool = False):  # noqa: ANN201 - torch is imported inside
    """The training step of a model, on meta.

    Args:
        as_megatron: a `gpt` with its attention multiplied out and with dropout (`megatron_model`).
    """
    import torch

    from autopar.demo.model import Gpt, token_loss
    from autopar.trace import Workload
    from autopar.trace.build import build_lightly

    if sizes.kind == "gpt" and as_megatron:
        from benchmarks.megatron_model import MegatronGpt

        model, init = build_lightly(lambda: MegatronGpt(sizes.vocab, sizes.seq, sizes.layers, sizes.hidden, sizes.heads))
        loss = token_loss
    elif sizes.kind == "gpt":
        model, init = build_lightly(lambda: Gpt(sizes.vocab, sizes.seq, sizes.layers, sizes.hidden, sizes.heads))
        loss = token_loss
    else:
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=sizes.vocab, hidden_size=sizes.hidden, num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.key_heads, intermediate_size=sizes.wide, max_position_embeddings=sizes.seq, rope_theta=5e5,
            use_cache=False,
        )  # fmt: skip

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lm = transformers.LlamaForCausalLM(config)

            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                return self.lm(input_ids=tokens).logits

        model, init = build_lightly(Logits)
        loss = token_loss
    tokens = torch.zeros(sizes.batch, sizes.seq, dtype=torch.int64, device="meta")
    return Workload(model=model, example_inputs=(tokens,), example_targets=(tokens,), loss=loss, optimizer=torch.optim.AdamW, init=init)


def select_rows(rows: Sequence[Row], wanted: Sequence[str]) -> tuple[Row, ...]:
    """The rows with these ids; all where none is named."""
    missing = set(wanted) - {r.id for r in rows}
    if missing:
        raise ValueError(f"no row {', '.join(sorted(missing))}; there are {', '.join(r.id for r in rows[:5])}, ...")
    return tuple(r for r in rows if not wanted or r.id in wanted)
