"""Small real models, and plans in stages under which they are run: test_pipeline.py takes a few, benchmarks/pipeline_numbers.py all.

A case is a model and the words of `--fix`; its number of ranks follows. Sizes: 16 samples of 8 tokens (or 8 x 8 pixels), width 32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.constraints import parse_fix
from autopar.demo.model import Gpt
from autopar.verify import VerifyReport, verify_workload

BATCH, SEQ, VOCAB, WIDTH, HEADS = 16, 8, 48, 32, 4
IGNORED = -100
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1, eps=1e-5)  # above the rounding noise of a zero gradient (key bias)


def draw_tokens() -> torch.Tensor:
    """Token numbers [BATCH, SEQ]; 0 stays free for padding."""
    return torch.randint(1, VOCAB, (BATCH, SEQ))


def draw_targets() -> torch.Tensor:
    """Tokens [BATCH, SEQ] to predict, of which a third do not count, and none of the first two samples (of 8 microbatches, a whole one)."""
    targets = draw_tokens()
    targets[torch.rand(BATCH, SEQ) < 0.3] = IGNORED
    targets[:2] = IGNORED
    return targets


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the tokens that count."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def _logits_loss(output: object, targets: torch.Tensor) -> torch.Tensor:
    return token_loss(output.logits, targets)


def make_gpt(layers: int = 4, tied: bool = True) -> Gpt:
    """The demo's GPT with an embedding that the head shares, or not."""
    model = Gpt(vocab=VOCAB, seq=SEQ, layers=layers, hidden=WIDTH, heads=HEADS)
    if not tied:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone().flip(0))
    return model


def gpt(**words: object) -> autopar.Workload:
    return autopar.Workload(make_gpt(**words), (draw_tokens(),), (draw_targets(),), token_loss, ADAMW)


