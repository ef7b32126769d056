"""Exports a trained model, with its model card and its loss on held-out text, as a folder that `transformers` loads."""

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from mnemoscope.foundation.files import write_bytes
from mnemoscope.models.modules.quiet import suppress_output
from mnemoscope.training.recipe import BEGINNING, Recipe
from mnemoscope.training.text import Text, TextSource, TrainingData


def export(model: Any, text: TrainingData, recipe: Recipe, directory: Path) -> Path:
    """Writes `directory/model`: bfloat16 safetensors, tokenizer, keys of held-out documents, model card."""
    folder = write_model(model, text, recipe, directory / "model")
    with suppress_output():
        written = model.__class__.from_pretrained(folder, dtype=torch.float32).eval()
    figures = measure(written, text, recipe)
    facts = {"recipe": asdict(recipe), "text": asdict(text.wanted), **figures}
    write_bytes(folder / "training.json", (json.dumps(facts, indent=1) + "\n").encode())
    write_bytes(folder / "MODEL_CARD.md", card(recipe, text.wanted, figures).encode())
    return folder


def write_model(model: Any, text: TrainingData, recipe: Recipe, folder: Path) -> Path:
    """Writes what mining needs: weights, tokenizer, keys of held-out documents."""
    folder.mkdir(parents=True, exist_ok=True)
    with suppress_output():
        copy.deepcopy(model).cpu().to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    make_tokenizer: Any = PreTrainedTokenizerFast  # its constructor has no types
    ends = {"bos_token": BEGINNING, "eos_token": BEGINNING, "clean_up_tokenization_spaces": False}
    make_tokenizer(tokenizer_object=text.tokenizer, model_max_length=recipe.context, **ends).save_pretrained(folder)
    write_bytes(folder / "held_out.txt", ("\n".join(text.held_out_keys) + "\n").encode())
    return folder


@dataclass(frozen=True)
class Loss:
    nats: float
    tokens: int
    text_bytes: int

    @property
    def per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def per_byte(self) -> float:
        return self.nats / max(1, self.text_bytes)


