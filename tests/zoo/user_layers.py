"""Attention in all its forms, and layers that are not linears or convolutions; global batch 8."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar import Workload

_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
_BATCH, _SEQ = 8, 8


def _tokens_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _of_tokens(layer: nn.Module, width: int = 16) -> Workload:
    model = nn.Sequential(nn.Embedding(32, width), layer, nn.Linear(width, 32))
    ids = torch.randint(0, 32, (_BATCH, _SEQ))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def _of_images(model: nn.Module, optimizer=_ADAMW) -> Workload:
    """A model from images to [8, classes]."""
    return Workload(model, (torch.randn(_BATCH, 3, 8, 8),), (torch.randint(0, 4, (_BATCH,)),), F.cross_entropy, optimizer)


class _Attention(nn.Module):
    """Projections around `attend(q, k, v)` on [batch, heads, seq, head]."""

    def __init__(self, attend, heads: int = 4, kv_heads: int = 4, head: int = 8, width: int = 16) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head, self.attend = heads, kv_heads, head, attend
        self.q, self.k, self.v = (nn.Linear(width, n * head, bias=False) for n in (heads, kv_heads, kv_heads))
        self.out = nn.Linear(heads * head, width)

    def forward(self, x):
        q, k, v = (
            p(x).view(x.shape[0], x.shape[1], n, self.head).transpose(1, 2)
            for p, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        y = self.attend(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


# -- scaled dot product attention ------------------------------------------------------------------------------------------------------


def sdpa_full() -> Workload:
    return _of_tokens(_Attention(F.scaled_dot_product_attention))


def sdpa_causal() -> Workload:
    return _of_tokens(_Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)))


def sdpa_bool_mask() -> Workload:
    """A window of 3 as a bool mask."""

    def attend(q, k, v):
        position = torch.arange(q.shape[-2])
        near = (position[:, None] - position[None, :]).abs() < 3
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)

    return _of_tokens(_Attention(attend))


def sdpa_padding_mask() -> Workload:
    """A mask from the data: padding tokens are not seen."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(32, 16, padding_idx=0), nn.Linear(16, 32)
            self.attention = _Attention(None)

        def forward(self, ids):
            seen = (ids != 0)[:, None, None, :]
            self.attention.attend = functools.partial(F.scaled_dot_product_attention, attn_mask=seen)
            return self.head(self.attention(self.embed(ids)))

    ids = torch.randint(1, 32, (_BATCH, _SEQ))
    ids[:, -2:] = 0
    return Workload(Model(), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def sdpa_float_mask() -> Workload:
    """ALiBi: slopes per head as a float mask."""

    def attend(q, k, v):
        position = torch.arange(q.shape[-2])
        slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1)
        bias = -slopes[:, None, None] * (position[:, None] - position[None, :]).abs()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))

    return _of_tokens(_Attention(attend))


def sdpa_learnt_bias() -> Workload:
    """A trained relative position bias as the mask (T5, Swin): it needs a gradient."""

    class Model(_Attention):
        def __init__(self) -> None:
            super().__init__(None)
            self.bias = nn.Parameter(torch.randn(2 * _SEQ - 1, 4) * 0.1)

        def forward(self, x):
            position = torch.arange(x.shape[1])
            bias = self.bias[position[:, None] - position[None, :] + _SEQ - 1].permute(2, 0, 1)
            self.attend = functools.partial(F.scaled_dot_product_attention, attn_mask=bias)
            return super().forward(x)

    return _of_tokens(Model())


def sdpa_gqa() -> Workload:
    attend = functools.partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    return _of_tokens(_Attention(attend, 4, 2))


def sdpa_gqa_repeated() -> Workload:
    """Keys and values repeated by hand."""

    def attend(q, k, v):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return _of_tokens(_Attention(attend, 4, 2))


def sdpa_math() -> Workload:
    """The math backend, asked for by name."""

    def attend(q, k, v):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return _of_tokens(_Attention(attend))


