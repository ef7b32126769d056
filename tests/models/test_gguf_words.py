"""What a `.gguf` file says: read as the model that it was written from, or refused by name, never passed over.

The files are written with the inverse of what transformers does to their tensors, for every architecture of its table.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, modeling_gguf_pytorch_utils
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

from mining.conftest import byte_tokenizer
from mnemoscope.errors import ModelError, ModelUnsupported
from mnemoscope.models import load_model
from mnemoscope.models.opening.gguf_words import GgufWords
from models.conftest import refused
from models.test_gguf import network as llama
from models.test_gguf import write as write_llama

ROWS, HIDDEN, LAYERS, HEADS, MEMORIES, CONTEXT = 280, 32, 2, 4, 48, 64
SMALL = {
    "vocab_size": ROWS,
    "hidden_size": HIDDEN,
    "intermediate_size": MEMORIES,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
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
REFUSED = {"mistral", "t5", "umt5", "mamba", "deci", "gpt_oss", "minimax_m2", "gemma4", "qwen35", "qwen35moe"}
"""Those of transformers' table that are no decoders of memories, or of which no tiny file is written here."""
NAMES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
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
    path: Path, kind: str, model: Any, add: Add = lambda file: None, tensors: dict[str, Any] | None = None
) -> str:
    """The file of that model; `add` writes more keys, `tensors` are more tensors."""
    config, file = model.config, gguf.GGUFWriter(str(path), kind)
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
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list([f"t{i}" for i in range(ROWS)])
    file.add_token_merges([])
    file.add_bos_token_id(0)
    file.add_pad_token_id(1)
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
        file.add_tensor(place, stored(kind, place, weight))
    for place, values in (tensors or {}).items():
        file.add_tensor(place, np.asarray(values, dtype=np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return str(path)


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


def off(path: str, model: Any) -> float:
    ids = torch.tensor([[0, *torch.randint(2, ROWS, (30,), generator=torch.Generator().manual_seed(1)).tolist()]])
    loaded = load_model(path, tokenizer=byte_tokenizer(rows=ROWS))
    with torch.no_grad():
        return float((loaded.logits(ids) - model(input_ids=ids).logits).abs().max())


def said(path: str) -> str:
    with pytest.raises(ModelUnsupported) as caught:
        load_model(path, tokenizer=byte_tokenizer(rows=ROWS))
    return str(caught.value)


def test_every_architecture_of_the_table_is_tried() -> None:
    known = {NAMES.get(name, name) for name in (*GGUF_CONFIG_MAPPING, *GGUF_CONFIG_ARCHS)} - {"general", "tokenizer"}
    assert known <= MODELS.keys() | REFUSED, "a new one needs a tiny model here"


@pytest.mark.full
@pytest.mark.parametrize("kind", MODELS)
def test_an_architecture_is_read_whole_or_refused(kind: str, tmp_path: Path) -> None:
    model = network(kind)
    assert off(write(tmp_path / "plain.gguf", kind, model), model) < 1e-4
    unknown = write(tmp_path / "key.gguf", kind, model, lambda file: file.add_float32(f"{kind}.attention.future", 7.0))
    assert f"states attention.future = '7.0', which transformers {transformers.__version__} does not" in said(unknown)
    unknown = write(tmp_path / "tensor.gguf", kind, model, tensors={"blk.1.attn_future.weight": np.ones(HIDDEN)})
    assert "attn_future.weight" in said(unknown)
    if rope := (model.config.to_dict().get("rope_parameters") or {}):
        nested = "full_attention" in rope
        group = dict(rope["full_attention"] if nested else rope, rope_theta=54321.0)
        turned = network(kind, rope_parameters=dict(rope, full_attention=group) if nested else group)
        assert off(write(tmp_path / "base.gguf", kind, turned, lambda file: rope_base(file, kind)), turned) < 1e-4


def rope_base(file: Any, kind: str) -> None:
    if kind != "lfm2":
        file.add_rope_freq_base(54321.0)


SCALED: dict[str, tuple[dict[str, Any], Add]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, lambda file: scale(file, gguf.RopeScalingType.LINEAR)),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        lambda file: scale(file, gguf.RopeScalingType.YARN),
    ),
    "yarn of another strength": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 0.5 * (1 + 0.1 * math.log(4.0)),
        },
        lambda file: (scale(file, gguf.RopeScalingType.YARN), file.add_rope_scaling_attn_factors(0.5)),
    ),
    "none": ({"rope_type": "default"}, lambda file: scale(file, gguf.RopeScalingType.NONE)),
}


def scale(file: Any, kind: Any) -> None:
    file.add_rope_scaling_type(kind)
    file.add_rope_scaling_factor(4.0)
    file.add_rope_scaling_orig_ctx_len(16)


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_positions_are_those_of_the_plain_model(name: str, tmp_path: Path) -> None:
    rope, add = SCALED[name]
    model = network("llama", rope_parameters={"rope_theta": 10000.0, **rope})
    assert off(write(tmp_path / "scaled.gguf", "llama", model, add), model) < 1e-5


