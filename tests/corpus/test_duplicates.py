"""Repeats by hash: the same answer as a dictionary, for any number of buckets."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemoscope.corpus.tokenized import duplicates
from mnemoscope.corpus.tokenized.duplicates import Hashes, count_repeats, text_hashes


def repeats(hashes: Hashes, directory: Path) -> list[int]:
    return count_repeats(lambda start, stop: hashes[start:stop], len(hashes), directory=directory).array.tolist()


def expected(keys: list[object]) -> list[int]:
    times = Counter(keys)
    return [times.pop(key, 0) for key in keys]


def test_the_first_of_its_kind_counts_all(tmp_path: Path) -> None:
    hashes = text_hashes(["b", "a", " b ", "c", "a", "b\n"])
    assert repeats(hashes, tmp_path) == [3, 2, 0, 1, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["repeats.bin"]
    hashes = np.array([[1, 1], [1, 2], [2, 2], [1, 1], [2**64 - 1, 0], [2**64 - 1, 0]], np.uint64)
    assert repeats(hashes, tmp_path) == [2, 1, 1, 0, 2, 0]


@given(st.lists(st.integers(0, 40), max_size=300), st.sampled_from([1, 3, 1000]), st.sampled_from([2, 50]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_repeats_are_those_of_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[int], bucket: int, chunk: int
) -> None:
    monkeypatch.setattr(duplicates, "BUCKET", bucket)
    monkeypatch.setattr(duplicates, "CHUNK", chunk)
    assert repeats(text_hashes(map(str, keys)), tmp_path) == expected(list(keys))


def test_half_a_million_texts_in_many_buckets(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    distinct = random.integers(0, 2**64, (300_000, 2), np.uint64)
    hashes = distinct[random.integers(0, len(distinct), 500_000)]
    tracemalloc.start()
    try:
        mapped = count_repeats(lambda start, stop: hashes[start:stop], len(hashes), directory=tmp_path)
        # Some tens of thousands at a time, of which sorting holds some fifty bytes each; all would be twelve million.
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()
    found = np.array(mapped.array)
    _, firsts, times = np.unique(hashes.view("V16").ravel(), return_index=True, return_counts=True)
    answer = np.zeros(len(hashes), np.int64)
    answer[firsts] = times
    assert np.array_equal(found, answer)
