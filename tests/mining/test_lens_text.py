"""Which sentences a lens is fitted on, and which choose its penalty."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mnemoscope.errors import AtlasUnfinished
from mnemoscope.mining.lenses.lens_pass import LensText


def write_sentences(folder: Path, lengths: list[int], **columns: Any) -> Path:
    """Sentences of these lengths, of a document each unless told; their tokens count through the text."""
    tokens, count = iter(range(sum(lengths))), len(lengths)
    table = {"document": range(count), "held_out": [False] * count, **columns}
    rows = {"tokens": [[next(tokens) for _ in range(length)] for length in lengths], **table}
    (folder / "sentences").mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(folder / "sentences/part-000.parquet")
    return folder


def read_text(folder: Path, *, most: int = 10**9, area: int = 200, seed: int = 0) -> LensText:
    return LensText(folder, area=area, seed=seed, most=most)


def tokens_of(text: LensText) -> set[tuple[int, ...]]:
    """The sentences, which are all different."""
    found = [tuple(row.tolist()) for batch in text.batches for row in batch.rows]
    assert len(set(found)) == len(found)
    return set(found)


def test_sentences_are_mined_ones_of_two_tokens_and_more(tmp_path: Path) -> None:
    folder = write_sentences(tmp_path, [3, 1, 2, 4], held_out=[False, False, False, True])
    text = read_text(folder)
    assert tokens_of(text) == {(0, 1, 2), (4, 5)}
    assert (text.tokens, sum(len(row) for batch in text.batches for row in batch.rows)) == (5, 5)


@pytest.mark.parametrize(("lengths", "held_out"), [([1, 1], False), ([5], True)])
def test_without_such_a_sentence_it_is_said(lengths: list[int], held_out: bool, tmp_path: Path) -> None:
    folder = write_sentences(tmp_path, lengths, held_out=[held_out] * len(lengths))
    with pytest.raises(AtlasUnfinished, match="stores no mined sentence of two tokens"):
        read_text(folder)


@pytest.mark.parametrize(("most", "expected"), [(10, 10), (14, 10), (100, 40)])
def test_at_most_so_many_tokens_are_read(most: int, expected: int, tmp_path: Path) -> None:
    text = read_text(write_sentences(tmp_path, [5] * 8), most=most)
    assert text.tokens == expected == sum(map(len, tokens_of(text)))


@pytest.mark.parametrize("first", range(0, 60, 7))
def test_of_two_documents_one_is_fitted_and_one_judges(first: int, tmp_path: Path) -> None:
    """Whatever their numbers are, and so the rule that takes one of ten to be a judge."""
    text = read_text(write_sentences(tmp_path, [5] * 4, document=[first, first, first + 1, first + 1]))
    assert sorted(batch.judged for batch in text.batches) == [False, True]


def test_another_seed_chooses_others(tmp_path: Path) -> None:
    folder = write_sentences(tmp_path, [5] * 40)
    first, again, other = (tokens_of(read_text(folder, most=50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_one_document_of_ten_chooses_the_penalty_and_shares_no_batch(tmp_path: Path) -> None:
    documents = np.repeat(np.arange(3_000), 2)
    text = read_text(write_sentences(tmp_path, [2] * 6_000, document=documents))
    judged = {row[0] // 4 for batch in text.batches if batch.judged for row in batch.rows}
    fitted = {row[0] // 4 for batch in text.batches if not batch.judged for row in batch.rows}
    assert judged.isdisjoint(fitted), "a document is on one side"
    assert len(judged) + len(fitted) == 3_000
    assert 0.095 < len(judged) / 3_000 < 0.105


def test_a_batch_holds_64_sentences_of_like_length_within_the_area(tmp_path: Path) -> None:
    text = read_text(write_sentences(tmp_path, [2] * 300 + [9] * 300 + [60]), area=320)
    sizes = [(len(batch.rows), max(map(len, batch.rows))) for batch in text.batches]
    assert all(rows * (longest + 1) <= 320 for rows, longest in sizes), "a beginning token stands before each"
    assert max(sizes) == (64, 2)
    assert (32, 9) in sizes
    assert [longest for _, longest in sizes] != sorted(longest for _, longest in sizes), "in chance order"
