"""The tokens of stored sentences: from memory where they are not too many, or else read for each page.

Reading the hundred sentences of one memory decodes a hundred pieces of the table, 40 ms of processor time; the tokens
of a million sentences take 100 MB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnemoscope.errors import AtlasDamaged
from mnemoscope.pages.edition import Edition

MOST = 1_500_000
"""Sentences that are kept in memory."""


@dataclass(frozen=True)
class _Sentences:
    """All sentences: their ids in order, where each one's tokens begin, and the tokens of all."""

    ids: Any
    starts: Any
    tokens: Any


def tokens_of(edition: Edition, sentences: Sequence[int]) -> dict[int, list[int]]:
    """The tokens of each of these sentences; raises AtlasDamaged where one is not stored."""
    kept = edition.tables.get("sentences", lambda: _sentences(edition))
    if kept is None:
        stored = edition.atlas.sentences(sentences, columns=["sentence", "tokens"])
        return dict(zip(stored["sentence"].to_list(), stored["tokens"].to_list(), strict=True))
    places = np.searchsorted(kept.ids, np.asarray(sentences, dtype=np.int64)).tolist()
    found = {}
    for sentence, place in zip(sentences, places, strict=True):
        if place == len(kept.ids) or kept.ids[place] != sentence:
            raise AtlasDamaged(f"{edition.atlas.path}: sentence {sentence} is named by a table but not stored")
        found[sentence] = kept.tokens[kept.starts[place] : kept.starts[place + 1]].tolist()
    return found


def _sentences(edition: Edition) -> _Sentences | None:
    """All sentences, or None where they are too many."""
    ids = edition.atlas.tables.whole("sentences", columns=["sentence"])["sentence"]
    if len(ids) > MOST or not ids.is_sorted():
        return None
    tokens = edition.atlas.tables.whole("sentences", columns=["tokens"])["tokens"]
    starts = np.concatenate([[0], np.cumsum(tokens.list.len().to_numpy(), dtype=np.int64)])
    return _Sentences(ids.to_numpy(), starts, tokens.to_arrow().flatten().to_numpy())
