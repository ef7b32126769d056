"""The rows of the table `triggers` of one layer, with what the sentences say about each.

They depend on a finished accumulator and the named sentences alone, so interrupted, merged and single runs agree.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from mnemoscope.atlas.schema import TABLES
from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.random_firings import scramble
from mnemoscope.mining.text.state import MiningState
from mnemoscope.mining.text.triggers import RankedPrefixes
from mnemoscope.runs.workers.worker import Worker


class NamedSentences:
    """Tokens of the sentences that tables name, with `random` also of those that only random firings name, and a hash
    of every prefix; read from the tables of a folder.
    """

    def __init__(self, directory: Path, *, random: bool = False) -> None:
        paths = sorted((directory / "sentences").glob("part-*.parquet"))
        paths += [directory / TABLES["random_sentences"].path()] * random
        names = pl.read_parquet_schema(paths[0])
        columns = ["sentence", "tokens", *(["source_tokens"] if "source_tokens" in names else [])]
        table = pl.read_parquet(paths, columns=columns, glob=False).sort("sentence")
        self.ids: Ints = table["sentence"].to_numpy()
        self.lengths: Ints = table["tokens"].list.len().to_numpy().astype(np.int64)
        self.tokens: NDArray[np.int32] = table["tokens"].explode().drop_nulls().to_numpy()
        self.starts: Ints = np.cumsum(self.lengths) - self.lengths
        self._sources = table["source_tokens"] if "source_tokens" in columns else None
        self._prefixes, self._given = _prefix_hashes(self.tokens, self.starts, self.lengths), np.zeros(1, np.uint64)
        if self._sources is not None:  # the same text with another source is another prefix
            lengths = self.source_lengths_of(self.ids)
            ends, ids = np.cumsum(lengths), self._sources.explode().to_numpy()
            hashes = _prefix_hashes(ids, ends - lengths, lengths)[ends - 1]
            self._given = scramble(torch.from_numpy(hashes.view(np.int64))).numpy().view(np.uint64)

    def lengths_of(self, sentence: Ints) -> Ints:
        return self.lengths[np.searchsorted(self.ids, sentence)]

    def of(self, sentence: int) -> NDArray[np.int32]:
        row = int(np.searchsorted(self.ids, sentence))
        return self.tokens[int(self.starts[row]) : int(self.starts[row] + self.lengths[row])]

    def source_lengths_of(self, sentence: Ints) -> Ints:
        """Tokens of the sentences' sources; 0 without."""
        if self._sources is None:
            return np.zeros(len(sentence), np.int64)
        return self._sources.list.len().to_numpy().astype(np.int64)[np.searchsorted(self.ids, sentence)]

    def sources(self, sentences: Sequence[int] | Ints) -> list[NDArray[np.int32]] | None:
        """The token ids of the sentences' sources; None without."""
        if self._sources is None:
            return None
        return [self._sources[int(row)].to_numpy() for row in np.searchsorted(self.ids, sentences)]

    def look_up(self, sentence: Ints, position: Ints, reading: Reading) -> dict[str, NDArray[Any]]:
        """Token, next token (-1 at a sentence's end) and hash of what is read at each place."""
        row = np.searchsorted(self.ids, sentence)
        place, last = self.starts[row] + position, self.starts[row] + self.lengths[row] - 1
        following = np.where(place == last, -1, self.tokens[np.minimum(place + 1, last)])
        read = self._prefixes[place if reading.causal else last] + self._given[row % len(self._given)]
        return {"token": self.tokens[place], "next_token": following, "prefix": read}


def sentences_of(worker: Worker) -> NamedSentences:
    """Those of the run's folder, read once; needs the table `sentences`."""
    return worker.share(NamedSentences, lambda: NamedSentences(worker.directory))


def layer_triggers(state: MiningState, layer: int, sentences: NamedSentences, reading: Reading) -> pl.DataFrame:
    """The table `triggers` of one layer, sorted by memory, sign (+1 first), rank."""
    rows = _with_tokens(state.triggers[layer], sentences, reading)
    return rows.with_columns(prefix_group()).drop("prefix")


def layer_random(state: MiningState, layer: int, sentences: NamedSentences, reading: Reading) -> pl.DataFrame:
    """The table `random` of one layer, sorted likewise."""
    return _with_tokens(state.random[layer], sentences, reading).drop("prefix")


def _with_tokens(ranking: RankedPrefixes, sentences: NamedSentences, reading: Reading) -> pl.DataFrame:
    rows = ranking.columns()
    places = sentences.look_up(rows["sentence"], rows["position"], reading)
    following = pl.when(pl.col("next_token") >= 0).then("next_token").cast(pl.Int32)
    return pl.DataFrame(rows | places).with_columns(following)


def prefix_group() -> pl.Expr:
    """The rank of the first trigger of the same memory and sign with the same prefix tokens."""
    return pl.col("rank").min().over("memory", "sign", "prefix", "position").alias("prefix_group")


def _prefix_hashes(tokens: NDArray[np.int32], starts: Ints, lengths: Ints) -> NDArray[np.uint64]:
    """A 64-bit hash of `tokens[start..j]` for every j: sums of scrambled tokens times powers of their places."""
    if not len(tokens):
        return np.empty(0, np.uint64)
    place = np.arange(len(tokens)) - np.repeat(starts, lengths)
    power = np.cumprod(np.full(int(place.max()) + 1, 0x9E3779B97F4A7C15, np.uint64), dtype=np.uint64)
    terms = scramble(torch.from_numpy(tokens.astype(np.int64))).numpy().view(np.uint64) * power[place]
    sums = np.cumsum(terms, dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), sums])[starts]
    return np.asarray(sums - np.repeat(before, lengths), np.uint64)
