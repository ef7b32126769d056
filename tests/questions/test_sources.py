"""What a question says when the atlas has not what it needs."""

import math
from pathlib import Path

import pytest

from handbuilt_answers import build_answers
from handbuilt_atlas import build_atlas
from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasUnfinished, OptionError
from mnemoscope.questions import QUESTIONS, answer, load_question
from mnemoscope.questions.sources import DOCUMENTS

ON_PREFIXES = [question for question in QUESTIONS if load_question(question).interval == DOCUMENTS]
MINE = "`mnemoscope mine gpt2 'my text.txt' --out"


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_part_answers_nothing(question: str, tmp_path: Path) -> None:
    part = build_atlas(tmp_path / "p", part=(2, 3))
    with pytest.raises(AtlasUnfinished, match="is part 2 of 3; join all parts with `mnemoscope merge`"):
        answer(part, question)


def test_missing_patterns_are_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, patterns=None)
    for question in ("key_patterns", "key_removals", "layer_activity"):
        with pytest.raises(AtlasUnfinished) as caught:
            answer(atlas, question)
        line = f"{tmp_path} has no table patterns; make it with `mnemoscope analyze {tmp_path} --patterns`"
        assert str(caught.value) == line


def test_missing_tables_are_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []}, removals=None, prefixes=None)
    with pytest.raises(AtlasUnfinished) as caught:
        answer(atlas, "key_removals")
    assert str(caught.value) == f"{tmp_path} has no table removals; make it with {MINE} {tmp_path} --seed 7 --force`"
    for question in ON_PREFIXES:
        with pytest.raises(AtlasUnfinished, match="has no table predictions; make it with"):
            answer(atlas, question)


def test_a_table_that_was_deleted_is_named_with_the_command(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []})
    (tmp_path / "removals.parquet").unlink()
    with pytest.raises(AtlasDamaged) as caught:
        answer(atlas, "key_removals")
    assert str(caught.value) == (
        f"{tmp_path}/removals.parquet is missing; restore it, or make it with {MINE} {tmp_path} --seed 7 --force`"
    )


def test_tables_that_were_switched_off(tmp_path: Path) -> None:
    plan = {"model": "gpt2", "corpus": "my text.txt", "removals": 0, "prefixes": 0}
    atlas = build_answers(tmp_path, triggers={0: []}, plan=plan)
    with pytest.raises(AtlasUnfinished, match="has an empty table removals \\(--removals 0\\); make it with"):
        answer(atlas, "key_removals")
    for question in ON_PREFIXES:
        with pytest.raises(AtlasUnfinished, match="has an empty table predictions \\(--prefixes 0\\)"):
            answer(atlas, question)


def test_an_unknown_question_lists_the_ten(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: []})
    with pytest.raises(OptionError) as caught:
        answer(atlas, "value_agrement")
    assert str(caught.value) == f"'value_agrement' is not a question; the questions are {', '.join(QUESTIONS)}"


def test_no_atlas(tmp_path: Path) -> None:
    with pytest.raises(AtlasNotFound):
        answer(tmp_path, "value_rank")


def test_predictions_of_prefixes_that_are_not_listed(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, prefixes=[(0, 1, 6, 7)], predictions={(0, 0): {}, (1, 0): {}})
    with pytest.raises(AtlasDamaged, match="predictions names prefixes or layers"):
        answer(atlas, "refinement_match")


@pytest.mark.parametrize("question", ON_PREFIXES)
@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [("active", -1, "-1"), ("effective", float("nan"), "nan"), ("final_top", -1, "-1"), ("top_share", math.inf, "inf")],
)
def test_predictions_that_were_never_filled(
    question: str, column: str, value: float, shown: str, tmp_path: Path
) -> None:
    """As a run leaves them that was stopped, and never went on."""
    prefixes = [(0, 1, 6, -1 if column == "final_top" else 6), (1, 1, 6, 7)]
    row = {} if column == "final_top" else {column: value}
    atlas = build_answers(tmp_path, prefixes=prefixes, predictions={(0, 0): row, (1, 0): {}}, triggers={0: []})
    with pytest.raises(AtlasDamaged, match=f"holds {shown} as {column} in 1 of its rows, which no run writes; mine"):
        answer(atlas, question)


def test_removals_that_were_never_filled(tmp_path: Path) -> None:
    rows = [(0, 0, 0, "last", 2.0, 1.0), (0, 0, 0, "first", 2.0, math.nan), (0, 0, 0, "random", 2.0, 1.0)]
    atlas = build_answers(tmp_path, triggers={0: [(0, 6)]}, removals=rows)
    with pytest.raises(AtlasDamaged, match="table removals holds nan as removed_coefficient in 1 of its rows"):
        answer(atlas, "key_removals")


@pytest.mark.parametrize(
    ("layers", "first"), [(16, 10), (12, 8), (8, 5), (3, 2), (2, 2), (1, 1)], ids=lambda number: str(number)
)
def test_upper_layers_stand_for_the_paper_s_11_to_16(layers: int, first: int, tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={layer: [] for layer in range(layers)})
    assert atlas.upper_layers == tuple(range(first, layers))
