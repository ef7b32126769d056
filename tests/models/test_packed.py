"""Packed formats that are read by what their layers do, or widened by transformers: GPTQ, AWQ, MXFP4, block FP8.

The libraries of GPTQ and AWQ need a GPU to pack a model. Their layers are stood in for by modules that hold the same
buffers, packed in the same way, and compute as theirs do; what they stand for is unpacked here number by number.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mining.conftest import byte_tokenizer, odd_text
from mining.equal_atlases import assert_equal_atlases
from mnemoscope.cli import main
from mnemoscope.errors import ModelUnsupported
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from mnemoscope.models.modules import linear_maps
from mnemoscope.models.modules.linear_maps import precision_of, probe, probe_bias
from mnemoscope.models.opening import huggingface
from mnemoscope.models.proof.proof import HALF_LIMIT, LIMITS
from models.expert_models import build_mixture
from models.test_probed import OPTIONS, Rounding, in_four_bits, load, network_of

BITS, GROUP = 4, 8
_SHIFTS = torch.arange(0, 32, BITS, dtype=torch.int32)


class Gptq(nn.Module):
    """Eight numbers of four bits in an int32 along the inputs, a scale and a zero for each group of inputs."""

    def __init__(self, inside: int, outside: int, *, bias: bool, old_names: bool, act_order: bool, generator: Any):
        super().__init__()
        names = ("infeatures", "outfeatures") if old_names else ("in_features", "out_features")
        for name, size in zip(names, (inside, outside), strict=True):
            setattr(self, name, size)
        self.sizes = inside, outside
        groups = inside // GROUP
        packed = torch.iinfo(torch.int32)

        def integers(*shape: int) -> Tensor:
            return torch.randint(packed.min, packed.max, shape, generator=generator, dtype=torch.int32)

        self.register_buffer("qweight", integers(inside // 8, outside))
        self.register_buffer("qzeros", integers(groups, outside // 8))
        self.register_buffer("scales", (0.02 + 0.03 * torch.rand(groups, outside, generator=generator)).half())
        order = torch.arange(inside) // GROUP
        order = order[torch.randperm(inside, generator=generator)] if act_order else order
        self.register_buffer("g_idx", order.to(torch.int32))
        self.register_buffer("bias", torch.rand(outside, generator=generator).half() if bias else None)

    def matrix(self) -> Tensor:
        """[in, out], float16."""
        weight = (self.qweight[:, None] >> _SHIFTS[None, :, None]) & 15
        zeros = (self.qzeros[:, :, None] >> _SHIFTS) & 15
        weight, zeros, group = weight.reshape(self.sizes), zeros.reshape(-1, self.sizes[1]), self.g_idx.long()
        return self.scales[group] * (weight - zeros[group])

    def forward(self, inputs: Tensor) -> Tensor:
        given = inputs.reshape(-1, self.sizes[0]) @ self.matrix().to(inputs.dtype)
        given = given if self.bias is None else given + self.bias.to(inputs.dtype)
        return given.reshape(*inputs.shape[:-1], self.sizes[1])


class Awq(Gptq):
    """As `Gptq`, but it multiplies in half precision, whatever goes in."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.half()).to(inputs.dtype)


