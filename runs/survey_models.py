"""Tiny random models of every kind of text model that transformers lists: the half of runs/survey.py that builds.

A kind's own default configuration is made small by the names of its entries, and so are those within it; what does not
come out well so stands in `SPECIAL`. Nothing here is the package's: a kind is known by transformers' lists alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto as auto

LISTS = {
    "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image-text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}
VOCABULARY, HIDDEN, MEMORIES, LAYERS, HEADS = 200, 32, 44, 4, 4
WORDS = 180
"""What a text may hold; the tokens behind these stand for pictures and sounds."""
LARGEST = 25_000_000
"""Parameters of a model that still counts as tiny."""
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<mask>", "<unk>"]


@dataclass(frozen=True, order=True)
class Entry:
    """One line of transformers' lists."""

    kind: str
    type: str
    model: str


def entries() -> list[Entry]:
    return sorted(Entry(kind, type, model) for kind, found in LISTS.items() for type, model in _pairs(found))


def _pairs(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for type, model in found.items():
        yield type, model if isinstance(model, str) else model[0]


def _names(value: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, int] = {
    **_names(VOCABULARY, "vocab_size text_vocab_size vocab_size_per_layer_input src_vocab_size tgt_vocab_size"),
    **_names(VOCABULARY, "decoder_vocab_size unpadded_vocab_size"),
    **_names(
        HIDDEN, "hidden_size d_model n_embd dim embed_dim emb_dim embedding_size word_embed_proj_dim out_hidden_size"
    ),
    **_names(HIDDEN, "input_embedding_size output_embedding_size projection_dim d_embed lru_width"),
    **_names(HIDDEN, "text_hidden_size hidden_dim dim_model mm_hidden_size"),
    **_names(
        LAYERS, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth num_encoder_layers"
    ),
    **_names(LAYERS, "num_decoder_layers num_blocks"),
    **_names(HEADS, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"),
    **_names(HEADS, "attention_heads num_encoder_attention_heads num_decoder_attention_heads"),
    **_names(
        HIDDEN // HEADS, "head_dim d_kv attention_head_size d_head dim_head global_head_dim swa_head_dim v_head_dim"
    ),
    **_names(HIDDEN // HEADS, "swa_v_head_dim kv_channels"),
    **_names(
        MEMORIES, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner d_inner ffn_hidden_size"
    ),
    **_names(MEMORIES, "dim_ff feedforward_size intermediate_size_mlp ffn_embed_dim dense_intermediate_size"),
    **_names(20, "moe_intermediate_size expert_ffn_hidden_size routed_intermediate_size expert_dim"),
    **_names(28, "shared_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size"),
    **_names(4, "num_experts num_local_experts n_routed_experts moe_num_experts num_moe_experts"),
    **_names(2, "num_experts_per_tok num_experts_per_token top_k_experts moe_topk moe_k moe_top_k experts_per_token"),
    **_names(1, "n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group num_expert_group"),
    **_names(1, "first_k_dense_replace num_dense_layers"),
    **_names(
        128, "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length seq_length context_length"
    ),
    **_names(128, "max_source_positions max_target_positions max_seq_length"),
    **_names(8, "q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim index_head_dim"),
    **_names(2, "linear_num_key_heads linear_num_value_heads index_n_heads linear_num_attention_heads"),
    **_names(8, "linear_key_head_dim linear_value_head_dim linear_head_dim"),
    **_names(8, "mamba_d_head mamba_head_dim mamba_headdim ssm_state_size mamba_d_state state_size"),
    **_names(8, "mamba_num_heads mamba_n_heads"),
    **_names(16, "image_size"),
    **_names(8, "patch_size"),
}
NONE_TOO = {"vocab_size", "head_dim", "n_inner", "n_routed_experts", "n_shared_experts", "num_experts_per_tok"}
"""What is small also where the default configuration says None."""
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
_PLACED = ("cosmos3_edge", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "glmga", "paddleocr_vl", "qwen2_5_omni_thinker")
_PLACED += ("qwen2_5_vl", "qwen2_vl")
_PICTURES = {"vq_config.base_channels": 32, "vq_config.channel_multiplier": [1, 1], "vq_config.attn_resolutions": []}
_DBRX = {"ffn_hidden_size": 20, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": HIDDEN}
SPECIAL: dict[str, dict[str, Any]] = {
    **{type: {"text_config.rope_parameters": _MROPE} for type in _PLACED},
    "bert-generation": {"is_decoder": True},
    "blt": {"encoder_hash_byte_group_vocab": 50, "hidden_size_global": HIDDEN},
    "chameleon": {"vocabulary_map": {"<image>": 5}, **_PICTURES},
    "codegen": {"rotary_dim": 4},
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": _MROPE}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _MROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}, "ffn_config": _DBRX},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "emu3": {"vocabulary_map": {"<image>": 5}, "vq_config.codebook_size": 16, **_PICTURES},
    "encoder-decoder": {
        **{"decoder_start_token_id": 1, "pad_token_id": 0},
        **{"decoder.is_decoder": True, "decoder.add_cross_attention": True},
    },
    "ernie4_5_vl_moe": {"text_config.moe_intermediate_size": [20, 20]},
    "distilbert": {"hidden_dim": MEMORIES},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm5_next": {"text_config.qk_rope_head_dim": 0},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granite4_vision": {"deepstack_layer_map": [[1, 0]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "janus": _PICTURES,
    "led": {"attention_window": [8] * LAYERS},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "longt5": {"decoder_start_token_id": 0},
    "luke": {"entity_vocab_size": 50},
    "mamba2": {"num_heads": 8},
    "masked reformer": {"axial_pos_embds": False, "feed_forward_size": MEMORIES, "num_hashes": 1},
    "molmo2": {"adapter_config.vision_feature_layer": [2, 1]},
    "muse_spark": {"audio_config.num_hidden_layers": 4, "audio_config.hidden_sizes": [16, 16, 16, 16]},
    "nemotron_h_omni": {"vision_config.video_temporal_patch_size": 2},
    "neomme": {"head_dim": 16},
    "pegasus_x": {"block_size": 8, "num_global_tokens": 4},
    "perceiver": {"d_latents": HIDDEN, "num_latents": 16, "num_self_attends_per_block": 3},
    "qwen4_exp": {"text_config.num_hidden_layers": 3},
    "qwen4_exp_text": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "feed_forward_size": MEMORIES, "num_hashes": 1},
    "roc_bert": {"shape_vocab_size": 50, "pronunciation_vocab_size": 50},
    "switch_transformers": {"decoder_start_token_id": 0},
    "t5": {"decoder_start_token_id": 0},
    "step3p7": {"text_config.sliding_window": 8},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 12},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs beside (in one list, if that stands before it): entries of its configuration, by their path."""


def small(config: PreTrainedConfig, special: dict[str, Any], path: str = "") -> PreTrainedConfig:
    """The configuration anew, with small sizes."""
    settings: dict[str, Any] = {}
    stated = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for name, value in stated.items():
        if isinstance(value, PreTrainedConfig):
            settings[name] = small(value, special, f"{path}{name}.")
        elif (name in NONE_TOO and value is None) or (name in SIZES and type(value) is int):
            settings[name] = SIZES[name]
        elif name == "num_key_value_heads":
            settings[name] = HEADS if value in (None, stated.get("num_attention_heads")) else 2
        elif name.endswith(("token_id", "token_index", "token_ids")) and isinstance(value, int) and value >= VOCABULARY:
            settings[name] = VOCABULARY - 1 - len([one for one in settings if one.endswith(("_id", "_index", "_ids"))])
    if "vocab_size" in stated:
        settings |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    mine = {name[len(path) :]: value for name, value in special.items() if name.startswith(path)}
    settings |= {name: value for name, value in mine.items() if "." not in name}
    return type(config)(**{name: value for name, value in settings.items() if value is not ...})


def build(entry: Entry, seed: int = 0) -> Any:
    """The tiny random model of an entry, at rest; ValueError where it comes out large."""
    special = SPECIAL.get(f"{entry.kind} {entry.type}", SPECIAL.get(entry.type, {}))
    config = small(CONFIG_MAPPING[entry.type](), special)
    kind = getattr(transformers, entry.model)
    if not isinstance(config, kind.config_class):  # a text half under the name of the whole
        config = next((each for each in vars(config).values() if isinstance(each, kind.config_class)), config)
    if entry.kind == "causal" and entry.type in LISTS["masked"] and hasattr(config, "is_decoder"):
        config.is_decoder = True  # BERT's family as decoders
    with torch.device("meta"):
        count = sum(each.numel() for each in kind(config).parameters())
    if count > LARGEST:
        raise ValueError(f"too large: {count:,} parameters")
    torch.manual_seed(seed)
    model = kind(config).float().eval()
    fill(model, torch.Generator().manual_seed(seed))
    return model


def keep_nothing(model: Any) -> None:
    """Switches off the cache: a model whose layers all keep states, not keys, can make none of the common kind."""
    for module in model.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            module.config.use_cache = False


def fill(model: Any, generator: torch.Generator) -> None:
    """Random numbers in every weight, so that no bias, gain or router can be forgotten unseen."""
    with torch.no_grad():
        for parameter in (each for each in model.parameters() if each.requires_grad):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise)  # gains stay around one
            else:
                parameter.copy_(noise * 0.2)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.copy_(torch.randn(buffer.shape, generator=generator))


def save(model: Any, folder: Path, *, framed: bool) -> None:
    """The model with a tokenizer of words, w5 to w199; a beginning before a text and, where it is `framed`, an end."""
    model.save_pretrained(folder)
    words = SPECIAL_TOKENS + [f"w{number}" for number in range(len(SPECIAL_TOKENS), VOCABULARY)]
    plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    shape = "<s> $A </s>" if framed else "<s> $A"
    plain.post_processor = processors.TemplateProcessing(single=shape, special_tokens=[("<s>", 1), ("</s>", 2)])
    named = dict(zip(("pad_token", "bos_token", "eos_token", "mask_token", "unk_token"), SPECIAL_TOKENS, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=plain, **named).save_pretrained(folder)
