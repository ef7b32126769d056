"""Batches: every sentence once, within budget and window, hardly any padding, mostly one length."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mnemoscope.corpus.tokenized.tokenized_corpus import Batches, plan_batches
from mnemoscope.errors import OptionError


def plan(lengths: NDArray[Any], **options: int) -> Batches:
    """The plan of sentences 0, 1, 2 ...; what is mapped of a folder outlives it."""
    with tempfile.TemporaryDirectory() as folder:
        return plan_batches(lengths, np.arange(len(lengths)), directory=Path(folder), **options)


def check(batches: Batches, lengths: NDArray[np.int64], *, budget: int, window: int, extra: int) -> float:
    """The laws of a plan, checked sentence by sentence; returns the share of padding."""
    seen: list[int] = []
    padding = positions = 0
    for k in range(batches.count):
        ids = batches.ids(k).tolist()
        own = [int(lengths[i]) + extra for i in ids]
        area = len(ids) * max(own)
        assert area <= budget or len(ids) == 1
        assert len({i // window for i in ids}) == 1
        assert list(zip(own, ids, strict=True)) == sorted(zip(own, ids, strict=True))
        # The stated bound: no batch is more than a twentieth padding.
        assert (area - sum(own)) * 20 <= area
        padding += area - sum(own)
        positions += area
        seen += ids
    assert sorted(seen) == list(range(len(lengths)))
    assert [i // window for i in seen] == sorted(i // window for i in seen)
    return padding / max(1, positions)


def test_small_plans_by_eye(tmp_path: Path) -> None:
    lengths = np.array([5, 1, 5, 1, 5, 1, 5])
    batches = plan(lengths, batch_tokens=12)
    # With the beginning: three of width 2, and two by two of width 6.
    assert [batches.ids(k).tolist() for k in range(batches.count)] == [[1, 3, 5], [0, 2], [4, 6]]
    batches = plan_batches(np.array([3, 2]), np.array([7, 70]), directory=tmp_path, batch_tokens=3, extra=0)
    assert [batches.ids(k).tolist() for k in range(batches.count)] == [[70], [7]]


def test_no_batch_has_rows_on_both_sides_of_a_boundary(tmp_path: Path) -> None:
    """The beginning token counts: 19 tokens are a row of 20, which still lies on this side of a boundary at 20."""
    lengths = np.array([20, 19, 21, 19, 20])
    plans: dict[tuple[int, ...], list[list[int]]] = {
        (): [[1, 3, 0, 4], [2]],
        (20,): [[1, 3], [0, 4, 2]],
        (20, 21): [[1, 3], [0, 4], [2]],
    }
    for boundaries, expected in plans.items():
        batches = plan_batches(lengths, np.arange(5), directory=tmp_path, batch_tokens=400, boundaries=boundaries)
        assert [batches.ids(k).tolist() for k in range(batches.count)] == expected


@pytest.mark.parametrize("k", [-1, 1])
def test_a_batch_that_is_not_there(k: int) -> None:
    with pytest.raises(IndexError, match="of 1"):
        plan(np.array([3]), batch_tokens=8).ids(k)


@pytest.mark.parametrize(("budget", "window"), [(0, 8), (8, 0)])
def test_impossible_sizes_are_refused(budget: int, window: int) -> None:
    with pytest.raises(OptionError, match="must be at least 1"):
        plan(np.array([1]), batch_tokens=budget, window=window)


@given(
    st.lists(st.one_of(st.integers(1, 6), st.integers(1, 200)), max_size=200),
    st.integers(1, 600),
    st.integers(1, 100),
    st.integers(0, 1),
)
def test_the_laws_hold_for_any_mix_of_lengths(lengths: list[int], budget: int, window: int, extra: int) -> None:
    array = np.array(lengths, np.int64)
    batches = plan(array, batch_tokens=budget, window=window, extra=extra)
    check(batches, array, budget=budget, window=window, extra=extra)


def realistic(count: int) -> NDArray[np.int64]:
    """Lengths like those of sentences of English: log-normal, median about 24 tokens, a tail, some headings."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(3.2, 0.6, count), 1, 511).astype(np.int64)
    headings = random.random(count) < 0.1
    lengths[headings] = random.integers(2, 8, int(headings.sum()))
    return lengths


def test_realistic_lengths_hardly_need_padding_or_masks() -> None:
    budget = 4096
    lengths = realistic(50_000)
    batches = plan(lengths, batch_tokens=budget)
    assert check(batches, lengths, budget=budget, window=65_536, extra=1) < 0.01
    pure = sum(len(np.unique(lengths[batches.ids(k)])) == 1 for k in range(batches.count))
    assert pure / batches.count > 0.5
    least = (lengths + 1).sum() / budget
    assert batches.count < 1.35 * least


def test_a_new_plan_replaces_the_old_one(tmp_path: Path) -> None:
    lengths, ids = realistic(5_000), np.arange(5_000)
    plan_batches(lengths, ids, directory=tmp_path, batch_tokens=64)
    again = plan_batches(lengths, ids, directory=tmp_path, batch_tokens=512, window=1_000)
    check(again, lengths, budget=512, window=1_000, extra=1)