class Strict(Gptq):
    """As `Gptq`, but it takes the dtype of its scales alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        given = inputs @ self.matrix()
        return given if self.bias is None else given + self.bias


def unpacked(module: Gptq) -> Tensor:
    """The matrix [out, in] of its buffers, one number after the other, in float16."""
    inside, outside = module.sizes
    made = torch.zeros(outside, inside, dtype=torch.float16)
    for i in range(inside):
        for o in range(outside):
            group = int(module.g_idx[i])
            code = (int(module.qweight[i // 8, o]) >> (4 * (i % 8))) & 15
            zero = (int(module.qzeros[group, o // 8]) >> (4 * (o % 8))) & 15
            made[o, i] = module.scales[group, o] * (code - zero)
    return made


def packed_and_wide(kind: Any, **options: Any) -> tuple[Any, Any]:
    """A tiny Llama with layers of the kind in its feed-forward layers, and one with what they stand for."""
    generator = torch.Generator().manual_seed(5)
    network, wide = network_of("llama"), network_of("llama")
    for layer, plain in zip(network.model.layers, wide.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            own = getattr(plain.mlp, name)
            module = kind(own.in_features, own.out_features, generator=generator, **options)
            setattr(layer.mlp, name, module)
            own.weight.data = unpacked(module).float()
            own.bias = None if module.bias is None else nn.Parameter(module.bias.float())
    return network, wide


@pytest.mark.full
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", [Gptq, Awq])
def test_what_stands_for_gptq_and_awq(kind: Any, bias: bool, tmp_path: Path) -> None:
    network, wide = packed_and_wide(kind, bias=bias, old_names=bias, act_order=not bias)
    model, twin = load(network), load(wide)
    assert (model.probed, twin.probed, model.dtype, model.sizes) == (True, False, torch.float32, twin.sizes)
    for layer in range(model.sizes.layers):
        assert torch.equal(model.values(layer).float(), twin.values(layer))
        assert torch.equal(model.keys(layer).float(), twin.keys(layer))
    if kind is Gptq and not bias:
        (tmp_path / "text.txt").write_text(odd_text())
        one = mine(model, tmp_path / "text.txt", out=tmp_path / "packed", **OPTIONS)
        assert_equal_atlases(one, mine(twin, tmp_path / "text.txt", out=tmp_path / "wide", **OPTIONS))
    read = load_model(network, tokenizer=byte_tokenizer(), dequantize=True)
    assert not read.probed
    assert torch.equal(read.values(0).float(), twin.values(0))
    assert read.sizes == twin.sizes
    assert isinstance(network.model.layers[0].mlp.down_proj, kind)


def test_the_proof_s_limit_is_that_of_the_products() -> None:
    """Half precision inside a float32 model: right to half precision, and refused where it is not."""
    network, _ = packed_and_wide(Awq, bias=False, old_names=False, act_order=False)
    module = network.model.layers[0].mlp.down_proj
    assert precision_of(module) == torch.float16
    model = load(network)
    assert LIMITS[torch.float32] < max(model.proof.ablation, model.proof.keys) < HALF_LIMIT
    assert model.proof.residual < LIMITS[torch.float32]
    for kind, dtype in ((Gptq, torch.float32), (Strict, torch.float16)):
        other = kind(16, 24, bias=True, old_names=False, act_order=True, generator=torch.Generator().manual_seed(1))
        assert precision_of(other) == dtype
        assert torch.equal(probe(other).half(), unpacked(other))
        assert torch.equal(probe_bias(other).half(), other.bias)
    assert precision_of(nn.Linear(3, 4)) == torch.float32


def test_strict_layers_are_read_in_the_dtype_that_they_take() -> None:
    network, _ = packed_and_wide(Strict, bias=False, old_names=False, act_order=True)
    with pytest.raises(ModelUnsupported, match="cannot be run"):
        load(network)
    model = load_model(network, tokenizer=byte_tokenizer(), dtype="float16")
    assert (model.probed, model.dtype, model.values(0).dtype) == (True, torch.float16, torch.float16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("streams", ["float32", "bfloat16"])
def test_four_bits_that_multiply_in_any_precision(dtype: str, streams: str) -> None:
    """Half is the usual setting of what lies on the hub."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    network = in_four_bits(network_of("llama").to(getattr(torch, streams)), getattr(torch, dtype))
    model = load(network)
    assert (model.probed, str(model.dtype)) == (True, f"torch.{streams}")
    down = network.model.layers[0].mlp.down_proj
    wide = bitsandbytes.functional.dequantize_4bit(down.weight.data, down.weight.quant_state)
    exact = dtype == streams == "float32"
    close = {"atol": 1e-6, "rtol": 1e-5} if exact else {"atol": 1e-3, "rtol": 1e-2}
    torch.testing.assert_close(model.values(0).float(), wide.T.float(), **close)
    assert load(network).fingerprint == model.fingerprint


