"""Models of other families than transformers and ResNets, written as their users write them; global batch 8."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional as F

from autopar import Workload

_ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
_BATCH = 8


def _classes(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, targets)


def _tokens_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _labels(classes: int) -> tuple[torch.Tensor]:
    return (torch.randint(0, classes, (_BATCH,)),)


# -- recurrent -------------------------------------------------------------------------------------------------------------------------


class _RecurrentLm(nn.Module):
    """Embedding, a recurrent stack, head."""

    def __init__(self, kind: str, layers: int = 2, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(48, 16)
        self.rnn = getattr(nn, kind)(16, 16, layers, batch_first=True, **options)
        self.head = nn.Linear(16 * (2 if options.get("bidirectional") else 1), 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.embed(ids))
        return self.head(hidden)


def _recurrent(kind: str, **options: object) -> Workload:
    ids = torch.randint(0, 48, (_BATCH, 6))
    return Workload(_RecurrentLm(kind, **options), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def lstm() -> Workload:
    return _recurrent("LSTM")


def lstm_bidirectional() -> Workload:
    return _recurrent("LSTM", layers=1, bidirectional=True)


def lstm_projected() -> Workload:
    """LSTM with a projection: its output is the embedding's width again."""
    model = _RecurrentLm("LSTM", 1)
    model.rnn = nn.LSTM(16, 32, 1, batch_first=True, proj_size=16)
    ids = torch.randint(0, 48, (_BATCH, 6))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def gru() -> Workload:
    return _recurrent("GRU")


def rnn() -> Workload:
    return _recurrent("RNN", nonlinearity="relu")


