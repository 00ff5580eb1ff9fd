"""Hugging Face models of every family, made from configs with small sizes and random weights; each function is one training step.

Sizes: 8 sequences of 16 tokens, vocabulary 128, width 64, 8 heads, 2 layers; no dropout. Needs `transformers` (extra `autopar[hf]`).
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

import autopar

BATCH, SEQ, VOCAB = 8, 16, 128
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False, "image_size": 32, "num_labels": 16,
}  # fmt: skip
_BOTH_SIDES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}  # fmt: skip
_DROPOUTS = (
    "dropout", "attention_dropout", "hidden_dropout", "activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout",
    "dropout_rate", "embed_dropout", "resid_dropout", "layerdrop", "encoder_layerdrop", "decoder_layerdrop", "drop_path_rate",
    "feat_proj_dropout", "final_dropout", "ffn_dropout", "embedding_dropout", "mlp_dropout", "hidden_dropout_ratio",
)  # fmt: skip


def _config(name: str, **fields):
    """The library's config with the zoo's sizes where it has such fields."""
    import transformers

    kind = getattr(transformers, name)
    default = kind()
    stated = {default.attribute_map.get(k, k) for k in fields}
    wanted = {**_SIZES, **dict.fromkeys(_DROPOUTS, 0.0)}
    sizes = {k: v for k, v in wanted.items() if hasattr(default, k) and default.attribute_map.get(k, k) not in stated}
    return kind(**{**sizes, **fields})


def _model(name: str, config):
    import transformers

    return getattr(transformers, name)(config)


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, VOCAB, shape or (BATCH, SEQ))


def _pictures(size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(BATCH, channels, size, size)


def token_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens."""
    return F.cross_entropy(output.logits.flatten(0, -2), targets.flatten())


def class_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the batch (or over the points of a segmentation)."""
    return F.cross_entropy(output.logits, targets)


def state_loss(output, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of the last hidden state."""
    return F.mse_loss(output.last_hidden_state, targets)


def _step(model, inputs: dict, targets: tuple, loss=token_loss) -> autopar.Workload:
    return autopar.Workload(model, inputs, targets, loss, ADAMW)


def _causal(family: str, model: str = "{}ForCausalLM", config: str = "{}Config", **fields) -> autopar.Workload:
    """A decoder that predicts tokens."""
    made = _model(model.format(family), _config(config.format(family), **fields))
    return _step(made, {"input_ids": _tokens()}, (_tokens(),))


def _masked(family: str, **fields) -> autopar.Workload:
    """An encoder that fills in tokens, with a padding mask."""
    made = _model(f"{family}ForMaskedLM", _config(f"{family}Config", **fields))
    return _step(made, {"input_ids": _tokens(), "attention_mask": torch.ones(BATCH, SEQ, dtype=torch.long)}, (_tokens(),))


def _seq2seq(family: str, **fields) -> autopar.Workload:
    """An encoder and a decoder."""
    made = _model(f"{family}ForConditionalGeneration", _config(f"{family}Config", **fields))
    return _step(made, {"input_ids": _tokens(), "decoder_input_ids": _tokens()}, (_tokens(),))


def _classifier(family: str, size: int = 32, **fields) -> autopar.Workload:
    """An image classifier with 16 classes."""
    made = _model(f"{family}ForImageClassification", _config(f"{family}Config", **fields))
    return _step(made, {"pixel_values": _pictures(size)}, (torch.randint(0, 16, (BATCH,)),), class_loss)


# -- decoders ------------------------------------------------------------------------------------------------------------------------


def gpt2():
    return _causal("GPT2", "GPT2LMHeadModel", n_positions=32)


def gpt2_eager():
    return _causal("GPT2", "GPT2LMHeadModel", n_positions=32, attn_implementation="eager", tie_word_embeddings=True)


def gpt_neo():
    return _causal("GPTNeo", num_layers=2, num_heads=8, attention_types=[[["global", "local"], 1]], window_size=8)


def gptj():
    return _causal("GPTJ", rotary_dim=4, n_positions=32)


def gpt_neox():
    return _causal("GPTNeoX")


def llama():
    return _causal("Llama")


def llama_mha_tied():
    return _causal("Llama", num_key_value_heads=8, tie_word_embeddings=True)


def mistral():
    return _causal("Mistral", sliding_window=8)


def qwen2():
    return _causal("Qwen2")


def qwen3():
    return _causal("Qwen3", head_dim=8)


def gemma2():
    return _causal("Gemma2", head_dim=8, sliding_window=8)


def gemma3():
    return _causal("Gemma3", config="Gemma3TextConfig", head_dim=8, sliding_window=8)


def opt():
    return _causal("OPT", ffn_dim=128, word_embed_proj_dim=64)


def phi():
    return _causal("Phi", rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})


def phi3():
    return _causal("Phi3")


def falcon():
    return _causal("Falcon", multi_query=True)


def bloom():
    return _causal("Bloom", n_head=8, n_layer=2)


def olmo2():
    return _causal("Olmo2")


def cohere():
    return _causal("Cohere", logit_scale=0.5)


def stablelm():
    return _causal("StableLm")


def starcoder2():
    return _causal("Starcoder2", sliding_window=8)


def granite():
    return _causal("Granite")


def glm4():
    return _causal("Glm4", head_dim=8)


def smollm3():
    return _causal("SmolLM3")


# -- experts -------------------------------------------------------------------------------------------------------------------------


def mixtral():
    return _causal("Mixtral", num_local_experts=8, num_experts_per_tok=2)


