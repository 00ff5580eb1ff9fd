"""How a step is unlike those whose predictions were compared with what they took: ops of other kinds, shapes far outside of what was measured.

In: the seconds of a program's nodes, and for each how far outside of a profile's rows its shapes lie. Out: a sentence, for `error_bar`. Empty where the step is like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ..graph.node import Node, get_arg
from ..graph.turns import LOOP
from .lookup import Reach
from .op_kinds import kind_of_op

FAR = 4.0  # times outside of the rows: the next size of a grid that was measured at every fourth
_MOST_FAR = 0.25  # of the seconds
_MOST_CONVOLVED = 0.1  # docs/benchmarks.md: of 42 published steps of nnU-Net and Wide-ResNets 32 were in the band of 48 %
_LEAST_MULTIPLIED = 0.4  # all steps of the error are of blocks of linears, most with attention
_TOLD = 0.01


@dataclass(frozen=True, slots=True)
class Unlike:
    """What a plan says of it.

    Args:
        why: why nothing is known of such a step; empty: it is like those that were compared.
        beside: what is to be said beside a known error.
        encodes: most of its attention sees the whole sequence (an encoder, an image); on GPUs nearly all that were compared are decoders.
    """

    why: str
    beside: str
    encodes: bool = False


LIKE = Unlike("", "")


def find_unlike(nodes: Sequence[Node], seconds: Mapping[str, float], flops: Mapping[str, float], reaches: Mapping[str, Reach]) -> Unlike:
    """Of one program.

    Args:
        seconds: of each node.
        flops: of each contraction.
        reaches: of each node that a profile prices.
    """
    kinds: dict[str, float] = {}
    for node in nodes:
        if node.phase in LOOP and not node.op.startswith(("comm.", "state.")):
            kind = kind_of_op(node.op, node.name in flops)
            kinds[kind] = kinds.get(kind, 0.0) + seconds[node.name]
    whole = fsum(kinds.values())
    if whole:
        convolved, multiplied = (fsum(kinds.get(kind, 0.0) for kind in wanted) / whole for wanted in (("convolution",), ("matmul", "attention")))
        if convolved > _MOST_CONVOLVED:
            return Unlike(f"not known of convolutions, which take {100 * convolved:.0f} % of forward and backward: the steps of this error are of linears and attention; of published steps of convolutional nets 32 of 42 were within 48 %, some took twice as long", "")
        if multiplied < _LEAST_MULTIPLIED:
            return Unlike(f"not known of a step of which matmuls and attention take {100 * multiplied:.0f} % of forward and backward: in all that were compared they take most of it", "")
    share, text = _tell_far(seconds, reaches)
    if share > _MOST_FAR:
        return Unlike(f"not known so far outside of what was measured: {text}", "")
    return Unlike("", f"; {text}" if share > _TOLD else "", _encodes(nodes, seconds))


def _encodes(nodes: Sequence[Node], seconds: Mapping[str, float]) -> bool:
    """Whether most seconds of attention are of such without a mask, of ones or of causes."""
    attention = [node for node in nodes if node.op.startswith("autopar.attention")]
    open_s = fsum(seconds[node.name] for node in attention if not get_arg(node, "is_causal", False) and get_arg(node, "attn_mask", None) is None)
    return open_s > fsum(seconds[node.name] for node in attention) / 2


def _tell_far(seconds: Mapping[str, float], reaches: Mapping[str, Reach]) -> tuple[float, str]:
    """The share of the seconds that are of shapes far outside of the rows, in words with the family that has most of it."""
    far = {name: reach for name, reach in reaches.items() if reach[0] > FAR}
    whole = fsum(seconds.values())
    share = fsum(seconds[name] for name in far) / whole if whole else 0.0
    if not share:
        return 0.0, ""
    families: dict[str, float] = {}
    for name, (_, family) in far.items():
        families[family] = families.get(family, 0.0) + seconds[name]
    most = max(families, key=families.__getitem__)
    factor = max(factor for factor, family in far.values() if family == most)
    return share, f"{100 * share:.0f} % of the step's seconds are of shapes more than {FAR:.0f} times beyond the profile's rows, most of it {most}, up to {factor:,.0f} times"
