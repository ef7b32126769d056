"""The triggers of one layer as rows, in the order of the table, with what the sentences say about each.

Rows come from a finished accumulator and from the named sentences alone, so an interrupted run, a merge of parts and a
single run make the same table.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.mining.state import MiningState

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LayerTriggers:
    """Columns of `triggers`, one entry per row; `next_token` is -1 where the sentence ends."""

    memory: NDArray[np.int32]
    sign: NDArray[np.int8]
    rank: NDArray[np.int16]
    coefficient: NDArray[np.float32]
    sentence: Ints
    position: NDArray[np.int32]
    token: NDArray[np.int32]
    next_token: NDArray[np.int32]
    prefix_group: NDArray[np.int16]

    def columns(self) -> dict[str, Any]:
        """The columns as the store takes them."""
        return {**vars(self), "next_token": np.ma.masked_equal(self.next_token, -1)}


class NamedSentences:
    """Tokens of the sentences that a table names, and a hash of every prefix of them."""

    def __init__(self, directory: Path) -> None:
        """Reads `sentences/` of an atlas, finished or not."""
        ids, lengths, flat = [], [], []
        for path in sorted((directory / "sentences").glob("part-*.parquet")):
            table = pl.read_parquet(path, columns=["sentence", "tokens"])
            ids.append(table["sentence"].to_numpy())
            lengths.append(table["tokens"].list.len().to_numpy().astype(np.int64))
            flat.append(table["tokens"].explode().drop_nulls().to_numpy())
        self.ids: Ints = np.concatenate(ids) if ids else np.empty(0, np.int64)
        self.lengths: Ints = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        self.tokens: NDArray[np.int32] = np.concatenate(flat) if flat else np.empty(0, np.int32)
        self.starts: Ints = np.cumsum(self.lengths) - self.lengths
        self._prefixes = _prefix_hashes(self.tokens, self.starts, self.lengths)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """All that it holds: ids, lengths and tokens."""
        return self.ids, self.lengths, self.tokens

    def of(self, sentence: int) -> NDArray[np.int32]:
        """The tokens of one named sentence."""
        row = int(np.searchsorted(self.ids, sentence))
        return self.tokens[int(self.starts[row]) : int(self.starts[row] + self.lengths[row])]

    def look_up(
        self, sentence: Ints, position: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
        """Token, next token (-1 at a sentence's end) and prefix hash at each place."""
        row = np.searchsorted(self.ids, sentence)
        place = self.starts[row] + position
        last = position + 1 >= self.lengths[row]
        following = self.tokens[np.where(last, place, place + 1)]
        return self.tokens[place], np.where(last, -1, following).astype(np.int32), self._prefixes[place]


def layer_triggers(state: MiningState, layer: int, sentences: NamedSentences) -> LayerTriggers:
    """The rows of one layer, sorted by memory, sign (+1 first), rank."""
    columns: dict[str, list[NDArray[Any]]] = {}
    for sign in state.shape.signs:
        found = {name: tensor.cpu().numpy() for name, tensor in state.triggers[layer, sign].state().items()}
        memory, rank = np.nonzero(found["sentence"] >= 0)
        at = (memory, rank)
        rows: dict[str, NDArray[Any]] = {
            "memory": memory.astype(np.int32),
            "sign": np.full(len(memory), sign, np.int8),
            "rank": rank.astype(np.int16),
            "coefficient": (sign * found["magnitude"][at]).astype(np.float32),
            "sentence": found["sentence"][at],
            "position": found["position"][at],
        }
        for name, values in rows.items():
            columns.setdefault(name, []).append(values)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort((whole["rank"], -whole["sign"], whole["memory"]))
    whole = {name: values[order] for name, values in whole.items()}
    token, following, prefix = sentences.look_up(whole["sentence"], whole["position"])
    group = prefix_groups(whole["memory"], whole["sign"], whole["rank"], prefix, whole["position"])
    return LayerTriggers(**whole, token=token, next_token=following, prefix_group=group)


def prefix_groups(
    memory: NDArray[Any], sign: NDArray[Any], rank: NDArray[Any], prefix: NDArray[np.uint64], position: NDArray[Any]
) -> NDArray[np.int16]:
    """For every row the rank of the first row of the same memory and sign with the same prefix tokens."""
    order = np.lexsort((rank, position, prefix, sign, memory))
    keys = [column[order] for column in (memory, sign, prefix, position)]
    fresh = np.ones(len(order), bool)
    fresh[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    firsts = rank[order][fresh]
    group = np.empty(len(order), np.int16)
    group[order] = firsts[np.cumsum(fresh) - 1]
    return group


def _prefix_hashes(tokens: NDArray[np.int32], starts: Ints, lengths: Ints) -> NDArray[np.uint64]:
    """A 64-bit hash of `tokens[start..j]` for every j: sums of scrambled tokens, each times a power of its place."""
    if not len(tokens):
        return np.empty(0, np.uint64)
    place = np.arange(len(tokens)) - np.repeat(starts, lengths)
    power = np.cumprod(np.full(int(place.max()) + 1, 0x9E3779B97F4A7C15, np.uint64), dtype=np.uint64)
    terms = _scramble(tokens.astype(np.uint64)) * power[place]
    sums = np.cumsum(terms, dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), sums])[starts]
    return np.asarray(sums - np.repeat(before, lengths), np.uint64)


def _scramble(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A fixed one-to-one mixing of 64-bit numbers (the finaliser of splitmix64)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
