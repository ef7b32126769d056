"""The exported folder: transformers reads it alone, so does load_model with its proof, and the card tells the truth."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mnemoscope.models import load_model
from mnemoscope.training import Recipe, TextSource, train
from mnemoscope.training.export import Loss, held_out_loss
from mnemoscope.training.text import Text, prepare_text
from training.conftest import made_up_documents

FILES = {
    *("config.json", "generation_config.json", "held_out.txt", "model.safetensors", "MODEL_CARD.md", "tokenizer.json"),
    *("tokenizer_config.json", "training.json"),
}


@pytest.fixture
def exported(recipe: Recipe, documentation: list[str], tmp_path: Path) -> Path:
    return train(tmp_path, recipe, say=lambda text: None)


def test_transformers_and_load_model_read_the_same(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == FILES
    assert "mnemoscope" not in (exported / "config.json").read_text()
    network = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = load_model(str(exported))
    assert (model.family, model.block, model.activation, model.has_negative) == ("gpt_neox", "pre-norm", "relu", False)
    assert (model.sizes.layers, model.sizes.memories, model.longest) == (2, (24, 24), 15)
    assert (model.beginning.token, model.beginning.kind) == (0, "bos")
    assert max(model.proof.residual, model.proof.ablation, model.proof.keys, model.proof.scores) < 1e-4
    text = "Value returns the key.\nLayer"
    (ids,) = model.encode([text])
    assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        expected = network(torch.tensor([[0, *ids[:15]]])).logits
    assert torch.allclose(model.logits(torch.tensor([[0, *ids[:15]]])), expected, atol=1e-5)


def test_the_card_states_what_the_stored_weights_do(exported: Path, recipe: Recipe) -> None:
    figures = json.loads((exported / "training.json").read_text())
    text = prepare_text(recipe, exported.parent / "text", say=lambda text: None)
    network: Any = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).eval()
    loss = held_out_loss(network, text.held_out, recipe.context)
    assert figures["nats_per_token"] == round(loss.per_token, 4)
    assert figures["recipe"] == vars(recipe)
    assert figures["held_out_documents"] == len(text.held_out_keys)
    assert (exported / "held_out.txt").read_text().split() == text.held_out_keys
    card = (exported / "MODEL_CARD.md").read_text()
    assert f"| this model | {figures['nats_per_token']:.3f} | {figures['nats_per_byte']:.3f} |" in card
    assert "2 pre-norm blocks, hidden size 16, 24 memories a layer" in card
    assert card.startswith("# builtin:pydocs\n\nA small language model that ships with Mnemoscope")
    assert "the topics of `pydoc_data`" in card
    assert "* **Sparsity**: beside the loss stands the log of each layer's effective number" in card
    assert "from 0 in the first layer to 0.05 in the last" in card
    assert "* **Revival**: 0.1 times how far" in card


def test_the_card_of_a_text_of_one_s_own_names_that_text(recipe: Recipe, tmp_path: Path) -> None:
    own, other = tmp_path / "own.txt", tmp_path / "other.txt"
    own.write_text("\n\n".join(made_up_documents(80)))
    other.write_text("The value of a key.\n\nAnd the layer.")
    wanted = TextSource((str(own),), validation=str(other), max_bytes=8_000)
    recipe = replace(recipe, sparsity=0.0)
    folder = train(tmp_path / "out", recipe, wanted=wanted, say=lambda text: None)
    figures = json.loads((folder / "training.json").read_text())
    said = {"corpora": [str(own)], "validation": str(other), "max_bytes": 8_000, "plants": []}
    assert figures["text"] == {**said, "text_field": "text", "split": "sentence"}
    card = (folder / "MODEL_CARD.md").read_text()
    assert f"* **Data**: `{own}`, the first 8,000 bytes;\n  {figures['training_tokens']:,} tokens." in card
    assert "pydoc" not in card
    assert "demo's text" not in card
    assert "AdamW at 0.01 for the matrices inside the blocks,\n  AdamW at 0.01 for the rest" in card
    assert "Sparsity" not in card
    (line,) = map(json.loads, (tmp_path / "out" / "log.jsonl").read_text().splitlines())
    assert line["validation_loss"] > 0
    second = figures["validation"]
    assert second["held_out_documents"] == 2
    assert f"| on `{other}` ({second['held_out_tokens']} tokens) | nats per token | nats per byte |" in card
    assert f"| this model | {second['nats_per_token']:.3f} | {second['nats_per_byte']:.3f} |" in card
    text = prepare_text(recipe, tmp_path / "out" / "text", say=print, wanted=wanted)
    assert text.validation is not None
    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loss = held_out_loss(network, text.validation, recipe.context)
    assert second["nats_per_token"] == round(loss.per_token, 4)


def held_out_loss_slowly(network: Any, text: Text, context: int) -> tuple[float, int]:
    """One forward per window, one token at a time."""
    nats, count = 0.0, 0
    bounds = [*text.documents.tolist(), len(text.tokens)]
    for first, end in pairwise(bounds):
        own = text.tokens[first + 1 : end].tolist()
        for begin in range(0, len(own), context):
            window = own[begin : begin + context]
            log_p = network(torch.tensor([[0, *window[:-1]]])).logits[0].log_softmax(-1)
            nats -= sum(float(log_p[place, token]) for place, token in enumerate(window))
            count += len(window)
    return nats, count


@torch.inference_mode()
def test_the_held_out_loss_is_the_mean_over_every_token(recipe: Recipe, documentation: Any, tmp_path: Path) -> None:
    text = prepare_text(recipe, tmp_path, say=lambda text: None).held_out
    network: Any = recipe.model().eval()
    for parameter in network.parameters():
        parameter.mul_(3)
    loss = held_out_loss(network, text, recipe.context, batch=3)
    nats, count = held_out_loss_slowly(network, text, recipe.context)
    assert loss.tokens == count == len(text.tokens) - len(text.documents)
    assert (loss.nats, loss.text_bytes) == (pytest.approx(nats, rel=1e-5), text.text_bytes)
    assert loss.per_byte == pytest.approx(nats / text.text_bytes)
    few = held_out_loss(network, text, recipe.context, most=2)
    assert few.tokens == int(text.documents[2]) - 2
    assert Loss(math.e, 2, 4).per_token == math.e / 2
