"""Tiny random models whose blocks, or whose ways to the scores, are not the usual ones; and the text halves of some
that read pictures.

Each entry says by hand, from transformers' source, how a block's coefficients come from what the keys read: a reference
that shares nothing with the package.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

from models.expert_models import fill_randomly, gelu_mlp

ROWS, HIDDEN, MEMORIES = 280, 16, 24
SIZES: dict[str, Any] = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": MEMORIES, "max_position_embeddings": 64, "vocab_size": ROWS}
SIZES |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
_GEMMA4 = {"global_head_dim": 8, "hidden_size_per_layer_input": 0}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}


def _gated(block: Any, x: Tensor) -> Tensor:
    return silu(linear(x, block.mlp.gate_proj.weight)) * linear(x, block.mlp.up_proj.weight)


def _gelu_gated(block: Any, x: Tensor) -> Tensor:
    return gelu_mlp(block.mlp, x)


def _bitnet(block: Any, x: Tensor) -> Tensor:
    raw = linear(x, block.mlp.gate_proj.weight).relu().square() * linear(x, block.mlp.up_proj.weight)
    norm = block.mlp.ffn_sub_norm
    return raw / (raw.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight


def _xielu(block: Any, x: Tensor) -> Tensor:
    f, x = block.mlp.act_fn, linear(x, block.mlp.up_proj.weight)
    rising, falling = softplus(f.alpha_p), f.beta + softplus(f.alpha_n)
    return torch.where(x > 0, rising * x * x + f.beta * x, (x.clamp(max=f.eps).exp() - 1 - x) * falling + f.beta * x)


def _squared(keys: str) -> Callable[[Any, Tensor], Tensor]:
    return lambda block, x: linear(x, block.get_submodule(keys).weight).relu().square()


def _halved_gemma(block: Any, x: Tensor) -> Tensor:
    mlp = block.mlp_block
    gate, up = (linear(x, each.weight, each.bias) for each in (mlp.gate_proj, mlp.up_proj))
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


@dataclass(frozen=True)
class Uncommon:
    """A tiny model: its settings, the maps around its memories (paths in a block), and its coefficients by hand."""

    kind: str
    coefficients: Callable[[Any, Tensor], Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    keys: str = "mlp.gate_proj"
    down: str = "mlp.down_proj"
    blocks: str = "model.layers"
    memories: int = MEMORIES
    signs: tuple[int, ...] = (1, -1)


UNCOMMON = {
    "bitnet": Uncommon("bitnet", _bitnet, {"hidden_act": "relu2"}),
    "apertus": Uncommon("apertus", _xielu, {"hidden_act": "xielu"}, keys="mlp.up_proj"),
    "nanochat": Uncommon(
        "nanochat",
        _squared("mlp.fc1"),
        {"hidden_act": "relu2", "final_logit_softcapping": 5.0},
        keys="mlp.fc1",
        down="mlp.fc2",
        signs=(1,),
    ),
    "minicpm3": Uncommon("minicpm3", _gated, _LATENT | {"scale_emb": 2.0, "scale_depth": 1.4, "dim_model_base": 4}),
    "recurrent_gemma": Uncommon(
        "recurrent_gemma",
        _halved_gemma,
        {"num_hidden_layers": 3, "lru_width": HIDDEN, "logits_soft_cap": 4.0},
        keys="mlp_block.gate_proj",
        down="mlp_block.down_proj",
        memories=MEMORIES // 2,
    ),
    "gemma4": Uncommon("gemma4_text", _gelu_gated, _GEMMA4 | {"final_logit_softcapping": 6.0}),
    "gemma4 small": Uncommon(
        "gemma4_text", _gelu_gated, _GEMMA4 | {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": ROWS}
    ),
    "rwkv": Uncommon(
        "rwkv",
        _squared("feed_forward.key"),
        {"attention_hidden_size": HIDDEN, "context_length": 64, "num_hidden_layers": 7},
        keys="feed_forward.key",
        down="feed_forward.value",
        blocks="rwkv.blocks",
        signs=(1,),
    ),
}

_SIGHT = {name: SIZES[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")}
_SEEING: dict[str, Any] = {"image_size": 16, "patch_size": 8, "max_num_tiles": 1, "num_global_layers": 1}
_SEEING |= dict.fromkeys(("hidden_size", "embed_dim", "out_hidden_size", "projection_dim"), 16)
_SEEING |= dict.fromkeys(("num_hidden_layers", "depth", "num_attention_heads", "num_heads", "attention_heads"), 2)
_SEEING |= {"intermediate_size": MEMORIES, "supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0]}
_PICTURES = {"codebook_size": 16, "embed_dim": 8, "latent_dim": 8, "base_channels": 32, "hidden_size": 32}
_PICTURES |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_TEXT = SIZES | {"bos_token_id": 1, "eos_token_id": 2}
_POSITIONS = {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 2]}}
SEEING = {
    "gemma3": ({}, {"mm_tokens_per_image": 4}),
    "gemma4": (_GEMMA4, {"audio_config": None, "vision_config": {**_SIGHT, "num_hidden_layers": 1}}),
    "llava": ({"model_type": "llama"}, {"vision_config": _SEEING | {"model_type": "clip_vision_model"}}),
    "mistral3": ({"model_type": "mistral"}, {"vision_config": _SEEING | {"model_type": "pixtral"}}),
    "qwen2_vl": (_POSITIONS, {}),
    "qwen2_5_vl": (_POSITIONS, {}),
    "qwen3_vl": (_POSITIONS, {}),
    "emu3": ({}, {"vocabulary_map": {"<image>": 5}, "vq_config": _PICTURES}),
    "chameleon": (None, SIZES | {"vocabulary_map": {"<image>": 5, "IMGIMGA": 6}, "vq_config": _PICTURES}),
    "muse_glimmer": ({"output_multiplier": 0.5, "final_logit_softcapping": 3.0}, {}),
    "mllama": ({"num_hidden_layers": 3, "cross_attention_layers": [1], "rope_parameters": _ROPE}, {}),
}
"""What is particular to the text half, and to the whole, of models that read pictures."""

_EAR: dict[str, Any] = dict.fromkeys(("d_model", "hidden_size", "hidden_dim", "output_dim"), 16)
_EAR |= dict.fromkeys(("encoder_layers", "num_hidden_layers", "num_layers"), 1)
_EAR |= dict.fromkeys(("encoder_attention_heads", "num_attention_heads", "num_key_value_heads", "num_heads"), 2)
_EAR |= dict.fromkeys(("intermediate_size", "encoder_ffn_dim"), MEMORIES) | dict.fromkeys(("head_dim", "dim_head"), 8)
_EAR |= {"num_mel_bins": 8, "max_source_positions": 32, "max_position_embeddings": 32, "downsample_hidden_size": 8}
_QFORMER: dict[str, Any] = {"model_type": "blip_2_qformer", "hidden_size": 16, "encoder_hidden_size": 16}
_QFORMER |= {"num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": MEMORIES}
_CONFORMER = {"input_dim": 8, "output_dim": 12, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8}
HEARING = {
    "qwen2_audio": "qwen2",
    "qwen3_asr": "qwen3",
    "voxtral": "llama",
    "glmasr": "llama",
    "audioflamingo3": "qwen2",
    "musicflamingo": "qwen2",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
}
"""Models that hear, and the type of the language model in each."""


def build_hearing(kind: str) -> Any:
    """The tiny random model of an entry of HEARING."""
    ear = _EAR | ({"model_type": "audioflamingo3_encoder"} if kind == "musicflamingo" else {})
    settings = {"text_config": _TEXT | {"model_type": HEARING[kind]}, "audio_config": ear, "audio_token_id": 5}
    settings |= {"encoder_config": _CONFORMER, "projector_config": _QFORMER} if "granite" in kind else {}
    return fill_randomly(lambda: AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **settings)))


def build_needing_pictures(kind: str) -> Any:
    """A tiny random BLIP-2 or Kosmos-2, which cannot be run on text alone; a whole language model is inside."""
    opt = {"ffn_dim": MEMORIES, "word_embed_proj_dim": HIDDEN, "model_type": "opt"}
    kosmos = {"embed_dim": HIDDEN, "layers": 2, "ffn_dim": MEMORIES, "attention_heads": 2}
    settings = {"text_config": _TEXT | (opt if kind == "blip-2" else kosmos), "vision_config": _SEEING}
    settings |= {"qformer_config": _QFORMER} if kind == "blip-2" else {"latent_query_num": 2}
    return fill_randomly(lambda: AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **settings)))


def build_uncommon(name: str, **changes: Any) -> Any:
    """The tiny random model of an entry of UNCOMMON."""
    case = UNCOMMON[name]
    return fill_randomly(
        lambda: AutoModelForCausalLM.from_config(AutoConfig.for_model(case.kind, **SIZES | case.settings | changes))
    )


def build_seeing(kind: str) -> Any:
    """The tiny random model of an entry of SEEING."""
    own, whole = SEEING[kind]
    settings = {"vision_config": _SEEING, "image_token_id": 5} | whole
    settings |= {} if own is None else {"text_config": _TEXT | own}
    return fill_randomly(lambda: AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **settings)))