def qwen2_moe():
    return _causal("Qwen2Moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64)


def qwen3_moe():
    return _causal("Qwen3Moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=8)


def deepseek_v3():
    return _causal(
        "DeepseekV3", num_key_value_heads=8, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8,
        moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
    )  # fmt: skip


def olmoe():
    return _causal("Olmoe", num_experts=8, num_experts_per_tok=2)


def gpt_oss():
    return _causal("GptOss", num_local_experts=8, num_experts_per_tok=2, head_dim=8, sliding_window=8)


# -- state spaces --------------------------------------------------------------------------------------------------------------------


def mamba():
    return _causal("Mamba", state_size=8, num_hidden_layers=2, intermediate_size=128, time_step_rank=4)


def mamba2():
    return _causal("Mamba2", state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=8)


# -- encoders ------------------------------------------------------------------------------------------------------------------------


def bert():
    return _masked("Bert")


def roberta():
    return _masked("Roberta", max_position_embeddings=34)


def distilbert():
    return _masked("DistilBert", dim=64, hidden_dim=128, n_heads=8, n_layers=2)


def deberta():
    return _masked("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8)


def electra():
    return _masked("Electra", embedding_size=64)


def albert():
    return _masked("Albert", embedding_size=32)


def modernbert():
    return _masked("ModernBert", local_attention=8, rope_parameters=None)


# -- encoder and decoder -------------------------------------------------------------------------------------------------------------


def t5():
    return _seq2seq("T5", d_model=64, d_kv=8, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=8)


def bart():
    return _seq2seq("Bart", **_BOTH_SIDES)


def whisper():
    """Speech in, tokens out."""
    config = _config(
        "WhisperConfig", **_BOTH_SIDES, num_mel_bins=16, max_source_positions=16, max_target_positions=32, decoder_start_token_id=1,
    )  # fmt: skip
    features = torch.randn(BATCH, 16, 32)
    return _step(_model("WhisperForConditionalGeneration", config), {"input_features": features, "decoder_input_ids": _tokens()}, (_tokens(),))


# -- pictures ------------------------------------------------------------------------------------------------------------------------


def vit():
    return _classifier("ViT", patch_size=8)


def dinov2():
    return _classifier("Dinov2", patch_size=8)


def beit():
    return _classifier("Beit", patch_size=8)


def swin():
    return _classifier("Swin", embed_dim=32, depths=[2, 2], num_heads=[4, 8], window_size=4, patch_size=2)


def convnext():
    return _classifier("ConvNext", num_stages=4, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1])


def resnet():
    return _classifier("ResNet", embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], layer_type="basic")


def segformer():
    """16 classes for every point of a picture, at a quarter of its size."""
    config = _config(
        "SegformerConfig", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 8], decoder_hidden_size=64
    )
    return _step(
        _model("SegformerForSemanticSegmentation", config), {"pixel_values": _pictures(64)}, (torch.randint(0, 16, (BATCH, 16, 16)),), class_loss
    )


def detr():
    """Boxes and classes of 8 queries; the backbone is the library's own ResNet. The matching of queries to objects is not part of the step."""
    backbone = _config("ResNetConfig", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    config = _config(
        "DetrConfig", **_BOTH_SIDES, use_timm_backbone=False, backbone_config=backbone, backbone=None, use_pretrained_backbone=False,
        num_queries=8,
    )  # fmt: skip
    model = _model("DetrForObjectDetection", config).eval()  # in training mode it asks in Python whether a layer has overflowed
    return _step(model, {"pixel_values": _pictures(64)}, (torch.randint(0, 16, (BATCH, 8)), torch.rand(BATCH, 8, 4)), _box_loss)


def _box_loss(output, classes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.logits.flatten(0, 1), classes.flatten()) + F.l1_loss(output.pred_boxes, boxes)


# -- pictures and words --------------------------------------------------------------------------------------------------------------


def _text_and_vision() -> dict:
    text = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
            "max_position_embeddings": 32, "eos_token_id": 2, "projection_dim": 32}  # fmt: skip
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8, "image_size": 32, "patch_size": 8,
              "projection_dim": 32}  # fmt: skip
    return {"text_config": text, "vision_config": vision}


def clip():
    """The contrastive loss over all pairs of the batch."""
    model = _model("CLIPModel", _config("CLIPConfig", **_text_and_vision(), projection_dim=32))
    return _step(model, {"input_ids": _tokens(), "pixel_values": _pictures()}, (), _contrastive_loss)


def siglip():
    """The sigmoid loss over all pairs of the batch."""
    model = _model("SiglipModel", _config("SiglipConfig", **_text_and_vision()))
    return _step(model, {"input_ids": _tokens(), "pixel_values": _pictures()}, (), _sigmoid_loss)


def blip():
    """A caption for a picture."""
    config = _config("BlipConfig", **_text_and_vision(), projection_dim=32)
    return _step(_model("BlipForConditionalGeneration", config), {"pixel_values": _pictures(), "input_ids": _tokens()}, (_tokens(),))


def _contrastive_loss(output) -> torch.Tensor:
    scores = output.logits_per_text
    own = torch.arange(scores.shape[0], device=scores.device)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def _sigmoid_loss(output) -> torch.Tensor:
    scores = output.logits_per_text
    return -F.logsigmoid(scores * (2 * torch.eye(scores.shape[0], device=scores.device) - 1)).sum(-1).mean()


# -- sound ---------------------------------------------------------------------------------------------------------------------------


def wav2vec2():
    """Features of raw sound; no masking of time steps, which is drawn in numpy."""
    config = _config(
        "Wav2Vec2Config", conv_dim=[32, 32], conv_stride=[4, 2], conv_kernel=[8, 4], num_feat_extract_layers=2, num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4, apply_spec_augment=False, mask_time_prob=0.0,
    )  # fmt: skip
    return _step(_model("Wav2Vec2Model", config), {"input_values": torch.randn(BATCH, 256)}, (torch.randn(BATCH, 30, 64),), state_loss)