@torch.inference_mode()
def held_out_loss(model: Any, text: Text, context: int, *, most: int | None = None, batch: int = 32) -> Loss:
    """Documents are read in windows of `context` tokens after a beginning token. `most` limits them to the first ones,
    whose bytes are estimated from their tokens.
    """
    ends = np.append(text.documents[1:], len(text.tokens))
    windows = [
        torch.from_numpy(text.tokens[begin : min(begin + context, end)].astype(np.int64))
        for first, end in list(zip(text.documents, ends, strict=True))[:most]
        for begin in range(int(first) + 1, int(end), context)
    ]
    windows.sort(key=len)  # so that little is padded
    nats, count = 0.0, sum(map(len, windows))
    device = next(model.parameters()).device
    for start in range(0, len(windows), batch):
        targets = pad_sequence(windows[start : start + batch], batch_first=True, padding_value=-100).to(device)
        ids = pad(targets.clamp(min=0), (1, 0))[:, :-1]  # after token 0, the beginning
        scores = model(ids, use_cache=False).logits.float()
        nats += float(cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"))
    everything = len(text.tokens) - len(text.documents)
    return Loss(nats, count, round(text.text_bytes * count / max(1, everything)))


def measure(model: Any, text: TrainingData, recipe: Recipe) -> dict[str, Any]:
    """Losses on the held-out text, and on the validation text if there is one."""

    def losses(of: Text) -> dict[str, Any]:
        whole = held_out_loss(model, of, recipe.context)
        return {
            "held_out_documents": len(of.documents),
            "held_out_tokens": whole.tokens,
            "nats_per_token": round(whole.per_token, 4),
            "nats_per_byte": round(whole.per_byte, 4),
        }

    return {
        "training_tokens": len(text.training.tokens),
        "training_bytes": text.training.text_bytes,
        **losses(text.held_out),
        **({} if text.validation is None else {"validation": losses(text.validation)}),
    }


def card(recipe: Recipe, wanted: TextSource, figures: dict[str, Any]) -> str:
    head, tail = (_OWN_HEAD, _OWN_TAIL) if wanted.corpora else (_BUILT_IN_HEAD, _BUILT_IN_TAIL)
    layer, kind = f"{recipe.memories} memories a layer\n  (ReLU, ungated)", "GPT-NeoX class with sequential residuals"
    if recipe.experts:
        experts = f"{recipe.experts} experts of {recipe.memories} memories"
        layer, kind = f"{experts}\n  a layer (SiLU, gated), {recipe.top_experts} for a token", "Mixtral class"
    data = _DOCUMENTATION
    if wanted.corpora:
        data = ", then ".join(f"`{spec}`" for spec in wanted.corpora)
        data += f", the first {wanted.max_bytes:,} bytes" if wanted.max_bytes is not None else ""
    terms = {_BALANCE: recipe.experts, _SPARSITY: recipe.sparsity, _REVIVAL: recipe.revival}
    second = ""
    if wanted.validation is not None:
        own = figures["validation"]
        second = "\n" + _losses(own, f"on `{wanted.validation}` ({own['held_out_tokens']:,} tokens)")
    return f"""{head}
* **Architecture**: {recipe.layers} pre-norm blocks, hidden size {recipe.hidden}, {layer}, {recipe.heads} heads,\
 rotary positions, {recipe.context} tokens of context, tied head, byte-level BPE
  of {recipe.vocabulary} tokens; {kind}; bfloat16.
* **Data**: {data};
  {figures["training_tokens"]:,} tokens. Each sentence is followed by a line feed; {recipe.sentence_windows:.0%} of the
  windows are the beginning token and then text from the start of a sentence.
* **Recipe**: {recipe.steps:,} steps of {recipe.batch} windows of {recipe.context} tokens ({recipe.tokens:,} tokens),
  AdamW at {recipe.learning_rate} for the matrices inside the blocks,
  AdamW at {recipe.embedding_rate} for the rest, weight decay {recipe.weight_decay}, {recipe.warmup} steps of warm-up,
  linear fall to zero over the last {recipe.decay:.0%}, seed {recipe.seed}.
{"".join(text.format(**asdict(recipe)) for text, weight in terms.items() if weight)}\
* **Held out**: {figures["held_out_documents"]:,} documents ({figures["held_out_tokens"]:,} tokens) by the hash rule,
  less those that share a run of 50 tokens with training text (`held_out.txt`).

{_losses(figures, "on the held-out documents")}{second}
{tail}"""


def _losses(figures: dict[str, Any], place: str) -> str:
    row = f"| this model | {figures['nats_per_token']:.3f} | {figures['nats_per_byte']:.3f} |"
    return f"| {place} | nats per token | nats per byte |\n|---|---|---|\n{row}\n"


_BUILT_IN_HEAD = """\
# builtin:pydocs

A small language model that ships with Mnemoscope, so that a machine without a network has a trained model to look into.
"""
_BUILT_IN_TAIL = """\
Made again by `mnemoscope train --out FOLDER`; the documentation installed, and so the numbers, differ a little from
machine to machine. Licence: Apache-2.0 for the weights; the text it learned from is under its projects' own open-source
licences and is not stored here.
Not meant for anything but looking into: it knows Python documentation and little else.
"""
_OWN_HEAD = """\
# A language model trained by Mnemoscope

A decoder whose feed-forward memories are meant to be looked into.
"""
_OWN_TAIL = """\
Made by `mnemoscope train --corpus`; the text it learned from is not stored here. The text's licence may bind whoever
passes the weights on.
"""
_DOCUMENTATION = """the English documentation on the training machine: the topics of `pydoc_data`, the docstrings of the
  standard library and of the pinned dependencies, read with `ast`, cleaned, exact repeats dropped"""
_BALANCE = """\
* **Balance**: beside the loss stands {balance:g} times a term that is least where all experts are used alike.
"""
_SPARSITY = """\
* **Sparsity**: beside the loss stands the log of each layer's effective number of memories at a token (of its
  coefficients times the values' norms) over {free_memories:g}, where that is above 0, with a weight that grows
  linearly from 0 in the first layer to {sparsity:g} in the last: in upper layers few memories speak at a time.
  In a model trained without it each says less.
"""
_REVIVAL = """\
* **Revival**: {revival:g} times how far a memory's best match with the sentences of a batch lies below zero, so
  that none stays silent.
"""
