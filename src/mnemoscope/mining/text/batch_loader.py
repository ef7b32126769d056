"""What the plan makes of a tokenized corpus: batches as tensors, token counts, the background sample.

All of it follows from the text and the plan before any model runs, so every part of a sharded run computes the same.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.text.batches import Batch, Ints
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pad, send
from mnemoscope.runs.plan import SAMPLED_EVERY, SAMPLED_TOKENS, MiningPlan, batch_order

BACKGROUND = 20_000
"""Mined prefixes in the background sample."""
_CHUNK = 8192
"""Sentences read at a time."""


class BatchLoader:
    """The batches of a plan, by number in the plan's order; `planned`: read those already made in the folder."""

    def __init__(
        self, copy: TokenizedCorpus, model: LanguageModel, *, batch_tokens: int, seed: int, planned: bool = False
    ) -> None:
        self._copy, self._model = copy, model
        self._batches = (
            copy.planned_batches()
            if planned
            else copy.batches(batch_tokens, extra=model.reading.framing, boundaries=model.boundaries)
        )
        self._order = batch_order(self._batches.count, seed)
        self.count = self._batches.count
        self._always = 0
        seen = 0
        while seen < SAMPLED_TOKENS and self._always < self.count:
            seen += int(copy.lengths[self._ids(self._always)].sum())
            self._always += 1

    @property
    def positions(self) -> int:
        """How many of the mined positions count."""
        return int(np.maximum(self._copy.mined_lengths.astype(np.int64) - self._model.reading.first, 0).sum())

    def _ids(self, number: int) -> Ints:
        return self._batches.ids(int(self._order[number]))

    def tokens(self, numbers: Iterable[int]) -> int:
        return sum(int(self._copy.lengths[self._ids(number)].sum()) for number in numbers)

    def __call__(self, number: int) -> Batch:
        """Batch `number` on the model's device; rows ascend in length, padding is the beginning token or 0."""
        ids, copy = self._ids(number), self._copy
        return Batch(
            pad([copy.tokens(sentence) for sentence in ids.tolist()], self._model, copy.sources(ids)),
            copy.lengths[ids].astype(np.int64),
            send(ids, self._model.device),
            sampled=number < self._always or number % SAMPLED_EVERY == 0,
        )


def token_table(copy: TokenizedCorpus, vocabulary: int) -> dict[str, Any]:
    """The columns of `tokens`: counts of each token, also as next and as first token, over mined sentences."""
    count = np.zeros(vocabulary, np.int64)
    first = np.zeros(vocabulary, np.int64)
    for start in range(0, len(copy.mined), _CHUNK):
        tokens = [copy.tokens(sentence) for sentence in copy.mined[start : start + _CHUNK].tolist()]
        count += np.bincount(np.concatenate(tokens), minlength=vocabulary)
        first += np.bincount([t[0] for t in tokens], minlength=vocabulary)
    token = np.arange(vocabulary, dtype=np.int32)
    return {"token": token, "count": count, "next_count": count - first, "first_count": first}


def background_table(copy: TokenizedCorpus, plan: MiningPlan, reading: Reading) -> dict[str, Any]:
    """The columns of `background`: seeded prefixes, uniform over all mined positions that count."""
    lengths = np.maximum(copy.mined_lengths.astype(np.int64) - reading.first, 0)
    ends = np.cumsum(lengths)
    positions = int(ends[-1]) if len(ends) else 0
    generator, count = np.random.default_rng((plan.seed, 3)), min(BACKGROUND, positions)
    drawn: Ints = np.empty(0, np.int64)
    if 2 * count >= positions:
        drawn = np.sort(generator.permutation(positions)[:count])
    while len(drawn) < count:  # distinct numbers, in memory of the order of `count`
        drawn = np.unique(np.concatenate([drawn, generator.integers(positions, size=count - len(drawn))]))
    row = np.searchsorted(ends, drawn, side="right")
    sentence = np.array(copy.mined[row], np.int64)
    position = (drawn - (ends[row] - lengths[row]) + reading.first).astype(np.int32)
    token, following = np.empty(len(drawn), np.int32), np.full(len(drawn), -1, np.int32)
    for i, (which, place) in enumerate(zip(sentence.tolist(), position.tolist(), strict=True)):
        tokens = copy.tokens(which)
        token[i] = tokens[place]
        if place + 1 < len(tokens):
            following[i] = tokens[place + 1]
    return {"sentence": sentence, "position": position, "token": token, "next_token": np.ma.masked_equal(following, -1)}


def sentence_rows(copy: TokenizedCorpus, ids: Ints) -> Iterator[dict[str, Any]]:
    """The rows of `sentences`, in chunks; ids from `copy.sentences` on are of a separate validation text."""
    mined = int(np.searchsorted(ids, copy.sentences))
    texts = [(copy, ids[:mined], 0, 0)]
    if mined < len(ids):
        assert isinstance(copy.validation, TokenizedCorpus)
        texts.append((copy.validation, ids[mined:], copy.sentences, int(copy.counts["documents"])))
    for text, named, sentences, documents in texts:
        for start in range(0, len(named), _CHUNK):
            numbers = named[start : start + _CHUNK] - sentences
            sources = text.sources(numbers)
            texts_beside = [] if sources is None else [text.source_text(i) for i in numbers.tolist()]
            yield {
                **({} if sources is None else {"source": texts_beside, "source_tokens": sources}),
                "sentence": numbers + sentences,
                "document": text.documents(numbers) + documents,
                "text": [text.text(i) for i in numbers.tolist()],
                "tokens": [text.tokens(i) for i in numbers.tolist()],
                "multiplicity": np.array(text.multiplicity[numbers], np.int32),
                "held_out": np.array(text.held_out[numbers], bool) | (sentences > 0),
            }
