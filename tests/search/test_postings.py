"""Lists of numbers in few bytes come back as they were, alone and with their neighbours."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.search.postings import pack, unpack

NUMBERS = st.integers(0, 300) | st.integers(0, (1 << 32) - 1)


def pairs(lists: list[list[int]]) -> np.ndarray:
    return np.array([number << 32 | place for number, own in enumerate(lists) for place in own], np.uint64)


@given(lists=st.lists(st.lists(NUMBERS, unique=True, max_size=12).map(sorted), min_size=1, max_size=8))
def test_all_comes_back(lists: list[list[int]]) -> None:
    packed, ends = pack(pairs(lists), len(lists))
    for first in range(len(lists)):
        for last in range(first, len(lists)):
            assert unpack(packed, ends, first, last).tolist() == [n for own in lists[first : last + 1] for n in own]


def test_many_are_packed_some_at_a_time() -> None:
    """A list that goes on in the next portion, and one that begins with it."""
    lists = [np.arange(5, (1 << 20) + 105), np.arange((1 << 20) - 100) * 3, np.array([7])]
    packed, ends = pack(np.concatenate([(n << 32) + own for n, own in enumerate(lists)]).astype(np.uint64), 3)
    for number, own in enumerate(lists):
        assert np.array_equal(unpack(packed, ends, number, number), own)
    assert len(packed) == sum(map(len, lists))