def gpt_frozen() -> autopar.Workload:
    """Only the last block, the norm and the head learn, as where the end of a model is tuned; so early stages have no backward pass."""
    model = make_gpt(tied=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.3", "norm", "head")))
    return autopar.Workload(model, (draw_tokens(),), (draw_targets(),), token_loss, ADAMW)


def gpt2(tied: bool, dropout: float = 0.0) -> autopar.Workload:
    """With dropout: in attention, after embeddings and on both residuals."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=4, n_head=HEADS, n_positions=SEQ, use_cache=False, attn_pdrop=dropout, embd_pdrop=dropout,
        resid_pdrop=dropout, tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return autopar.Workload(transformers.GPT2LMHeadModel(config), {"input_ids": draw_tokens()}, (draw_targets(),), _logits_loss, ADAMW)


def gpt2_labels() -> autopar.Workload:
    """The labels are an input of the model, which shifts them and makes the loss itself: the last stage reads the batch, too."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=4, n_head=HEADS, n_positions=SEQ, use_cache=False, attn_pdrop=0.0, embd_pdrop=0.0,
        resid_pdrop=0.0, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    inputs = {"input_ids": draw_tokens(), "labels": draw_targets()}
    return autopar.Workload(transformers.GPT2LMHeadModel(config), inputs, (), lambda output: output.loss, ADAMW)


def llama(tied: bool) -> autopar.Workload:
    """With two heads of keys and values for four of queries."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=4, num_attention_heads=HEADS, num_key_value_heads=2,
        max_position_embeddings=SEQ, use_cache=False, tie_word_embeddings=tied, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return autopar.Workload(transformers.LlamaForCausalLM(config), {"input_ids": draw_tokens()}, (draw_targets(),), _logits_loss, ADAMW)


def t5(tied: bool) -> autopar.Workload:
    """Three layers on each side. Both sides read one embedding, all layers of a side the position bias of its first, the decoder the encoder."""
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=3, num_decoder_layers=3, num_heads=HEADS, dropout_rate=0.0,
        use_cache=False, tie_word_embeddings=tied, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    inputs = {"input_ids": draw_tokens(), "decoder_input_ids": draw_tokens()}
    return autopar.Workload(transformers.T5ForConditionalGeneration(config), inputs, (draw_targets(),), _logits_loss, ADAMW)


class _Part(nn.Module):
    """Two convolutions with group norms around what comes in."""

    def __init__(self, wide_in: int, wide: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(wide_in, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.norm_1, self.norm_2 = nn.GroupNorm(2, wide), nn.GroupNorm(2, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm_1(self.first(x)))
        return x + F.silu(self.norm_2(self.second(x)))


class UNet(nn.Module):
    """Down by halves and up again: each level on the way up also reads what its level gave on the way down, over all stages between."""

    def __init__(self, levels: int = 3, wide: int = 8) -> None:
        super().__init__()
        widths = [wide * 2**k for k in range(levels)]
        self.into = nn.Conv2d(3, wide, 1)
        self.down = nn.ModuleList(_Part(widths[max(k - 1, 0)], widths[k]) for k in range(levels))
        self.middle = _Part(widths[-1], widths[-1])
        self.up = nn.ModuleList(_Part(widths[k] + widths[min(k + 1, levels - 1)], widths[k]) for k in reversed(range(levels)))
        self.out = nn.Conv2d(wide, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        skips = []
        for part in self.down:
            x = part(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for part in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = part(torch.cat([x, skips.pop()], 1))
        return self.out(x)


def unet() -> autopar.Workload:
    pictures, wanted = torch.randn(BATCH, 3, 8, 8), torch.randn(BATCH, 3, 8, 8)
    return autopar.Workload(UNet(), (pictures,), (wanted,), F.mse_loss, ADAMW)


MODELS: dict[str, Callable[[], autopar.Workload]] = {
    "gpt": gpt,
    "gpt-untied": functools.partial(gpt, tied=False),
    "gpt-deep": functools.partial(gpt, layers=8),
    "gpt-frozen": gpt_frozen,
    "gpt2": functools.partial(gpt2, tied=True),
    "gpt2-dropout": functools.partial(gpt2, tied=True, dropout=0.1),
    "gpt2-labels": gpt2_labels,
    "gpt2-untied": functools.partial(gpt2, tied=False),
    "llama": functools.partial(llama, tied=False),
    "llama-tied": functools.partial(llama, tied=True),
    "t5": functools.partial(t5, tied=True),
    "t5-untied": functools.partial(t5, tied=False),
    "unet": unet,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, how it is cut, in which order its stages run, and what is demanded inside of a stage."""

    model: str
    stages: int
    schedule: str
    microbatches: int
    tp: int = 1
    dp: int = 1
    zero: int | None = None
    recompute: str | None = None

    @property
    def fix(self) -> str:
        """The words of `--fix`."""
        chunks = {"vpp": 2} if self.schedule in ("interleaved", "zbv") else {}
        rows = {"pp": self.stages, "tp": self.tp, "dp": self.dp, "microbatches": self.microbatches, "schedule": self.schedule, **chunks}
        rows |= {word: value for word, value in (("zero", self.zero), ("recompute", self.recompute)) if value is not None}
        return ",".join(f"{word}={value}" for word, value in rows.items())

    @property
    def num_ranks(self) -> int:
        return self.stages * self.tp * self.dp

    @property
    def name(self) -> str:
        return f"{self.model}:{self.fix}"


_ORDERS = (
    (2, "1f1b", 1), (2, "gpipe", 2), (2, "1f1b", 4), (2, "zero-bubble", 8), (2, "interleaved", 2), (2, "interleaved", 8), (2, "zero-bubble", 2),
    (2, "zbv", 1), (2, "zbv", 4),
    (4, "gpipe", 1), (4, "1f1b", 8), (4, "zero-bubble", 4), (4, "gpipe", 4), (4, "1f1b", 2),
)  # fmt: skip
_INSIDE = (
    {"tp": 2}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 2}, {"dp": 2, "zero": 3}, {"tp": 2, "recompute": "full"}, {"dp": 2, "zero": 0}, {},
    {"dp": 2, "tp": 2, "zero": 2}, {"dp": 2, "zero": 3, "recompute": "selective"},
)  # fmt: skip


def list_cases() -> Iterator[Case]:
    """Every model with every order of stages, schedule and microbatches; what is inside of a stage takes turns, so that all pairs come up."""
    for k, model in enumerate(MODELS):
        orders = (*_ORDERS, (4, "interleaved", 4), (4, "interleaved", 8), (4, "zbv", 2), (4, "zbv", 8)) if model == "gpt-deep" else _ORDERS
        for number, (stages, schedule, microbatches) in enumerate(orders):
            inside = dict(_INSIDE[(k + number) % len(_INSIDE)])
            if model == "unet" and inside.get("recompute") == "selective":  # which is about attention
                inside["recompute"] = "full"
            yield Case(model, stages, schedule, microbatches, **inside)


def compare_case(case: Case, time_limit_s: float = 10.0) -> VerifyReport:
    """All ranks of a case in one process beside plain PyTorch, in float64, two steps.

    Raises:
        AutoparError: as of `verify_workload`.
    """
    torch.manual_seed(0)
    options = autopar.Options(constraints=parse_fix(case.fix), price=False, time_limit_s=time_limit_s)
    return verify_workload(MODELS[case.model](), f"cpu:{case.num_ranks}", options)
