"""The answers about a model that reads sentences whole, on tables every number of which is worked out here."""

import math
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas import Atlas
from mnemoscope.cli import main
from mnemoscope.errors import ModelUnsupported
from mnemoscope.questions import answer
from mnemoscope.questions.answers import stored_answers, write_all
from mnemoscope.show.figures.examples import best_examples
from support.handbuilt_answers import LENGTH, Value, build_answers, numbers

VALUES: list[Value] = [
    (6, 6, 0, 0.5, 1.0, -1.0, 0.5),  # right, but it falls to a fifth where its token is masked: it copies
    (7, 7, 0, 0.25, 1.0, -2.0, 0.4),  # right, and holds
    (8, 9, 3, 0.75, 1.0, -3.0, 0.3),  # wrong, and holds
    (9, 9, 0, 0.125, 1.0, -1.0, 0.2),  # right, but was not asked
    (9, None, None, 0.125, 1.0, None),  # never fires
]
TRIGGERS = [(0, 6), (0, 6), (1, 7), (2, 9), (2, 6), (3, 9)]
OWN = [10.0, None, 26.0, 49.0, None, None]
"""Beside 50 for a best trigger; 49 for a second one."""


def build(folder: Path, **tables: Any) -> Atlas:
    layers: dict[str, Any] = {"triggers": {0: TRIGGERS}, "values": {0: VALUES}, "own": {0: OWN}}
    counts = {"counts": {6: 10, 7: 10, 9: 80}, "next_counts": {6: 90, 7: 5, 9: 5}}
    return build_answers(folder, memories=5, **(layers | counts | tables))


def test_agreement_is_of_those_that_hold_and_beside_it_of_all(tmp_path: Path) -> None:
    found = answer(build(tmp_path), "value_agreement")
    assert numbers(found, "agreement") == {0: 1 / 2, None: 1 / 2}
    assert numbers(found, "agreement", "count") == {0: 2, None: 2}
    assert numbers(found, "every_agreement") == {0: 3 / 4, None: 3 / 4}
    assert numbers(found, "literal_agreement") == {0: 1 / 2, None: 1 / 2}
    # Three of four were asked, two of these hold.
    assert numbers(found, "asked_where_masked") == {0: 3 / 4, None: 3 / 4}
    assert numbers(found, "held_where_masked") == {0: 2 / 3, None: 2 / 3}
    assert numbers(found, "held_where_masked", "count") == {0: 3, None: 3}
    assert numbers(found, "every_without_target") == {0: 1 / 5, None: 1 / 5}
    assert "without_target" not in found["name"].to_list()
    # Tops 7, 8 and targets 7, 9; of all tops 6, 7, 8, 9 and targets 6, 7, 9, 9.
    assert numbers(found, "shuffled_targets")[0] == 1 / 4
    assert numbers(found, "every_shuffled_targets")[0] == (1 + 1 + 2) / 16


def test_baselines_are_of_tokens_where_they_stand(tmp_path: Path) -> None:
    """Token 9 stands most often; 6 follows most often, which is not asked."""
    found = answer(build(tmp_path), "value_agreement")
    assert numbers(found, "every_most_frequent_token")[0] == 2 / 4
    assert numbers(found, "most_frequent_token")[0] == 1 / 2
    # Of memory 1 the trigger is token 7, of memory 2 tokens 9 and 6.
    gains = [-2.0 - math.log(0.1), -3.0 - (math.log(0.8) + math.log(0.1)) / 2]
    assert numbers(found, "log_probability_gain")[0] == pytest.approx(sum(gains) / 2)


def test_exactly_half_does_not_hold(tmp_path: Path) -> None:
    found = answer(build(tmp_path, own={0: [25.0, None, 25.001, -50.0, None, None]}), "value_agreement")
    assert numbers(found, "held_where_masked") == {0: 1 / 3, None: 1 / 3}
    assert numbers(found, "agreement", "count")[0] == 1


def test_ranks_and_confidence_are_given_twice(tmp_path: Path) -> None:
    atlas = build(tmp_path)
    ranks = answer(atlas, "value_rank")
    assert (numbers(ranks, "q100")[0], numbers(ranks, "q00")[0]) == (3, 0)
    assert (numbers(ranks, "q50", "count")[0], numbers(ranks, "every_q50", "count")[0]) == (2, 4)
    found = answer(atlas, "value_confidence")
    assert numbers(found, "max_probability")[0] == pytest.approx((0.25 + 0.75) / 2)
    assert numbers(found, "every_max_probability")[0] == pytest.approx((0.5 + 0.25 + 0.75 + 2 * 0.125) / 5)
    assert numbers(found, "working_probability")[0] == pytest.approx(0.35)
    assert numbers(found, "every_working_probability")[0] == pytest.approx(0.35)
    # Of memories 1 and 2 the first says what stands at its trigger.
    assert numbers(found, "top100_with_trigger") == {None: 1 / 2}
    assert numbers(found, "every_top100_with_trigger") == {None: 3 / 5}
    assert numbers(found, "all_value_norm") == {None: 1}


