"""Sound placements that rows do not offer, each with its reason."""

from __future__ import annotations

# the search leaves them out: their kernels read out of bounds, or divide by zero, on pieces that do not fit together
UNSAFE = frozenset({"autopar.attention", "autopar.attention_backward", "aten.embedding_dense_backward", "aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward",
                    "aten.adaptive_max_pool2d_backward", "aten.adaptive_max_pool3d_backward", "aten.as_strided"})  # fmt: skip

CONSTANTS = frozenset({"aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.fill", "aten.new_full", "aten.new_zeros",
                       "aten.new_ones", "aten.zeros", "aten.where.Scalar"})  # fmt: skip
PRODUCTS = frozenset({"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.mv", "aten.dot", "autopar.linear",
                      "autopar.linear_input_grad", "autopar.linear_weight_grad", "aten.convolution", "aten.convolution_backward",
                      "autopar.attention", "autopar.attention_backward"})  # fmt: skip

BY_ROW = {
    "aten.copy": "it may cast to integers, which is not linear",
    "aten.ldexp": "no trained model scales a Partial by powers of two",
    "aten.embedding": "a table of parameters is never a Partial",
    "aten.squeeze": "a shard of size one would be squeezed away",
    "aten.masked_fill": "with a tensor as the value; trace writes it as a where",
    "aten.any": "a maximum of booleans: collectives have none",
    "aten.all": "a minimum of booleans: collectives have none",
}


def why_not_offered(op: str, placements: str) -> str:
    """The reason why a sound placement is left out; "" where there is none."""
    left, _, right = placements.partition(" -> ")
    if op in PRODUCTS and "P" in left:
        return "a product of a Partial repeats the product on every rank: reduce first"
    if op in CONSTANTS:
        return "the values of its input are not read"
    return BY_ROW.get(op, "")
