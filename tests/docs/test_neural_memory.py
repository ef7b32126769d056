"""The page on neural memory is run as a student would type it, block after block, and must print what it shows."""

import doctest
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "neural-memory.md"
_BLOCK = re.compile(r"^```pycon\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples(page: str) -> list[doctest.Example]:
    """Every `>>>` of the page's pycon blocks, in order, numbered by the page's lines."""
    found = []
    for block in _BLOCK.finditer(page):
        first = page.count("\n", 0, block.start(1))
        for example in doctest.DocTestParser().get_examples(block.group(1)):
            example.lineno += first
            found.append(example)
    return found


def run(found: list[doctest.Example]) -> tuple[int, str]:
    """How many examples failed, and what doctest says about them."""
    said: list[str] = []
    test = doctest.DocTest(found, {}, PAGE.name, str(PAGE), 0, None)
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return failed, "".join(said)


def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = examples(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 40
    failed, said = run(found)
    assert not failed, said


def test_a_wrong_number_is_found() -> None:
    """The control: one digit of one output changed, in the worked example."""
    page = PAGE.read_text(encoding="utf-8")
    wrong = page.replace("([0.5, 0.5], [3.0, 2.0])", "([0.5, 0.5], [3.0, 2.1])", 1)
    assert wrong != page
    worked = wrong[: wrong.index("## Where they differ")]
    failed, said = run(examples(worked))
    assert failed == 1
    assert "[3.0, 2.1]" in said


def test_numbers_of_the_text_are_numbers_of_the_output() -> None:
    """What the running text repeats of the outputs was printed above: it cannot grow old alone."""
    page = PAGE.read_text(encoding="utf-8")
    shown = "".join(example.want for example in examples(page))
    for said, printed in (
        ("x = [0.5, 0.5]", "[0.5, 0.5]"),
        ("answers [3, 2] as if it knew", "([0.0, 0.0], [3.0, 2.0])"),
        ("votes `y` (3 against 2), L0.M1 votes `x` (4 against\n1)", "[[2.0, 3.0], [4.0, 1.0]]"),
        ("of 512 memories", "(512, "),
        ("Of 512 memories 11 fire", ", 11, "),
        ("sum to 18, not to one", ", 18)"),
        ("L2.M473", "(473, "),
        ("votes\n`ant`", "'ant'"),
    ):
        assert said in page, said
        assert printed in shown, printed
