"""Quantised weights made plain at load: exactly what their format says, and near the model that was quantised."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

from mining.conftest import byte_tokenizer
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import ModelUnsupported, OptionError
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from mnemoscope.models.opening.huggingface import builtin_folder
from models.test_probed import Rounding, in_four_bits, load, network_of

# peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

FORMATS: dict[str, dict[str, Any]] = {
    "llm_int8": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
}
ERRORS = {"llm_int8": 0.01, "nf4": 0.2, "fp4": 0.4}
"""How far a widened weight may lie from the one that was quantised, of the largest in its matrix."""


@pytest.fixture(scope="module", params=list(FORMATS))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    """The name of a format, the folder of the built-in model in it, and the model that was saved there."""
    pytest.importorskip("bitsandbytes")
    logging.disable_progress_bar()
    place = tmp_path_factory.mktemp(request.param)
    folder, packed = builtin_folder("pydocs"), BitsAndBytesConfig(**FORMATS[request.param])
    network = AutoModelForCausalLM.from_pretrained(folder, quantization_config=packed, device_map="cpu")
    network.save_pretrained(place)
    AutoTokenizer.from_pretrained(folder).save_pretrained(place)
    logging.enable_progress_bar()
    return request.param, place, network


@pytest.mark.fast(1)
def test_widened_weights_are_what_the_format_says(stored: tuple[str, Path, Any], tmp_path: Path) -> None:
    from bitsandbytes import functional

    name, folder, network = stored
    model, whole = load_model(str(folder), dequantize=True), load_model("builtin:pydocs", device="cpu")
    assert (model.probed, model.dtype, model.source) == (False, torch.float32, str(folder))
    assert model.sizes == whole.sizes
    down = network.get_submodule("gpt_neox.layers.3.mlp.dense_4h_to_h")
    if name == "llm_int8":
        exact = down.weight.data.float() * (down.weight.SCB[:, None] / 127)
        torch.testing.assert_close(model.values(3), exact.T, atol=1e-7, rtol=1e-6)
    else:
        exact = functional.dequantize_4bit(down.weight.data, down.weight.quant_state)
        assert torch.equal(model.values(3), exact.float().T)
    for layer in range(model.sizes.layers):
        for packed, plain in ((model.values, whole.values), (model.keys, whole.keys)):
            apart = (packed(layer) - plain(layer)).abs().max() / plain(layer).abs().max()
            assert 0 < apart < ERRORS[name]
    assert load_model(str(folder), dequantize=True, dtype="bfloat16").content == model.content
    # What is mined says how it was read.
    (tmp_path / "text.txt").write_text("The function returns a list.\n\nThe list is empty.\n")
    atlas = open_atlas(mine(str(folder), tmp_path / "text.txt", out=tmp_path / "a", prefixes=0, dequantize=True))
    assert atlas.manifest["model"]["values"] == "read"
    assert atlas.manifest.plan["dequantize"] is True


def test_a_format_that_quantises_what_goes_in_names_its_way_out(
    stored: tuple[str, Path, Any], caplog: pytest.LogCaptureFixture
) -> None:
    name, folder, _ = stored
    if name != "llm_int8":
        assert load_model(str(folder)).probed
        return
    with pytest.raises(ModelUnsupported, match=r"Linear8bitLt is not linear .*; dequantize=True widens the weights"):
        load_model(str(folder))
    assert [record for record in caplog.records if record.name.startswith("bitsandbytes")] == []


@pytest.mark.fast(1)
def test_an_adapter_goes_on_packed_and_on_widened_weights(stored: tuple[str, Path, Any], tmp_path: Path) -> None:
    name, folder, _ = stored
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["dense_h_to_4h", "dense_4h_to_h"], init_lora_weights=False)
    plain = AutoModelForCausalLM.from_pretrained(builtin_folder("pydocs"))
    peft.get_peft_model(plain, config).save_pretrained(tmp_path / "adapter")
    adapter = str(tmp_path / "adapter")
    bare = load_model(str(folder), dequantize=True)
    wide = load_model(str(folder), adapter=adapter, dequantize=True)
    assert (bare.probed, wide.probed) == (False, True)
    assert not torch.allclose(bare.values(3), wide.values(3), atol=1e-3)
    if name != "llm_int8":
        packed = load_model(str(folder), adapter=adapter)
        # Widened in bfloat16, which the model was stored in; its layers on a CPU multiply with what was not rounded so.
        limit = float(wide.values(3).abs().max()) / 256
        torch.testing.assert_close(packed.values(3), wide.values(3), atol=limit, rtol=0)


def test_a_model_without_quantised_weights_has_nothing_to_widen() -> None:
    for source in ("builtin:pydocs", "handmade:planted"):
        with pytest.raises(OptionError, match=f"'{source}' has no quantised weights.*leave out dequantize=True"):
            load_model(source, dequantize=True)
    with pytest.raises(OptionError, match="'memory:LlamaForCausalLM' has no quantised weights"):
        load_model(network_of("llama"), tokenizer=byte_tokenizer(), dequantize=True)


def test_a_model_in_memory_is_widened_in_a_copy() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    network = in_four_bits(network_of("llama"))
    probed, read = load(network), load_model(network, tokenizer=byte_tokenizer(), dequantize=True)
    assert (probed.probed, read.probed) == (True, False)
    torch.testing.assert_close(probed.values(0), read.values(0), atol=1e-6, rtol=1e-5)
    assert isinstance(network.model.layers[0].mlp.down_proj, bitsandbytes.nn.Linear4bit)


@pytest.mark.parametrize("bits", ["weights", "activations"])
def test_formats_of_torchao(bits: str) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    kind = "Int8WeightOnlyConfig" if bits == "weights" else "Int8DynamicActivationInt8WeightConfig"
    config = getattr(quantization, kind)()
    network, whole = network_of("llama"), load(network_of("llama"))
    quantization.quantize_(network, config, filter_fn=lambda module, path: "mlp" in path and type(module) is nn.Linear)
    if bits == "activations":
        with pytest.raises(ModelUnsupported, match="dequantize=True"):
            load(network)
    exact = network.model.layers[0].mlp.down_proj.weight.dequantize()
    model = load_model(network, tokenizer=byte_tokenizer(), dequantize=True)
    assert not model.probed
    assert torch.equal(model.values(0), exact.T)
    assert (model.values(0) - whole.values(0)).abs().max() < 0.01 * whole.values(0).abs().max()


def test_what_cannot_be_unpacked_is_named() -> None:
    network = network_of("llama")
    network.model.layers[0].mlp.down_proj = Rounding(network.model.layers[0].mlp.down_proj)
    with pytest.raises(ModelUnsupported, match="nothing here knows how to unpack a Rounding"):
        load_model(network, tokenizer=byte_tokenizer(), dequantize=True)
