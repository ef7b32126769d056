"""Which held-out sentences have their loss measured, and which predictions are read off them, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.passes.width import MOST_TOKENS, HeldOut, LossForward


class Sentences:
    """Those of an atlas, of these tokens by id."""

    def __init__(self, tokens: dict[int, list[int]]) -> None:
        self._tokens = tokens

    def of(self, sentence: int) -> np.ndarray:
        return np.array(self._tokens[sentence], np.int32)

    def sources(self, _: list[int]) -> None:
        return None


SENTENCES: Any = Sentences({3: [5, 6, 7], 4: [1], 8: [9, 10, 11, 12]})


def choose(documents: dict[int, int], sentences: Any = SENTENCES, *, seed: int = 0, first: int = 0) -> HeldOut:
    """Of a prefix in each of these sentences, which are of these documents; one has two prefixes."""
    rows = [*documents.items(), next(iter(documents.items()))]
    prefixes = pl.DataFrame(rows, schema={"sentence": pl.Int64, "document": pl.Int64}, orient="row")
    prefixes = prefixes.with_columns(position=pl.lit(0))
    return HeldOut.choose(prefixes, sentences, seed=seed, reading=Reading(first=first))


@pytest.mark.parametrize(("first", "predicted"), [(0, [2, 0, 3]), (1, [1, 0, 2])])
def test_a_token_is_predicted_where_a_prefix_could_end(first: int, predicted: list[int]) -> None:
    found = choose({8: 2, 3: 1, 4: 1}, first=first)
    assert (found.sentence.tolist(), found.document.tolist()) == ([8, 3, 4], [2, 1, 1])
    assert found.lengths.tolist() == [4, 3, 1]
    assert found.predicted.tolist() == [predicted[2], *predicted[:2]]


def test_about_so_many_tokens_are_drawn_and_at_least_one_sentence() -> None:
    half = MOST_TOKENS // 2
    many: Any = Sentences({sentence: [0] * (half + 1) for sentence in range(6)})
    drawn = [choose(dict.fromkeys(range(6), 0), many, seed=seed) for seed in range(8)]
    assert {tuple(found.predicted.tolist()) for found in drawn} == {(half, half)}
    assert all(found.sentence.tolist() == sorted(found.sentence.tolist()) for found in drawn)
    assert len({tuple(found.sentence.tolist()) for found in drawn}) > 1
    long: Any = Sentences({sentence: [0] * (3 * half) for sentence in range(2)})
    assert len(choose({0: 0, 1: 0}, long).sentence) == 1
    little_more: Any = Sentences({sentence: [0] * half for sentence in range(6)})  # not yet enough after two
    assert len(choose(dict.fromkeys(range(6), 0), little_more).sentence) == 3


def read(first: int, rows: list[int]) -> LossForward:
    """The forward of some rows by a model that begins with token 0, or, where 1 is the first position, with nothing."""
    reading = Reading.of(None if first else 0)
    model: Any = SimpleNamespace(reading=reading, device=torch.device("cpu"))
    text = choose({3: 1, 4: 1, 8: 2}, first=first)
    return LossForward.of(model, text, np.array(rows), SENTENCES)


def test_without_one_the_first_token_is_read_by_nobody() -> None:
    found = read(1, [0, 1, 2])
    assert found.ids.tolist() == [[5, 6, 7, 0], [1, 0, 0, 0], [9, 10, 11, 12]]
    assert [place.tolist() for place in found.places] == [[0, 2, 2], [1, 1, 2]]
    assert found.following.tolist() == [7, 11, 12]