def sdpa_cross() -> Workload:
    """Few learnt queries over many keys (Perceiver), with another value width."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Parameter(torch.randn(3, 16))
            self.embed, self.k, self.v, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(32, 8)

        def forward(self, ids):
            x = self.embed(ids)
            q = self.queries.expand(x.shape[0], -1, -1).unflatten(-1, (2, 8)).transpose(1, 2)
            k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.k, self.v))
            return self.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))

    ids = torch.randint(0, 32, (_BATCH, _SEQ))
    return Workload(Model(), (ids,), (torch.randint(0, 8, (_BATCH,)),), F.cross_entropy, _ADAMW)


# -- flex attention --------------------------------------------------------------------------------------------------------------------


def flex_score() -> Workload:
    """Distance added to the score, and a learnt slope per head that is closed over."""
    from torch.nn.attention.flex_attention import flex_attention

    class Model(_Attention):
        def __init__(self) -> None:
            super().__init__(None)
            self.slope = nn.Parameter(torch.rand(4))

        def forward(self, x):
            def score(s, b, h, q, k):
                return s - self.slope[h] * (q - k).abs()

            self.attend = functools.partial(flex_attention, score_mod=score)
            return super().forward(x)

    return _of_tokens(Model())


def flex_block_mask() -> Workload:
    """A causal window as a block mask made in forward, GQA, compiled as the documentation says."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)

    def attend(q, k, v):
        def near(b, h, q, k):
            return (q >= k) & (q - k < 4)

        mask = create_block_mask(near, None, None, q.shape[-2], k.shape[-2], device="cpu")
        return compiled(q, k, v, block_mask=mask, enable_gqa=True)

    return _of_tokens(_Attention(attend, 4, 2))


def flex_document_mask() -> Workload:
    """Documents packed in a sequence: the mask reads a tensor."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    documents = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])

    def attend(q, k, v):
        def same(b, h, i, j):
            return (documents[i] == documents[j]) & (i >= j)

        mask = create_block_mask(same, None, None, q.shape[-2], k.shape[-2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    return _of_tokens(_Attention(attend))


# -- torch's own attention layers ------------------------------------------------------------------------------------------------------


def multihead_attention() -> Workload:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
            self.weighed = nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            y, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False, is_causal=True)
            z, weights = self.weighed(y, x, x)
            return y + z * weights.mean()

    return _of_tokens(Model())


def encoder_layers() -> Workload:
    """`nn.TransformerEncoder` with a padding mask, one layer norm-first."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
            layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.last = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)

        def forward(self, ids):
            hidden = self.encoder(self.embed(ids), src_key_padding_mask=ids == 0)
            return self.head(self.last(hidden))

    ids = torch.randint(1, 32, (_BATCH, _SEQ))
    ids[:, -2:] = 0
    return Workload(Model(), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def frozen_encoder_layers() -> Workload:
    """An encoder in evaluation mode without gradients under a trained head: torch's fast path would run here."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)

        def forward(self, ids):
            with torch.no_grad():
                hidden = self.encoder(self.embed(ids))
            return self.head(hidden)

    ids = torch.randint(0, 32, (_BATCH, _SEQ))
    return Workload(Model(), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def seq_to_seq() -> Workload:
    """`nn.Transformer`: encoder, decoder, cross attention."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.head = nn.Embedding(32, 16), nn.Embedding(32, 16), nn.Linear(16, 32)
            self.body = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)

        def forward(self, source, target):
            mask = self.body.generate_square_subsequent_mask(target.shape[1])
            return self.head(self.body(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True))

    source, target = torch.randint(0, 32, (_BATCH, 6)), torch.randint(0, 32, (_BATCH, _SEQ))
    return Workload(Model(), (source, target), (target.roll(-1, 1),), _tokens_loss, _ADAMW)


