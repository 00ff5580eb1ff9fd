"""Diffusion models (diffusers), small and with random weights: one step of learning to predict the noise.

Sizes: 8 pictures of 16 x 16 with 4 channels, widths 32 and 64, 8 heads. Needs `diffusers` (extra `autopar[zoo]`).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

import autopar

BATCH = 8
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)


def noise_loss(output, noise: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of the predicted noise."""
    return F.mse_loss(output.sample, noise)


def _step(model, inputs: dict, noise: torch.Tensor | None = None) -> autopar.Workload:
    return autopar.Workload(model, inputs, (torch.randn(BATCH, 4, 16, 16) if noise is None else noise,), noise_loss, ADAMW)


def _pictures() -> torch.Tensor:
    return torch.randn(BATCH, 4, 16, 16)


def _times() -> torch.Tensor:
    return torch.randint(0, 1000, (BATCH,))


def unet():
    """The U-Net of DDPM with attention at the lower resolution."""
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16, in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return _step(model, {"sample": _pictures(), "timestep": _times()})


def unet_condition():
    """The U-Net of Stable Diffusion: cross attention to 8 words."""
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return _step(model, {"sample": _pictures(), "timestep": _times(), "encoder_hidden_states": torch.randn(BATCH, 8, 32)})


def dit():
    """The class-conditional transformer of DiT."""
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=8, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, norm_num_groups=8, sample_size=16, patch_size=2,
        num_embeds_ada_norm=1000,
    )  # fmt: skip
    for block in model.transformer_blocks:  # it drops labels at random while training
        block.norm1.emb.class_embedder.dropout_prob = 0.0
    return _step(model, {"hidden_states": _pictures(), "timestep": _times(), "class_labels": torch.randint(0, 1000, (BATCH,))})


def sd3():
    """The two-stream transformer of Stable Diffusion 3."""
    import diffusers

    model = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=8, joint_attention_dim=32,
        caption_projection_dim=64, pooled_projection_dim=32, pos_embed_max_size=16,
    )  # fmt: skip
    words = {"encoder_hidden_states": torch.randn(BATCH, 8, 32), "pooled_projections": torch.randn(BATCH, 32)}
    return _step(model, {"hidden_states": _pictures(), "timestep": _times(), **words})


def pixart():
    """The text-conditional transformer of PixArt."""
    import diffusers

    model = diffusers.PixArtTransformer2DModel(
        num_attention_heads=8, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, norm_num_groups=8, sample_size=16, patch_size=2,
        caption_channels=32, cross_attention_dim=64, use_additional_conditions=False,
    )  # fmt: skip
    return _step(model, {"hidden_states": _pictures(), "timestep": _times(), "encoder_hidden_states": torch.randn(BATCH, 8, 32)})


def flux():
    """The two-stream and one-stream transformer of Flux, over tokens of latents."""
    import diffusers

    model = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=8, joint_attention_dim=32,
        pooled_projection_dim=32, axes_dims_rope=(4, 2, 2),
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(BATCH, 16, 16), "encoder_hidden_states": torch.randn(BATCH, 8, 32),
        "pooled_projections": torch.randn(BATCH, 32), "timestep": torch.rand(BATCH), "img_ids": torch.rand(16, 3), "txt_ids": torch.rand(8, 3),
    }  # fmt: skip
    return _step(model, inputs, torch.randn(BATCH, 16, 16))


def autoencoder():
    """The autoencoder of Stable Diffusion; it takes the middle of each posterior, so nothing is drawn."""
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1,
        norm_num_groups=8, latent_channels=4, sample_size=16,
    )  # fmt: skip
    return _step(model, {"sample": torch.randn(BATCH, 3, 16, 16)}, torch.randn(BATCH, 3, 16, 16))
