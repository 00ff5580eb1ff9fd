"""Small models of every kind that the tracer must carry, each as a workload with real weights."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar.trace import Workload

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


class Mlp(nn.Module):
    """Three linears with biases."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.up = nn.Linear(6, width)
        self.mid = nn.Linear(width, width)
        self.down = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.mid(torch.relu(self.up(x)))))


class Block(nn.Module):
    """A residual block of convolutions and batch norms, in place where PyTorch's own ResNet is."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 2 * channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * channels)
        self.conv2 = nn.Conv2d(2 * channels, 2 * channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.skip = nn.Sequential(nn.Conv2d(channels, 2 * channels, 1, stride, bias=False), nn.BatchNorm2d(2 * channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.skip(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """Stem, pool, two blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(4, 1), Block(8, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.bn(self.stem(x)), inplace=True))
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class Tied(nn.Module):
    """Embedding and head share a weight; a linear is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.same = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.same(torch.tanh(self.same(self.embed(ids)))))


def token_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens."""
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def class_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the batch."""
    return F.cross_entropy(output if isinstance(output, torch.Tensor) else output.logits, targets)


def mlp(optimizer=ADAMW, loss=class_loss) -> Workload:
    return Workload(Mlp(), (torch.randn(4, 6),), (torch.tensor([0, 4, 1, 2]),), loss, optimizer)


def resnet(optimizer=ADAMW) -> Workload:
    return Workload(ResNet(), (torch.randn(4, 3, 16, 16),), (torch.tensor([0, 4, 1, 2]),), class_loss, optimizer)


def tied(optimizer=ADAMW) -> Workload:
    return Workload(Tied(), (torch.randint(0, 11, (2, 6)),), (torch.randint(0, 11, (2, 6)),), token_loss, optimizer)


def gpt2(attention: str = "sdpa", optimizer=ADAMW, layers: int = 2, drop: float = 0.0, vocab: int = 53) -> Workload:
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers, n_embd=16, n_head=4, vocab_size=vocab, n_positions=16, resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop,
        use_cache=False, attn_implementation=attention, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Workload(transformers.GPT2LMHeadModel(config).train(), *_tokens(vocab), token_loss, optimizer)


def gpt2_dropout() -> Workload:
    """Dropout after the embedding, in attention and after each sublayer; a vocabulary that divides."""
    return gpt2(drop=0.2, vocab=48)


def tagger() -> Workload:
    """Tables and classes that divide by 8, padding, ignored and weighted targets, classes second as convolutions have them."""
    model = nn.Sequential(nn.Embedding(16, 8, padding_idx=3), nn.Linear(8, 24))
    tags = torch.randint(0, 24, (2, 8))
    tags[0, 2] = tags[1, 5] = -100
    weights = torch.linspace(0.5, 2.0, 24, dtype=torch.float64)

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.transpose(1, 2), targets, weights.to(output.dtype)) + output.logsumexp(-1).mean()

    return Workload(model, (torch.randint(0, 16, (2, 8)),), (tags,), loss, ADAMW)


def llama(attention: str = "sdpa", optimizer=ADAMW) -> Workload:
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=53,
        max_position_embeddings=16, use_cache=False, attn_implementation=attention, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Workload(transformers.LlamaForCausalLM(config), *_tokens(53), token_loss, optimizer)


def bert(attention: str = "sdpa", optimizer=ADAMW) -> Workload:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4, vocab_size=53, max_position_embeddings=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=attention,
    )  # fmt: skip
    return Workload(transformers.BertForMaskedLM(config), *_tokens(53), token_loss, optimizer)


def vit(optimizer=ADAMW) -> Workload:
    import transformers

    config = transformers.ViTConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=24, num_attention_heads=4, image_size=8, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = 5
    model = transformers.ViTForImageClassification(config)
    return Workload(model, {"pixel_values": torch.randn(3, 3, 8, 8)}, (torch.tensor([0, 4, 1]),), class_loss, optimizer)


def _tokens(vocab: int) -> tuple[dict, tuple]:
    return {"input_ids": torch.randint(0, vocab, (2, 8))}, (torch.randint(0, vocab, (2, 8)),)
