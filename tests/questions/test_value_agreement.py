"""Figure 4 on two layers of four memories, every number of which is worked out here."""

import math
from pathlib import Path

import polars as pl
import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import exact_share, wilson
from mnemoscope.questions import answer
from support.handbuilt_answers import VOCABULARY, Value, build_answers, numbers


@pytest.fixture
def atlas(tmp_path: Path) -> Atlas:
    # Tokens 6 and 7 follow equally often, and more often than others: the lower one, 6, is the most frequent.
    return build_answers(
        tmp_path,
        model_layers=3,  # the upper layers begin at ceil(30 / 16) = 2
        next_counts={6: 40, 7: 40, 8: 15, 9: 5},
        triggers={0: [(0, 6), (0, 8), (0, None), (1, 9), (2, None)], 2: [(0, 7), (1, 6), (1, 6)]},
        lowest={0: [(0, 9)]},
        values={
            0: [
                (6, 6, 0, 0.5, 1.0, -1.0),  # right
                (6, 9, 4, 0.5, 1.0, -2.0),  # wrong
                (6, None, None, 0.5, 1.0, None),  # its only trigger ends a sentence
                (6, None, None, 0.5, 1.0, None),  # never fired
            ],
            2: [(7, 7, 0, 0.5, 1.0, -0.5), (8, 6, 3, 0.5, 1.0, -3.0)],
        },
        memories=4,
    )


def test_agreement_and_its_baselines(atlas: Atlas) -> None:
    found = answer(atlas, "value_agreement")
    assert numbers(found, "agreement") == {0: 1 / 2, 2: 1 / 2, None: 2 / 4}
    assert numbers(found, "agreement", "count") == {0: 2, 2: 2, None: 4}
    assert numbers(found, "agreement", "low")[None] == pytest.approx(wilson(0.5, 4)[0])
    assert numbers(found, "agreement", "high")[None] == pytest.approx(wilson(0.5, 4)[1])
    # Layer 0: tops 6, 6 and targets 6, 9: 1 x 1/2. Layer 2: tops 7, 8 and targets 7, 6: 1/2 x 1/2.
    # All: tops 6, 6, 7, 8 and targets 6, 9, 7, 6: 2/4 x 2/4 + 1/4 x 1/4.
    assert numbers(found, "shuffled_targets") == {0: 1 / 2, 2: 1 / 4, None: 5 / 16}
    assert numbers(found, "most_frequent_token") == {0: 1 / 2, 2: 1 / 2, None: 2 / 4}
    assert numbers(found, "chance") == {0: 1 / VOCABULARY, 2: 1 / VOCABULARY, None: 1 / VOCABULARY}
    assert numbers(found, "without_target") == {0: 2 / 4, 2: 0.0, None: 2 / 6}
    assert numbers(found, "without_target", "count") == {0: 4, 2: 2, None: 6}


def ends(found: pl.DataFrame, name: str) -> dict[int | None, tuple[float, float]]:
    lows, highs = (numbers(found, name, end) for end in ("low", "high"))
    return {layer: (lows[layer], highs[layer]) for layer in lows}


def one_of_two(looks: int) -> tuple[float, float]:
    """Clopper and Pearson's ends for one hit of two, for so many shares: 1 - (1 - p)^2 and p^2 are half of 5 %."""
    less = math.sqrt(1 - 0.025 / looks)
    return 1 - less, less


def test_agreement_above_its_baseline_with_exact_intervals(atlas: Atlas) -> None:
    """Of two in each layer one agrees; shuffled targets agree in a half and in a quarter, and chance is 1/20."""
    found = answer(atlas, "value_agreement")
    assert numbers(found, "agreement_above_baseline") == {0: 0, 2: 1 / 4}
    low, high = one_of_two(1)
    assert ends(found, "agreement_above_baseline") == {
        0: pytest.approx((low - 1 / 2, high - 1 / 2)),
        2: pytest.approx((low - 1 / 4, high - 1 / 4)),
    }
    # The greatest of the two, each interval corrected for two looks.
    low, high = one_of_two(2)
    assert numbers(found, "agreement_best_above_baseline") == {None: 1 / 4}
    assert numbers(found, "agreement_best_above_baseline", "best_layer") == {None: 2}
    assert numbers(found, "agreement_best_above_baseline", "count") == {None: 2}
    assert ends(found, "agreement_best_above_baseline") == {None: pytest.approx((low - 1 / 4, high - 1 / 4))}
    # Layer 0 is the lower one: its half minus a third of the best half; two layers and the lower ones are three looks.
    low, high = one_of_two(3)
    assert numbers(found, "agreement_lower_above_third") == {None: pytest.approx(1 / 3)}
    assert numbers(found, "agreement_lower_above_third", "count") == {None: 2}
    assert ends(found, "agreement_lower_above_third") == {None: pytest.approx((low - high / 3, high - low / 3))}


def test_the_greatest_number_lies_between_the_greatest_ends(tmp_path: Path) -> None:
    """Of eight memories of layer 0 four agree, of three of layer 1 one: the narrow one's low, the wide one's high."""

    def rows(count: int) -> list[Value]:
        return [(token, token if token % 2 else 19, 0, 0.5, 1.0, -1.0) for token in range(count)]

    found = answer(build_answers(tmp_path, values={0: rows(8), 1: rows(3)}, memories=8), "value_agreement")
    assert numbers(found, "agreement_best_layer") == {None: 1 / 2}
    assert numbers(found, "agreement_best_layer", "best_layer") == {None: 0}
    # Dealt anew, a token agrees that is a top and a target: 1, 3, 5 and 7; then 1 alone; of all, 1 is twice both.
    assert numbers(found, "shuffled_targets") == {0: 4 / 64, 1: 1 / 9, None: 7 / 121}
    narrow, wide = exact_share(4, 8, looks=2), exact_share(1, 3, looks=2)
    assert numbers(found, "agreement_best_above_baseline") == {None: 1 / 2 - 4 / 64}
    assert numbers(found, "agreement_best_above_baseline", "count") == {None: 8}
    expected = narrow.low - 4 / 64, wide.high - 1 / 9
    assert ends(found, "agreement_best_above_baseline") == {None: pytest.approx(expected)}


def test_chance_is_the_baseline_where_it_is_more(tmp_path: Path) -> None:
    """Values say 6 and 7, what follows is 8: dealt anew, targets would never agree; by chance 1 in 20 would."""
    values: list[Value] = [(6, 8, 3, 0.5, 1.0, -1.0), (7, 8, 3, 0.5, 1.0, -1.0)]
    found = answer(build_answers(tmp_path, values={0: values}), "value_agreement")
    assert numbers(found, "shuffled_targets") == {0: 0, None: 0}
    assert numbers(found, "agreement_above_baseline") == {0: -1 / VOCABULARY}
    assert numbers(found, "agreement_best_above_baseline") == {None: -1 / VOCABULARY}
    # Of one layer, which is a lower one, and has the best agreement there is.
    assert numbers(found, "agreement_lower_above_third") == {None: 0}
