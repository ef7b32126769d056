"""A trained model as a folder that `transformers` loads alone, with its model card."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from mnemoscope.training.evaluate import Loss, dead_shares, held_out_loss
from mnemoscope.training.ngram import NgramModel
from mnemoscope.training.recipe import BEGINNING, Recipe
from mnemoscope.training.text import Prepared, read_alone


def export(model: Any, text: Prepared, recipe: Recipe, directory: Path) -> Path:
    """The folder `directory/model`: bfloat16 safetensors, tokenizer, held-out list, model card.

    The card's figures are taken from the weights as stored.
    """
    folder = directory / "model"
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).cpu().to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    make_tokenizer: Any = PreTrainedTokenizerFast  # its constructor has no types
    tokenizer = make_tokenizer(
        tokenizer_object=text.tokenizer,
        bos_token=BEGINNING,
        eos_token=BEGINNING,
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
    (folder / "held_out.txt").write_text("\n".join(text.held_out_keys) + "\n")
    figures = measure(model.__class__.from_pretrained(folder, dtype=torch.float32).eval(), text, recipe)
    (folder / "training.json").write_text(json.dumps({"recipe": asdict(recipe), **figures}, indent=1) + "\n")
    (folder / "MODEL_CARD.md").write_text(card(recipe, figures))
    return folder


def measure(model: Any, text: Prepared, recipe: Recipe) -> dict[str, Any]:
    """The figures of the model card: held-out loss, the 5-gram model's, dead memories on the demo's text."""
    whole = held_out_loss(model, text.held_out, recipe.context)
    baseline = NgramModel(text.training.tokens, order=5, vocabulary=recipe.vocabulary)
    begins = text.held_out.documents
    ngram = Loss(baseline.nats(text.held_out.tokens, skip=begins), whole.tokens, whole.text_bytes)
    return {
        "training_tokens": len(text.training.tokens),
        "held_out_documents": len(text.held_out.documents),
        "held_out_tokens": whole.tokens,
        "nats_per_token": round(whole.per_token, 4),
        "nats_per_byte": round(whole.per_byte, 4),
        "five_gram_nats_per_token": round(ngram.per_token, 4),
        "five_gram_nats_per_byte": round(ngram.per_byte, 4),
        "dead_share_by_layer": [round(share, 4) for share in dead_shares(model, read_alone(text.tokenizer, recipe))],
    }


def card(recipe: Recipe, figures: dict[str, Any]) -> str:
    """The model card in Markdown."""
    dead = ", ".join(f"{100 * share:.1f} %" for share in figures["dead_share_by_layer"])
    five_gram = f"{figures['five_gram_nats_per_token']:.3f} | {figures['five_gram_nats_per_byte']:.3f}"
    return f"""# builtin:pydocs

A small language model that ships with Mnemoscope, so that a machine without a network has a trained model to look into.

* **Architecture**: {recipe.layers} pre-norm blocks, hidden size {recipe.hidden}, {recipe.memories} memories a layer
  (ReLU, ungated), {recipe.heads} heads, rotary positions, {recipe.context} tokens of context, tied head, byte-level BPE
  of {recipe.vocabulary} tokens; GPT-NeoX class with sequential residuals; bfloat16.
* **Data**: the English documentation on the training machine: the topics of `pydoc_data`, the docstrings of the
  standard library and of the pinned dependencies, read with `ast`, cleaned, exact repeats dropped;
  {figures["training_tokens"]:,} tokens. Each sentence is followed by a line feed; {recipe.sentence_windows:.0%} of the
  windows are the beginning token and then text from the start of a sentence.
* **Recipe**: {recipe.steps:,} steps of {recipe.batch} windows of {recipe.context} tokens ({recipe.tokens:,} tokens),
  Muon at {recipe.learning_rate} for the matrices inside the blocks, AdamW at {recipe.embedding_rate} for the rest,
  weight decay {recipe.weight_decay}, {recipe.warmup} steps of warm-up, linear fall to zero over the last
  {recipe.decay:.0%}, seed {recipe.seed}.
* **Held out**: {figures["held_out_documents"]:,} documents ({figures["held_out_tokens"]:,} tokens) by the hash rule,
  less those that share a run of 50 tokens with training text (`held_out.txt`).

| on the held-out documents | nats per token | nats per byte |
|---|---|---|
| this model | {figures["nats_per_token"]:.3f} | {figures["nats_per_byte"]:.3f} |
| 5-gram, interpolated Kneser-Ney, same training tokens | {five_gram} |

Memories that fire at no token of the demo's text (standard library and language reference), by layer: {dead}.

Made again by `mnemoscope train --out FOLDER`; the documentation installed, and so the numbers, differ a little from
machine to machine. Licence: Apache-2.0 for the weights; the text it learned from is under its projects' own open-source
licences and is not stored here.
Not meant for anything but looking into: it knows Python documentation and little else.
"""
