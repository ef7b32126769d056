"""Direct effects and attributions beside those of TransformerLens, which shares no code with this package; hooks for
it; and its bridge, or nnsight's model, given to `load_model`.

Their dependencies are not among the tests' own; `.ci/run` puts both tools, and the small packages that they import,
aside.
"""

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer
from mnemoscope import hook, intervene
from mnemoscope.attribution import Attributor
from mnemoscope.attribution.contrast import Contrast, choose_contrast
from mnemoscope.errors import MemoryIdError, ModelUnsupported
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import load_model
from models.conftest import CASES, build


def test_effects_on_a_small_llama_are_those_of_transformer_lens() -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge", reason="needs TransformerLens 4.3 (see .ci/run)")
    network = build("llama")
    model = load_model(copy.deepcopy(network), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    with model.in_use(), model.lock:
        asked = Attributor(model, choose_contrast(model, "the cat sat on", target=None, against=None), singles=0)
        value, direct, attributions = asked.value, asked.direct, asked.attributions
    target, against = asked.contrast.target, asked.contrast.against

    other = bridges.TransformerBridge.boot_transformers(
        "llama", hf_model=network, tokenizer=byte_tokenizer(), device="cpu"
    )
    other.enable_compatibility_mode(disable_warnings=True)
    with torch.no_grad():
        logits, cache = other.run_with_cache(asked.ids)
        neurons = cache.stack_neuron_results(-1, pos_slice=-1)
        theirs = cache.logit_attrs(neurons, tokens=target, incorrect_tokens=against, pos_slice=-1)
    assert value == pytest.approx(float(logits[0, -1, target] - logits[0, -1, against]), abs=1e-4)
    assert direct[direct != 0] == pytest.approx(theirs.reshape(-1).numpy(), abs=1e-4)
    assert abs(direct).max() > 1e-2

    kept: list[Tensor] = []

    def keep(coefficients: Tensor, hook: object) -> Tensor:
        kept.append(coefficients.detach().requires_grad_() if not coefficients.requires_grad else coefficients)
        return kept[-1]

    with torch.enable_grad():
        names = [(f"blocks.{layer}.mlp.hook_post", keep) for layer in range(model.sizes.layers)]
        logits = other.run_with_hooks(asked.ids, fwd_hooks=names)
        slopes = torch.autograd.grad(logits[0, -1, target] - logits[0, -1, against], kept)
    products = torch.cat([(own * slope).reshape(-1) for own, slope in zip(kept, slopes, strict=True)])
    assert attributions == pytest.approx(products.detach().numpy(), abs=1e-4)
    assert abs(attributions).max() > 1e-2


def bridge_of(family: str) -> Any:
    """TransformerLens's bridge around the tiny model of a family."""
    bridges = pytest.importorskip("transformer_lens.model_bridge", reason="needs TransformerLens 4.3 (see .ci/run)")
    kind = CASES[family].kind
    return bridges.TransformerBridge.boot_transformers(
        kind, hf_model=build(family), tokenizer=byte_tokenizer(), device="cpu"
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "opt", "phi3"])
def test_a_bridge_is_read_as_the_model_inside_it(family: str) -> None:
    """It has the fingerprint of the plain model, so an atlas of that is its atlas; the bridge goes on as it was."""
    bridge, ids = bridge_of(family), torch.tensor([[5, 9, 33, 7]])
    with torch.no_grad():
        before = bridge(ids)
    model = load_model(bridge)
    plain = load_model(build(family), tokenizer=bridge.tokenizer)
    assert model.fingerprint == plain.fingerprint
    assert model.logits(ids) == pytest.approx(before, abs=1e-5)
    with torch.no_grad():
        changed = bridge.run_with_hooks(ids, fwd_hooks=hook("L1.M2", 3.0))
        assert torch.equal(bridge(ids), before)
    assert not torch.allclose(changed, before, atol=1e-3)
    assert model.logits(ids) == pytest.approx(before, abs=1e-5)  # the bridge's hooks are not the model's


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("memories", "value"),
    [("L1.M2", 0.0), ("L0.M3-5,L1.M2", 1.5), (["L0", "L1.M7"], 0.0), (MemoryId(1, 23), -2.0)],
)
def test_hooks_change_what_intervene_changes(family: str, memories: Any, value: float) -> None:
    bridge, ids = bridge_of(family), torch.tensor([[5, 9, 33, 7]])
    model = load_model(bridge, beginning="none")
    named = [str(memories)] if isinstance(memories, str | MemoryId) else memories
    changes = {each: value for one in named for each in one.split(",")}
    with intervene(model, changes):
        expected = model.logits(ids)
    with torch.no_grad():
        given = bridge.run_with_hooks(ids, fwd_hooks=hook(memories, value))
    assert given == pytest.approx(expected, abs=1e-5)
    assert not torch.allclose(given, model.logits(ids), atol=1e-3)


