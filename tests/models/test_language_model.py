"""What a LanguageModel says of itself: shapes, biases, context, and the forward without padding mask."""

from dataclasses import asdict
from threading import Thread

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers import models as pieces

from mnemoscope.models import load_model
from mnemoscope.tracing.scores import known_votes, value_norms


@pytest.mark.fast(11)
def test_keys_values_and_biases_have_the_shapes_of_the_definitions(family, case, tiny, tokenizer):
    model = load_model(tiny(family), tokenizer=tokenizer)
    memories = case(family).memories
    for layer in range(2):
        assert model.keys(layer).shape == model.values(layer).shape == (memories, 16)
        up, parts = model.up_keys(layer), model.layer(layer)
        assert (None if up is None else up.shape) == ((memories, 16) if model.gated else None)
        for keys in (parts.ffn.gate, parts.ffn.up):
            assert keys is None or keys.bias() is None or keys.bias().shape == (memories,)
        assert parts.ffn.down.bias() is None or parts.ffn.down.bias().shape == (16,)
        assert not model.keys(layer).requires_grad


def test_feed_forward_parameters_are_counted_by_hand(tiny, tokenizer):
    assert load_model(tiny("gpt2"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * (2 * 16 * 24 + 24 + 16)
    assert load_model(tiny("llama"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * 3 * 16 * 24
    assert load_model(tiny("phi3"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * 3 * 16 * 24


@pytest.mark.fast(17)
def test_padding_on_the_right_changes_nothing_before_it(family, tiny, tokenizer):
    model = load_model(tiny(family), tokenizer=tokenizer)
    alone = model.backbone(torch.tensor([[5, 1, 8]]))
    padded = model.backbone(torch.tensor([[5, 1, 8, 0, 0], [3, 7, 2, 9, 4]]))
    torch.testing.assert_close(padded[:1, :3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.fast(9)
def test_a_full_context_fits(family, tiny, tokenizer):
    model = load_model(tiny(family), tokenizer=tokenizer)
    ids = torch.arange(model.sizes.context)[None] % 280
    assert model.logits(ids).shape == (1, model.longest + 1, 280)


def test_every_thread_knows_the_shape_of_its_own_forward(tiny, tokenizer):
    model, seen = load_model(tiny("gpt2"), tokenizer=tokenizer), []
    model.backbone(torch.ones(2, 5, dtype=torch.long))

    def run():
        seen.append(model.shape)
        model.backbone(torch.ones(3, 4, dtype=torch.long))
        seen.append(model.shape)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert (seen, model.shape) == ([(0, 0), (3, 4)], (2, 5))


def test_without_a_beginning_token_the_whole_context_is_the_sentences(tiny):
    plain = Tokenizer(pieces.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    model = load_model(tiny("llama"), tokenizer=plain)
    assert (model.beginning.token, model.beginning.kind) == (None, "none")
    assert model.longest == model.sizes.context == 64


def test_weights_are_views_that_cost_no_memory(tiny, tokenizer):
    hf = tiny("phi3")
    model = load_model(hf, tokenizer=tokenizer)
    storage = hf.model.layers[0].mlp.gate_up_proj.weight.untyped_storage().data_ptr()
    assert model.keys(0).untyped_storage().data_ptr() == storage
    assert model.up_keys(0).untyped_storage().data_ptr() == storage


@pytest.mark.parametrize(
    ("activation", "negative"), [("relu", False), ("relu2", False), ("gelu", True), ("silu", True)]
)
def test_whether_coefficients_can_be_negative_is_asked_of_the_function(activation, negative, tiny, tokenizer):
    hf = tiny("gpt2", activation_function=activation)
    assert load_model(hf, tokenizer=tokenizer).has_negative is negative
    assert load_model(tiny("llama", hidden_act=activation), tokenizer=tokenizer).has_negative


def test_what_tracing_learns_of_values_is_kept_with_the_model(tiny, tokenizer):
    model = load_model(tiny("gpt2"), tokenizer=tokenizer)
    assert [votes.tolist() for votes in known_votes(model)] == [[-1] * 48] * 2
    known_votes(model)[1][5] = 7
    assert known_votes(model)[1][5] == 7
    assert value_norms(model, 0) is value_norms(model, 0)
    assert known_votes(load_model(tiny("gpt2"), tokenizer=tokenizer))[1][5] == -1


def test_an_atlas_names_its_model_by_content_and_beginning_or_both_at_once(tiny, tokenizer):
    model = load_model(tiny("gpt2"), tokenizer=tokenizer)
    beginning = asdict(model.beginning)
    assert model.is_model_of({"fingerprint": model.fingerprint})
    assert model.is_model_of({"fingerprint": model.content, "beginning": beginning})
    assert not model.is_model_of({"fingerprint": model.content})
    assert not model.is_model_of({"fingerprint": model.content, "beginning": beginning | {"token": 3}})
    assert not model.is_model_of({"fingerprint": "0" * 64, "beginning": beginning})
    assert not model.is_model_of({})
