"""Maps from a layer's stream to the final one, applied by hand."""

from typing import Any

import torch

from mnemoscope.models import load_model
from mnemoscope.models.readout.translators import Translator, translated_scores, translated_values
from models.conftest import HIDDEN, build
from models.expert_models import build_mixture

GENERATOR = torch.Generator().manual_seed(0)
MAP = Translator(torch.randn(HIDDEN, HIDDEN, generator=GENERATOR), torch.randn(HIDDEN, generator=GENERATOR))
STREAMS = torch.randn(3, HIDDEN, generator=GENERATOR)


def test_a_stream_is_moved_and_what_is_added_to_it_has_no_bias() -> None:
    torch.testing.assert_close(MAP(STREAMS), STREAMS @ MAP.weight + MAP.bias)
    torch.testing.assert_close(MAP(STREAMS + 1) - MAP(STREAMS), MAP.linear(torch.ones(3, HIDDEN)), atol=1e-4, rtol=0)
    same = Translator.identity(HIDDEN)
    assert torch.equal(same(STREAMS), STREAMS)
    assert torch.equal(same.linear(STREAMS), STREAMS)
    assert MAP(STREAMS.bfloat16()).dtype == MAP.linear(STREAMS.bfloat16()).dtype == torch.float32


def test_streams_are_read_by_the_models_own_readout_behind_the_map(tokenizer: Any) -> None:
    hf = build("gpt2")
    model = load_model(hf, tokenizer=tokenizer)
    for translator, moved in ((None, STREAMS), (MAP, STREAMS @ MAP.weight + MAP.bias)):
        found = translated_scores(model, STREAMS, translator)
        torch.testing.assert_close(found, hf.lm_head(hf.transformer.ln_f(moved)), atol=1e-4, rtol=1e-4)


def test_values_pass_their_blocks_norm_then_the_map_then_the_final_gain(tokenizer: Any) -> None:
    hf = build("gemma2")
    model, block = load_model(hf, tokenizer=tokenizer), hf.model.layers[1]
    in_stream = block.mlp.down_proj.weight.T * (1 + block.post_feedforward_layernorm.weight)
    torch.testing.assert_close(model.values_in_stream(1), in_stream, atol=1e-5, rtol=1e-5)
    wanted = (in_stream @ MAP.weight) * (1 + hf.model.norm.weight)
    torch.testing.assert_close(translated_values(model, 1, MAP), wanted, atol=1e-4, rtol=1e-4)


def test_values_of_branches_pass_the_norm_of_their_own_first(tokenizer: Any) -> None:
    """A dense layer beside the experts of Gemma 4, each with a norm behind it, and one behind both."""
    hf = build_mixture("gemma4")
    model, block = load_model(hf, tokenizer=tokenizer), hf.model.layers[1]
    gains = block.post_feedforward_layernorm_2.weight, block.post_feedforward_layernorm_1.weight
    count = model.numbering(1).firsts[-1]
    outer = block.post_feedforward_layernorm.weight
    in_stream = torch.cat([model.values(1)[:count] * gains[0], model.values(1)[count:] * gains[1]]) * outer
    torch.testing.assert_close(model.values_in_stream(1), in_stream, atol=1e-5, rtol=1e-5)
    some = torch.tensor([count + 3, 5, count - 1])
    torch.testing.assert_close(model.values_in_stream(1, some), in_stream[some], atol=1e-5, rtol=1e-5)
    found = translated_values(model, 1, Translator.identity(HIDDEN))
    torch.testing.assert_close(found, model.folded_values(1), atol=1e-5, rtol=1e-5)
