"""docs/questions.md against the answers: every name and every own column is explained under its question."""

import re
from pathlib import Path

import pytest

from mnemoscope.atlas.schema import ANSWER_COLUMNS
from mnemoscope.questions import QUESTIONS, answer
from support.handbuilt_answers import RULERS, build_answers

PAGE = (Path(__file__).parents[2] / "docs" / "questions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("question", QUESTIONS)
def test_names_and_columns_are_explained(question: str, tmp_path: Path) -> None:
    atlas = build_answers(
        tmp_path,
        triggers={0: [], 1: []},
        roles={0: [], 1: []},
        width=[0, 1],
        memorised=[(False, 32, [0])],
        lenses=RULERS,
        importance={0: [], 1: []},
    )
    found = answer(atlas, question)
    section = PAGE.split(f"\n## {question}\n")[1].split("\n## ")[0]
    words = set(re.findall(r"`([^`]+)`", section))
    ours = set(found["name"].to_list())
    names = {name.removeprefix("literal_") if name.removeprefix("literal_") in ours else name for name in ours}
    if question == "key_removals":
        names = {re.sub(r"^(first|last|random)_(median|q25|q75)(_\w+)?$", r"last_median\3", name) for name in names}
        words |= {"last_median"} | {f"last_median{word.removeprefix('...')}" for word in words}
    if question == "value_confidence":
        names = {re.sub(r"^decile_[1-8]$", "decile_0", name) for name in names}
    assert names <= words
    assert set(found.columns) - set(ANSWER_COLUMNS.names) <= words


def test_the_table_of_contents_is_in_order() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert [heading for heading in headings if heading in QUESTIONS] == list(QUESTIONS)
    assert re.findall(r"^\| \[(\w+)\]", PAGE, re.MULTILINE) == list(QUESTIONS)
