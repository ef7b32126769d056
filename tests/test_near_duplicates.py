"""Which triggers are near-duplicates: on cases that a reader can count, and against the definition word for word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.foundation.near_duplicates import count_different, fold_prefixes, fold_triggers


def words(text: str) -> list[int]:
    return [sum(ord(letter) * 31**place for place, letter in enumerate(word)) for word in text.split()]


TEMPLATE = "{} is a village in the administrative district of Gmina Such within Some County in northern Poland"


WHOLE, END = list(range(12)), list(range(100, 116))
NAMED = [words(TEMPLATE.format(name)) for name in ("Radom", "Lipno", "Olsza")]
FOLDS = {
    "a template with another name": ([*NAMED, words("nothing of the kind in northern Poland")], [0, 0, 0, 3]),
    "only the last sixteen tokens count": ([[1, 2, 3, *END], [4, 5, *END], [*END[:-1], 7]], [0, 0, 0]),
    # 10 trigrams; two tokens cut off the end: 8 of 10. Three: 7, which is enough. Four: 6.
    "eight of ten": ([WHOLE, WHOLE[:-2]], [0, 0]),
    "seven of ten": ([WHOLE, WHOLE[:-3]], [0, 0]),
    "six of ten": ([WHOLE, WHOLE[:-4]], [0, 1]),
    # The third resembles the second (8 of 10 trigrams) and not the first (6 of 10).
    "also one that was folded": ([WHOLE, WHOLE[:-2], WHOLE[:-4]], [0, 0, 0]),
    "short ones resemble equal ones only": ([[1], [1], [2], [1, 2], [1, 2], [1, 2, 3]], [0, 0, 2, 3, 3, 5]),
    "none": ([], []),
}


@pytest.mark.parametrize(("prefixes", "folds"), FOLDS.values(), ids=list(FOLDS))
def test_each_joins_the_first_that_it_resembles(prefixes: list[list[int]], folds: list[int]) -> None:
    assert fold_prefixes(prefixes) == folds


def test_signs_are_folded_apart_and_ranks_may_come_in_any_order() -> None:
    assert fold_triggers([-1, 1, 1, -1], [0, 1, 0, 1], [[5], [5], [5], [5]]) == [0, 0, 0, 0]
    assert fold_triggers([1, 1, 1], [2, 0, 1], [[8], [9], [8]]) == [1, 0, 1]


def test_a_pattern_counts_each_fold_once_by_its_first() -> None:
    """Ranks 0, 1 and 3 are of one fold; 2 and 4 have one prefix."""
    best = [
        {"rank": rank, "prefix_group": group, "fold": fold}
        for rank, group, fold in ((0, 0, 0), (1, 1, 0), (2, 2, 2), (3, 3, 0), (4, 2, 2), (5, 5, 5))
    ]
    assert (count_different([0, 1, 2, 3, 4, 5], best), count_different([1, 3], best)) == (3, 0)
    assert (count_different([4], best), count_different([9], best)) == (1, 0)


def slowly(prefixes: list[list[int]]) -> list[int]:
    folds: list[int] = []
    for number, prefix in enumerate(prefixes):
        folds.append(number)
        for earlier in range(number):
            one, other = (
                [p[i : i + 3] for p in (x[-16:],) for i in range(len(p) - 2)] for x in (prefixes[earlier], prefix)
            )
            different = [t for at, t in enumerate([*one, *other]) if t not in [*one, *other][:at]]
            shared = [t for t in different if t in one and t in other]
            alike = prefixes[earlier] == prefix if not one and not other else len(shared) >= 0.7 * len(different)
            if alike:
                folds[number] = folds[earlier]
                break
    return folds


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), max_size=8))
def test_as_the_definition_says(prefixes: list[list[int]]) -> None:
    assert fold_prefixes(prefixes) == slowly(prefixes)
