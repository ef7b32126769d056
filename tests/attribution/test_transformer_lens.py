"""Direct effects and attributions beside those of TransformerLens, which shares no code with this package.

Its dependencies are not among the tests' own; `.ci/run` puts it, and the five small packages that it imports, aside.
"""

import copy

import pytest
import torch
from torch import Tensor

from mining.conftest import byte_tokenizer
from mnemoscope.attribution import Attributor
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.models import load_model
from models.conftest import build


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
