"""Keys and the words of their triggers, counted by hand."""

from pathlib import Path

import numpy as np
import pytest

from mnemoscope.foundation.intervals import NOTHING, Estimate, share, wilson
from mnemoscope.questions import answer
from mnemoscope.questions.answer_builder import difference
from support.handbuilt_answers import build_answers, numbers


def test_shares_ranks_and_controls_are_those_of_the_memories_with_triggers(tmp_path: Path) -> None:
    roles = {0: [(0, 9), (0, 0), (3, 9), (None, None)], 1: [(9, 0), (9, 1), (8, 2), (7, None)]}
    atlas = build_answers(tmp_path, triggers={0: [(0, 1)], 1: [(0, 1)]}, roles=roles)
    found = answer(atlas, "key_agreement")
    assert numbers(found, "agreement") == {0: pytest.approx(2 / 3), 1: 0, None: pytest.approx(2 / 7)}
    assert numbers(found, "agreement", "count") == {0: 3, 1: 4, None: 7}
    assert numbers(found, "control") == {0: pytest.approx(1 / 3), 1: pytest.approx(1 / 3), None: pytest.approx(1 / 3)}
    assert numbers(found, "control", "count") == {0: 3, 1: 3, None: 6}
    assert numbers(found, "rank") == {0: 0, 1: 8, None: 7}
    assert numbers(found, "found") == {0: 1, 1: 0, None: pytest.approx(3 / 7)}
    assert numbers(found, "cosine")[0] == pytest.approx((1 + 1 + 0.7) / 3)
    assert numbers(found, "chance") == {0: 0.05, 1: 0.05, None: 0.05}
    assert numbers(found, "on_text") == numbers(found, "agreement")
    assert numbers(found, "shuffled") == numbers(found, "control")
    # Of two layers both are lower ones. Newcombe's interval by its formula.
    assert numbers(found, "agreement_lower_above_control")[None] == pytest.approx(2 / 7 - 1 / 3)
    assert numbers(found, "agreement_upper_above_control")[None] is None
    (low, high), (least, most) = wilson(2 / 3, 3), wilson(1 / 3, 3)
    assert numbers(found, "above_control", "low")[0] == pytest.approx(1 / 3 - np.hypot(2 / 3 - low, most - 1 / 3))
    assert numbers(found, "above_control", "high")[0] == pytest.approx(1 / 3 + np.hypot(high - 2 / 3, 1 / 3 - least))


def test_upper_and_lower_layers_and_what_another_s_triggers_give(tmp_path: Path) -> None:
    """Of three layers the last is an upper one; ranks below 5 are among the first, and cost a tenth of cosine each."""
    roles = {0: [(0, 9), (4, None)], 1: [(0, 0)], 2: [(9, 1), (0, 5), (0, 7), (None, None)]}
    found = answer(build_answers(tmp_path, triggers={0: [(0, 1)]}, roles=roles, model_layers=3), "key_agreement")
    triggers = {layer: [(0, 1)] for layer in roles}
    whole = answer(build_answers(tmp_path / "all", triggers=triggers, roles=roles), "key_agreement")
    assert numbers(found, "agreement_upper_above_control")[None] is None  # only layer 0 was mined
    assert numbers(whole, "agreement_lower_above_control")[None] == pytest.approx(2 / 3 - 1 / 2)
    assert numbers(whole, "agreement_upper_above_control")[None] == pytest.approx(2 / 3)
    assert numbers(whole, "above_control")[None] == pytest.approx(4 / 6 - 1 / 5)
    assert numbers(whole, "control_rank") == {0: 9, 1: 0, 2: 5, None: 5}
    assert numbers(whole, "control_found") == {0: 0, 1: 1, 2: pytest.approx(1 / 3), None: pytest.approx(2 / 5)}
    assert numbers(whole, "control_cosine") == pytest.approx({0: 0.1, 1: 1, 2: (9 + 5 + 3) / 30, None: 2.8 / 5})
    assert numbers(whole, "cosine") == pytest.approx({0: 0.8, 1: 1, 2: 2.1 / 3, None: 4.7 / 6})
    assert numbers(whole, "chance", "count") == {0: 2, 1: 1, 2: 3, None: 6}


@pytest.mark.parametrize(("one", "other"), [(0.3, 0.3), (0.02, 0.02), (0.6, 0.4), (0.0, 0.0)])
def test_a_difference_lies_in_its_interval_as_often_as_said(one: float, other: float) -> None:
    """Newcombe's: over 2,000 draws of 50 and 80 cases, at least as often as 95 % less what so few draws may miss."""
    generator, held = np.random.default_rng(1), 0
    for first, second in zip(generator.binomial(50, one, 2000), generator.binomial(80, other, 2000), strict=True):
        found = difference(share(first, 50), share(second, 80))
        assert found.low < found.high
        held += found.low <= one - other <= found.high
    assert held >= 0.935 * 2000


def test_a_difference_of_what_is_not_known_is_not_known() -> None:
    assert (difference(share(1, 2), NOTHING), difference(Estimate(0.5, 3), share(1, 2))) == (NOTHING, NOTHING)
