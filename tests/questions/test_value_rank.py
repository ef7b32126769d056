"""Figure 5: quantiles of ranks that are counted on fingers."""

from pathlib import Path

import pytest

from mnemoscope.foundation.intervals import NOTHING, wilson
from mnemoscope.questions import answer
from mnemoscope.questions.paper.value_rank import ranks_higher
from support.handbuilt_answers import build_answers, numbers

QUANTILES = ("q00", "q05", "q25", "q50", "q75", "q95", "q100")


def value(rank: int | None) -> tuple[int, int | None, int | None, float, float, float | None]:
    return (0, None if rank is None else 1, rank, 0.5, 1.0, None)


def test_quantiles_are_ranks_that_occur(tmp_path: Path) -> None:
    values = {0: [value(rank) for rank in (9, 0, None, 100)], 1: [value(rank) for rank in (3, 10, 99, 500)]}
    found = answer(build_answers(tmp_path, values=values), "value_rank")
    # Layer 0 has ranks 0, 9, 100; layer 1 has 3, 10, 99, 500; together 0 3 9 10 99 100 500.
    expected = {0: [0, 0, 0, 9, 100, 100, 100], 1: [3, 3, 3, 10, 99, 500, 500], None: [0, 0, 3, 10, 100, 500, 500]}
    for place, name in enumerate(QUANTILES):
        assert numbers(found, name) == {layer: ranks[place] for layer, ranks in expected.items()}, name
    assert numbers(found, "q50", "count") == {0: 3, 1: 4, None: 7}
    assert numbers(found, "q25", "quantile") == {0: 0.25, 1: 0.25, None: 0.25}
    assert numbers(found, "q100", "low") == {0: None, 1: None, None: None}
    assert numbers(found, "q50", "low")[None] == 3  # Wilson: 15.8 % to 84.2 % of 7, the 2nd to the 6th
    assert numbers(found, "q50", "high")[None] == 100
    assert numbers(found, "within_10") == {0: 2 / 3, 1: 1 / 4, None: 3 / 7}
    assert numbers(found, "within_100") == {0: 2 / 3, 1: 3 / 4, None: 5 / 7}


@pytest.mark.parametrize(
    ("ranks", "others", "value", "cases"),
    [
        # 0 is ahead of all three, 1 of one and level with two, 2 ahead of one: 3 + 2 + 1 of 9. What is behind each of
        # `ranks`, 1, 2/3 and 1/3, has the variance 1/9; what is ahead of each of `others`, 1/2, 1/2 and 1, has 1/12.
        ((2, 0, 1), (1, 5, 1), 6 / 9, (2 / 9) / (1 / 9 / 3 + 1 / 12 / 3)),
        # Nine level with all ten, one ahead of all: 0.5 and 1 have the variance 0.025, and 0.2475 / 0.0025 is more than
        # there are memories.
        ((5,) * 9 + (4,), (5,) * 10, 0.55, 20),
        ((1, 1, 1), (1, 1), 0.5, 2),  # every pair says the same: as many as the fewer
        ((0, 1, 2), (3, 4), 1.0, 2),
        ((3, 4), (0, 1, 2), 0.0, 2),
        ((3,), (0, 9, 5, 1), 0.5, 1),  # one alone has no variance
        ((3, 1), (2,), 0.5, 1),
    ],
)
def test_pairs_of_ranks_by_hand(ranks: tuple[int, ...], others: tuple[int, ...], value: float, cases: float) -> None:
    found = ranks_higher(ranks, others)
    assert (found.value, found.count) == (pytest.approx(value), len(ranks) + len(others))
    assert (found.low, found.high) == pytest.approx(wilson(value, cases))


def test_without_ranks_there_are_no_pairs() -> None:
    assert ranks_higher((), (1, 2)) == ranks_higher((1, 2), ()) == NOTHING


def test_pairs_are_of_an_upper_and_a_lower_memory(tmp_path: Path) -> None:
    """Of three layers the last is an upper one: rank 0 is higher than 3 and 5 and level with 0, rank 4 than 5 alone."""
    values = {0: [value(rank) for rank in (3, None)], 1: [value(rank) for rank in (0, 5)], 2: [value(0), value(4)]}
    found = answer(build_answers(tmp_path, values=values), "value_rank")
    assert numbers(found, "upper_ranks_higher") == {None: pytest.approx(3.5 / 6)}
    assert numbers(found, "upper_ranks_higher", "count") == {None: 5}