def test_llama_s_factors_are_read_from_their_tensor(tmp_path: Path) -> None:
    """And no length is a boundary, as LongRoPE's original context would be."""
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "rope_theta": 10000.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = network("llama", rope_parameters=rope)
    factors = 10000.0 ** -(torch.arange(0, 8, 2) / 8) / model.model.rotary_emb.inv_freq
    assert sorted({round(float(factor), 2) for factor in factors})[-1] == 8
    path = write(tmp_path / "three.gguf", "llama", model, tensors={"rope_freqs.weight": factors})
    assert off(path, model) < 1e-5
    scaled, plain = (
        load_model(each, tokenizer=byte_tokenizer(rows=ROWS))
        for each in (path, write(tmp_path / "plain.gguf", "llama", model))
    )
    assert scaled.boundaries == ()
    assert scaled.fingerprint != plain.fingerprint, "the factors are of the model"


def test_what_is_said_of_the_file_itself_changes_nothing(tmp_path: Path) -> None:
    model = network("llama")

    def add(file: Any) -> None:
        file.add_string("quantize.imatrix.file", "wiki.txt")
        file.add_string("general.license", "none")
        file.add_bool("llama.rope.scaling.finetuned", True)
        file.add_uint32("llama.expert_count", 0)
        file.add_bool("llama.attention.causal", True)

    assert off(write(tmp_path / "said.gguf", "llama", model, add), model) < 1e-5


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (lambda file: file.add_float32("llama.logit_scale", 0.5), "logit_scale"),
        (lambda file: file.add_sliding_window(8), "attention.sliding_window"),
        (
            lambda file: (
                file.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
                or file.add_string("llama.rope.scaling.future", "x")
            ),
            "rope.scaling.future",
        ),
        (lambda file: file.add_rope_dimension_count(4) or file.add_key_length(8), "rope.*"),
        (lambda file: file.add_uint16("split.count", 3), "split.count"),
    ],
)
def test_what_llama_has_no_place_for_is_named(add: Add, name: str, tmp_path: Path) -> None:
    assert f"states {name}" in said(write(tmp_path / "odd.gguf", "llama", network("llama"), add))


@pytest.mark.parametrize(("blocks", "scalar"), [(62, HIDDEN // HEADS), (34, 256)])
def test_the_largest_gemma_scales_its_scores_otherwise(blocks: int, scalar: int, tmp_path: Path) -> None:
    """llama.cpp writes no key of it, and tells the size by the number of blocks."""
    config = network("gemma3").config
    path = Path(write(tmp_path / "large.gguf", "gemma3", network("gemma3")))
    words = GgufWords.of(path, "large.gguf", set())
    stated = words.stated | {"gemma3.block_count": blocks}
    replace(words, stated=stated).take(config)
    assert (config.num_hidden_layers, config.query_pre_attn_scalar) == (blocks, scalar)


def test_a_way_to_split_text_is_read_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's way begins a number with its space, the other takes every digit alone and the spaces as one piece."""
    usual, way = gguf.GGUFWriter.add_tokenizer_pre, ["smollm"]
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda self, _: usual(self, way[0]))
    digits = write_llama(tmp_path / "digits.gguf", llama(), "f32")
    tokenizer = byte_tokenizer(rows=ROWS)
    GgufWords.of(Path(digits), digits, set()).split(tokenizer)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("x  12 ab")
    assert [piece for piece, _ in pieces] == ["x", "ĠĠ", "1", "2", "Ġab"]
    assert load_model(digits).encode(["x  12 ab"]) == [tokenizer("x  12 ab", add_special_tokens=False).input_ids]
    way[0] = "of-tomorrow"
    odd = write_llama(tmp_path / "odd.gguf", llama(), "f32")
    said = refused(ModelUnsupported, odd)
    assert "states tokenizer.ggml.pre = 'of-tomorrow', which" in said
    assert said.endswith("name the tokenizer of the model that it was made from as tokenizer")
    assert load_model(odd, tokenizer=byte_tokenizer(rows=ROWS)).sizes.vocabulary == ROWS, "a named one needs no key"


def test_errors_of_a_gguf_speak_of_no_config_json(tmp_path: Path) -> None:
    path = write(tmp_path / "deep.gguf", "llama", network("llama"))
    data = Path(path).read_bytes()
    key = b"llama.block_count" + (4).to_bytes(4, "little")
    Path(path).write_bytes(data.replace(key + (LAYERS).to_bytes(4, "little"), key + (10**6).to_bytes(4, "little")))
    with pytest.raises(ModelError) as caught:
        load_model(path, tokenizer=byte_tokenizer(rows=ROWS))
    assert "its configuration says 1,000,000 layers" in str(caught.value)
    assert "config.json" not in str(caught.value)