def complex_rope() -> Workload:
    """Rotary embedding by complex numbers, as in Meta's Llama."""

    class Model(_Attention):
        def __init__(self) -> None:
            super().__init__(None)
            angles = torch.outer(torch.arange(_SEQ).float(), 1.0 / 100 ** (torch.arange(0, 8, 2).float() / 8))
            self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def forward(self, x):
            def rotate(t):
                pairs = torch.view_as_complex(t.float().reshape(*t.shape[:-1], -1, 2))
                return torch.view_as_real(pairs * self.turns).flatten(-2).type_as(t)

            self.attend = lambda q, k, v: F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            return super().forward(x)

    return _of_tokens(Model())


# -- norms, pooling, resampling --------------------------------------------------------------------------------------------------------


def norms() -> Workload:
    """Group, instance, layer, RMS and local response norms; running statistics in the instance norm."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.LocalResponseNorm(3), nn.LayerNorm((8, 8, 8)), nn.Flatten(2), nn.RMSNorm(64), nn.Flatten(), nn.Linear(512, 4),
    )  # fmt: skip
    return _of_images(model, functools.partial(torch.optim.SGD, lr=0.1))  # Adam would blow up gradients that are zero in exact arithmetic


def own_norms() -> Workload:
    """RMS norm and layer norm by hand, a cosine classifier, and standardised weights."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))
            self.mid, self.prototypes = nn.Linear(16, 16), nn.Parameter(torch.randn(16, 16))

        def forward(self, x):
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
            w = (self.mid.weight - self.mid.weight.mean(1, keepdim=True)) / (self.mid.weight.std(1, keepdim=True) + 1e-5)
            h = F.linear(x, w, self.mid.bias)
            var, mean = torch.var_mean(h, -1, keepdim=True, unbiased=False)
            h = (h - mean) / torch.sqrt(var + 1e-5) + self.shift
            return F.cosine_similarity(h.unsqueeze(-2), self.prototypes, dim=-1)

    return _of_tokens(Model())


def pooling() -> Workload:
    """Max, average, adaptive, power and fractional sums, with indices and unpooling."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 4 * 4, 4)

        def forward(self, x):
            h = self.conv(x)
            pooled, where = F.max_pool2d(h, 2, return_indices=True)
            back = F.max_unpool2d(pooled, where, 2)
            h = h + back
            a, b = F.avg_pool2d(h, 3, 2, 1, count_include_pad=False), F.adaptive_avg_pool2d(h, (4, 4))
            return self.head((a + b + F.lp_pool2d(h.abs() + 0.1, 2, 2) + F.adaptive_max_pool2d(h, 4)).flatten(1))

    return _of_images(Model())


def resampling() -> Workload:
    """Interpolation of every kind, pixel shuffle, grid sampling and an affine grid."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(2, 8, 3), nn.Linear(8, 4)
            self.where = nn.Linear(8, 6)

        def forward(self, x):
            h = self.conv(x)
            theta = torch.eye(2, 3, dtype=h.dtype) + 0.1 * self.where(h.mean((2, 3))).view(-1, 2, 3)
            h = h + F.grid_sample(h, F.affine_grid(theta, h.shape, align_corners=False), align_corners=False)
            up = F.interpolate(h, scale_factor=2, mode="nearest")
            up = up + F.interpolate(h, size=(16, 16), mode="bilinear", align_corners=True)
            up = up + F.interpolate(h, scale_factor=2, mode="bicubic")
            down = F.interpolate(up, size=(8, 8), mode="area") + F.interpolate(up, size=8, mode="bilinear", antialias=True)
            y = F.pixel_shuffle(down, 2)
            return self.head((self.last(y) + F.pixel_unshuffle(y, 2)[:, :, :6, :6].repeat(1, 1, 3, 3)[..., :14, :14]).mean((2, 3)))

    return _of_images(Model())