def test_a_hook_says_which_memory_the_model_has_not() -> None:
    with pytest.raises(MemoryIdError, match=r"L1\.M24 is not in this model, whose layer 1 has 24"):
        bridge_of("llama").run_with_hooks(torch.tensor([[5, 9]]), fwd_hooks=hook("L1.M24"))


def test_a_bridge_that_is_no_model_of_transformers_is_refused_in_one_line() -> None:
    bridge = bridge_of("llama")
    bridge.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(ModelUnsupported, match="has folded its weights; give it before enable_compatibility_mode"):
        load_model(bridge)
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    config = importlib.import_module("transformer_lens.config").TransformerBridgeConfig(
        d_model=16, d_head=8, n_heads=2, n_layers=1, n_ctx=8, d_vocab=20, act_fn="relu", d_mlp=24
    )
    native = bridges.TransformerBridge.boot_native(config)
    with pytest.raises(ModelUnsupported, match="holds a NativeModel, not a language model of transformers"):
        load_model(native, tokenizer=byte_tokenizer())


def test_parts_of_a_llama_add_up_in_transformer_lens_only_with_folded_weights() -> None:
    """Its attributions leave out the gain of the final norm, unless that is folded into the head (docs/bridges.md)."""
    bridge, ids = bridge_of("llama"), torch.tensor([[5, 9, 33, 7, 12]])

    def parts() -> tuple[float, float]:
        with torch.no_grad():
            logits, cache = bridge.run_with_cache(ids)
            each = cache.logit_attrs(
                cache.decompose_resid(-1, pos_slice=-1), tokens=20, incorrect_tokens=30, pos_slice=-1
            )
        return float(logits[0, -1, 20] - logits[0, -1, 30]), float(each.sum())

    model = load_model(bridge, tokenizer="ids", beginning="none")
    whole, added = parts()
    ours = Attributor(model, Contrast((5, 9, 33, 7, 12), 20, 30), singles=0)
    with model.in_use(), model.lock:
        assert ours.value == pytest.approx(whole, abs=1e-5)
        assert abs(float(ours.effects.total[0]) - ours.value) <= ours.limit
    assert abs(added - whole) > 0.05
    bridge.enable_compatibility_mode(disable_warnings=True)
    folded, together = parts()
    assert folded == pytest.approx(whole, abs=1e-4)
    assert together == pytest.approx(whole, abs=1e-4)


def test_a_model_of_nnsight_is_read_as_the_model_inside_it() -> None:
    nnsight = pytest.importorskip("nnsight.modeling.transformers", reason="needs nnsight 0.8 (see .ci/run)")
    network, tokenizer = build("llama"), byte_tokenizer(eos_token="<|endoftext|>")
    wrapped = nnsight.TransformersModel(network, tokenizer=tokenizer, task="text-generation")
    model = load_model(wrapped, beginning="none")
    assert model.content == load_model(build("llama"), tokenizer=wrapped.tokenizer).content
    ids = torch.tensor([[5, 9, 33, 7]])
    with wrapped.trace(ids):
        wrapped.model.layers[1].mlp.down_proj.input[..., 2] = 0.0
        changed = wrapped.lm_head.output.save()
    with intervene(model, {"L1.M2": 0.0}):
        assert model.logits(ids) == pytest.approx(changed.detach(), abs=1e-5)
