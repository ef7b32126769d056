"""How much of a memory's prefixes its patterns explain, counted by eye."""

import polars as pl
import pytest

from mnemoscope.foundation.intervals import NOTHING, clustered_share, mean, share
from mnemoscope.patterns.coverage import count_by_author, key_estimates, mean_over_authors


def prefixes(groups: dict[int, list[int]]) -> pl.DataFrame:
    """Triggers of memories by rank: the group of each."""
    rows = [(memory, rank, group) for memory, own in groups.items() for rank, group in enumerate(own)]
    types = {"memory": pl.Int32, "rank": pl.Int16, "group": pl.Int16}
    return pl.DataFrame(rows, schema=types, orient="row")


def patterns(*rows: tuple[int, str, list[int]]) -> pl.DataFrame:
    types = {"memory": pl.Int32, "kind": pl.String, "triggers": pl.List(pl.Int16)}
    return pl.DataFrame(rows, schema=types, orient="row")


# Memory 5: ranks 0 and 2 are one prefix, and so are 3 and 4. Memory 6: three prefixes. Memory 7: two.
PREFIXES = prefixes({5: [0, 1, 0, 3, 3, 5], 6: [0, 1, 2], 7: [0, 1]})


def judged(*rows: tuple[str, int, str, list[int]]) -> pl.DataFrame:
    types = {"author": pl.String, "memory": pl.Int32, "kind": pl.String, "triggers": pl.List(pl.Int16)}
    return pl.DataFrame(rows, schema=types, orient="row")


JUDGED = judged(
    ("Ben", 6, "both", [0, 1]), ("Ada", 5, "shallow", [0, 1, 3]), ("Ada", 6, "none", []), ("Ada", 5, "both", [5])
)


def test_an_author_is_asked_of_the_memories_that_the_author_judged() -> None:
    found = count_by_author(PREFIXES, JUDGED)
    assert found.select("author", "memory", "shallow_only", "both", "none", "groups", "patterns").rows() == [
        ("Ada", 5, 3, 1, 0, 4, 2),
        ("Ada", 6, 0, 0, 3, 3, 0),
        ("Ben", 6, 0, 2, 1, 3, 1),
    ]
    assert count_by_author(PREFIXES, JUDGED.clear()).is_empty()


def test_the_mean_over_authors_with_the_width_of_all() -> None:
    """Ada: 4 of 7 covered, one key of two; Ben: 2 of 3, one of one. All: 6 of 10, two of three."""
    rows = count_by_author(PREFIXES, JUDGED)
    found, pooled = mean_over_authors(rows), key_estimates(rows)
    covered, whole = found["covered"], pooled["covered"]
    value = (4 / 7 + 2 / 3) / 2
    assert (covered.value, covered.count) == (pytest.approx(value), 10)
    assert whole.low is not None
    assert whole.high is not None
    assert covered.low == pytest.approx(max(0, whole.low + value - 0.6))
    assert covered.high == pytest.approx(min(1, whole.high + value - 0.6))
    keys, all_keys = found["keys_with_pattern"], share(2, 3)
    assert (keys.value, keys.count) == (pytest.approx(0.75), 3)
    assert all_keys.low is not None
    assert keys.low == pytest.approx(all_keys.low + 0.75 - 2 / 3)
    assert keys.high == 1.0, "a share is at most 1"
    # Patterns per key are no share: 2 and 0 by Ada, 1 by Ben; their interval may begin below 0.
    per_key, all_per_key = found["patterns_per_key"], mean([2, 0, 1])
    assert per_key.value == pytest.approx((1 + 1) / 2)
    assert (per_key.low, per_key.high) == (pytest.approx(all_per_key.low), pytest.approx(all_per_key.high))
    assert per_key.low is not None
    assert per_key.low < 0


def test_shares_do_not_fall_below_nothing() -> None:
    """Ada explains 1 of her 9 prefixes, Ben none of his 2: 1/18 in the mean, 1/11 together, from 0.016."""
    said = judged(("Ada", 1, "both", [0]), ("Ben", 2, "none", []))
    rows = count_by_author(prefixes({1: [*range(9)], 2: [0, 1]}), said)
    found = mean_over_authors(rows)["both"]
    assert found.value == pytest.approx(1 / 18)
    assert found.low == pytest.approx(max(0.0, clustered_share([1, 0], [9, 2]).low + 1 / 18 - 1 / 11))  # type: ignore[operator]


def test_without_a_judgement_nothing_is_known() -> None:
    assert set(mean_over_authors(count_by_author(PREFIXES, JUDGED.clear())).values()) == {NOTHING}