def padding() -> Workload:
    """Padding of every mode, roll and flips (shifted windows)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
            self.ring = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            h = F.pad(self.conv(x), (1, 1, 0, 2), mode="replicate")
            h = self.ring(F.pad(h, (0, 1), value=0.5))
            h = h.roll((1, -1), (2, 3)) + h.flip(-1) + torch.rot90(h[..., :8, :8].contiguous(), 1, (2, 3)).mean()
            return self.head(h.amax((2, 3)))

    return _of_images(Model())


def windows() -> Workload:
    """unfold and fold: overlapping patches mixed and put back; Tensor.unfold; windows by views."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(3 * 16, 3 * 16), nn.Linear(3 * 4, 4)

        def forward(self, x):
            patches = F.unfold(x, 4, padding=1, stride=2)
            y = F.fold(self.mix(patches.transpose(1, 2)).transpose(1, 2), (8, 8), 4, padding=1, stride=2)
            rows = y.unfold(2, 4, 2).mean(2)
            b, c, h, w = y.shape
            squares = y.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
            return self.head(squares.softmax(1).view(b, 4, 16, c).sum(2).flatten(1)) + rows.mean((1, 2))[:, :4]

    return _of_images(Model())


# -- indexing and ordering -------------------------------------------------------------------------------------------------------------


def indexing() -> Workload:
    """gather, index_put, scatter, take_along_dim, index_fill, masks of several kinds."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.table = nn.Linear(16, 16), nn.Parameter(torch.randn(8, 16))

        def forward(self, x):
            h = self.lin(x)
            order = torch.arange(h.shape[1] - 1, -1, -1)
            y = torch.gather(h, 1, order[None, :, None].expand_as(h))
            y = y + self.table.take_along_dim((order % 8)[:, None].expand(-1, 16), 0)
            put = torch.zeros_like(h)
            put[:, order] = h
            put = put.index_put((torch.arange(h.shape[0])[:, None], order[None, :4]), h[:, :4], accumulate=True)
            spread = torch.zeros_like(h).scatter_add(1, (order // 2)[None, :, None].expand_as(h), h)
            return y + put + spread.index_fill(2, torch.tensor([0, 3]), 0.5) + h[:, [0, -1]].sum(1, keepdim=True)

    return _of_tokens(Model())


def ordering() -> Workload:
    """sort, topk, cumulative ops, argmax as an index, median, kthvalue."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 16)

        def forward(self, x):
            h = self.lin(x)
            ordered, places = h.sort(-1, descending=True)
            best, where = h.topk(4, -1)
            kept = torch.full_like(h, -1.0).scatter(-1, where, best)
            share = (h.softmax(-1).cumsum(-1) - ordered.detach().softmax(-1)) + torch.cummax(h, 1)[0]
            last = h.gather(-1, h.argmax(-1, keepdim=True)) + h.median(-1, keepdim=True)[0] + h.kthvalue(3, -1, keepdim=True)[0]
            return kept + share.flip(-1) + last * torch.logcumsumexp(h, 1) + h.cumprod(-1).gather(-1, places.argsort(-1))

    return _of_tokens(Model())


