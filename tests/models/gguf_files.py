"""Tiny models of every architecture that transformers reads from `.gguf`, and the files of them. Not a test itself.

The files are written by the package of that name as llama.cpp writes them, with the inverse of what transformers does
to their tensors.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, modeling_gguf_pytorch_utils

from mining.conftest import byte_tokenizer

ROWS, HIDDEN, LAYERS, HEADS, MEMORIES, CONTEXT = 280, 32, 2, 4, 64, 64
SMALL = {"vocab_size": ROWS, "hidden_size": HIDDEN, "intermediate_size": MEMORIES, "num_hidden_layers": LAYERS}
SMALL |= {"num_attention_heads": HEADS, "max_position_embeddings": CONTEXT}
SMALL |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
GROUPED = SMALL | {"num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GROUPED),
    "qwen2": ("qwen2", GROUPED),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 8}),
    "phi3": ("phi3", GROUPED | {"original_max_position_embeddings": CONTEXT}),
    "stablelm": (
        "stablelm",
        GROUPED | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "starcoder2": ("starcoder2", GROUPED | {"sliding_window": None}),
    "gpt2": ("gpt2", SMALL),
    "bloom": (
        "bloom",
        {name: SMALL[name] for name in ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id")}
        | {"n_layer": LAYERS, "n_head": HEADS},
    ),
    "falcon": ("falcon", SMALL | {"num_kv_heads": 1}),
    "nemotron": ("nemotron", GROUPED),
    "gemma2": ("gemma2", GROUPED | {"head_dim": 8, "sliding_window": 8}),
    "gemma3": ("gemma3_text", GROUPED | {"head_dim": 8, "sliding_window": 8}),
    "qwen2moe": ("qwen2_moe", GROUPED | EXPERTS | {"shared_expert_intermediate_size": 24}),
    "qwen3moe": ("qwen3_moe", GROUPED | EXPERTS | {"head_dim": 8, "norm_topk_prob": True}),
    "lfm2": ("lfm2", GROUPED | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
}
"""Tiny models, by what llama.cpp calls them."""
Add = Callable[[Any], None]


def network(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    name, settings = MODELS[kind]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**settings, **more}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    return model.eval()


def stored(kind: str, name: str, weight: torch.Tensor) -> np.ndarray[Any, Any]:
    """The inverse of what transformers makes of a tensor."""
    if kind == "llama" and ("attn_q." in name or "attn_k." in name):
        heads = HEADS if "attn_q." in name else 2
        weight = weight.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(weight.shape)
    if kind in ("gemma2", "gemma3", "nemotron") and "norm.weight" in name:
        weight = weight + 1
    if kind == "gpt2" and any(part in name for part in ("attn_qkv.w", "ffn_down.w", "ffn_up.w", "attn_output.w")):
        weight = weight.T
    if kind == "bloom" and "attn_qkv" in name:
        weight = weight.reshape(HEADS, 3, HIDDEN // HEADS, -1).swapaxes(0, 1).reshape(weight.shape)
    if "shortconv.conv" in name or "gate_inp_shexp" in name:
        weight = weight.squeeze(1 if "conv" in name else 0)
    return weight.contiguous().numpy().astype(np.float32)


def write(
    path: Path,
    kind: str,
    model: Any,
    add: Add = lambda file: None,
    tensors: dict[str, Any] | None = None,
    *,
    form: str = "f32",
    words: bool = True,
    architecture: str = "",
) -> str:
    """The file of that model, its matrices as `f32`, `f16`, `q8_0` ...; `words`: with its tokenizer.

    `add` writes more keys, `tensors` are more tensors, `architecture` is another name for the kind.
    """
    config, file = model.config, gguf.GGUFWriter(str(path), architecture or kind)
    file.add_context_length(getattr(config, "max_position_embeddings", CONTEXT))
    file.add_embedding_length(HIDDEN)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(4 * HIDDEN if kind in ("bloom", "gpt2", "falcon") else MEMORIES)
    file.add_head_count(HEADS)
    if kind == "lfm2":
        file.add_head_count_kv([0, 2])
        file.add_shortconv_l_cache(config.conv_L_cache)
        file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    elif getattr(config, "num_key_value_heads", None) or kind == "falcon":
        file.add_head_count_kv(1 if kind == "falcon" else config.num_key_value_heads)
    entries = config.to_dict()
    if eps := entries.get("rms_norm_eps") or (kind == "lfm2" and entries["norm_eps"]):
        file.add_layer_norm_rms_eps(eps)
    else:
        names = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
        file.add_layer_norm_eps(next(entries[name] for name in names if name in entries))
    if "head_dim" in MODELS[kind][1]:
        file.add_key_length(8)
        file.add_value_length(8)
    if entries.get("sliding_window"):
        file.add_sliding_window(entries["sliding_window"])
    for name, key in (("attn_logit_softcapping", "attn"), ("final_logit_softcapping", "final")):
        if entries.get(name):
            file.add_float32(f"{kind}.{key}_logit_softcapping", entries[name])
    if "moe_intermediate_size" in entries:
        file.add_expert_count(4)
        file.add_expert_used_count(2)
        file.add_expert_feed_forward_length(16)
    if "shared_expert_intermediate_size" in entries:
        file.add_expert_shared_feed_forward_length(24)
    if (share := (entries.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0)) != 1:
        file.add_rope_dimension_count(int(share * HIDDEN / HEADS))
    file.add_vocab_size(ROWS)
    if words:
        add_words(file)
    add(file)
    weights = model.state_dict()
    if kind == "lfm2":
        names = lfm2_names(weights)
    else:
        processor = modeling_gguf_pytorch_utils.TENSOR_PROCESSORS.get(
            kind, modeling_gguf_pytorch_utils.TensorProcessor
        )(config={})
        names = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map(model, processor)
    for place, name in names.items():
        weight = weights[name]
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "_exps" in place:
            half = weight.shape[1] // 2
            weight = weight if "down" in place else weight[:, :half] if "gate" in place else weight[:, half:]
            place += "" if place.endswith(".weight") else ".weight"
        add_matrix(file, place, stored(kind, place, weight), form)
    for place, values in (tensors or {}).items():
        file.add_tensor(place, np.asarray(values, dtype=np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return str(path)


def add_words(file: Any) -> None:
    """The byte-level tokenizer, with names for the rows that it has no token for."""
    described = json.loads(byte_tokenizer(rows=ROWS).backend_tokenizer.to_str())["model"]
    tokens = sorted(byte_tokenizer(rows=ROWS).get_vocab().items(), key=lambda item: item[1])
    named = [token for token, _ in tokens] + [f"<unused{i}>" for i in range(ROWS - len(tokens))]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(named)
    file.add_token_types([3 if token == "<|endoftext|>" else 1 for token in named])
    file.add_token_merges([" ".join(pair) for pair in described["merges"]])
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    file.add_pad_token_id(1)


def add_matrix(file: Any, place: str, matrix: np.ndarray[Any, Any], form: str) -> None:
    if matrix.ndim == 1 or form in ("f32", "f16"):
        file.add_tensor(place, matrix.astype(np.float16) if matrix.ndim > 1 and form == "f16" else matrix)
        return
    quantised = gguf.GGMLQuantizationType[form.upper()]
    blocks, size = gguf.GGML_QUANT_SIZES[quantised]
    empty = np.zeros((len(matrix), matrix.shape[1] // blocks * size), np.uint8)
    packed = empty if form == "q8_1" else gguf.quants.quantize(matrix, quantised)
    file.add_tensor(place, packed, raw_dtype=quantised)


def lfm2_names(weights: dict[str, Any]) -> dict[str, str]:
    parts = {
        "operator_norm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w2": "ffn_down",
        "feed_forward.w3": "ffn_up",
        "conv.in_proj": "shortconv.in_proj",
        "conv.out_proj": "shortconv.out_proj",
        "conv.conv": "shortconv.conv",
        "ffn_norm": "ffn_norm",
    }
    top = {"model.embed_tokens": "token_embd", "model.embedding_norm": "token_embd_norm", "lm_head": "output"}
    found = {}
    for name in weights:
        part, _, end = name.rpartition(".")
        _, _, layer, rest = (part.split(".", 3) + [""] * 4)[:4]
        found[f"{top[part]}.{end}" if part in top else f"blk.{layer}.{parts[rest]}.{end}"] = name
    return found
