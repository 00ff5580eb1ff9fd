"""Strides: which ops of torch must be given packed tensors. Codegen writes `.contiguous()` for them, the runtime's `call` does it.

Autograd's own formulas pack what they hand to these kernels; a graph has dropped such copies, as a shard's strides are its own.
`tests/rules/test_strides.py` runs every op of the table on other strides.
"""

# these kernels refuse other strides, or do not look at them and are silently wrong
READS_PACKED = frozenset(
    """
    _cdist_backward _embedding_bag _embedding_bag_backward _embedding_bag_forward_only _embedding_bag_dense_backward
    _embedding_bag_per_sample_weights_backward _linalg_det _linalg_slogdet _pdist_backward _pdist_forward _weight_norm_interface
    _weight_norm_interface_backward adaptive_max_pool3d_backward as_strided as_strided_copy as_strided_scatter
    fractional_max_pool2d_backward fractional_max_pool3d_backward linalg_matrix_exp native_group_norm native_group_norm_backward
    nll_loss2d_backward view_as_complex view_as_complex_copy
    """.split()
)
