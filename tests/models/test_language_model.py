"""What a LanguageModel says of itself: shapes, biases, context, and the forward without padding mask."""

from threading import Thread

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers import models as pieces

from mnemoscope.models import load_model


def test_feed_forward_parameters_are_counted_by_hand(tiny, tokenizer):
    assert load_model(tiny("gpt2"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * (2 * 16 * 24 + 24 + 16)
    assert load_model(tiny("llama"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * 3 * 16 * 24
    assert load_model(tiny("phi3"), tokenizer=tokenizer).sizes.ffn_parameters == 2 * 3 * 16 * 24


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
