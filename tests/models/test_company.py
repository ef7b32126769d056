"""Rows alone, together and among others: what depends on its company is found by running, and refused or kept apart."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from mining.conftest import byte_tokenizer
from mnemoscope.errors import ModelUnsupported
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.attention import eager_attention, find_attention
from mnemoscope.models.forward.batches import sides
from mnemoscope.models.proof.company import boundaries_of, prove_long_rows
from mnemoscope.tracing import trace
from models.conftest import CASES, build

SIZES: dict[str, Any] = {"vocab_size": 280, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
LONGROPE: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4}
LONGROPE |= {"long_factor": [2.0, 4.0, 8.0, 16.0]}


def loud(network: Any) -> Any:
    """Weights so large that positions matter."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    return network.eval()


def longrope(boundary: int = 16) -> Any:
    original = {"original_max_position_embeddings": boundary}
    return loud(Phi3ForCausalLM(Phi3Config(**SIZES, **original, rope_parameters=LONGROPE | original)))


def load(network: Any) -> LanguageModel:
    return load_model(network, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def test_boundaries_are_those_of_tables_chosen_by_length() -> None:
    assert boundaries_of(longrope().config, 64) == (16,)
    assert boundaries_of(longrope(64).config, 64) == (), "no row is longer"
    turned = LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    assert boundaries_of(turned, 64) == ()
    assert boundaries_of(turned, 68) == (64, 65, 66, 67), "every length beyond has a table of its own"
    settled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    assert boundaries_of(LlamaConfig(**SIZES, rope_parameters=settled), 64) == ()


def test_sides_change_behind_a_boundary() -> None:
    model = load(longrope())
    assert sides(model, [1, 15, 16, 17, 40]).tolist() == [0, 0, 0, 1, 1]
    model.boundaries = (3, 5, 6)
    assert sides(model, [3, 4, 5, 6, 7, 9]).tolist() == [0, 1, 1, 2, 3, 3]
    assert sides(load(build("gpt2")), [1, 63]).tolist() == [0, 0]


def _mean_of_batch(stream: Tensor) -> Tensor:
    return stream + 0.1 * stream.mean(0, keepdim=True)


def _by_width(stream: Tensor) -> Tensor:
    return stream * (1 + 0.1 * stream.shape[1])


def _capacity(stream: Tensor) -> Tensor:
    """Only so many tokens of a batch are served, whoever they are."""
    served = torch.arange(stream.shape[0] * stream.shape[1]) < 20
    return stream * served.view(*stream.shape[:2], 1)


@pytest.mark.parametrize("fault", [_mean_of_batch, _by_width, _capacity])
def test_a_network_whose_numbers_depend_on_neighbours_is_refused(fault: Any) -> None:
    network = build("llama")
    load(network)
    network.model.embed_tokens.register_forward_hook(lambda _, inputs, given: fault(given))
    with pytest.raises(ModelUnsupported, match="different numbers in a batch than alone; only") as caught:
        load(network)
    assert "\n" not in str(caught.value)


class Windowed(LlamaForCausalLM):
    """Reads all rows otherwise once one of them is longer than its window."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.embed_tokens.register_forward_hook(
            lambda _, inputs, given: given * (2.0 if given.shape[1] > config.sliding_window else 1.0)
        )


class Unmade(Windowed):
    """One that cannot be made of a configuration alone."""

    def __init__(self, config: Any, more: int) -> None:
        super().__init__(config)


def test_a_boundary_that_the_configuration_names_is_tried_on_a_copy_of_one_layer() -> None:
    config = LlamaConfig(**SIZES, sliding_window=32)
    with pytest.raises(ModelUnsupported, match=r"around a length that its configuration names \(32\)"):
        load(loud(Windowed(config)))
    model = load(loud(Unmade(config, 1)))
    prove_long_rows(model, 32)
    with pytest.raises(ModelUnsupported, match="where one is longer than 32 tokens"):
        prove_long_rows(model, 33)


def test_a_real_window_does_not_depend_on_company() -> None:
    for name in ("mistral", "gemma2", "gemma3"):
        model = load(build_windowed(name))
        assert model.boundaries == ()
        prove_long_rows(model, 40)


def build_windowed(name: str) -> Any:
    before = CASES[name]
    try:
        CASES[name] = replace(before, settings=before.settings | {"sliding_window": 16})
        return build(name)
    finally:
        CASES[name] = before


def test_long_rows_are_tried_on_the_model_itself() -> None:
    model = load(longrope())
    prove_long_rows(model, 40)
    model.boundaries = ()  # as if both sides might share a batch
    prove_long_rows(model, 16)
    with pytest.raises(ModelUnsupported, match="longer than 16 tokens"):
        prove_long_rows(model, 17)


def test_attention_weights_of_another_function_are_unknown_and_its_sums_the_models() -> None:
    """Falcon with ALiBi adds its bias twice where attention is computed so that it tells its weights."""
    network = loud(build("falcon-rw"))
    model = load(network)
    assert not model.eager
    assert all(one.separable and one.weights is None for one in find_attention(model))
    with eager_attention(model):
        assert model.attention == "sdpa"
    found = trace(model, "the cat sat on the mat")
    tokens = torch.tensor([[*model.beginning.tokens, *model.encode(["the cat sat on the mat"])[0]]])
    logits = network(input_ids=tokens).logits[0, 1:]
    for position, own in enumerate(found.logits):
        assert abs(own.logit - float(logits[position].max())) < 1e-4 * max(1.0, abs(own.logit))
        parts = sum((part.attention or 0.0) + part.ffn for part in own.layers)
        assert abs(own.embedding + own.bias + own.rest + parts - own.logit) < 1e-4 * max(1.0, abs(own.logit))
        assert all(part.attention is not None and part.attended_positions is None for part in own.layers)
    assert load(build("falcon")).eager
