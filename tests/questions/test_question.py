"""A declaration that says what it is, and an answer that is asked by name and layer."""

import polars as pl
import pytest

from mnemoscope.atlas.schema import BEYOND, TABLES, THE_PAPERS
from mnemoscope.questions import QUESTIONS, load_question
from mnemoscope.questions.question import EMPTY, Answer, Claim, Number, Paper, Question, Row

CLAIM = Claim("it is half", "50 %", "half", "share", "at least half", by="whole")
PAPER = Paper(figure="Figure 9", section="9", question="How much?", claims=(CLAIM,))
NUMBERS = (Number("half", "share"), Number("whole", "number"), Number("whole_again", "rank", "a label", "alone"))
SHOWN = {"main": "half", "headline": ("half", "whole"), "layer_page": ("whole",)}
ASKED = Question("asked", title="a title", paper=PAPER, nothing="-", numbers=NUMBERS, interval="-", **SHOWN)  # type: ignore[arg-type]


def test_a_number_is_called_by_its_label_or_its_name() -> None:
    assert ASKED.number("whole_again") == Number("whole_again", "rank", "a label", "alone")
    assert Number("whole_again", "rank").label == "whole again"
    assert ASKED.number("of_another_version") == Number("of_another_version", "number", "of another version")


def test_what_json_has_of_the_paper() -> None:
    claim = {"text": "it is half", "paper": "50 %", "name": "half", "form": "share"}
    assert PAPER.document() == {"figure": "Figure 9", "section": "9", "question": "How much?", "claims": [claim]}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_number_is_declared_once_and_what_is_shown_is_declared(name: str) -> None:
    asked = load_question(name)
    names = [number.name for number in asked.numbers]
    assert len(set(names)) == len(names)
    claimed = (number for claim in asked.paper.claims for number in (claim.name, claim.by or claim.name))
    assert {asked.main, *asked.headline, *asked.layer_page, *claimed} <= set(names)


def test_every_question_is_the_paper_s_or_beyond_it_and_says_so() -> None:
    assert (len(THE_PAPERS), (*THE_PAPERS, *BEYOND)) == (10, QUESTIONS)
    for name in QUESTIONS:
        asked = load_question(name)
        assert asked.id == name
        assert asked.paper.figure.startswith("B" if name in BEYOND else "Figure")
        assert any(TABLES[table].optional for table in asked.may_lack) == (name in BEYOND)
    reading = {"key_patterns", "key_removals", "layer_activity"}
    assert {name for name in QUESTIONS if load_question(name).needs_patterns} == reading


TABLE = pl.DataFrame(
    [
        (None, "half", 0.5, 9, 0.25, 0.75, "all"),
        (6, "half", 0.75, 4, None, None, "six"),
        (4, "whole", float("nan"), 3, None, None, None),
        (0, "half", 0.125, 5, 0.0, 0.25, "none"),
        (5, "half", None, 0, None, None, None),
        (5, "whole_again", 1234.0, 2, 1000.0, 2000.0, None),
    ],
    schema={**EMPTY.schema, "own": pl.String},
    orient="row",
)
ANSWER = Answer(ASKED, TABLE, "", "", (0, 4, 5, 6), 8)


def test_rows_are_those_of_the_layers_in_order_and_the_total_stands_alone() -> None:
    assert ANSWER.names() == ("half", "whole_again")  # what is not defined is left out
    assert [(row.layer, row.value, row.count, row.low, row.high) for row in ANSWER.rows("half")] == [
        (0, 0.125, 5, 0.0, 0.25),
        (6, 0.75, 4, None, None),
    ]
    assert [dict(row.own) for row in ANSWER.rows("half")] == [{"own": "none"}, {"own": "six"}]
    assert ANSWER.rows("whole") == ANSWER.rows("unknown") == []
    whole = {"layer": None, "name": "half", "own": {"own": "all"}, "form": "share"}
    assert ANSWER.total("half") == Row(value=0.5, count=9, low=0.25, high=0.75, **whole)  # type: ignore[arg-type]
    assert (ANSWER.total("whole_again"), ANSWER.at("half", 6)) == (None, ANSWER.rows("half")[1])
    assert ANSWER.at("half", 5) is None


def test_numbers_are_written_as_they_are_declared() -> None:
    (rank,) = ANSWER.rows("whole_again")
    assert (rank.text, rank.interval, rank.text_and_interval) == ("1,234", "[1,000, 2,000]", "1,234 [1,000, 2,000]")
    bare = ANSWER.rows("half")[1]
    assert (bare.text.replace("\xa0", " "), bare.interval, bare.text_and_interval) == ("75.0 %", "", bare.text)
    assert ANSWER.label("whole_again") == "a label"


def test_upper_and_lower_layers_are_those_that_were_mined() -> None:
    """Of eight layers the upper ones begin at ceil(80 / 16) = 5."""
    assert (ANSWER.lower, ANSWER.upper) == ((0, 4), (5, 6))


def test_a_mean_weighs_every_layer_that_has_the_number_alike() -> None:
    assert (ANSWER.mean("half", (0, 5, 6)), ANSWER.mean("half", (0,))) == ((0.125 + 0.75) / 2, 0.125)
    assert (ANSWER.mean("half", (4, 5)), ANSWER.mean("unknown", (0,))) == (None, None)
