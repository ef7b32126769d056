"""Prefixes whose features and words a test writes down, in place of those of a text. Not a test itself."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import polars as pl

from mnemoscope.patterns.prefixes import Pairs, PrefixBatch
from mnemoscope.patterns.words import Runs

Shown = tuple[int, Sequence[int], Sequence[int]]
"""A prefix: its length in tokens, the keys of its features, and its words."""


def pairs_of(keys: Sequence[Sequence[int]], ago: Sequence[Sequence[int]] | None = None) -> Pairs:
    """The keys of each prefix; for words, how many tokens before the last one each ends."""
    starts = np.concatenate([[0], np.cumsum([len(own) for own in keys])]).astype(np.int64)
    flat = np.array([key for own in keys for key in own], dtype=np.uint64)
    places = [place for own in ago for place in own] if ago is not None else [0] * flat.size
    return Pairs(starts, flat, np.array(places, dtype=np.int64))


def prefixes_of(shown: Sequence[Shown], ago: Sequence[Sequence[int]] | None = None) -> PrefixBatch:
    """Prefixes of these lengths, features and words; they have no text."""
    first = np.zeros(len(shown), dtype=np.int64)
    end = np.array([length - 1 for length, _, _ in shown], dtype=np.int64)
    features, words = pairs_of([own for _, own, _ in shown]), pairs_of([own for *_, own in shown], ago)
    return PrefixBatch(cast("Runs", None), first, end, features, words)


def triggers_of(rows: Sequence[tuple[int, int, int, int, int, int]]) -> pl.DataFrame:
    """The best triggers of a layer: (memory, sign, rank, sentence, position, prefix group)."""
    names = ["memory", "sign", "rank", "sentence", "position", "prefix_group"]
    return pl.DataFrame(cast("Any", rows), schema=names, orient="row")


def one_prefix_each(*groups: int) -> pl.DataFrame:
    """The triggers of memories of so many groups, each of another sentence: prefix n of the batch is sentence n."""
    places = [(memory, rank) for memory, count in enumerate(groups) for rank in range(count)]
    return triggers_of([(memory, 1, rank, sentence, 0, rank) for sentence, (memory, rank) in enumerate(places)])