def lstm_cells() -> Workload:
    """`nn.LSTMCell` in the user's own loop."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(48, 16)
            self.cell = nn.LSTMCell(16, 16)
            self.gru = nn.GRUCell(16, 16)
            self.head = nn.Linear(16, 48)

        def forward(self, ids):
            x = self.embed(ids)
            h = x.new_zeros(x.shape[0], 16)
            c, g, out = torch.zeros_like(h), torch.zeros_like(h), []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                g = self.gru(h, g)
                out.append(g)
            return self.head(torch.stack(out, 1))

    ids = torch.randint(0, 48, (_BATCH, 4))
    return Workload(Model(), (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


# -- recommendation --------------------------------------------------------------------------------------------------------------------


class _Dlrm(nn.Module):
    """Naumov et al., arXiv 1906.00091: bags of categorical features, a bottom MLP, pairwise dot products, a top MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(n, 8, mode=m) for n, m in ((40, "sum"), (24, "mean"), (32, "sum"))])
        self.bottom = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, categories, offsets):
        x = self.bottom(dense)
        found = [bag(categories[k], offsets[k]) for k, bag in enumerate(self.bags)]
        stacked = torch.stack([x, *found], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        return self.top(torch.cat([x, products[:, rows, columns]], dim=1)).squeeze(-1)


def dlrm() -> Workload:
    categories = [torch.randint(0, n, (3 * _BATCH,)) for n in (40, 24, 32)]
    offsets = [torch.arange(0, 3 * _BATCH, 3) for _ in range(3)]
    clicks = torch.randint(0, 2, (_BATCH,)).float()
    return Workload(_Dlrm(), (torch.randn(_BATCH, 13), categories, offsets), (clicks,), F.binary_cross_entropy_with_logits, _ADAMW)


def embedding_bags_2d() -> Workload:
    """Bags of equal size as a matrix, with weights per sample."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sums = nn.EmbeddingBag(40, 8, mode="sum")
            self.means = nn.EmbeddingBag(40, 8, mode="mean")
            self.most = nn.EmbeddingBag(40, 8, mode="max")
            self.head = nn.Linear(24, 5)

        def forward(self, ids, weights):
            return self.head(torch.cat([self.sums(ids, per_sample_weights=weights), self.means(ids), self.most(ids)], 1))

    return Workload(Model(), (torch.randint(0, 40, (_BATCH, 3)), torch.rand(_BATCH, 3)), _labels(5), _classes, _ADAMW)


# -- graphs ----------------------------------------------------------------------------------------------------------------------------


class _GraphLayer(nn.Module):
    def __init__(self, width: int, reduce: str) -> None:
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.reduce = reduce

    def forward(self, x, edges):
        source, target = edges
        messages = F.relu(self.message(torch.cat([x[source], x[target]], -1)))
        zeros = torch.zeros_like(x)
        if self.reduce == "sum":
            pooled = zeros.index_add(0, target, messages)
        else:
            pooled = zeros.scatter_reduce(0, target[:, None].expand_as(messages), messages, self.reduce, include_self=False)
        return x + self.update(torch.cat([x, pooled], -1))


class _GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.layers = nn.ModuleList([_GraphLayer(16, r) for r in ("sum", "mean", "amax")])
        self.head = nn.Linear(16, 4)

    def forward(self, x, edges):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


def graph_network() -> Workload:
    """Message passing over `edge_index` with sum, mean and max; one label per vertex."""
    edges = torch.randint(0, 32, (2, 64))
    return Workload(_GraphNet(), (torch.randn(32, 6), edges), (torch.randint(0, 4, (32,)),), _classes, _ADAMW)


def graph_convolution() -> Workload:
    """GCN by a normalised adjacency, degrees counted with scatter_add."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 16)
            self.second = nn.Linear(16, 4)

        def forward(self, x, edges):
            source, target = edges[0], edges[1]
            ones = torch.ones(target.shape[0])
            degree = torch.zeros(x.shape[0]).scatter_add_(0, target, ones).clamp(min=1)
            norm = (degree[source] * degree[target]).rsqrt().unsqueeze(-1).to(x.dtype)
            x = F.relu(x.new_zeros(x.shape[0], 16).index_add_(0, target, self.first(x)[source] * norm))
            return x.new_zeros(x.shape[0], 4).index_add_(0, target, self.second(x)[source] * norm)

    edges = torch.randint(0, 32, (2, 64))
    return Workload(Model(), (torch.randn(32, 6), edges), (torch.randint(0, 4, (32,)),), _classes, _ADAMW)


# -- signals and images ----------------------------------------------------------------------------------------------------------------


class _FftBlock(nn.Module):
    """A long convolution as a product of spectra (Hyena, arXiv 2302.10866)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(width, length) * 0.1)
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        length = x.shape[1]
        spectrum = torch.fft.rfft(x.transpose(1, 2).float(), n=2 * length)
        kernel = torch.fft.rfft(self.filter.float(), n=2 * length)
        y = torch.fft.irfft(spectrum * kernel, n=2 * length)[..., :length]
        return x + self.mix(y.transpose(1, 2).to(x.dtype))


def fft_convolution() -> Workload:
    model = nn.Sequential(nn.Embedding(48, 16), _FftBlock(16, 8), _FftBlock(16, 8), nn.Linear(16, 48))
    ids = torch.randint(0, 48, (_BATCH, 8))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def fourier_operator() -> Workload:
    """A Fourier neural operator: 2-D spectra, low modes mixed by complex weights (arXiv 2010.08895)."""

    class Spectral(nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width, modes, modes, 2) * 0.1)
            self.skip = nn.Conv2d(width, width, 1)
            self.modes = modes

        def forward(self, x):
            m, spectrum = self.modes, torch.fft.rfft2(x.float())
            out = torch.zeros_like(spectrum)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], torch.view_as_complex(self.weight.float()))
            return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]).to(x.dtype) + self.skip(x))

    model = nn.Sequential(nn.Conv2d(1, 8, 1), Spectral(8, 3), Spectral(8, 3), nn.Conv2d(8, 1, 1))
    return Workload(model, (torch.randn(_BATCH, 1, 8, 8),), (torch.randn(_BATCH, 1, 8, 8),), F.mse_loss, _ADAMW)


def conv_autoencoder() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.ConvTranspose2d(8, 3, 3, 2, 1, output_padding=1), nn.Sigmoid(),
    )  # fmt: skip
    images = torch.rand(_BATCH, 3, 16, 16)
    return Workload(model, (images,), (images.clone(),), F.binary_cross_entropy, _ADAMW)


def audio_net() -> Workload:
    """Dilated 1-D convolutions with gates (WaveNet), pooled to classes."""

    class Gate(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.pair = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
            self.out = nn.Conv1d(width, width, 1)

        def forward(self, x):
            a, b = self.pair(x).chunk(2, dim=1)
            return x + self.out(torch.tanh(a) * torch.sigmoid(b))

    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, 2, 2), Gate(16, 1), Gate(16, 2), nn.GroupNorm(4, 16), nn.GLU(1), nn.MaxPool1d(2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return Workload(model, (torch.randn(_BATCH, 1, 32),), _labels(5), _classes, _ADAMW)


def depthwise_net() -> Workload:
    """Depthwise-separable convolutions with squeeze and excitation (MobileNetV3)."""

    class Squeeze(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.down, self.up = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)

        def forward(self, x):
            return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), Squeeze(16), nn.SiLU(inplace=True),
        nn.Conv2d(16, 24, 1), nn.ReLU6(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24 * 16, 5),
    )  # fmt: skip
    return Workload(model, (torch.randn(_BATCH, 3, 16, 16),), _labels(5), _classes, _ADAMW)


def unet_3d() -> Workload:
    """Two levels of 3-D convolutions with a skip, instance norm and a soft Dice loss."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(0.01))
            self.down = nn.Sequential(nn.Conv3d(8, 16, 3, 2, 1), nn.InstanceNorm3d(16, affine=True), nn.LeakyReLU(0.01))
            self.up = nn.ConvTranspose3d(16, 8, 2, 2)
            self.out = nn.Conv3d(16, 3, 1)

        def forward(self, x):
            skip = self.enter(x)
            return self.out(torch.cat([skip, self.up(self.down(skip))], 1))

    def dice(logits, target):
        p = logits.softmax(1)
        wanted = F.one_hot(target, 3).movedim(-1, 1).to(p.dtype)
        both = (p * wanted).sum((2, 3, 4))
        return 1 - (2 * both / (p.sum((2, 3, 4)) + wanted.sum((2, 3, 4)) + 1e-5)).mean() + F.cross_entropy(logits, target)

    return Workload(Model(), (torch.randn(_BATCH, 1, 8, 8, 8),), (torch.randint(0, 3, (_BATCH, 8, 8, 8)),), dice, _ADAMW)


def mlp_mixer() -> Workload:
    class Mixer(nn.Module):
        def __init__(self, tokens: int, width: int) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
            self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

        def forward(self, x):
            x = x + self.tokens(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm_2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, 4)
            self.blocks = nn.ModuleList([Mixer(16, 16) for _ in range(2)])
            self.head = nn.Linear(16, 5)

        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    return Workload(Model(), (torch.randn(_BATCH, 3, 16, 16),), _labels(5), _classes, _ADAMW)


# -- experts ---------------------------------------------------------------------------------------------------------------------------


class _DenseExperts(nn.Module):
    """Every expert sees every token; the router's softmax weighs them."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * 0.2)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        hidden = F.silu(torch.einsum("bsd,edh->bseh", x, self.up))
        return torch.einsum("bseh,ehd,bse->bsd", hidden, self.down, weights)


class _RoutedExperts(_DenseExperts):
    """Top 2 of the experts by a one-hot dispatch with capacity (GShard, arXiv 2006.16668)."""

    def forward(self, x):
        b, s, d = x.shape
        experts, capacity = self.up.shape[0], 2 * b * s // self.up.shape[0]
        flat = x.reshape(-1, d)
        gates = self.router(flat).softmax(-1)
        weights, chosen = gates.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, experts)
        slot = (mask.view(-1, experts).cumsum(0) * mask.view(-1, experts)).view(b * s, 2, experts).sum(-1) - 1
        kept = slot < capacity
        place = F.one_hot(slot.clamp(0, capacity - 1), capacity) * kept[..., None]
        dispatch = torch.einsum("nke,nkc->nec", mask.to(x.dtype), place.to(x.dtype))
        combine = torch.einsum("nk,nke,nkc->nec", weights, mask.to(x.dtype), place.to(x.dtype))
        sent = torch.einsum("nec,nd->ecd", dispatch, flat)
        hidden = torch.bmm(F.silu(torch.bmm(sent, self.up)), self.down)
        return torch.einsum("nec,ecd->nd", combine, hidden).view(b, s, d)


class _AddedExperts(_DenseExperts):
    """Top 2: the chosen weights are gathered per token, results added back with index_add."""

    def forward(self, x):
        b, s, d = x.shape
        flat = x.reshape(-1, d)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        token = torch.arange(b * s, device=x.device).repeat_interleave(2)
        expert = chosen.flatten()
        hidden = F.silu(torch.bmm(flat[token].unsqueeze(1), self.up[expert]))
        made = torch.bmm(hidden, self.down[expert]).squeeze(1) * weights.flatten().unsqueeze(-1)
        return torch.zeros_like(flat).index_add_(0, token, made).view(b, s, d)


def _experts(kind: type[nn.Module]) -> Workload:
    model = nn.Sequential(nn.Embedding(48, 16), nn.LayerNorm(16), kind(16, 32, 8), nn.Linear(16, 48))
    ids = torch.randint(0, 48, (_BATCH, 8))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def moe_dense() -> Workload:
    return _experts(_DenseExperts)


def moe_one_hot() -> Workload:
    return _experts(_RoutedExperts)


def moe_index_add() -> Workload:
    return _experts(_AddedExperts)


# -- scans and losses over the batch ---------------------------------------------------------------------------------------------------


class _StateSpace(nn.Module):
    """A diagonal state-space layer, scanned step by step."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width, states))
        self.enter = nn.Linear(width, states)
        self.leave = nn.Linear(width, states)
        self.step = nn.Linear(width, width)

    def forward(self, x):
        step = F.softplus(self.step(x))
        decay = torch.exp(-step.unsqueeze(-1) * self.decay)
        given = (step * x).unsqueeze(-1) * self.enter(x).unsqueeze(2)
        state, out = torch.zeros_like(given[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + given[:, t]
            out.append((state * self.leave(x[:, t]).unsqueeze(1)).sum(-1))
        return x + torch.stack(out, 1)


class _CumulativeScan(nn.Module):
    """A linear recurrence in closed form: cumulative sums of logarithms of decays."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        log_decay = F.logsigmoid(self.gate(x)).cumsum(1)
        return x + torch.exp(log_decay) * torch.cumsum(self.value(x) * torch.exp(-log_decay), 1)


def state_space() -> Workload:
    model = nn.Sequential(nn.Embedding(48, 16), _StateSpace(16, 4), nn.RMSNorm(16), _CumulativeScan(16), nn.Linear(16, 48))
    ids = torch.randint(0, 48, (_BATCH, 6))
    return Workload(model, (ids,), (ids.roll(-1, 1),), _tokens_loss, _ADAMW)


def contrastive() -> Workload:
    """CLIP's loss: every image against every text of the batch, with a learnt temperature."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.images = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 16))
            self.texts = nn.Sequential(nn.EmbeddingBag(40, 24), nn.Linear(24, 16))
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, pixels, ids):
            images, texts = F.normalize(self.images(pixels), dim=-1), F.normalize(self.texts(ids), dim=-1)
            logits = self.scale.exp().clamp(max=100) * images @ texts.t()
            return {"logits_per_image": logits, "logits_per_text": logits.t()}

    def loss(out):
        labels = torch.arange(out["logits_per_image"].shape[0])
        return (F.cross_entropy(out["logits_per_image"], labels) + F.cross_entropy(out["logits_per_text"], labels)) / 2

    inputs = {"pixels": torch.randn(_BATCH, 3, 4, 4), "ids": torch.randint(0, 40, (_BATCH, 5))}
    return Workload(Model(), inputs, (), loss, _ADAMW)


def triplet() -> Workload:
    """Three passes through one tower, margin loss."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 8))

        def forward(self, anchor, same, other):
            return self.tower(anchor), self.tower(same), self.tower(other)

    inputs = tuple(torch.randn(_BATCH, 12) for _ in range(3))
    return Workload(Model(), inputs, (), lambda out: F.triplet_margin_loss(*out), _ADAMW)


def variational() -> Workload:
    """A variational autoencoder whose noise is an input, so that nothing is drawn."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(24, 32)
            self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
            self.out = nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 24))

        def forward(self, x, noise):
            h = F.elu(self.enter(x))
            mean, spread = self.mean(h), self.spread(h)
            return self.out(mean + noise * (0.5 * spread).exp()), mean, spread

    def loss(out, x):
        made, mean, spread = out
        return F.mse_loss(made, x, reduction="sum") / x.shape[0] - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()

    x = torch.randn(_BATCH, 24)
    return Workload(Model(), (x, torch.randn(_BATCH, 8)), (x.clone(),), loss, _ADAMW)


