"""Trees of tokens against sentences written out one by one: ids, places, what depends on what, what attends to what."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.models import token_trees
from mnemoscope.models.token_trees import Branch, TokenRow, Tree

Grown = tuple[list[int], list[tuple[int, list[int]]]]
"""A trunk, and branches with the number of the trunk's tokens that they follow."""

_tokens = st.lists(st.integers(0, 999), max_size=6)
_forests = st.lists(st.tuples(_tokens, st.lists(st.tuples(st.integers(0, 6), _tokens), max_size=4)), max_size=4)


def plant(forest: list[Grown]) -> TokenRow:
    return TokenRow([
        Tree(np.array(trunk, np.int64), [
            Branch(min(after, len(trunk)), np.array(tokens, np.int64)) for after, tokens in branches
        ])
        for trunk, branches in forest
    ])  # fmt: skip


def ancestors(forest: list[Grown]) -> tuple[list[int], list[list[int]], list[int]]:
    """Every token's id, the numbers of those that it follows, in order, and of itself; where each sentence begins."""
    ids: list[int] = []
    before: list[list[int]] = []
    starts: list[int] = []

    def grow(path: list[int], tokens: list[int]) -> list[int]:
        starts.append(len(ids))
        for token in tokens:
            path = [*path, len(ids)]
            ids.append(token)
            before.append(path)
        return path

    for trunk, branches in forest:
        stem = grow([], trunk)
        for after, tokens in branches:
            grow(stem[:after], tokens)
    return ids, before, starts


@given(_forests)
def test_ids_and_places_are_those_of_the_sentences(forest: list[Grown]) -> None:
    if not forest:
        return
    row, (ids, before, starts) = plant(forest), ancestors(forest)
    assert row.ids.tolist() == ids
    assert row.places.tolist() == [len(path) - 1 for path in before]
    assert row.starts.tolist() == starts
    assert len(row) == len(ids)


@given(_forests, st.data())
def test_a_token_is_needed_as_long_as_anything_that_follows_it(forest: list[Grown], data: st.DataObject) -> None:
    ids, before, _ = ancestors(forest)
    if not ids:
        return
    place = st.integers(0, len(ids) - 1)
    asked = data.draw(st.dictionaries(st.integers(0, 5), st.lists(place, unique=True).map(sorted), max_size=4))
    wanted = [
        max((layer for layer, tokens in asked.items() if any(token in before[later] for later in tokens)), default=-1)
        for token in range(len(ids))
    ]
    row = plant(forest)
    assert row.deepest({layer: np.array(tokens, np.int64) for layer, tokens in asked.items()}).tolist() == wanted


@pytest.mark.parametrize("together", [1, 5, 12, 192])
@given(forest=_forests, data=st.data())
def test_tokens_attend_to_those_that_they_follow(together: int, forest: list[Grown], data: st.DataObject) -> None:
    """Whatever number attends in one call: every kept token once, to each of its kept beginning and to no other."""
    ids, before, _ = ancestors(forest)
    if not ids:
        return
    ends = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=5))
    kept = sorted({token for end in ends for token in before[end]})
    usual, token_trees._TOGETHER = token_trees._TOGETHER, together
    try:
        chunks = plant(forest).chunks(np.array(kept, np.int64), like=torch.zeros(1, dtype=torch.float64))
    finally:
        token_trees._TOGETHER = usual
    assert [(chunk.first, chunk.last) for chunk in chunks] == list(
        zip([0, *(chunk.last for chunk in chunks[:-1])], [*(chunk.last for chunk in chunks)], strict=True)
    )
    assert chunks[-1].last == len(kept)
    for chunk in chunks:
        keys = [*range(chunk.trunk.start or 0, chunk.trunk.stop), *range(chunk.first, chunk.last)]
        assert chunk.mask.shape == (chunk.last - chunk.first, len(keys))
        assert chunk.mask.dtype == torch.float64
        for query, open_to in zip(range(chunk.first, chunk.last), chunk.mask, strict=True):
            assert (
                sorted(kept[key] for key, added in zip(keys, open_to.tolist(), strict=True) if added == 0)
                == (before[kept[query]])
            )
            assert set(open_to.tolist()) <= {0.0, -float("inf")}


def test_small_trees_attend_together_and_large_ones_by_branches() -> None:
    """One call for many small trees; of a large one several, which share its trunk."""
    small = plant([([1, 2, 3], [(1, [4, 5])])] * 30)
    (only,) = small.chunks(np.arange(len(small)), like=torch.zeros(1))
    assert (only.first, only.last) == (0, 150)
    large = plant([(list(range(100)), [(50 + k, list(range(50))) for k in range(8)])])
    first, *others = large.chunks(np.arange(len(large)), like=torch.zeros(1))
    assert (first.first, first.last) == (0, 150)
    assert [(chunk.first, chunk.last, chunk.trunk) for chunk in others] == [
        (150, 300, slice(0, 100)), (300, 450, slice(0, 100)), (450, 500, slice(0, 100)),
    ]  # fmt: skip
