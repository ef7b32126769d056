"""Runs of numbers, against sets of the same numbers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.mining.text.ranges import Range, count_numbers, join_ranges, leave_out, numbers_of, shared_ranges

RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5)


def numbers(runs: list[Range]) -> set[int]:
    return {number for first, end in runs for number in range(first, end)}


def assert_apart(runs: list[Range]) -> None:
    """Ascending, none empty, and no two that could be one."""
    assert all(first < end for first, end in runs)
    assert all(one[1] < other[0] for one, other in pairwise(runs))


@given(RUNS)
def test_runs_are_joined_into_as_few_as_hold_the_same_numbers(runs: list[Range]) -> None:
    found = join_ranges(runs)
    assert_apart(found)
    assert numbers(found) == numbers(runs)
    assert count_numbers(found) == len(numbers(runs))
    assert list(numbers_of(found)) == sorted(numbers(runs))


def test_numbers_of_overlaps_count_as_often_as_they_occur() -> None:
    assert count_numbers([(0, 3), (2, 5)]) == 6
    assert list(numbers_of([(0, 3), (2, 4)])) == [0, 1, 2, 2, 3]


@given(st.tuples(st.integers(0, 12), st.integers(0, 12)), RUNS)
def test_what_is_left_of_a_run_is_in_none_of_the_others(run: Range, others: list[Range]) -> None:
    found = leave_out(run, others)
    assert_apart(found)
    assert numbers(found) == numbers([run]) - numbers(others)


@given(RUNS, RUNS)
def test_what_runs_share_is_in_both(some: list[Range], others: list[Range]) -> None:
    found = shared_ranges(some, others)
    assert_apart(found)
    assert numbers(found) == numbers(some) & numbers(others)
