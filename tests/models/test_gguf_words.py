"""What a `.gguf` file says: read as the model that it was written from, or refused by name, never passed over.

For every architecture of transformers' table.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf import GGUF_CONFIG_ARCHS

from mining.conftest import byte_tokenizer
from mnemoscope.errors import ModelError, ModelUnsupported
from mnemoscope.models import load_model
from mnemoscope.models.opening.gguf_words import GgufWords
from models.conftest import refused
from models.gguf_files import HEADS, HIDDEN, LAYERS, MODELS, ROWS, Add, network, write

REFUSED = {"mistral", "t5", "umt5", "mamba", "deci", "gpt_oss", "minimax_m2", "gemma4", "qwen35", "qwen35moe"}
"""Those of transformers' table that are no decoders of memories, or of which no tiny file is written here."""
NAMES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}


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


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SCALED: dict[str, tuple[dict[str, Any], Add]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, lambda file: scale(file, gguf.RopeScalingType.LINEAR)),
    "yarn": (YARN, lambda file: scale(file, gguf.RopeScalingType.YARN)),
    "yarn of another strength": (
        YARN | {"attention_factor": 0.5 * (1 + 0.1 * math.log(4.0))},
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
    rope = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    model = network("llama", rope_parameters=rope | {"low_freq_factor": 1.0, "high_freq_factor": 4.0})
    factors = 10000.0 ** -(torch.arange(0, 8, 2) / 8) / model.model.rotary_emb.inv_freq
    assert sorted({round(float(factor), 2) for factor in factors})[-1] == 8
    path = write(tmp_path / "three.gguf", "llama", model, tensors={"rope_freqs.weight": factors})
    assert off(path, model) < 1e-5
    scaled, plain = map(load_model, (path, write(tmp_path / "plain.gguf", "llama", model)))
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
    digits = write(tmp_path / "digits.gguf", "llama", network("llama"))
    tokenizer = byte_tokenizer(rows=ROWS)
    GgufWords.of(Path(digits), digits, set()).split(tokenizer)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("x  12 ab")
    assert [piece for piece, _ in pieces] == ["x", "ĠĠ", "1", "2", "Ġab"]
    assert load_model(digits).encode(["x  12 ab"]) == [tokenizer("x  12 ab", add_special_tokens=False).input_ids]
    way[0] = "of-tomorrow"
    odd = write(tmp_path / "odd.gguf", "llama", network("llama"))
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
