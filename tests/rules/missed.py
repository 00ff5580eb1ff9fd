"""Sound placements that rows do not offer, each with its reason."""

from __future__ import annotations

# Families in which any pieces may be tried. The kernels of norms, attention, convolutions, pooling and losses trust their arguments:
# on pieces that do not fit together they read out of bounds instead of refusing.
FAMILIES = ("pointwise", "linear_pointwise", "matmul", "reduction", "creation", "view", "slice", "index", "special",
            "complex", "distance", "diagonal", "counting", "scatter", "pad", "pixel")  # fmt: skip
UNSAFE = frozenset({"aten.embedding_dense_backward", "aten._grouped_mm", "aten.as_strided", "aten.as_strided_copy",
                    "aten.as_strided_scatter", "aten._cdist_backward", "aten._pdist_backward",
                    "aten._weight_norm_interface", "aten._weight_norm_interface_backward"})  # fmt: skip

CONSTANTS = frozenset({"aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.fill", "aten.new_full", "aten.new_zeros",
                       "aten.new_ones", "aten.zeros", "aten.where.Scalar"})  # fmt: skip
PRODUCTS = frozenset({"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.mv", "aten.dot", "aten.vdot",
                      "aten.addmv", "aten.addbmm", "aten.addr", "aten._trilinear", "autopar.linear",
                      "autopar.linear_input_grad", "autopar.linear_weight_grad"})  # fmt: skip

BY_ENDING = {
    "0.0-norm": "counts of elements of which few are zero are equal in many places",
    "dist inf-norm": "the largest difference is that of one element",
}
SHAPE_ONLY = ("_pad1d_backward", "_pad2d_backward", "_pad3d_backward")  # they read only the shape of `self`

BY_ROW = {
    "aten.rrelu_with_noise_backward": "while training it multiplies the noise, and does not read the input",
    "aten.nextafter": "the referee's tolerance is wider than its step",
    "aten.special_xlog1py": "linear only where the logarithm is finite",
    "aten.copy": "it may cast to integers, which is not linear",
    "aten.ldexp": "no trained model scales a Partial by powers of two",
    "aten.xlogy": "linear only where the logarithm is finite",
    "aten.embedding": "a table of parameters is never a Partial",
    "aten.squeeze": "a shard of size one would be squeezed away",
    "aten.masked_fill": "with a tensor as the value; trace writes it as a where",
}
BY_SAMPLE = {
    "aten.sum.dim_IntList empty": "sums of nothing are zero however they are split",
    "aten.argmin all": "the least element happens to lie first on the first rank",
    "aten.isin.Scalar_Tensor nowhere": "what is in no part is in none",
    "aten.scatter_reduce.two prod": "a product with a Partial: nobody multiplies into one",
    "aten.index_reduce prod": "a product with a Partial: nobody multiplies into one",
    "aten.scatter.reduce multiply": "a product with a Partial: nobody multiplies into one",
    "aten.index.Tensor mask": "the size of what a mask picks depends on its data: no step has it",
    "aten.embedding_renorm": "here no row is too long",
    "aten.index_put mask": "linear only where the value is zero",
    "aten._unsafe_masked_index": "torch makes it while it decomposes; no model calls it",
    "aten.gather shorter": "dims of unequal size are whole",
    "aten.scatter_add shorter": "dims of unequal size are whole",
    "aten.scatter.value": "writing one value in parts is a maximum only where the value is larger",
}


def why_not_offered(op: str, sample: str, placements: str) -> str:
    """The reason why a sound placement is left out; "" where there is none."""
    if op in PRODUCTS and "P" in placements.partition(" -> ")[0]:
        return "a product of a Partial repeats the product on every rank: reduce first"
    if op in CONSTANTS or op.endswith(SHAPE_ONLY):
        return "the values of its input are not read"
    for ending, reason in BY_ENDING.items():
        if sample.endswith(ending):
            return reason
    return BY_ROW.get(op, "") or BY_SAMPLE.get(sample, "")
