"""Models beside the two that `gpu.py` is about: pictures, text in both directions, an encoder and a decoder, experts, recurrence.

In: a batch size. Out: a workload at the size that people train, with AdamW and random weights. Those of `timm` and `transformers` need these libraries, and only when they are built.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True)
class Model:
    """`build` makes the workload of a batch size; `batch` is the size that is measured."""

    batch: int
    build: Callable[[int], Workload]


class Logits(nn.Module):
    """A model of `transformers` whose inputs have an order, and whose result is its logits."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs))).logits


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def pictures(name: str, batch: int) -> Workload:
    """A classifier of `timm`, of 224 x 224."""
    import timm

    return Workload(timm.create_model(name, num_classes=1000), (torch.randn(batch, 3, 224, 224),), (torch.randint(0, 1000, (batch,)),), F.cross_entropy, ADAMW)


def text(kind: str, config: str, names: tuple[str, ...], seq: int, vocab: int, batch: int, **sizes: Any) -> Workload:
    """A model of `transformers` of tokens. `names`: of its inputs, all of one length, a padding mask of ones where one is called so."""
    import transformers

    model = getattr(transformers, kind)(getattr(transformers, config)(vocab_size=vocab, **sizes))
    inputs = tuple(torch.ones(batch, seq, dtype=torch.long) if "mask" in name else torch.randint(1, vocab, (batch, seq)) for name in names)
    return Workload(Logits(model, names), inputs, (torch.randint(1, vocab, (batch, seq)),), token_loss, ADAMW)


class Recurrent(nn.Module):
    """Words, two layers of LSTM, words."""

    def __init__(self, vocab: int = 10_000, hidden: int = 1024) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, hidden)
        self.layers = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens))[0])


def recurrent(batch: int, seq: int = 64, vocab: int = 10_000) -> Workload:
    tokens, targets = (torch.randint(0, vocab, (batch, seq)) for _ in range(2))
    return Workload(Recurrent(vocab), (tokens,), (targets,), token_loss, ADAMW)


DROPS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
EXPERTS = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "num_local_experts": 8}
MODELS = {
    "resnet50": Model(64, functools.partial(pictures, "resnet50")),
    "convnext-tiny": Model(64, functools.partial(pictures, "convnext_tiny")),
    "vit-base": Model(64, functools.partial(pictures, "vit_base_patch16_224")),
    "bert-base": Model(32, lambda batch: text("BertForMaskedLM", "BertConfig", ("input_ids", "attention_mask"), 512, 30522, batch, **DROPS)),
    "t5-base": Model(16, lambda batch: text("T5ForConditionalGeneration", "T5Config", ("input_ids", "decoder_input_ids"), 512, 32128, batch, d_model=768, d_ff=3072, num_layers=12, num_heads=12, dropout_rate=0.0)),
    "mixtral-small": Model(8, lambda batch: text("MixtralForCausalLM", "MixtralConfig", ("input_ids",), 1024, 32000, batch, **EXPERTS)),
    "lstm": Model(64, recurrent),
}  # fmt: skip
