"""The ops of `autopar.*` in plain PyTorch, for the referee."""

from __future__ import annotations

import inspect
from math import sqrt

import torch


def argument_names(name: str) -> list[str]:
    """Schema argument names of one op."""
    return list(inspect.signature(globals()[name]).parameters)


def linear(input, weight, bias=None, transposed=False):  # noqa: A002
    out = input @ (weight if transposed else weight.T)
    return out if bias is None else out + bias


def linear_input_grad(grad, weight, transposed=False):
    return grad @ (weight.T if transposed else weight)


def linear_weight_grad(grad, input, transposed=False):  # noqa: A002
    g, x = grad.reshape(-1, grad.shape[-1]), input.reshape(-1, input.shape[-1])
    return x.T @ g if transposed else g.T @ x


def _scores(query, key, attn_mask, is_causal, scale):
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.mT * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scores = _scores(query, key, attn_mask, is_causal, scale)
    logsumexp = scores.logsumexp(-1)
    shared = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return (scores - logsumexp.unsqueeze(-1)).exp() @ shared, logsumexp


def attention_backward(grad_out, query, key, value, out, logsumexp, is_causal=False, attn_mask=None, scale=None):
    groups = query.shape[1] // key.shape[1]
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    weights = (_scores(query, key, attn_mask, is_causal, scale) - logsumexp.unsqueeze(-1)).exp()
    wide_key, wide_value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    dv = weights.mT @ grad_out
    ds = weights * (grad_out @ wide_value.mT - (grad_out * out).sum(-1, keepdim=True))
    dk = ds.mT @ query * factor

    def share(wide):
        b, h, t, d = wide.shape
        return wide.reshape(b, h // groups, groups, t, d).sum(2)

    return ds @ wide_key * factor, share(dk), share(dv)
