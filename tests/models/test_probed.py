"""Layers without a plain matrix (adapted, quantised): their keys and values are what they make of unit vectors."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from mining.conftest import byte_tokenizer, odd_text, tiny_model
from mining.equal_atlases import assert_equal_atlases
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import ModelChanged, ModelUnsupported, ProofFailed
from mnemoscope.foundation.budget import Budget
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, language_model, load_model
from mnemoscope.models.memories.feed_forward import DenseFeedForward
from mnemoscope.models.modules import linear_maps
from mnemoscope.models.modules.linear_maps import LinearMap, is_plain, probe, probe_bias
from mnemoscope.models.opening.huggingface import builtin_folder

# It asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TARGETS = {
    "gpt2": ["c_fc", "mlp.c_proj"],
    "llama": ["gate_proj", "up_proj", "down_proj"],
    "gpt_neox": ["dense_h_to_4h", "dense_4h_to_h", "query_key_value"],
}
"""Which maps are adapted: of Conv1D, of a gated layer, and attention's as well."""
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 5, "batch_tokens": 60, "removals": 4}


def network_of(name: str) -> Any:
    return copy.deepcopy(tiny_model(name).anatomy.model)


def adapted(name: str, **options: Any) -> Any:
    """A tiny model with a LoRA adapter of random numbers."""
    torch.manual_seed(1)
    stored = {"fan_in_fan_out": name == "gpt2", "target_modules": TARGETS[name]}
    config = peft.LoraConfig(r=3, lora_alpha=7, init_lora_weights=False, **stored, **options)
    return peft.get_peft_model(network_of(name), config).eval()


def load(network: Any) -> LanguageModel:
    return load_model(network, tokenizer=byte_tokenizer())


