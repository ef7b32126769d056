"""Where keys fire most on a little text, and where the same keys with shuffled entries do: what is in any key.

A trigger is where a key fires most, and a stream holds the word that was put in; so in any model, trained or not, a key
looks for the word that its trigger ends with more than for another trigger's. A shuffled key is chosen for by the same
rule, on the same text, and is as long; only what training has written into the key is gone. Compares no words.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.atlas.schema import TABLES
from mnemoscope.mining.batches import pack, pad
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.hooks import Block, read_blocks

TOKENS = 4_096
"""Tokens of the text, about: sentences of the background."""

Ints = NDArray[np.int64]


class KeyTriggers:
    """Reads the text once, when it is first asked; the folder must have `background` and `sentences`."""

    def __init__(self, model: LanguageModel, directory: Path, plan: MiningPlan) -> None:
        self._model, self._directory, self._plan = model, directory, plan

    def shuffle(self, layer: int) -> Ints:
        """The order in which a shuffled key of a layer has the key's entries."""
        return np.random.default_rng((self._plan.seed, 16, layer)).permutation(self._model.sizes.hidden)

    def of(self, layer: int) -> tuple[Ints, Ints]:
        """The tokens `[memory]` at which its keys fire most, and its shuffled keys; -1 where they never fire."""
        return self._found.get(layer, (np.full(self._model.sizes.memories[layer], -1),) * 2)

    @cached_property
    def _found(self) -> dict[int, tuple[Ints, Ints]]:
        model, best = self._model, dict[int, list[tuple[Tensor, Tensor]]]()
        sentences, path = NamedSentences(self._directory), self._directory / TABLES["background"].path()
        ids = pl.read_parquet(path, columns=["sentence"], glob=False)["sentence"].unique(maintain_order=True)
        rows = [sentences.of(sentence) for sentence in ids.head(TOKENS).to_list()]
        lengths = np.array([len(row) for row in rows], np.int64)
        order = np.argsort(lengths[: 1 + int(np.searchsorted(np.cumsum(lengths), TOKENS))], kind="stable")
        for cut in pack(lengths[order] + model.beginning.length, area=self._plan.batch_tokens, rows=TOKENS):
            tokens = [rows[place] for place in order[cut].tolist()]
            padded = pad(tokens, model)
            own = torch.arange(padded.shape[1])[None] - model.beginning.length
            inside = (own >= 0) & (own < torch.tensor([len(row) for row in tokens])[:, None])
            words = padded.cpu()[inside]

            def keep(layer: int, block: Block, inside: Tensor = inside, words: Tensor = words) -> None:
                here = inside.to(block.ffn_input.device)
                inputs, weights = block.ffn_input[here], None if block.weights is None else block.weights[here]
                shuffled = inputs[:, torch.from_numpy(np.argsort(self.shuffle(layer))).to(inputs.device)]
                fired = (block.coefficients[here], model.layer(layer).ffn.recall(shuffled, weights))
                seen = best.get(layer, [(torch.zeros(0), torch.zeros(0))] * 2)
                best[layer] = [_higher(*pair, words) for pair in zip(seen, fired, strict=True)]

            with torch.inference_mode(), read_blocks(model, keep, layers=self._layers, own_thread=True):
                model.backbone(padded)
        return {
            layer: tuple(torch.where(most > 0, token, -1).numpy() for most, token in pair)  # type: ignore[misc]
            for layer, pair in best.items()
        }

    @property
    def _layers(self) -> list[int]:
        """Those whose keys all read one input as wide as the stream."""
        return [layer for layer in self._plan.layers if not self._model.layer(layer).ffn.branches]


def _higher(seen: tuple[Tensor, Tensor], fired: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Of each memory the highest coefficient, and the word there: of those seen, and of `fired [position, memory]`."""
    most, place = fired.float().max(0)
    most, word = most.cpu(), words[place.cpu()]
    if not len(seen[0]):
        return most, word
    return torch.maximum(seen[0], most), torch.where(most > seen[0], word, seen[1])
