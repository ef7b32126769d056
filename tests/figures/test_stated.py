"""What the paper states in words, drawn into the figures: at its depth, its numbers in the legend, and nothing else."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest

from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.question import EMPTY, Answer
from mnemoscope.questions.registry import load_question
from mnemoscope.show.figures.chart import Figure
from mnemoscope.show.figures.panels import narrow_specification, small_specification, specification
from mnemoscope.show.figures.stated import Stated

STATED = {
    "key_patterns",
    "value_agreement",
    "value_confidence",
    "layer_activity",
    "layer_composition",
    "refinement_match",
}
"""The other figures' text states no number that has a place in them."""


def of_depth(depth: int, layers: Sequence[int] | None = None) -> Answer:
    mined = tuple(range(depth) if layers is None else layers)
    return Answer(load_question("value_agreement"), EMPTY, "", "", mined, depth)


def layers_of(stated: Stated, answer: Answer) -> list[int]:
    return [row["layer"] for row in stated.rows(answer)]


def test_in_a_model_of_16_layers_they_are_the_papers() -> None:
    assert layers_of(Stated("x", (0.1, 0.5), first=11), of_depth(16)) == [10, 11, 12, 13, 14, 15]
    assert layers_of(Stated("x", (1 / 3,), last=5), of_depth(16)) == [0, 1, 2, 3, 4]
    assert layers_of(Stated("x", at=9.5 / 16), of_depth(16)) == [9]


@pytest.mark.parametrize("depth", range(1, 49))
def test_layers_11_to_16_are_the_upper_ones_at_any_depth(depth: int) -> None:
    answer = of_depth(depth)
    assert tuple(layers_of(Stated("x", (0.0,), first=11), answer)) == answer.upper
    assert tuple(layers_of(Stated("x", (0.0,), last=10), answer)) == answer.lower


def test_what_is_stated_of_layers_that_were_not_mined_is_not_drawn() -> None:
    answer = of_depth(16, [0, 12])
    assert Stated("x", at=9.5 / 16).rows(answer) == []
    assert Stated("of some", (0.2,)).rows(answer) == [
        {"layer": layer, "stated": "the paper: of some", "from": 0.2, "to": 0.2} for layer in (0, 12)
    ]


def all_stated(question: str) -> list[Stated]:
    module = import_module(f"mnemoscope.show.figures.paper.{question}")
    lists = [one for one in vars(module).values() if isinstance(one, tuple)]
    return [one for found in lists for one in found if isinstance(one, Stated)]


@pytest.mark.parametrize("question", sorted(STATED))
def test_every_height_stands_in_the_legend(question: str) -> None:
    assert all_stated(question)
    for one in all_stated(question):
        words = {0.0: ("about 0", "up to"), 1.0: ("at least",), 1 / 3: ("a third",)}
        for height in one.heights:
            assert any(word in one.says for word in words.get(height, (f"{100 * height:g}",))), one
        assert one.heights or "dotted line" in one.says


@pytest.mark.parametrize("question", QUESTIONS)
def test_figures_have_what_is_stated_and_the_small_ones_only_their_own(
    question: str, answers: dict[str, Answer], figures: dict[str, Figure]
) -> None:
    answer, figure = answers[question], figures[question]
    assert bool(legends(specification(answer, figure, about=""))) == (question in STATED)
    assert legends(specification(answer, figure, about="")) == legends(narrow_specification(answer, figure))
    assert legends(small_specification(answer, figure)) == set()


def legends(part: Any) -> set[str]:
    """The labels of what the paper states."""
    if isinstance(part, dict):
        own = part.get("opacity")
        domain = own.get("scale", {}).get("domain", []) if isinstance(own, dict) else []
        return {label for label in domain if str(label).startswith("the paper: ")}.union(*map(legends, part.values()))
    return set().union(*map(legends, part)) if isinstance(part, list) else set()


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_sentence_says_what_it_means_and_one_why_another_model_may_differ(
    question: str, figures: dict[str, Figure]
) -> None:
    for sentence in (figures[question].means, figures[question].differs):
        assert sentence.endswith(".")
        assert sentence.count(". ") == 0


def test_a_constant_guess_is_said_and_does_not_flatten_the_axis(figures: dict[str, Figure]) -> None:
    figure = figures["value_agreement"]
    drawn = {row.get("series") for panel in figure.panels for rows in panel.rows.values() for row in rows}
    assert {"agreement", "shuffled targets", "chance, 1 / vocabulary"} <= drawn
    assert not any("most frequent" in str(series) for series in drawn)
    assert "Always guessing the most frequent next token" in figure.reading