def embeddings() -> Workload:
    """padding_idx, scale_grad_by_freq, one-hot lookups, bucketed positions and a positional table."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(32, 16, padding_idx=0)
            self.often = nn.Embedding(32, 16, scale_grad_by_freq=True)
            self.places = nn.Embedding(_SEQ, 16)
            self.buckets = nn.Embedding(4, 16)
            self.head = nn.Linear(16, 32)

        def forward(self, ids):
            position = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
            bucket = torch.bucketize(ids.float(), torch.tensor([8.0, 16.0, 24.0]))
            hot = F.one_hot(ids, 32).to(self.words.weight.dtype) @ self.words.weight
            return self.head(self.words(ids) + self.often(ids) + self.places(position) + self.buckets(bucket) + 0.1 * hot)

    ids = torch.randint(0, 32, (_BATCH, _SEQ))
    return Workload(Model(), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def activations() -> Workload:
    """Everything that torch calls an activation and that has parameters or kinks."""
    kinds = [
        nn.ELU(), nn.CELU(), nn.SELU(), nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Mish(), nn.Softsign(), nn.Softshrink(0.1),
        nn.Hardshrink(0.1), nn.Tanhshrink(), nn.Threshold(-0.5, 0.1), nn.LogSigmoid(), nn.Softplus(2), nn.PReLU(_SEQ), nn.RReLU().eval(),
        nn.GELU("tanh"), nn.SiLU(), nn.ReLU6(), nn.Softmin(-1), nn.LeakyReLU(), nn.GELU(),
    ]  # fmt: skip
    layers = [module for kind in kinds for module in (nn.Linear(16, 16), kind)]
    return _of_tokens(nn.Sequential(*layers))


def losses() -> Workload:
    """Many of torch's losses, summed; class weights, ignored targets, masks."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(12, 16)

        def forward(self, x):
            return self.lin(x)

    def loss(y, labels, values, signs):
        weight = torch.linspace(0.5, 1.5, 16)
        other = y.roll(1, 0)
        return (
            F.cross_entropy(y, labels, weight=weight, ignore_index=3, label_smoothing=0.1)
            + F.cross_entropy(y, values.softmax(-1)) + F.nll_loss(y.log_softmax(-1), labels, weight)
            + F.huber_loss(y, values, delta=0.5) + F.smooth_l1_loss(y, values) + F.l1_loss(y, values)
            + F.binary_cross_entropy_with_logits(y, values.sigmoid(), pos_weight=weight)
            + F.soft_margin_loss(y, signs[:, None].expand_as(y)) + F.hinge_embedding_loss(y, signs[:, None].expand_as(y))
            + F.poisson_nll_loss(y, values.abs()) + F.gaussian_nll_loss(y, values, F.softplus(other) + 0.1)
            + F.cosine_embedding_loss(y, values, signs) + F.margin_ranking_loss(y[:, 0], y[:, 1], signs)
            + F.multi_margin_loss(y, labels) + F.multilabel_soft_margin_loss(y, (values > 0).to(y.dtype))
            + F.pairwise_distance(y, values).mean() + F.kl_div(y.log_softmax(-1), values.softmax(-1), reduction="sum")
        )  # fmt: skip

    targets = (torch.randint(0, 16, (_BATCH,)), torch.randn(_BATCH, 16), torch.randint(0, 2, (_BATCH,)).float() * 2 - 1)
    return Workload(Model(), (torch.randn(_BATCH, 12),), targets, loss, _ADAMW)


def algebra() -> Workload:
    """Products of many kinds: bilinear, outer, matrix powers, solves, determinants, inverse, cross products."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.lin, self.core = nn.Bilinear(16, 16, 16), nn.Linear(16, 16), nn.Parameter(torch.randn(6, 6) * 0.2)

        def forward(self, x):
            h, core = self.pair(x, self.lin(x)).float(), self.core.float()
            spd = core @ core.t() + torch.eye(6)
            solved = torch.linalg.solve(spd, h[..., :6].unsqueeze(-1)).squeeze(-1)
            factor = torch.linalg.cholesky(spd)
            det = torch.logdet(spd) + torch.linalg.matrix_norm(torch.linalg.inv(spd)) + torch.trace(torch.matrix_exp(0.1 * core))
            turned = torch.linalg.cross(h[..., :3], h[..., 3:6])
            outer = torch.einsum("bsi,bsj->bsij", h, h).diagonal(dim1=-2, dim2=-1)
            made = torch.cat([solved @ factor, turned, h[..., :7] * det], -1)
            return (made + outer.tril(-2) + torch.baddbmm(h, h, torch.eye(16).expand(h.shape[0], 16, 16), alpha=0.1)).to(x.dtype)

    return _of_tokens(Model())
