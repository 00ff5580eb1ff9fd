"""Sound placements that rows do not offer, each with its reason."""

from __future__ import annotations

# Families in which any pieces may be tried. The kernels of norms, attention, convolutions, pooling and losses trust their arguments:
# on pieces that do not fit together they read out of bounds instead of refusing.
FAMILIES = ("pointwise", "linear_pointwise", "matmul", "reduction", "creation", "view", "slice", "index")
UNSAFE = frozenset({"aten.embedding_dense_backward", "aten._grouped_mm", "aten.as_strided"})

CONSTANTS = frozenset({"aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.fill", "aten.new_full", "aten.new_zeros",
                       "aten.new_ones", "aten.zeros", "aten.where.Scalar"})  # fmt: skip
PRODUCTS = frozenset({"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.mv", "aten.dot", "autopar.linear",
                      "autopar.linear_input_grad", "autopar.linear_weight_grad"})  # fmt: skip

BY_ROW = {
    "aten.any": "a maximum of booleans: collectives have none",
    "aten.all": "a minimum of booleans: collectives have none",
    "aten.copy": "it may cast to integers, which is not linear",
    "aten.ldexp": "no trained model scales a Partial by powers of two",
    "aten.xlogy": "linear only where the logarithm is finite",
    "aten.embedding": "a table of parameters is never a Partial",
    "aten.squeeze": "a shard of size one would be squeezed away",
    "aten.masked_fill": "with a tensor as the value; trace writes it as a where",
}
BY_SAMPLE = {
    "aten.gather shorter": "dims of unequal size are whole",
    "aten.scatter_add shorter": "dims of unequal size are whole",
    "aten.scatter.value": "writing one value in parts is a maximum only where the value is larger",
    "aten.scatter_reduce.two": "maxima of parts: the row does not look at which reduction it is",
    "aten.index.Tensor looks like a mask": "shapes do not tell a mask from a table",
    "aten.index.Tensor mask": "shapes do not tell a mask from a table",
    "aten.index_put mask": "shapes do not tell a mask from a table",
}


def why_not_offered(op: str, sample: str, placements: str) -> str:
    """The reason why a sound placement is left out; "" where there is none."""
    if op in PRODUCTS and "P" in placements.partition(" -> ")[0]:
        return "a product of a Partial repeats the product on every rank: reduce first"
    if op in CONSTANTS:
        return "the values of its input are not read"
    return BY_ROW.get(op, "") or BY_SAMPLE.get(sample, "")
