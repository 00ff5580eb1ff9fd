"""Kinds of ops, as people add them up: matmul, attention, convolution, norm, softmax and loss, embedding, elementwise.

In: the name of an op. Out: a word. For tables only: no price depends on it.
"""

from __future__ import annotations

from ..graph.liveness import is_view
from ..graph.node import packet_of

_WORDS = (
    ("attention", ("scaled_dot_product", "flash_attention", "flex_attention", "autopar.attention")),
    ("convolution", ("conv",)),
    ("softmax and loss", ("softmax", "nll_loss", "cross_entropy", "autopar.pick", "autopar.unpick", "mse_loss", "logsumexp")),
    ("norm", ("norm",)),
    ("embedding", ("embedding",)),
    ("random", ("autopar.uniform", "rand", "dropout", "bernoulli")),
)


def kind_of_op(op: str, multiplies: bool) -> str:
    """The kind of an op.

    Args:
        multiplies: it is a contraction: its FLOPs count against the matmul peak.
    """
    packet = packet_of(op)
    for kind, words in _WORDS:
        if any(word in packet for word in words):
            return kind
    if is_view(op):
        return "views"
    return "matmul" if multiplies else "elementwise and reductions"
