"""Figure 6 and Table 2 on values whose order of confidence is plain to see."""

from pathlib import Path

import pytest

from mnemoscope.questions import answer
from support.handbuilt_answers import Value, build_answers, numbers

QUESTION = "value_confidence"


def value(probability: float, *, right: bool = False, top: int = 6, norm: float = 1.0) -> Value:
    return (top, top if right else 7, 0 if right else 3, probability, norm, None)


def test_deciles_are_equal_in_size_and_keep_equal_values_in_order(tmp_path: Path) -> None:
    """Layer 0 has 10 values from 0.1 to 1.0, layer 1 ten of 0.5, which go between the 0.5 and the 0.6 of layer 0."""
    rising = [value(probability / 10, right=probability == 10, norm=probability) for probability in range(1, 11)]
    equal = [value(0.5, right=memory == 0, norm=100.0) for memory in range(10)]
    found = answer(build_answers(tmp_path, memories=10, values={0: rising, 1: equal}), "value_confidence")

    def decile(column: str = "value") -> list[float]:
        return [numbers(found, f"decile_{place}", column)[None] for place in range(10)]

    # Two values each: .1 .2 | .3 .4 | .5 and L1.M0, right | L1 ... | L1.M9 and .6 | .7 .8 | .9 and 1, right
    assert (decile("count"), decile()) == ([2] * 10, [0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0.5])
    assert decile("decile") == list(range(10))
    assert decile("lowest") == pytest.approx([0.1, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.7, 0.9])
    assert decile("highest") == pytest.approx([0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.8, 1.0])
    assert decile("value_norm") == [1.5, 3.5, 52.5, 100, 100, 100, 100, 53, 7.5, 9.5]


def test_the_hundred_most_confident_values(tmp_path: Path) -> None:
    """60 of layer 0 and 60 of layer 1 (upper: ceil(20 / 16) is 2, so none) ... so the model has two layers more."""
    sure = [value(0.9, right=memory < 30, norm=2.0) for memory in range(60)]
    equal = [value(0.5, norm=1.0) for _ in range(60)]
    values: dict[int, list[Value]] = {0: equal, 1: [(6, None, None, 0.5, 1.0, None)] * 60}
    atlas = build_answers(tmp_path, memories=60, model_layers=2, values=values, triggers={0: [], 1: []})
    assert numbers(answer(atlas, "value_confidence"), "top100_upper_layers") == {None: 0.0}
    values = {0: equal, 2: sure}  # all 60 of layer 2, then the first 40 of layer 0
    first = [(0, 6), (0, 9), (0, None), (0, 6), *[(39, 9)] * 50, (39, 6), (41, 6)]  # M39: too late; M41: not asked
    triggers = {0: first, 2: [(5, 6), (6, 7)]}
    atlas = build_answers(tmp_path / "again", memories=60, model_layers=3, values=values, triggers=triggers)
    found = answer(atlas, "value_confidence")
    assert numbers(found, "top100_upper_layers") == {None: 0.6}
    assert numbers(found, "top100_upper_layers", "count") == {None: 100}
    assert numbers(found, "top100_with_trigger") == {None: 2 / 100}  # L0.M0 and L2.M5
    # Of those with triggers: L0.M0 2 of 4, L0.M39 0 of 50, L2.M5 1 of 1, L2.M6 0 of 1.
    assert numbers(found, "top100_trigger_share") == {None: pytest.approx((0.5 + 0 + 1 + 0) / 4)}
    assert numbers(found, "top100_trigger_share", "count") == {None: 4}
    assert numbers(found, "top100_agreement") == {None: 0.3}
    assert numbers(found, "top100_value_norm") == {None: pytest.approx(1.6)}
    assert numbers(found, "all_value_norm") == {None: pytest.approx(1.5)}


def test_without_any_target_or_trigger(tmp_path: Path) -> None:
    found = answer(build_answers(tmp_path, values={0: [(6, None, None, 0.5, 1.0, None)] * 4}), "value_confidence")
    assert (numbers(found, "decile_0"), numbers(found, "top100_agreement")) == ({None: None}, {None: None})
    assert numbers(found, "top100_trigger_share") == {None: None}
    assert numbers(found, "top100_with_trigger") == {None: 0.0}
    assert numbers(found, "top100_with_trigger", "count") == {None: 4}


def test_values_at_work(tmp_path: Path) -> None:
    """The order at typical activation is not that at coefficient 1; a memory without a number has no place in it."""
    at_work = (0.05, 0.1, None, 0.4)
    values = {
        0: [(6, 6 if memory == 3 else 7, 0, (4 - memory) / 8, 1.0, None, p) for memory, p in enumerate(at_work)],
        1: [(6, None, None, 0.5, 1.0, None, None)] * 4,
    }
    atlas = build_answers(tmp_path, model_layers=3, values=values, triggers={0: [(3, 6), (1, 7)], 1: []})
    found = answer(atlas, QUESTION)
    assert numbers(found, "working_probability") == {0: pytest.approx(0.55 / 3), 1: None}
    assert numbers(found, "working_probability", "count") == {0: 3, 1: 0}
    assert numbers(found, "working_probability_best") == {0: pytest.approx(0.4), 1: None}
    assert numbers(found, "working_confident") == {0: 0.5, 1: 0.0, None: 0.25}
    assert numbers(found, "working_confident", "count") == {0: 4, 1: 4, None: 8}
    deciles = {place: numbers(found, f"working_decile_{place}")[None] for place in (0, 3, 6)}
    assert deciles == {0: 0.0, 3: 0.0, 6: 1.0}
    assert numbers(found, "decile_0") == {None: 1.0}  # at coefficient 1 the last memory is the least sure
    assert numbers(found, "working_decile_6", "lowest") == {None: pytest.approx(0.4)}
    assert numbers(found, "working_top100_with_trigger") == {None: 1 / 3}
    assert numbers(found, "working_top100_agreement") == {None: 1 / 3}
    assert numbers(found, "working_top100_upper_layers", "count") == {None: 3}


def test_nothing_is_said_of_values_at_work_where_none_is_known(tmp_path: Path) -> None:
    found = answer(build_answers(tmp_path, values={0: [value(0.5)] * 4}), QUESTION)
    assert not [name for name in found["name"] if name.startswith("working")]
