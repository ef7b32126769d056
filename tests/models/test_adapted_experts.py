"""Adapters and packed weights on mixtures of experts: read as the merged or widened model is, by a loop over tokens."""

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch

from mining.conftest import byte_tokenizer, odd_text
from mining.expert_reference import ExpertReference, assert_mixture
from mining.reference import documents_of, sentences_of
from mnemoscope.errors import ProofFailed
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model, read_coefficients
from mnemoscope.models.memories.routed_experts import Stacks
from models.expert_models import HandRead, blocks_of, build_mixture
from models.test_experts import IDS, read

# It asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

_STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
_OF_LLAMA4 = [name.replace("mlp", "feed_forward") for name in _STACKS]
_SHARED = [f"shared_expert.{name}_proj" for name in ("gate", "up", "down")]
PLACES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "both stacks": ("mixtral", {"target_parameters": _STACKS, "target_modules": []}, True),
    "one stack": ("qwen2_moe", {"target_parameters": _STACKS[1:], "target_modules": ["q_proj"]}, True),
    "stacks the other way round": ("gpt_oss", {"target_parameters": _STACKS, "target_modules": []}, True),
    "weighed inputs": ("llama4", {"target_parameters": _OF_LLAMA4, "target_modules": []}, True),
    "shared expert": ("qwen2_moe", {"target_modules": _SHARED}, True),
    "shared expert's gate": ("qwen2_moe", {"target_modules": ["shared_expert_gate"]}, False),
    "router": ("mixtral", {"target_parameters": ["mlp.gate.weight"], "target_modules": []}, False),
    "attention alone": ("mixtral", {"target_modules": ["q_proj", "v_proj"]}, False),
}
"""Of which model what is adapted, and whether keys or values are then no longer what is stored."""


def adapt(name: str, **options: Any) -> Any:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, lora_alpha=3, init_lora_weights=False, **options)
    return peft.get_peft_model(build_mixture(name), config).eval()


def load(network: Any) -> LanguageModel:
    return load_model(network, tokenizer=byte_tokenizer())


@pytest.mark.fast(2)
@pytest.mark.parametrize("place", list(PLACES))
def test_it_is_read_as_the_merged_model_by_hand(place: str) -> None:
    name, options, probed = PLACES[place]
    network = adapt(name, **options)
    model = load(network)
    found, own = read(model, IDS), [model.values(layer).clone() for layer in range(model.sizes.layers)]
    keys = [(model.keys(layer).clone(), model.up_keys(layer).clone()) for layer in range(model.sizes.layers)]
    bare = read(load(build_mixture(name)), IDS)
    merged = network.merge_and_unload()
    hand = HandRead(merged, name)
    expected, _ = hand.read(IDS)
    assert model.probed == probed
    assert any(not torch.allclose(found[layer], bare[layer], atol=1e-3) for layer in found)
    twin = load(merged)
    assert model.sizes.ffn_parameters == twin.sizes.ffn_parameters
    for layer in range(model.sizes.layers):
        torch.testing.assert_close(found[layer], expected[layer], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(own[layer], hand.values(layer), atol=1e-6, rtol=1e-5)
        for mine_, theirs in zip(keys[layer], (twin.keys(layer), twin.up_keys(layer)), strict=True):
            torch.testing.assert_close(mine_, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("place", ["both stacks", "shared expert"])
def test_it_is_mined_as_the_merged_model_is_by_brute_force(place: str, tmp_path: Path) -> None:
    name, options, _ = PLACES[place]
    network, text = adapt(name, **options), odd_text()
    (tmp_path / "text.txt").write_text(text)
    mining = {"split": "line", "triggers": 7, "removals": 2, "prefixes": 40}
    out = mine(load(network), tmp_path / "text.txt", out=tmp_path / "adapted", **mining)
    found = sentences_of(documents_of(text, "line"), lambda line: [line], byte_tokenizer(), longest=64)
    reference = ExpertReference(network.merge_and_unload(), name, found, beginning=None)
    assert_mixture(out, reference, tmp_path / "flat", keep=7, vocabulary=280)


def test_several_adapters_of_experts_and_none() -> None:
    network = adapt("mixtral", target_parameters=_STACKS, target_modules=[])
    torch.manual_seed(2)
    second = peft.LoraConfig(r=2, target_parameters=_STACKS, target_modules=[], init_lora_weights=False)
    network.add_adapter("second", second)
    values, prints = {}, set()
    for name, active in (("first", "default"), ("second", "second"), ("both", ["default", "second"])):
        network.base_model.set_adapter(active)
        model = load(network)
        values[name] = model.values(1).clone()
        prints.add(model.fingerprint)
    with network.disable_adapter():
        model = load(network)
        base = model.values(1).clone()
        prints.add(model.fingerprint)
    assert len(prints) == 4
    assert torch.equal(base, load(build_mixture("mixtral")).values(1))
    torch.testing.assert_close(values["first"] + values["second"] - base, values["both"], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(values["first"], base, atol=1e-3)


def test_values_asked_for_while_the_model_runs_are_adapted_once() -> None:
    model = load(adapt("mixtral", target_parameters=_STACKS, target_modules=[]))
    before, seen = model.layer(0).ffn.values().clone(), {}
    with read_coefficients(model, lambda layer, _: seen.__setitem__(layer, model.layer(0).ffn.values().clone())):
        model.backbone(torch.tensor([IDS]))
    assert list(seen) == [0, 1]
    for found in seen.values():
        torch.testing.assert_close(found, before, atol=1e-6, rtol=1e-5)


def test_the_proof_notices_an_adapter_of_experts_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    network = adapt("mixtral", target_parameters=_STACKS, target_modules=[])
    monkeypatch.setattr(Stacks, "__getitem__", lambda self, name: copy.copy(getattr(self.module, name).detach()))
    with pytest.raises(ProofFailed, match="'ablation'"):
        load(network)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_stacks_that_bitsandbytes_has_packed(name: str) -> None:
    parametrize = pytest.importorskip("bitsandbytes.nn.parametrize")
    network, wide = build_mixture(name), build_mixture(name)
    for block, plain in zip(blocks_of(network), blocks_of(wide), strict=True):
        for stack in ("gate_up_proj", "down_proj"):
            parametrize.replace_parameter_4bit(block.mlp.experts, stack)
            getattr(plain.mlp.experts, stack).data.copy_(getattr(block.mlp.experts, stack))
    model, twin = load(network), load(wide)
    assert (model.probed, twin.probed, model.sizes) == (True, False, twin.sizes)
    for layer, found in read(model, IDS).items():
        assert torch.equal(model.values(layer), twin.values(layer))
        torch.testing.assert_close(found, HandRead(wide, name).read(IDS)[0][layer], atol=1e-5, rtol=1e-5)
