"""`.gguf` files, written by the package of that name as llama.cpp writes them: the same model as its plain twin."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, TokenizerNotFound
from mnemoscope.models import LanguageModel, load_model
from models.conftest import refused

HIDDEN, MEMORIES, LAYERS, HEADS = 32, 64, 2, 4
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def network() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=280,
        hidden_size=HIDDEN,
        intermediate_size=MEMORIES,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config).eval()


def named(name: str) -> str:
    """What llama.cpp calls a weight."""
    path = name.removesuffix(".weight")
    if path in TOP:
        return f"{TOP[path]}.weight"
    _, _, layer, rest = path.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def turned(weight: Tensor) -> Tensor:
    """Rows of queries and keys in the order in which llama.cpp rotates them."""
    return weight.reshape(HEADS, 2, -1, HIDDEN).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, model: Any, kind: str, *, words: bool = True, architecture: str = "llama") -> str:
    """The file of that model with its matrices as `f16`, `f32` or `q8_0`; `words`: with its tokenizer."""
    writer = gguf.GGUFWriter(str(path), architecture)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MEMORIES)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if words:
        pieces = byte_tokenizer(rows=280).get_vocab()
        merges = [" ".join(pair) for pair in byte_tokenizer_merges()]
        tokens = sorted(pieces, key=pieces.__getitem__)
        tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token in tokens])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
    quantised = gguf.GGMLQuantizationType[kind.upper()]
    for name, weight in model.state_dict().items():
        weight = turned(weight) if "q_proj" in name or "k_proj" in name else weight
        matrix = weight.numpy().astype(np.float32)
        if weight.dim() == 1 or kind == "f32":
            writer.add_tensor(named(name), matrix)
        elif kind == "f16":
            writer.add_tensor(named(name), matrix.astype(np.float16))
        else:
            blocks, size = gguf.GGML_QUANT_SIZES[quantised]
            empty = np.zeros((len(matrix), matrix.shape[1] // blocks * size), np.uint8)
            packed = empty if kind == "q8_1" else gguf.quants.quantize(matrix, quantised)
            writer.add_tensor(named(name), packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def byte_tokenizer_merges() -> list[tuple[str, str]]:
    described = json.loads(byte_tokenizer(rows=280).backend_tokenizer.to_str())
    return [tuple(pair) for pair in described["model"]["merges"]]


def rounded(kind: str) -> Any:
    """The same model with what the format makes of every matrix."""
    model = network()
    quantised = gguf.GGMLQuantizationType[kind.upper()]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                own = turned(weight) if "q_proj" in name or "k_proj" in name else weight
                wide = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(own.numpy(), quantised), quantised))
                back = wide.reshape(HEADS, -1, 2, HIDDEN).swapaxes(1, 2).reshape(own.shape)
                weight.copy_(back if own is not weight else wide)
    return model


def same_numbers(one: LanguageModel, other: LanguageModel) -> None:
    ids = torch.tensor([[1, 2, 3, 40, 41]])
    torch.testing.assert_close(one.logits(ids), other.logits(ids), atol=1e-6, rtol=1e-5)
    for layer in range(LAYERS):
        assert torch.equal(one.values(layer), other.values(layer))
        assert torch.equal(one.keys(layer), other.keys(layer))


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_a_file_is_the_model_of_its_rounded_weights(kind: str, tmp_path: Path) -> None:
    source = write(tmp_path / "model.gguf", network(), kind)
    model, twin = load_model(source), load_model(rounded(kind), tokenizer=byte_tokenizer(rows=280))
    assert (model.source, model.spec, model.hub) == (source, "model", None)
    assert (model.family, model.probed, model.dtype) == ("llama", False, torch.float32)
    assert model.sizes == twin.sizes
    same_numbers(model, twin)
    text = ["the cat sat on the mat", " x<|endoftext|>y", "Straße\n"]
    assert model.encode(text) == twin.encode(text)
    assert model.beginning.token == 0
    shutil.copy(source, tmp_path / "elsewhere.gguf")
    assert load_model(str(tmp_path / "elsewhere.gguf")).fingerprint == model.fingerprint
    assert load_model(source, dequantize=True).fingerprint == model.fingerprint


def test_what_lies_beside_the_file_is_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.enable_progress_bar()
    usual = modeling_gguf_pytorch_utils.tqdm
    alone = load_model(write(tmp_path / "model.gguf", network(), "f16"))
    assert capfd.readouterr().err == "", "no bar of a library stands between our lines"
    assert modeling_gguf_pytorch_utils.tqdm is usual
    byte_tokenizer(["quite other words"], rows=270).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert load_model(str(tmp_path / "model.gguf")).fingerprint == alone.fingerprint


def test_a_file_without_a_tokenizer_takes_one_that_is_named(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.gguf", network(), "f16", words=False)
    assert "holds no tokenizer; name a folder or hub id with one as tokenizer" in refused(TokenizerNotFound, bare)
    byte_tokenizer(rows=280).save_pretrained(tmp_path / "words")
    model = load_model(bare, tokenizer=str(tmp_path / "words"))
    same_numbers(model, load_model(rounded("f16"), tokenizer=byte_tokenizer(rows=280)))


def test_what_cannot_be_read_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "garbage.gguf").write_bytes(b"no such thing")
    assert "is not a GGUF file" in refused(ModelDamaged, str(tmp_path / "garbage.gguf"))
    assert "no folder" in refused(ModelNotFound, str(tmp_path / "missing.gguf"))
    whole = Path(write(tmp_path / "whole.gguf", network(), "f16"))
    for size in (9, 2000, whole.stat().st_size - 5000):
        (tmp_path / "short.gguf").write_bytes(whole.read_bytes()[:size])
        assert "short.gguf" in refused(ModelError, str(tmp_path / "short.gguf"))
    strange = write(tmp_path / "strange.gguf", network(), "f16", architecture="nothing-known")
    assert "nothing-known" in refused(ModelUnsupported, strange)
    assert main(["inspect", strange]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("mnemoscope: ")
    narrow = write(tmp_path / "narrow.gguf", network(), "q8_1")
    assert "Dequantization" in refused(ModelUnsupported, narrow)
