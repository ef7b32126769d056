"""How many numbers lie below another, against counting."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.search.counts_below import CountsBelow

NUMBERS = st.integers(0, 300) | st.sampled_from([63, 64, 65, 127, 128, 1 << 20])


def counted(numbers: Sequence[int], asked: Sequence[int]) -> list[int]:
    return [sum(number < one for number in numbers) for one in asked]


@given(numbers=st.lists(NUMBERS, max_size=40).map(sorted), asked=st.lists(NUMBERS | st.integers(0, (1 << 32) - 1)))
def test_as_many_as_there_are(numbers: list[int], asked: list[int]) -> None:
    below = CountsBelow.of(np.array(numbers, np.uint32)).below(np.array(asked, np.uint32))
    assert below.tolist() == counted(numbers, asked)


@pytest.mark.parametrize("first", [0, 63, 64])
def test_every_number_around_whole_words_of_bits(first: int) -> None:
    numbers = [first, first, *range(first + 5, first + 200), first + 300]
    asked = range(first + 400)
    below = CountsBelow.of(np.array(numbers, np.int64)).below(np.array(asked))
    assert below.tolist() == counted(numbers, asked)


def test_the_largest_numbers() -> None:
    numbers = np.array([0, (1 << 32) - 2, (1 << 32) - 1], np.uint64)
    asked = np.array([0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32], np.uint64)
    assert CountsBelow.of(numbers).below(asked).tolist() == [0, 1, 1, 2, 3]
