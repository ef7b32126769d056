"""What keys look for in the stream, and what words are there, against the matrices taken by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2LMHeadModel

from mnemoscope.foundation.budget import Budget
from mnemoscope.models import load_model
from mnemoscope.models.readout import read_directions
from mnemoscope.models.readout.read_directions import input_embeddings, input_norms
from mnemoscope.models.readout.read_directions import read_directions as directions_of
from models.checkpoints import KINDS, Slow, args_of, weights_of, write
from models.checkpoints import ROWS as FAIRSEQ_ROWS
from models.conftest import HIDDEN, LAYERS, ROWS, build
from models.expert_models import EXPERTS, build_mixture
from models.key_matrices import READ, direction


@pytest.mark.parametrize("name", list(READ))
def test_directions_are_keys_with_the_gain_folded_in_and_words_what_goes_in(name: str, tokenizer: Any) -> None:
    hf = build(name)
    model = load_model(hf, tokenizer=tokenizer)
    for layer in range(LAYERS):
        gate, up, gain, words = (None if part is None else part.double().numpy() for part in READ[name](hf, layer))
        ups = [None] * len(gate) if up is None else up
        wanted = np.stack([direction(*rows, gain) for rows in zip(gate, ups, strict=True)])
        found = directions_of(model, layer)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, wanted - wanted.mean(1, keepdims=True), atol=2e-5)
        size = HIDDEN**0.5 if name == "gemma" else 1.0  # Gemma's words go in so many times as large
        np.testing.assert_allclose(input_embeddings(model), words * size, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("gpt2", "transformer.h.{}.ln_2"),
        ("llama", "model.layers.{}.post_attention_layernorm"),
        ("gpt_neox", "gpt_neox.layers.{}.post_attention_layernorm"),  # a parallel block, with two
        ("gptj", "transformer.h.{}.ln_1"),  # one that attention reads, too
        ("phi", "model.layers.{}.input_layernorm"),
        ("olmo2", None),
        ("opt-350m", "model.decoder.layers.{}.self_attn_layer_norm"),  # which gives the stream, too
    ],
)
def test_the_norm_before_the_keys(name: str, norm: str | None, tokenizer: Any) -> None:
    hf = build(name)
    model = load_model(hf, tokenizer=tokenizer)
    wanted = {layer: norm and hf.get_submodule(norm.format(layer)) for layer in range(LAYERS)}
    assert input_norms(model) == wanted
    assert input_norms(model) is input_norms(model)


def test_every_branch_has_the_gain_of_its_own_norm(tokenizer: Any) -> None:
    hf = build_mixture("gemma4")
    model = load_model(hf, tokenizer=tokenizer)
    scalars = [float(block.layer_scalar) for block in hf.model.layers]
    assert [model.multiplier(layer) for layer in (0, 1)] == pytest.approx([scalars[0] * scalars[1], scalars[1]])
    for layer, block in enumerate(hf.model.layers):
        rows = [row for e in range(EXPERTS) for row in zip(*block.experts.gate_up_proj[e].chunk(2), strict=True)]
        gains = [block.pre_feedforward_layernorm_2.weight] * len(rows)
        shared = list(zip(block.mlp.gate_proj.weight, block.mlp.up_proj.weight, strict=True))
        gains += [block.pre_feedforward_layernorm.weight] * len(shared)
        pairs = zip([*rows, *shared], gains, strict=True)
        wanted = np.stack([direction(*(part.double().numpy() for part in (*row, gain))) for row, gain in pairs])
        found = directions_of(model, layer)
        np.testing.assert_allclose(found, wanted - wanted.mean(1, keepdims=True), atol=2e-5)


def test_keys_behind_what_is_no_norm_stay_as_they_are(tokenizer: Any) -> None:
    hf = build("gpt2")
    hf.transformer.h[0].ln_2 = nn.Tanh()
    keys = hf.transformer.h[0].mlp.c_fc.weight.T
    found = directions_of(load_model(hf, tokenizer=tokenizer), 0)
    torch.testing.assert_close(found, keys - keys.mean(1, keepdim=True), atol=1e-5, rtol=0)


def test_words_are_embedded_in_pieces_and_no_more_than_the_head_has(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_directions, "BUDGET", Budget(embedded_tokens=17))
    hf = build("gpt2", tie_word_embeddings=False)
    hf.transformer.wte = nn.Embedding(ROWS + 9, HIDDEN)
    words = hf.transformer.wte.weight.detach()
    assert torch.equal(input_embeddings(load_model(hf, tokenizer=tokenizer)), words[:ROWS])


@pytest.mark.parametrize("name", ["tied", "narrow input and output", "plain input", "plain, shared"])
def test_words_of_a_checkpoint_of_fairseq(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    args, weights = args_of(kind), weights_of(kind)
    words = input_embeddings(load_model(write(tmp_path, args, weights)))
    slow = Slow(args, weights)
    wanted = torch.stack([slow.embedded(token) for token in range(FAIRSEQ_ROWS)])
    torch.testing.assert_close(words.double(), wanted, atol=1e-5, rtol=1e-5)


def test_words_that_the_network_does_not_name_are_none(tokenizer: Any) -> None:
    class Nameless(GPT2LMHeadModel):
        def get_input_embeddings(self) -> Any:
            raise NotImplementedError

    hf = build("gpt2")
    model = load_model(hf, tokenizer=tokenizer)
    hf.__class__ = Nameless
    assert input_embeddings(model) is None


def test_words_of_another_width_than_the_streams_are_none(tokenizer: Any) -> None:
    assert input_embeddings(load_model(build("opt-350m"), tokenizer=tokenizer)) is None
