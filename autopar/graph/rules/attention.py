"""Attention: `autopar.attention(query, key, value, attn_mask, is_causal, scale, rows) -> out, logsumexp` and its backward.

query [b, h, s, d], key [b, g, t, d], value [b, g, t, e]; h is a multiple of g (grouped queries: head h reads group h // (h/g)). Batch
and heads split; the rows of queries too, so gradients of keys and values are sums over who has which rows (context parallelism). A causal
mask counts positions: its rows are told where they are by `rows`, their numbers, and are split into runs of neighbours, for which there are
kernels; without `rows`, or where queries are more than keys, they stay whole. The keys stay whole: a softmax over a part of them needs its own maximum and sum.
"""

from __future__ import annotations

from ..node import input_names
from ..rule import Rule, Shape, Site

_WHOLE = "the softmax runs over all keys, and a causal mask without row numbers, or of more queries than keys, counts from the first query"


def _operands(site: Site, query: Shape, key: Shape, value: Shape) -> dict[str, tuple[str, ...]]:
    """Texts of the dims of each operand."""
    heads, groups = ("h", "h") if query[1] == key[1] else (f"(g:{key[1]} r:{query[1] // key[1]})", "g")
    numbered = "rows" in input_names(site.node) and query[2] <= key[2]  # then rows that are as many as the keys are all of them (`runtime.attention`)
    row = "s" if not site.arg("is_causal", False) else "<s>" if numbered else "[s]"
    inner = "[d]" if value[3] == query[3] else "[e]"
    return {
        "query": ("b", heads, row, "[d]"),
        "key": ("b", groups, "[t]", "[d]"),
        "value": ("b", groups, "[t]", inner),
        "out": ("b", heads, row, inner),
        "logsumexp": ("b", heads, row),
        "attn_mask": ("b", heads, row, "[t]"),
        "rows": (row,),
    }


def _join(site: Site, texts: dict[str, tuple[str, ...]]) -> str:
    """Named operands; the mask, where there is one, aligns from the right and broadcasts its dims of size one."""
    found = []
    for name, shape in zip(input_names(site.node), site.inputs):
        dims = texts["out" if name == "grad_out" else name]
        if name == "attn_mask":
            dims = tuple("1" if size == 1 else dim for dim, size in zip(dims[4 - len(shape) :], shape))
        found.append(f"{name}: {' '.join(dims)}")
    return ", ".join(found)


def _attention(site: Site) -> str:
    texts = _operands(site, *site.inputs[:3])
    return f"{_join(site, texts)} -> {' '.join(texts['out'])}, {' '.join(texts['logsumexp'])}"


def _attention_backward(site: Site) -> str:
    texts = _operands(site, *site.inputs[1:4])
    right = ", ".join(" ".join(texts[name]) for name in ("query", "key", "value"))
    return f"{_join(site, texts)} -> {right}"


def _points(query: Shape, value: Shape, key: Shape, site: Site) -> float:
    """Multiply-adds of one product with the scores, both widths taken together; a causal kernel does half of them."""
    b, h, s, d = query
    half = 0.5 if site.arg("is_causal", False) else 1.0
    return half * b * h * s * key[2] * (d + value[3]) / 2


def _forward_flops(site: Site) -> float:
    query, key, value = site.inputs[:3]
    return 4 * _points(query, value, key, site)  # 2 products of 2 FLOPs


def _backward_flops(site: Site) -> float:
    query, key, value = site.inputs[1:4]
    return 10 * _points(query, value, key, site)  # 5 products: the scores again, dv, dp, dq, dk


ROWS = (
    Rule("autopar.attention", _attention, flops=_forward_flops, why_whole=_WHOLE),
    Rule("autopar.attention_backward", _attention_backward, flops=_backward_flops, why_whole=_WHOLE),
)
