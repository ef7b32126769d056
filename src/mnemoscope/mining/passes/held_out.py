"""The held-out text whose loss is measured: which sentences, and which predictions are read off a forward of them.

The sentences are those of the validation prefixes, whole. A token is predicted where a validation prefix could end:
not by a first token without a beginning token before it, which is an attention sink. Runs no model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.mining.text.batches import pad
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel

MOST_TOKENS = 16_384
"""Held-out tokens whose loss is measured, about."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOut:
    """The sentences read, in order of id, and their documents, `[sentence]` each; `predicted` are tokens with a loss:
    those whose prefix could be a validation prefix.
    """

    sentence: Ints
    document: Ints
    lengths: Ints
    predicted: Ints

    @classmethod
    def choose(cls, prefixes: pl.DataFrame, sentences: NamedSentences, *, seed: int, first: int) -> "HeldOut":
        """As many of the prefixes' sentences as `MOST_TOKENS` allows, drawn by the seed; at least one if there is one.

        `first` is the first position that counts.
        """
        of = prefixes.select("sentence", "document").unique("sentence", maintain_order=True)
        ids, documents = (of[name].cast(pl.Int64).to_numpy() for name in ("sentence", "document"))
        lengths = np.array([len(sentences.of(sentence)) for sentence in ids.tolist()], np.int64)
        predicted = np.maximum(lengths - 1 - first, 0)
        order = np.random.default_rng((seed, 14)).permutation(len(ids))
        before = np.cumsum(predicted[order]) - predicted[order]
        chosen = np.sort(order[before < MOST_TOKENS])
        return cls(ids[chosen], documents[chosen], lengths[chosen], predicted[chosen])


@dataclass(frozen=True)
class Reading:
    """Sentences of one forward: their `rows` among the text's, padded ids, and the predictions that are read.

    `places` are row and column of each prediction, `following` the tokens predicted.
    """

    rows: Ints
    ids: Tensor
    places: tuple[Tensor, ...]
    following: Tensor

    @classmethod
    def of(cls, model: LanguageModel, text: HeldOut, rows: Ints, sentences: NamedSentences) -> "Reading":
        """The forward of these sentences of the text."""
        ids = pad([sentences.of(sentence) for sentence in text.sentence[rows].tolist()], model)
        last, column = torch.from_numpy(text.predicted[rows])[:, None], torch.arange(ids.shape[1])
        # Predictions are read from column 1 on: 0 holds the beginning token, or a first token that does not count.
        places = ((column >= 1) & (column <= last)).nonzero(as_tuple=True)
        return cls(rows, ids, places, ids.cpu()[places[0], places[1] + 1])

    def at_places(self, stream: Tensor) -> Tensor:
        """A stream `[batch, position, hidden]` where predictions are read: `[prediction, hidden]`."""
        return stream[tuple(place.to(stream.device) for place in self.places)]

    def total(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        """The sum `[row]` of numbers `[prediction]`."""
        weights = np.asarray(numbers, np.float64)
        found = np.bincount(self.places[0].numpy(), weights=weights, minlength=len(self.rows))
        return np.asarray(found, np.float64)

    def count(self, marks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many `[row]` predictions are marked."""
        return self.total(marks).astype(np.int64)
