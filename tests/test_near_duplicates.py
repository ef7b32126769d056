"""Which triggers are near-duplicates: on cases that a reader can count, and against the definition word for word."""

from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.foundation.near_duplicates import count_different, fold_prefixes, fold_triggers


def words(text: str) -> list[int]:
    return [sum(ord(letter) * 31**place for place, letter in enumerate(word)) for word in text.split()]


TEMPLATE = "{} is a village in the administrative district of Gmina Such within Some County in northern Poland"


def test_a_template_with_another_name_is_folded() -> None:
    prefixes = [words(TEMPLATE.format(name)) for name in ("Radom", "Lipno", "Olsza")]
    assert fold_prefixes([*prefixes, words("nothing of the kind in northern Poland")]) == [0, 0, 0, 3]


def test_only_the_last_sixteen_tokens_are_compared() -> None:
    end = list(range(100, 116))
    assert fold_prefixes([[1, 2, 3, *end], [4, 5, *end], [*end[:-1], 7]]) == [0, 0, 0]


def test_seven_tenths_are_enough_and_less_is_not() -> None:
    """10 trigrams; 2 tokens cut off the end: 8 of 10. Two more: 6 of 10."""
    whole = list(range(12))
    assert fold_prefixes([whole, whole[:-2]]) == [0, 0]
    assert fold_prefixes([whole, whole[:-3]]) == [0, 0]
    assert fold_prefixes([whole, whole[:-4]]) == [0, 1]


def test_each_joins_the_first_that_it_resembles_also_one_that_was_folded() -> None:
    """The third resembles the second (8 of 10 trigrams) and not the first (6 of 10)."""
    whole = list(range(12))
    assert fold_prefixes([whole, whole[:-2], whole[:-4]]) == [0, 0, 0]


def test_short_prefixes_resemble_equal_ones_only() -> None:
    assert fold_prefixes([[1], [1], [2], [1, 2], [1, 2], [1, 2, 3]]) == [0, 0, 2, 3, 3, 5]
    assert fold_prefixes([]) == []


def test_signs_are_folded_apart_and_ranks_may_come_in_any_order() -> None:
    assert fold_triggers([-1, 1, 1, -1], [0, 1, 0, 1], [[5], [5], [5], [5]]) == [0, 0, 0, 0]
    assert fold_triggers([1, 1, 1], [2, 0, 1], [[8], [9], [8]]) == [1, 0, 1]


def test_a_pattern_counts_each_fold_once_by_its_first() -> None:
    """Ranks 0, 1 and 3 are of one fold; 2 and 4 have one prefix."""
    best = [
        {"rank": rank, "prefix_group": group, "fold": fold}
        for rank, group, fold in ((0, 0, 0), (1, 1, 0), (2, 2, 2), (3, 3, 0), (4, 2, 2), (5, 5, 5))
    ]
    assert count_different([0, 1, 2, 3, 4, 5], best) == 3
    assert count_different([1, 3], best) == 0
    assert count_different([4], best) == 1
    assert count_different([9], best) == 0


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
