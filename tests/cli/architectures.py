"""Small networks of every kind that transformers has, and what each is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TOKENS = 40
_SIZES = {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_ENCODER = {**_SIZES, "intermediate_size": 24, "max_position_embeddings": 20, "num_labels": 3, "pad_token_id": 0}
_GROUPED = {**_SIZES, "intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 32}
_PATCHES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 16, "patch_size": 8, "num_labels": 3,
}  # fmt: skip
_STAGES = {"depths": [1, 1], "num_labels": 3, "image_size": 16}
_SEQUENCES = {"vocab_size": TOKENS, "d_model": 16, "pad_token_id": 0, "decoder_start_token_id": 0}

# The class, its configuration, and what it takes; a class that this version of transformers lacks is left out.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**_SIZES, "intermediate_size": 24}),
    "GPTNeoForCausalLM": (
        "GPTNeoConfig",
        {
            "vocab_size": TOKENS, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "GPTJForCausalLM": (
        "GPTJConfig",
        {"vocab_size": TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4},
    ),
    "OPTForCausalLM": ("OPTConfig", {**_SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16}),
    "BloomForCausalLM": ("BloomConfig", {"vocab_size": TOKENS, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "FalconForCausalLM": ("FalconConfig", _SIZES),
    "LlamaForCausalLM": ("LlamaConfig", _GROUPED),
    "MistralForCausalLM": ("MistralConfig", _GROUPED),
    "MixtralForCausalLM": ("MixtralConfig", {**_GROUPED, "num_local_experts": 3}),
    "Qwen2ForCausalLM": ("Qwen2Config", _GROUPED),
    "Qwen2MoeForCausalLM": (
        "Qwen2MoeConfig",
        {
            **_GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 12,
        },
    ),
    "GemmaForCausalLM": ("GemmaConfig", {**_GROUPED, "head_dim": 8, "pad_token_id": 0}),
    "PhiForCausalLM": ("PhiConfig", {**_SIZES, "intermediate_size": 24}),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    ),
    "RwkvForCausalLM": (
        "RwkvConfig",
        {"vocab_size": TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16},
    ),
    "BertForSequenceClassification": ("BertConfig", _ENCODER),
    "BertForMaskedLM": ("BertConfig", _ENCODER),
    "RobertaForMaskedLM": ("RobertaConfig", {**_ENCODER, "pad_token_id": 1}),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": TOKENS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "num_labels": 3},
    ),
    "AlbertForMaskedLM": ("AlbertConfig", {**_ENCODER, "embedding_size": 8}),
    "ElectraForSequenceClassification": ("ElectraConfig", {**_ENCODER, "embedding_size": 8}),
    "DebertaV2ForSequenceClassification": ("DebertaV2Config", {**_ENCODER, "relative_attention": True}),
    "T5ForConditionalGeneration": ("T5Config", {**_SEQUENCES, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}),
    "BartForConditionalGeneration": (
        "BartConfig",
        {
            **_SEQUENCES, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "ViTForImageClassification": ("ViTConfig", _PATCHES),
    "DeiTForImageClassification": ("DeiTConfig", _PATCHES),
    "Dinov2ForImageClassification": ("Dinov2Config", _PATCHES),
    "BeitForImageClassification": ("BeitConfig", {**_PATCHES, "use_relative_position_bias": True}),
    "SwinForImageClassification": (
        "SwinConfig",
        {**_STAGES, "patch_size": 4, "embed_dim": 8, "num_heads": [2, 2], "window_size": 2},
    ),
    "ConvNextForImageClassification": ("ConvNextConfig", {**_STAGES, "hidden_sizes": [8, 16], "num_stages": 2}),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8, "layer_type": "basic", "num_labels": 3},
    ),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig",
        {
            "num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
            "decoder_hidden_size": 8, "num_labels": 3,
        },
    ),
}  # fmt: skip


def build(transformers: Any, name: str) -> Any:
    """Return a small network of a class, with weights that are no initial zeros and ones."""
    kind, values = ARCHITECTURES[name]
    model = getattr(transformers, name)(getattr(transformers, kind)(**values)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def inputs_for(model: Any) -> dict[str, Tensor]:
    """Return what a network is called with: images or tokens, for an encoder with a decoder also its own tokens."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(3, TOKENS, (2, 8), generator=generator)
    taken: Callable[[str], bool] = model.main_input_name.__eq__
    if taken("pixel_values"):
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    if model.config.is_encoder_decoder:
        return {"input_ids": tokens, "decoder_input_ids": tokens.flip(1)}
    return {"input_ids": tokens}
