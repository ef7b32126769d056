"""`.gguf` files as llama.cpp writes them: the same model as its plain twin."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import ModelDamaged, ModelError, ModelNotFound, ModelUnsupported, TokenizerNotFound
from mnemoscope.models import LanguageModel, load_model
from models.conftest import refused
from models.gguf_files import HEADS, HIDDEN, LAYERS, ROWS, network, stored, write


def written(path: Path, form: str = "f16", **options: Any) -> str:
    return write(path, "llama", network("llama"), form=form, **options)


def rounded(form: str) -> Any:
    """The same model with what the format makes of every matrix."""
    model, quantised = network("llama"), gguf.GGMLQuantizationType[form.upper()]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                heads = HEADS if "q_proj" in name else 2 if "k_proj" in name else 0
                own = stored("llama", {HEADS: "attn_q.", 2: "attn_k."}.get(heads, ""), weight)
                wide = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(own, quantised), quantised))
                back = wide.reshape(heads, -1, 2, HIDDEN).swapaxes(1, 2).reshape(wide.shape) if heads else wide
                weight.copy_(back)
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
    source = written(tmp_path / "model.gguf", kind)
    model, twin = load_model(source), load_model(rounded(kind), tokenizer=byte_tokenizer(rows=ROWS))
    assert (model.source, model.spec, model.hub) == (source, "model", None)
    assert (model.family, model.probed, model.dtype, model.sizes) == ("llama", False, torch.float32, twin.sizes)
    same_numbers(model, twin)
    text = ["the cat sat on the mat", " x<|endoftext|>y", "Straße\n"]
    assert (model.encode(text), model.beginning.token) == (twin.encode(text), 0)
    shutil.copy(source, tmp_path / "elsewhere.gguf")
    assert load_model(str(tmp_path / "elsewhere.gguf")).fingerprint == model.fingerprint
    assert load_model(source, dequantize=True).fingerprint == model.fingerprint


def test_what_lies_beside_the_file_is_not_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging.enable_progress_bar()
    usual = modeling_gguf_pytorch_utils.tqdm
    alone = load_model(written(tmp_path / "model.gguf"))
    assert capfd.readouterr().err == "", "no bar of a library stands between our lines"
    assert modeling_gguf_pytorch_utils.tqdm is usual
    byte_tokenizer(["quite other words"], rows=270).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert load_model(str(tmp_path / "model.gguf")).fingerprint == alone.fingerprint


def test_a_file_without_a_tokenizer_takes_one_that_is_named(tmp_path: Path) -> None:
    bare = written(tmp_path / "bare.gguf", words=False)
    assert "holds no tokenizer; name a folder or hub id with one as tokenizer" in refused(TokenizerNotFound, bare)
    byte_tokenizer(rows=ROWS).save_pretrained(tmp_path / "words")
    model = load_model(bare, tokenizer=str(tmp_path / "words"))
    same_numbers(model, load_model(rounded("f16"), tokenizer=byte_tokenizer(rows=ROWS)))


def test_what_cannot_be_read_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "garbage.gguf").write_bytes(b"no such thing")
    assert "is not a GGUF file" in refused(ModelDamaged, str(tmp_path / "garbage.gguf"))
    assert "no folder" in refused(ModelNotFound, str(tmp_path / "missing.gguf"))
    whole = Path(written(tmp_path / "whole.gguf"))
    for size in (9, 2000, whole.stat().st_size - 5000):
        (tmp_path / "short.gguf").write_bytes(whole.read_bytes()[:size])
        assert "short.gguf" in refused(ModelError, str(tmp_path / "short.gguf"))
    strange = written(tmp_path / "strange.gguf", architecture="nothing-known")
    assert "nothing-known" in refused(ModelUnsupported, strange)
    assert main(["inspect", strange]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("mnemoscope: ")
    narrow = written(tmp_path / "narrow.gguf", "q8_1")
    assert "Dequantization" in refused(ModelUnsupported, narrow)
