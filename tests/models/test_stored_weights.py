"""What a model's files hold beside what the model takes: counted, and refused where packed weights lie unread."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError, ModelUnsupported
from mnemoscope.models import load_model
from models.conftest import build

Weights = dict[str, torch.Tensor]
MATRIX = "model.layers.1.mlp.down_proj.weight"


def write(folder: Path, change: Callable[[Weights], Weights] = lambda weights: weights, **config: Any) -> Path:
    build("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    stated = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


def packed(scale: str | None) -> Callable[[Weights], Weights]:
    """Matrices in eight-bit floats, divided by what lies beside them under the name `scale`."""

    def change(weights: Weights) -> Weights:
        found = dict(weights)
        for name, weight in weights.items():
            if name.endswith("_proj.weight"):
                size = weight.abs().max() / 448
                found[name] = (weight / size).to(torch.float8_e4m3fn)
                if scale is not None:
                    found[name.removesuffix("weight") + scale] = size
        return found

    return change


def with_one(name: str, number: float = 1.0) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {name: torch.full((3,), number)}


FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}


@pytest.mark.parametrize(
    ("scale", "config", "said"),
    [
        ("weight_scale", {}, r"does not use \d+ of its weights that look like scales .* 'model.layers.0.mlp.down"),
        ("weight_scale", {"quantization_config": MODELOPT}, r"cannot read, modelopt \(FP8\): it would take them for"),
        ("weight_scale", {"quantization_config": {**MODELOPT, "quant_algo": "NVFP4"}}, r"modelopt \(NVFP4\)"),
        ("weight_scale", {"quantization_config": {"quant_method": "exl2", "bits": 4.0}}, "cannot read, exl2: "),
        ("scales", {"quantization": {"group_size": 64, "bits": 4}}, "cannot read, MLX: "),
        (None, {}, r"holds 'model.layers.0.mlp.down_proj.weight' in F8_E4M3, and nothing that says what"),
        (None, {"quantization_config": FP8}, r"holds 'model.layers.0.\S+ in float8_e4m3fn, and nothing that says"),
    ],
    ids=["scales unread", "modelopt", "nvfp4", "exl2", "mlx", "no scales", "blocks without scales"],
)
def test_packed_weights_that_nobody_unpacks_are_refused(
    tmp_path: Path, scale: str | None, config: dict[str, Any], said: str
) -> None:
    folder = write(tmp_path / "model", packed(scale), **config)
    with pytest.raises(ModelUnsupported, match=said) as caught:
        load_model(str(folder))
    assert "use the original model, before it was quantised" in str(caught.value)


def test_a_format_that_is_told_beside_the_configuration(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", packed("weight_scale"))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(ModelUnsupported, match=r"cannot read, modelopt \(NVFP4\)"):
        load_model(str(folder))
    (folder / "hf_quant_config.json").write_text("not json")
    with pytest.raises(ModelUnsupported, match="cannot read, modelopt: "):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["qzeros", "g_idx", "weight.absmax", "input_scale", "weight_packed", "scales", "SCB"])
def test_what_looks_like_a_scale_is_refused(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "model", with_one(f"model.layers.0.mlp.down_proj.{name}"))
    with pytest.raises(ModelUnsupported, match=rf"1 of its weights that look like scales .*{name}'"):
        load_model(str(folder))
    if name == "SCB":  # and so are whole numbers without a quantiser
        folder = write(tmp_path / "whole", lambda weights: weights | {MATRIX: (weights[MATRIX] * 9).to(torch.int8)})
        with pytest.raises(ModelUnsupported, match=f"holds '{MATRIX}' in I8, and nothing that says"):
            load_model(str(folder))


def test_the_scales_of_blocks_are_read_as_ever(tmp_path: Path) -> None:
    """As transformers unpacks them, which knows this format."""
    plain = load_model(str(write(tmp_path / "plain"))).values(1)
    stated = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    folder = write(tmp_path / "model", packed("weight_scale_inv"), quantization_config=stated)
    found = load_model(str(folder)).values(1)
    assert (found - plain).abs().max() < 0.07 * plain.abs().max()
    assert found.abs().max() < 10


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.mtp.layers.0.mlp.down_proj.weight", "vision.norm"]
)
def test_weights_that_are_left_out_are_counted(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "model", with_one(name))
    model = load_model(str(folder))
    assert model.unread in ((name,), ()), "transformers itself passes over some"
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread_weights"] == len(model.unread)
    assert main(["inspect", str(folder)]) == 0
    assert (f"not read    1 stored weights, such as {name}" in capsys.readouterr().out) == bool(model.unread)


def test_a_whole_model_leaves_nothing(tmp_path: Path) -> None:
    """Also beside the files of macOS, with a configuration that wants tuples, and a bound that never holds."""
    plain = load_model(str(write(tmp_path / "plain")))
    assert plain.unread == ()
    folder = write(tmp_path / "model", return_dict=False)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "._other.safetensors").write_bytes(b"\0\5\26\7")
    (folder / "._config.json").write_bytes(b"\0\5\26\7")
    assert load_model(str(folder)).fingerprint == plain.fingerprint
    network = build("llama")
    network.config.of_pictures = {64: 8, 128: 16}  # whole numbers as keys
    network.model.register_buffer("input_max", torch.tensor(float("inf")))
    assert len(load_model(network, tokenizer=byte_tokenizer()).fingerprint) == 64


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
TEXT = SIZES | {"vocab_size": 280, "max_position_embeddings": 64, "pad_token_id": 0}
VISION = {"embed_dim": 32, "image_size": 32, "patch_size": 16, "intermediate_size": 48}
VISION |= {"num_hidden_layers": 1, "num_attention_heads": 4}


def test_a_model_that_text_alone_cannot_run_says_so(tmp_path: Path) -> None:
    idefics = transformers.IdeficsConfig(**TEXT, vision_config=VISION, use_resampler=False, cross_layer_interval=1)
    transformers.IdeficsForVisionText2Text(idefics).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(MnemoscopeError, match="cannot be run: Exactly 1 of pixel_values, "):
        load_model(str(tmp_path))