def test_eight_bits_for_what_goes_in_are_told_from_half_precision() -> None:
    """In half precision too, where rounding could hide them."""
    rounding = Rounding(nn.Linear(64, 48, bias=False)).bfloat16()
    with pytest.raises(ModelUnsupported, match="not linear in what goes into it"):
        probe(rounding)
    torch.manual_seed(0)
    half = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 48, bias=False)).bfloat16()
    half.in_features, half.out_features = 64, 48  # two roundings, as in a LoRA layer
    assert linear_maps.is_plain(half) is False
    assert probe(half).shape == (48, 64)


def test_the_library_of_a_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, network_of("llama"))
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Loading this model requires something (`pip install something`)")

    monkeypatch.setattr(huggingface.AutoModelForCausalLM, "from_pretrained", missing)
    with pytest.raises(ModelUnsupported, match="pip install something"):
        load_model(str(tmp_path))
    assert (main(["inspect", str(tmp_path)]), capsys.readouterr().err.count("\n")) == (2, 1)


def save(folder: Path, network: Any) -> dict[str, Tensor]:
    """Saves model and tokenizer; returns the weights, to be packed."""
    network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def save_packed(folder: Path, weights: dict[str, Tensor], quantization: dict[str, Any]) -> str:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return str(folder)


FOUR_BIT_FLOATS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_experts_in_mxfp4_are_widened_at_load(tmp_path: Path) -> None:
    network = build_mixture("gpt_oss", hidden_size=64, intermediate_size=32, head_dim=32).to(torch.bfloat16)
    weights, generator = save(tmp_path, network), torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inside, outside = weights.pop(name).shape
        codes = torch.randint(0, 16, (experts, outside, inside // 32, 32), generator=generator)
        exponents = torch.randint(-4, 0, (experts, outside, inside // 32), generator=generator)
        exact = (FOUR_BIT_FLOATS[codes] * 2.0 ** exponents[..., None]).reshape(experts, outside, inside)
        network.get_parameter(name).data = exact.transpose(1, 2).contiguous().bfloat16()
        weights[f"{name}_blocks"] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).to(torch.uint8)
        weights[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    folder = save_packed(tmp_path, weights, {"quant_method": "mxfp4", "modules_to_not_convert": left})
    save(tmp_path / "wide", network)
    model, twin = load_model(folder, device="cpu"), load_model(str(tmp_path / "wide"), device="cpu")
    assert (model.probed, model.dtype) == (False, torch.float32)
    assert load_model(folder, device="cpu", dequantize=True).fingerprint == model.fingerprint
    assert model.sizes == twin.sizes
    for layer in range(model.sizes.layers):
        assert torch.equal(model.values(layer), twin.values(layer))
        assert torch.equal(model.keys(layer), twin.keys(layer))
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model.logits(ids), twin.logits(ids))


def test_blocks_of_float8_are_widened_at_load(tmp_path: Path) -> None:
    network = network_of("llama").to(torch.bfloat16)
    weights, generator = save(tmp_path, network), torch.Generator().manual_seed(0)
    for name in [name for name in weights if "_proj" in name]:
        outside, inside = weights[name].shape
        packed = torch.randn(outside, inside, generator=generator).to(torch.float8_e4m3fn)
        scales = 0.05 + 0.1 * torch.rand(-(-outside // 8), -(-inside // 8), generator=generator)
        exact = packed.float() * scales.repeat_interleave(8, 0)[:outside].repeat_interleave(8, 1)[:, :inside]
        network.get_parameter(name).data = exact.bfloat16()
        weights |= {name: packed, f"{name}_scale_inv": scales}
    quantization = {"quant_method": "fp8", "weight_block_size": [8, 8], "activation_scheme": "dynamic"}
    model = load_model(save_packed(tmp_path, weights, quantization), device="cpu")
    twin = load(network.float())
    assert not model.probed
    for layer in range(model.sizes.layers):
        torch.testing.assert_close(model.values(layer), twin.values(layer), atol=0, rtol=2**-7)
        torch.testing.assert_close(model.keys(layer), twin.keys(layer), atol=0, rtol=2**-7)