def test_where_nothing_was_asked_there_is_no_headline(tmp_path: Path) -> None:
    atlas = build(tmp_path, own={0: [None] * 6})
    assert numbers(answer(atlas, "value_agreement"), "agreement", "count") == {0: 0, None: 0}
    assert numbers(answer(atlas, "value_agreement"), "every_agreement") == {0: 3 / 4, None: 3 / 4}
    assert numbers(answer(atlas, "value_agreement"), "asked_where_masked") == {0: 0, None: 0}
    for question in ("value_rank", "value_confidence"):
        assert numbers(answer(atlas, question), "held_where_masked", "count") == {0: 0, None: 0}


def test_the_most_striking_memories_are_none_that_copy(tmp_path: Path) -> None:
    triggers = [(memory, token) for memory, token in ((0, 6), (1, 7), (3, 9)) for _ in range(5)]
    own = [10.0, *[None] * 4, 30.0, *[None] * 4, *[None] * 5]
    found = best_examples(build(tmp_path, triggers={0: triggers}, own={0: own}))
    assert found["memory"].to_list() == [1, 3]


def removals(rank: int, own: float, first: float, last: float, random: float) -> list[tuple[Any, ...]]:
    changed = {"own": own, "first": first, "last": last, "random": random}
    return [(0, 0, rank, name, 2.0, coefficient) for name, coefficient in changed.items()]


def test_the_masked_token_takes_the_last_ones_place_in_removals(tmp_path: Path) -> None:
    rows = [*removals(0, 0.0, 1.0, 2.0, 2.0), *removals(1, 0.5, 1.5, 1.0, 2.0), *removals(2, 1.0, 2.0, 2.0, 2.0)]
    left_out = {"length_one": 5, "length_two": 7}
    found = answer(build(tmp_path, removals=rows, questions={"removals_excluded": left_out}), "key_removals")
    medians = {name: numbers(found, f"{name}_median")[0] for name in ("own", "first", "last", "random")}
    assert medians == {"own": -0.75, "first": -0.25, "last": 0, "random": 0}
    assert numbers(found, "own_margin") == {0: 0.5, None: 0.5}
    assert (numbers(found, "own_hurts_most"), numbers(found, "excluded_length_two")) == ({None: 1}, {None: 7})
    assert not {"last_margin", "last_hurts_most", "last_median_upper_minus_lower"} & {*found["name"]}


def test_a_sentence_is_short_not_what_stands_before_the_mask(tmp_path: Path) -> None:
    """Every sentence has eight tokens."""
    votes = {(prefix, 0): {"votes_ffn": 1, "attended": 4.0} for prefix in range(3)}
    tables: dict[str, Any] = {"prefixes": [(n, n, 1, 6) for n in range(3)], "predictions": votes}
    found = answer(build(tmp_path / "whole", **tables), "layer_composition")
    assert numbers(found, "agreeing_short") == {0: 0, None: 0}
    causal = answer(build_answers(tmp_path / "causal", values={0: VALUES}, **tables), "layer_composition")
    assert numbers(causal, "agreeing_short") == {0: 1, None: 1}
    share = answer(build(tmp_path / "share", **tables), "attention_share")
    assert numbers(share, "attended_of_positions")[0] == pytest.approx(4 / (LENGTH + 2))  # within its frame


def test_cases_to_judge_show_the_sentence_with_the_mask(tmp_path: Path) -> None:
    changed = {(0, 0): {"output_top": 6, "residual_top": 7, "ffn_top": 8}}
    atlas = build(tmp_path, prefixes=[(0, 2, 9, 6)], predictions=changed, model_layers=1)
    write_all(atlas)
    cases = stored_answers(atlas)["refinement_events"].question.cases
    assert cases is not None
    row = cases(atlas).row(0, named=True)
    assert row["prefix_text"] == "<|end|> the w19 cat.'s w6 w7"
    assert row["next_text"] == " w9"


def test_memorised_is_not_asked_and_the_others_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    atlas = build(tmp_path, memorised=[(False, 32, [0])])
    with pytest.raises(ModelUnsupported, match="continues no text"):
        answer(atlas, "memorised")
    made = write_all(atlas)
    assert "continues no text" in made.unanswered["memorised"]
    assert {"value_agreement", "value_rank", "value_confidence", "key_removals"} <= made.documents.keys()
    assert "continues no text" in stored_answers(atlas)["memorised"].missing
    assert main(["analyze", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("not asked: memorised: ")]
    assert any("every" in line for line in lines), "the column beside the headline"
    assert main(["analyze", str(tmp_path), "memorised"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_only_such_models_have_is_not_shown_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_answers(tmp_path, values={0: VALUES}, triggers={0: []}, memories=5)
    assert main(["analyze", str(tmp_path), "value_agreement", "key_removals"]) == 0
    out = capsys.readouterr().out
    assert "every" not in out
    assert "masked" not in out
    assert "removing the last token hurts most" in " ".join(out.split())