def deep_equilibrium() -> Workload:
    """A fixed number of iterations of one layer: weights used many times."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.again, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

        def forward(self, x):
            given = self.enter(x)
            z = torch.zeros_like(given)
            for _ in range(6):
                z = torch.tanh(self.again(z) + given)
            return self.head(z)

    return Workload(Model(), (torch.randn(_BATCH, 12),), _labels(5), _classes, _ADAMW)


def neural_ode() -> Workload:
    """Runge-Kutta steps with time as a feature."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Sequential(nn.Linear(7, 32), nn.Softplus(), nn.Linear(32, 6))
            self.head = nn.Linear(6, 5)

        def slope(self, t: float, y):
            return self.field(torch.cat([y, y.new_full((y.shape[0], 1), t)], 1))

        def forward(self, y):
            step = 0.25
            for k in range(3):
                t = k * step
                a = self.slope(t, y)
                b = self.slope(t + step / 2, y + step / 2 * a)
                c = self.slope(t + step / 2, y + step / 2 * b)
                d = self.slope(t + step, y + step * c)
                y = y + step / 6 * (a + 2 * b + 2 * c + d)
            return self.head(y)

    return Workload(Model(), (torch.randn(_BATCH, 6),), _labels(5), _classes, _ADAMW)


def factorization_machine() -> Workload:
    """Pairwise interactions by the square of a sum, fields as columns of one table."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("offsets", torch.tensor([0, 16, 32]))
            self.linear, self.vectors = nn.Embedding(48, 1), nn.Embedding(48, 8)
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, fields):
            ids = fields + self.offsets
            v = self.vectors(ids)
            pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
            return self.bias + self.linear(ids).sum((1, 2)) + pairs

    clicks = torch.randint(0, 2, (_BATCH,)).float()
    return Workload(Model(), (torch.randint(0, 16, (_BATCH, 3)),), (clicks,), F.binary_cross_entropy_with_logits, _ADAMW)
