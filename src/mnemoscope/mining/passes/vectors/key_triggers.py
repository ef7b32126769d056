"""The tokens that activate keys most on a little text, and those that activate the keys with shuffled entries.

A trigger is where a key fires most, and a stream holds its input word; so any key, trained or not, prefers the last
word of its own trigger to that of another's. For a shuffled key a token is chosen by the same rule on the same text:
only what training has written into the key is missing.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mnemoscope.atlas.schema import TABLES
from mnemoscope.mining.text.batches import Ints, halves_of, run_in_halves
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pack, pad, sides, texts_in
from mnemoscope.models.forward.hooks import Block, read_blocks
from mnemoscope.runs.plan import MiningPlan

TOKENS = 4_096
"""Tokens of the text, about: sentences of the background."""


class KeyTriggers:
    """Reads the text at the first call; needs `background` and `sentences`."""

    def __init__(self, model: LanguageModel, directory: Path, plan: MiningPlan) -> None:
        self._model, self._directory, self._plan = model, directory, plan

    def shuffle(self, layer: int) -> Ints:
        """The order of a key's entries in a shuffled key of the layer."""
        return np.random.default_rng((self._plan.seed, 16, layer)).permutation(self._model.sizes.hidden)

    def of(self, layer: int) -> tuple[Ints, Ints] | None:
        """The tokens `[memory]` that activate keys and shuffled keys most; None if keys do not read the stream."""
        return self._best_tokens.get(layer)

    @cached_property
    def _best_tokens(self) -> dict[int, tuple[Ints, Ints]]:
        model = self._model
        layers = [layer for layer in self._plan.layers if not model.layer(layer).ffn.branches]
        best: dict[int, list[tuple[Tensor, Tensor]]] = {}
        sentences, path = NamedSentences(self._directory), self._directory / TABLES["background"].path()
        ids = pl.read_parquet(path, columns=["sentence"], glob=False)["sentence"].unique(maintain_order=True)
        named = ids.head(TOKENS).to_numpy()
        lengths, beside = sentences.lengths_of(named), sentences.source_lengths_of(named)
        within = 1 + int(np.searchsorted(np.cumsum(lengths), TOKENS))
        order = np.lexsort((beside[:within], lengths[:within]))
        whole, beside = model.reading.columns(lengths[order]), beside[order]
        apart = sides(model, whole) * (1 + beside.max(initial=0)) + beside
        cuts = pack(whole, area=self._plan.batch_tokens, rows=TOKENS, apart=apart)

        def read(cut: slice) -> None:
            asked = named[order[cut]].tolist()
            padded = pad([sentences.of(one) for one in asked], model, sentences.sources(asked))
            own = texts_in(padded, model.reading).cpu()
            inside = torch.from_numpy(model.reading.inside(lengths[order][cut], own.shape[1]))
            words = own[inside]

            def keep(layer: int, block: Block) -> None:
                keys, up = (None if one is None else one.float() for one in (model.keys(layer), model.up_keys(layer)))
                inputs = block.ffn_input[inside.to(block.ffn_input.device)].float()
                if keys is None or not keys.shape[1] == inputs.shape[1] == model.sizes.hidden:
                    return
                keys = keys if up is None else normalize(keys, dim=1) + normalize(up, dim=1)
                back = torch.from_numpy(np.argsort(self.shuffle(layer))).to(inputs.device)
                reached = [each @ keys.to(inputs.device).T for each in (inputs, inputs[:, back])]
                seen = best.get(layer, [(torch.full((len(keys),), -torch.inf), torch.zeros(len(keys)).long())] * 2)
                best[layer] = [_farther(*pair, words) for pair in zip(seen, reached, strict=True)]

            with torch.inference_mode(), read_blocks(model, keep, layers=layers, own_thread=True):
                model.backbone(padded)

        for cut in cuts:
            run_in_halves(read, cut, halves_of)
        return {layer: (pair[0][1].numpy(), pair[1][1].numpy()) for layer, pair in best.items()}


def _farther(seen: tuple[Tensor, Tensor], reached: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Of each memory the largest activation and its word, from those seen and `reached [position, memory]`."""
    most, place = (each.cpu() for each in reached.max(0))
    return torch.maximum(seen[0], most), torch.where(most > seen[0], words[place], seen[1])
