"""Figure 5: quantiles of ranks that are counted on fingers."""

from pathlib import Path

from handbuilt_answers import build_answers, numbers
from mnemoscope.questions import answer

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


def test_without_any_target(tmp_path: Path) -> None:
    found = answer(build_answers(tmp_path, values={0: [value(None)] * 3}), "value_rank")
    for name in (*QUANTILES, "within_10", "within_100"):
        assert numbers(found, name) == {0: None, None: None}
        assert numbers(found, name, "count") == {0: 0, None: 0}
