"""The prefixes of an atlas's triggers, as text, in the order in which the index takes them.

Of the triggers with the same prefix only the best is taken, since the paper counts a prefix once. The sentences wait in
a file beside the index, so that memory does not grow with the text: it holds a few numbers per trigger.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.search.database import CONTEXT, RANK_BITS, token_type

_SENTENCES, _ROWS = 50_000, 20_000


class Prefixes:
    """The distinct positive prefixes of every memory: numbers, places, and texts by and by."""

    def __init__(self, atlas: Atlas, first: dict[int, int]) -> None:
        """`first`: the number of every layer's memory 0."""
        self.atlas = atlas
        self.raw = atlas.vocabulary.raw
        columns = [self._layer(layer, first[layer]) for layer in atlas.layers]
        numbers = np.concatenate([column[0] for column in columns])
        order = np.argsort(numbers)
        self.numbers = numbers[order]
        self.sentences = np.concatenate([column[1] for column in columns])[order]
        self.positions = np.concatenate([column[2] for column in columns])[order]
        self.ids = np.unique(self.sentences)
        self._ends = np.zeros(len(self.ids) + 1, np.int64)
        self.spaced = True
        """Whether tokens bring the spaces between words along; if not, they are put between tokens."""

    def _layer(self, layer: int, first: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        rows = self.atlas.best_triggers(layer, None).filter(pl.col("rank") == pl.col("prefix_group"))
        rank, memory = rows["rank"].cast(pl.Int64).to_numpy(), rows["memory"].cast(pl.Int64).to_numpy()
        return (rank << RANK_BITS) + first + memory, rows["sentence"].to_numpy(), rows["position"].to_numpy()

    def read_sentences(self, file: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
        """Writes the tokens of every sentence into `file`, and yields them as (sentence, tokens as bytes)."""
        for at in range(0, len(self.ids), _SENTENCES):
            ids = self.ids[at : at + _SENTENCES].tolist()
            rows = self.atlas.sentences(ids, columns=["sentence", "text", "tokens"])
            lengths = rows["tokens"].list.len().to_numpy().astype(np.int64)
            ends = np.concatenate([[0], np.cumsum(lengths)])
            wide = rows["tokens"].explode().drop_nulls().to_numpy()
            if wide.size and not (int(wide.min()) >= 0 and int(wide.max()) < len(self.raw)):
                raise AtlasDamaged(f"{self.atlas.path}: a sentence has a token beyond the vocabulary")
            flat = wide.astype(token_type(len(self.raw)))
            self._ends[at + 1 : at + 1 + len(ids)] = self._ends[at] + ends[1:]
            data, size = flat.tobytes(), flat.itemsize
            file.write(data)
            if at == 0:
                self.spaced = self.atlas.vocabulary.carries_spaces(rows.head(1_000))
            yield [(id, data[size * ends[i] : size * ends[i + 1]]) for i, id in enumerate(ids)]
        file.flush()

    def texts(self, path: Path) -> Iterator[tuple[list[tuple[int, int, int]], list[str]]]:
        """Rows (number, sentence, position) and their texts, in order of number; `path` holds the tokens."""
        if not len(self.numbers):
            return
        flat = np.memmap(path, dtype=token_type(len(self.raw)), mode="r").view(np.ndarray)
        for at in range(0, len(self.numbers), _ROWS):
            here = slice(at, at + _ROWS)
            places = np.searchsorted(self.ids, self.sentences[here])
            last = self._ends[places] + self.positions[here]
            if not np.all(last < self._ends[places + 1]):
                raise AtlasDamaged(f"{self.atlas.path}: a trigger lies beyond the end of its sentence")
            begin = np.maximum(self._ends[places], last - (CONTEXT - 1))
            texts = [
                window_text(flat[a : b + 1].tolist(), self.raw, spaced=self.spaced, cut=cut)
                for a, b, cut in zip(begin.tolist(), last.tolist(), (begin > self._ends[places]).tolist(), strict=True)
            ]
            numbers, sentences = self.numbers[here].tolist(), self.sentences[here].tolist()
            yield list(zip(numbers, sentences, self.positions[here].tolist(), strict=True)), texts


def window_text(tokens: list[int], raw: list[bytes], *, spaced: bool, cut: bool) -> str:
    """The text of a prefix's last tokens; where the prefix is `cut`, from a whole word on if a space is near."""
    text = (b"" if spaced else b" ").join(map(raw.__getitem__, tokens)).decode("utf-8", "replace")
    if cut and spaced:
        space = text.find(" ", 0, 24)
        return text[space:] if space > 0 else text
    return text
