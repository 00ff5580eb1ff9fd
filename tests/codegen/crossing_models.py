"""Small models whose values cross between pipeline stages in every way: skips, a memory that all later layers read, tied weights, masks and targets that
late stages read, sums over the gradients of all stages."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar.demo.model import Gpt, token_loss
from autopar.trace import Workload

VOCAB, BATCH, SEQ = 16, 4, 8
MOMENTUM = functools.partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


class UNet(nn.Module):
    """Two levels down and up; what goes down is concatenated on the way up."""

    def __init__(self, channels=4):
        super().__init__()
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(channels * 2**k, channels * 2 ** (k + 1), 3, stride=2, padding=1) for k in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(2, channels * 2 ** (k + 1)) for k in range(2))
        self.up = nn.ModuleList(nn.Conv2d(channels * (2 ** (k + 1) + 2**k), channels * 2**k, 3, padding=1) for k in range(2))
        self.head = nn.Conv2d(channels, 2, 1)

    def forward(self, x):
        x, kept = self.stem(x), []
        for conv, norm in zip(self.down, self.norms):
            kept.append(x)
            x = F.silu(norm(conv(x)))
        for conv in reversed(self.up):
            x = F.silu(conv(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1)))
        return self.head(x)


class Translator(nn.Module):
    """Encoder and decoder over one table: padding is masked in both, all decoder layers read the encoder's output, the head is the table."""

    def __init__(self, width=8, drop=0.0):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width, padding_idx=0)
        shape = dict(nhead=2, dim_feedforward=16, dropout=drop, batch_first=True, norm_first=True)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(width, **shape) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(width, **shape) for _ in range(2))

    def forward(self, source, target):
        padding, ahead = source == 0, torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=padding)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=ahead, memory_key_padding_mask=padding)
        return x @ self.embed.weight.t()


class Mixed(nn.Module):
    """A linear that is used again and again, a scale that the loss's input is divided by, buffers, an input that only the end reads."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x, late):
        y = torch.tanh(self.again(F.gelu(self.first(x)) + self.shift))
        z = torch.tanh(self.again(y * self.scale)) + x
        return self.last(torch.tanh(self.again(z + late * self.shift))) / (1 + self.scale**2)


class Clipped(torch.optim.SGD):
    """SGD after the gradients of the whole model have been clipped to a norm."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
        return super().step(closure)


class Attended(nn.Module):
    """Positions attend to one another under a bias that comes from outside."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.out = heads, nn.Linear(width, width)

    def forward(self, x, bias):
        parts = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weights = (parts @ parts.transpose(-1, -2) + bias).softmax(-1)
        return x + self.out((weights @ parts).transpose(1, 2).flatten(2))


class Biased(nn.Module):
    """All layers share one learnt bias by distance, which the model itself brings into shape, from no sample; the head is the table, times a number."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.embed, self.bias = nn.Embedding(VOCAB, width), nn.Embedding(2 * SEQ, heads)
        self.layers = nn.ModuleList(Attended(width, heads) for _ in range(3))

    def forward(self, ids):
        places = torch.arange(SEQ, device=ids.device)
        bias = self.bias(places[None] - places[:, None] + SEQ).permute(2, 0, 1)[None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x @ self.embed.weight.T * 0.5


class Local(nn.Module):
    """A block that attends to its neighbours in time, or to all before it; its second half is wider in some."""

    def __init__(self, width=8, window=0, times=2):
        super().__init__()
        self.window, self.norm, self.qkv, self.out = window, nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x, near):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=near) if self.window else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Turning(nn.Module):
    """Blocks of several kinds that take turns: every `period`-th attends to all, every other one after `wide` is wider. They are in a list, or `by_hand` have a name each."""

    def __init__(self, layers=7, period=2, wide=0, width=8, by_hand=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB)
        blocks = [Local(width, 0 if i % period == period - 1 else 3, 4 if wide and i > wide and i % 2 else 2) for i in range(layers)]
        if by_hand:
            for i, block in enumerate(blocks):
                setattr(self, f"layers{i}", block)
        else:
            self.layers = nn.ModuleList(blocks)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        ago = places[:, None] - places[None]
        x, near = self.embed(ids), (ago >= 0) & (ago < 3)
        for layer in self.layers if hasattr(self, "layers") else [module for name, module in self.named_children() if name.startswith("layers")]:
            x = layer(x, near)
        return self.head(x)


def two_rates(params):
    """AdamW with a rate that is a tensor for the matrices, and another one for the rest."""
    params = list(params)
    matrices, rest = [p for p in params if p.dim() > 1], [p for p in params if p.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices}, {"params": rest, "lr": 5e-3, "weight_decay": 0.0}], lr=torch.tensor(1e-2), weight_decay=0.1)


def _ids(*shape):
    return torch.randint(1, VOCAB, shape)


def _padded():
    ids = _ids(BATCH, SEQ)
    ids[0, 5:] = ids[3, 2:] = 0
    return ids


def ignoring_loss(logits, targets):
    """Mean over the tokens that are no padding."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


def u_net(optimizer=ADAMW):
    return Workload(UNet(), (torch.randn(BATCH, 2, 8, 8),), (torch.randn(BATCH, 2, 8, 8),), F.mse_loss, optimizer)


def translator(drop=0.0):
    return Workload(Translator(drop=drop), (_padded(), _ids(BATCH, SEQ)), (_padded(),), ignoring_loss, MOMENTUM)


def tied_gpt(optimizer=ADAMW, loss=token_loss):
    model = Gpt(vocab=VOCAB, seq=SEQ, layers=4, hidden=8, heads=2)
    return Workload(model, (_ids(BATCH, SEQ),), (_padded() if loss is ignoring_loss else _ids(BATCH, SEQ),), loss, optimizer)


def biased():
    return Workload(Biased(), (_ids(BATCH, SEQ),), (_padded(),), ignoring_loss, MOMENTUM)


def mixed(optimizer=ADAMW):
    return Workload(Mixed(), (torch.randn(BATCH, 8), torch.randn(BATCH, 8)), (torch.randn(BATCH, 8),), F.mse_loss, optimizer)


def turning(layers=7, period=2, wide=0, optimizer=MOMENTUM, width=8, by_hand=False):
    return Workload(Turning(layers, period, wide, width, by_hand), (_ids(BATCH, SEQ),), (_ids(BATCH, SEQ),), token_loss, optimizer, name="turning")


MODELS = {
    "u-net": u_net,
    "u-net, clipped": lambda: u_net(functools.partial(Clipped, lr=1e-2)),
    "translator": translator,
    "translator, dropout": lambda: translator(0.2),
    "gpt": tied_gpt,
    "gpt, ignored targets, clipped": lambda: tied_gpt(functools.partial(Clipped, lr=1e-2), ignoring_loss),
    "gpt, momentum": lambda: tied_gpt(MOMENTUM),
    "biased": biased,
    "mixed": mixed,
    "mixed, two rates": lambda: mixed(two_rates),
    "turning": turning,
    "turning, by hand": lambda: turning(by_hand=True),
}