@pytest.mark.fast(0, full=2)
@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("dora", [False, True])
def test_an_adapted_model_is_mined_as_the_one_it_is_merged_into(name: str, dora: bool, tmp_path: Path) -> None:
    network = adapted(name, use_dora=dora)
    (tmp_path / "text.txt").write_text(odd_text())
    model = load(network)
    assert model.probed
    assert model.spec.endswith("+default")
    one = mine(model, tmp_path / "text.txt", out=tmp_path / "adapted", **OPTIONS)
    values, keys = ([read(layer).clone() for layer in range(2)] for read in (model.values, model.keys))
    mark = model.fingerprint
    merged = load(network.merge_and_unload())
    assert not merged.probed
    assert merged.fingerprint != mark
    assert_equal_atlases(one, mine(merged, tmp_path / "text.txt", out=tmp_path / "merged", **OPTIONS))
    for layer in range(2):
        torch.testing.assert_close(values[layer], merged.values(layer), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(keys[layer], merged.keys(layer), atol=1e-6, rtol=1e-5)
    assert (model.fingerprint, model.probed) == (mark, True)
    with pytest.raises(ModelChanged):  # the one network is the merged one by now
        model.coefficients("a")
    assert model.sizes.ffn_parameters == merged.sizes.ffn_parameters


def test_which_adapters_are_at_work_makes_the_model() -> None:
    network = adapted("llama")
    torch.manual_seed(2)
    network.add_adapter("second", peft.LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False))
    prints, values = set(), {}
    for name, active in (("first", "default"), ("second", "second"), ("both", ["default", "second"])):
        network.base_model.set_adapter(active)
        model = load(network)
        prints.add(model.fingerprint)
        values[name] = model.values(0).clone()
    with network.disable_adapter():
        plain = load(network)
        base = plain.values(0).clone()
        prints.add(plain.fingerprint)
    assert len(prints) == 4
    torch.testing.assert_close(base, tiny_model("llama").values(0))
    torch.testing.assert_close(values["first"] + values["second"] - base, values["both"], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(values["first"], base)


def test_the_proof_notices_an_adapter_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    network = adapted("llama").get_base_model()
    monkeypatch.setattr(linear_maps, "is_plain", lambda module: True)  # its weight is then read: the base layer's
    with pytest.raises(ProofFailed, match="check 'ablation'"):
        load(network)


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_a_quantised_model_is_mined_as_the_one_with_widened_weights(name: str, bits: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    per_row = {"granularity": quantization.PerAxis(0)}
    int8, int4 = quantization.Int8WeightOnlyConfig, quantization.IntxWeightOnlyConfig
    config = int8() if bits == "int8" else int4(torch.int4, **per_row)
    network, wide = network_of(name), network_of(name)
    head = network.get_output_embeddings()
    maps = {path: module for path, module in network.named_modules() if isinstance(module, nn.Linear)}
    chosen = {path for path, module in maps.items() if module is not head}
    quantization.quantize_(network, config, filter_fn=lambda module, path: path in chosen)
    with torch.no_grad():
        for path in chosen:
            wide.get_submodule(path).weight.copy_(network.get_submodule(path).weight.dequantize())
    model, twin = load(network), load(wide)
    assert model.probed
    assert not twin.probed
    torch.testing.assert_close(model.values(0), twin.values(0), atol=1e-6, rtol=1e-5)
    (tmp_path / "text.txt").write_text(odd_text())
    one = mine(model, tmp_path / "text.txt", out=tmp_path / "quantised", **OPTIONS)
    assert_equal_atlases(one, mine(twin, tmp_path / "text.txt", out=tmp_path / "wide", **OPTIONS))
    assert load(network).fingerprint == model.fingerprint != twin.fingerprint


def in_four_bits(network: Any, multiplied: torch.dtype = torch.float32) -> Any:
    """The network, changed: its feed-forward maps are bitsandbytes' of four bits, which multiply in this dtype."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    for layer in network.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            own = getattr(layer.mlp, name)
            how = {"bias": False, "compute_dtype": multiplied, "quant_type": "nf4"}
            four = bitsandbytes.nn.Linear4bit(own.in_features, own.out_features, **how)
            four.load_state_dict({"weight": own.weight.detach()})
            setattr(layer.mlp, name, four.to("cpu"))
    return network


@pytest.mark.full
def test_a_four_bit_folder_is_read_in_float32(tmp_path: Path) -> None:
    """As it lies on the hub: packed weights, and all else in bfloat16."""
    pytest.importorskip("bitsandbytes")
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    folder = builtin_folder("pydocs")
    stored = AutoModelForCausalLM.from_pretrained(folder, quantization_config=packed, device_map="cpu")
    stored.save_pretrained(tmp_path / "four")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "four")
    four, whole = load_model(str(tmp_path / "four")), load_model("builtin:pydocs", device="cpu")
    assert (four.probed, four.dtype, four.source) == (True, torch.float32, str(tmp_path / "four"))
    assert four.sizes == whole.sizes
    apart = (four.values(3) - whole.values(3)).abs()
    assert 0 < apart.max() < 0.3 * whole.values(3).abs().max()
    (tmp_path / "text.txt").write_text("The function returns a list.\n\nThe list is empty.\n")
    atlas = mine(four, tmp_path / "text.txt", out=tmp_path / "atlas", prefixes=0)
    assert open_atlas(atlas).manifest["model"]["values"] == "probed"


class Rounding(nn.Linear):
    """What goes in is quantised to eight bits by its largest entry, as formats of that kind do."""

    in_features: int
    out_features: int

    def __init__(self, own: nn.Linear) -> None:
        super().__init__(own.in_features, own.out_features)
        self.weight = nn.Parameter((own.weight.detach() * 100).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", torch.tensor(0.01))

    def forward(self, inputs: Tensor) -> Tensor:
        step = inputs.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
        scale = self.get_buffer("scale")
        return nn.functional.linear((inputs / step).round() * step, self.weight * scale, self.bias)


def test_a_format_that_quantises_what_goes_in_is_refused() -> None:
    network = network_of("llama")
    network.model.layers[0].mlp.down_proj = Rounding(network.model.layers[0].mlp.down_proj)
    with pytest.raises(ModelUnsupported, match="Rounding is not linear in what goes into it"):
        load(network)


@pytest.mark.parametrize("at_once", [1, 3, 1 << 24])
def test_probing_says_what_a_plain_matrix_holds(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Linear(7, 5)
    monkeypatch.setattr(linear_maps, "BUDGET", Budget(unit_vectors=at_once))
    assert torch.equal(probe(plain), plain.weight)
    torch.testing.assert_close(probe_bias(plain), plain.bias)
    assert probe_bias(nn.Linear(7, 5, bias=False)) is None
    assert plain.bias is not None
    assert is_plain(plain)
    assert not probe(plain).requires_grad
    assert not probe_bias(plain).requires_grad


def test_probing_is_not_seen_by_hooks_and_leaves_biases_where_they_were() -> None:
    module, seen = adapted("gpt2").get_base_model().transformer.h[0].mlp.c_proj, []
    module.register_forward_pre_hook(lambda *given: seen.append(given))
    before = {name: value.clone() for name, value in module.named_parameters()}
    half = LinearMap.whole(module).halves(("up", "gate"))
    assert half[0].shape == (8, 24)
    whole = probe(module)
    torch.testing.assert_close(torch.cat([half[1].weight(), half[0].weight()]), whole)
    assert seen == []
    assert {name: value.tolist() for name, value in before.items()} == {
        name: value.tolist() for name, value in module.named_parameters()
    }


def test_values_are_probed_once_and_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    network, asked = adapted("llama"), []
    one = tiny_model("llama").values(0).numel() * 4
    monkeypatch.setattr(language_model, "PROBED_BYTES", 2 * one)  # room for one layer of two, which are a little more
    model = load(network)
    right = DenseFeedForward.values
    monkeypatch.setattr(DenseFeedForward, "values", lambda self: (asked.append(self), right(self))[1])
    first, again = model.values(0), model.values(0)
    assert first is again
    assert len(asked) == 1
    assert model.values(1) is model.values(1)
    assert len(asked) == 2
    assert torch.equal(model.values(0), first)
    assert len(asked) == 3
    plain = load(network_of("llama"))
    assert plain.values(0).data_ptr() == plain.anatomy.model.model.layers[0].mlp.down_proj.weight.data_ptr()
    # Adapters that were switched make another model, which keeps nothing of this one.
    with network.disable_adapter():
        assert torch.equal(load(network).values(0), plain.values(0))
    assert not torch.equal(first, plain.values(0))


def test_what_is_no_linear_map_is_refused() -> None:
    with pytest.raises(ModelUnsupported, match="LayerNorm is neither a matrix nor a linear map"):
        LinearMap.whole(nn.LayerNorm(4))
    wrong = Rounding(nn.Linear(4, 4))
    wrong.out_features = 9
    with pytest.raises(ModelUnsupported, match="returns 4 numbers, but states 9"):
        probe(wrong)
