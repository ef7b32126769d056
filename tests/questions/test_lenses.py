"""B3: the paper's questions under every ruler, each number of a small table by hand."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import exact_share, wilson
from mnemoscope.questions import answer
from support.handbuilt_answers import RULERS, VOCABULARY, Value, build_answers, numbers


def value(rank: int | None, probability: float) -> Value:
    return (6, None if rank is None else 7, rank, probability, 1.0, None)


# Three layers of which the last is an upper one; in the first, the surest tenth of twelve targets is one value.
VALUES = {
    0: [value(None, 1.0), value(0, 0.75), *(value(0 if memory < 4 else 9, 0.25) for memory in range(11))],
    1: [value(3, 0.5)],
    2: [value(0, 0.5), value(5, 0.25)],
}
ROLES = {0: [(0, 9), (0, 0), (3, 9), (None, None)], 1: [(9, 0)], 2: [(0, 1), (9, None)]}
PREFIXES = [(0, 1, 6, 7), (1, 1, 6, 7)]
# What the residual, the feed-forward layer and the output say; the rank of the final token, its probability, the loss.
STREAMS = {
    (0, 0): (3, 4, 3, 0, 0.5, 1.0),
    (1, 0): (3, 4, 5, 2, 0.25, 2.0),
    (0, 1): (3, 5, 5, 0, 0.5, 0.5),
    (1, 1): (3, 3, 4, 0, 1.0, 0.25),
    (0, 2): (4, 3, 4, 1, 0.0, 1.5),
    (1, 2): (4, 4, 4, 1, 0.5, 1.0),
}
COLUMNS = (
    *("residual_top", "ffn_top", "output_top"),
    *("residual_final_rank", "residual_final_probability", "residual_loss"),
)


def atlas_of(directory: Path, lenses: tuple[str, ...]) -> Atlas:
    predictions: dict[tuple[int, int], Any] = {
        place: dict(zip(COLUMNS, row, strict=True)) for place, row in STREAMS.items()
    }
    return build_answers(
        directory, memories=13, values=VALUES, roles=ROLES, prefixes=PREFIXES, predictions=predictions, lenses=lenses
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    return answer(atlas_of(tmp_path_factory.mktemp("lenses"), RULERS), "lenses")


@pytest.mark.parametrize("ruler", RULERS)
def test_values_by_hand(ruler: str, found: pl.DataFrame) -> None:
    # Of those with a target: 5 of 12, none of 1, 1 of 2. The control's rank is the last one.
    assert numbers(found, f"agreement_{ruler}") == {0: 5 / 12, 1: 0, 2: 1 / 2, None: 6 / 15}
    assert numbers(found, f"agreement_{ruler}", "count") == {0: 12, 1: 1, 2: 2, None: 15}
    assert numbers(found, f"control_{ruler}") == {0: 0, 1: 0, 2: 0, None: 0}
    assert numbers(found, f"control_{ruler}", "count") == {0: 12, 1: 1, 2: 2, None: 15}
    assert numbers(found, f"above_control_{ruler}") == numbers(found, f"agreement_{ruler}")
    assert numbers(found, f"rank_{ruler}") == {0: 9, 1: 3, 2: 0, None: 5}
    assert set(numbers(found, f"control_rank_{ruler}").values()) == {VOCABULARY - 1}
    # Of all values, those without a target too.
    mean = {0: (1 + 0.75 + 11 * 0.25) / 13, 1: 0.5, 2: 0.375, None: (4.5 + 0.5 + 0.75) / 16}
    assert numbers(found, f"probability_{ruler}") == pytest.approx(mean)
    # The surest of 12, of 1 and of 2 with a target; of all 15 the two surest, the second of them of layer 1, wrong.
    assert numbers(found, f"confident_agreement_{ruler}") == {0: 1, 1: 0, 2: 1, None: 1 / 2}
    assert numbers(found, f"confident_agreement_{ruler}", "count") == {0: 1, 1: 1, 2: 1, None: 2}
    exact = exact_share(1, 2)
    assert numbers(found, f"confident_agreement_{ruler}", "low")[None] == exact.low
    # Layers 0 and 1 are the lower ones; the control agrees in none of 13.
    lower = f"lower_agreement_above_control_{ruler}"
    assert numbers(found, lower) == {None: 5 / 13}
    low, high = wilson(5 / 13, 13)[0], wilson(0, 13)[1]
    assert numbers(found, lower, "low")[None] == pytest.approx(5 / 13 - ((5 / 13 - low) ** 2 + high**2) ** 0.5)


@pytest.mark.parametrize("ruler", RULERS)
def test_streams_by_hand(ruler: str, found: pl.DataFrame) -> None:
    assert numbers(found, f"loss_{ruler}") == {0: 1.5, 1: 0.375, 2: 1.25, None: 6.25 / 6}
    assert numbers(found, f"match_{ruler}") == {0: 1 / 2, 1: 1, 2: 0, None: 3 / 6}
    assert numbers(found, f"match_control_{ruler}") == {0: 0, 1: 0, 2: 0, None: 0}
    assert numbers(found, f"final_probability_{ruler}") == {0: 0.375, 1: 0.75, 2: 0.25, None: 2.75 / 6}
    assert numbers(found, f"changed_{ruler}") == {0: 1 / 2, 1: 1, 2: 0, None: 3 / 6}
    # Neither the residual's token nor the layer's: one of one, one of two; of none nothing is said.
    assert numbers(found, f"composition_of_changed_{ruler}") == {0: 1, 1: 1 / 2, 2: None, None: 2 / 3}
    assert numbers(found, f"composition_of_changed_{ruler}", "count") == {0: 1, 1: 2, 2: 0, None: 3}
    assert numbers(found, f"loss_{ruler}", "count") == {0: 2, 1: 2, 2: 2, None: 6}
    # Resamples are of one document, of the other or of both.
    assert [numbers(found, f"loss_{ruler}", end)[0] for end in ("low", "high")] == [1.0, 2.0]


@pytest.mark.parametrize("ruler", RULERS[:2])
def test_keys_by_hand(ruler: str, found: pl.DataFrame) -> None:
    assert numbers(found, f"key_agreement_{ruler}") == {0: 2 / 3, 1: 0, 2: 1 / 2, None: 3 / 6}
    assert numbers(found, f"key_agreement_{ruler}", "count") == {0: 3, 1: 1, 2: 2, None: 6}
    assert numbers(found, f"key_control_{ruler}") == {0: 1 / 3, 1: 1, 2: 0, None: 2 / 5}
    assert numbers(found, f"key_rank_{ruler}") == {0: 0, 1: 9, 2: 0, None: 0}
    assert numbers(found, f"key_found_{ruler}") == {0: 1, 1: 0, 2: 1 / 2, None: 4 / 6}
    assert not found["name"].str.contains("key_.*_tuned").any()


def test_a_ruler_that_was_not_made_is_left_out_and_the_next_is_not(found: pl.DataFrame, tmp_path: Path) -> None:
    without = answer(atlas_of(tmp_path, ("plain", "tuned")), "lenses")
    own = without.filter(~pl.col("name").str.ends_with("_ridge"))
    assert own.equals(found.filter(~pl.col("name").str.ends_with("_ridge")))
    assert set(without["name"]) - set(own["name"]) == {name for name in found["name"] if re.match("key_.*_ridge", name)}
    assert without.filter(pl.col("name").str.ends_with("_ridge"))["value"].null_count() == 9 * 4


def test_without_prefixes_values_are_read_all_the_same(tmp_path: Path) -> None:
    found = answer(build_answers(tmp_path, memories=13, values=VALUES, lenses=RULERS), "lenses")
    assert numbers(found, "agreement_ridge")[None] == 6 / 15
    for name in ("loss", "match", "match_control", "final_probability", "changed", "composition_of_changed"):
        assert numbers(found, f"{name}_ridge") == {0: None, 1: None, 2: None, None: None}
