"""Tables split by rows, and cross-entropy split by classes: the numbers of the rows are an input, so that each rank knows its own.

A rank gives zero for what it does not hold, so what is picked from a table is a sum over the ranks (Megatron's vocabulary parallelism).
Trace writes embeddings and losses with these (`autopar.trace.lowering.vocabulary`); the local parts are in `autopar.runtime.vocabulary`.
"""

from __future__ import annotations

from ..node import Ref
from ..rule import LinearSets, Rule, Site

GRAD = (("grad",),)


def _factors(site: Site) -> LinearSets:
    """What a token's gradient is a sum of: where the loss is smoothed, the share of each class, of its own class and of all alike."""
    names = tuple(name for name in ("grad", "own", "even") if isinstance(site.arg(name), Ref))
    return (names,) if len(names) != 2 else ()


ROWS = (
    Rule("autopar.embedding", "v d, ..., v -> ... d", flops=0),
    Rule("autopar.embedding_backward", "... d, ..., v -> v d", GRAD, flops=0),
    Rule("autopar.sum_exp", "... v, ... -> ...", flops=3),
    Rule("autopar.pick", "... v, ..., v -> ...", (("logits",),), flops=0),
    Rule("autopar.unpick", "..., ..., v -> ... v", GRAD, flops=0),
    Rule("autopar.cross_entropy_backward", "..., ... v, ..., ..., ..., v, ..., ... -> ... v", _factors, flops=4),
)
