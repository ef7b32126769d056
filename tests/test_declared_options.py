"""Options declared once: checks, keywords, words and the command line are made from the fields of a dataclass."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mnemoscope.cli.command import as_command
from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option


def even(number: int) -> None:
    if number % 2:
        raise OptionError(f"--pairs {number} is odd")


class Inside(DeclaredOptions):
    plain: bool = option(False, "Nothing else.")
    word: Path | str | None = option(None, "A word.", keyword="spell", metavar="WORD")


class Example(DeclaredOptions):
    atlas: Path = option(help="A folder.", metavar="ATLAS", argument=True, planned=False)
    most: int | None = option(None, "At most so many.", least=1, most=9)
    every: float = option(2.5, "Seconds.", metavar="S", least=0, instead="now and then", planned=False)
    split: str = option("line", "What is one.", flag="--by", choices=("line", "word"), planned="alike")
    pairs: int = option(2, "Pairs.", check=even, planned=False)
    inside: Inside
    patience: float = 60.0


class Another(DeclaredOptions):
    most: int = like(Example, "most", default=3, help="Of the other.")


@pytest.mark.parametrize(
    ("stated", "line"),
    [
        ({"most": 0}, "^most=0 is impossible; it must be 1 to 9$"),
        ({"most": 10}, "^most=10 is impossible; it must be 1 to 9$"),
        ({"every": -0.5}, "^every=-0.5 is impossible; it must be 0 or more$"),
        ({"every": float("nan")}, "^every=nan is impossible"),
        ({"every": float("inf")}, "inf is impossible"),
        ({"split": "c"}, "^by='c' is not known; choose one of line, word$"),
        ({"pairs": 3}, "^pairs=3 is odd$"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_in_one_wording(stated: dict[str, object], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        Example.of({"atlas": Path("a"), **stated})
    with pytest.raises(OptionError, match=line):
        Example.check(stated)
    Example.check({"most": None, "every": 0, "unknown": -1})


def test_another_dataclass_has_the_same_bounds() -> None:
    assert Another().most == 3
    with pytest.raises(OptionError, match="most=0 is impossible; it must be 1 to 9"):
        Another(most=0)


def test_what_is_not_at_its_default_is_said() -> None:
    usual = Example.of({"atlas": Path("a")})
    assert usual.inside == Inside()
    assert usual.keywords() == {"atlas": "a"}
    options = Example.of({"atlas": Path("a"), "most": 4, "split": "word", "plain": True, "spell": Path("x y"), "no": 1})
    assert options.keywords() == {"atlas": "a", "most": 4, "split": "word", "plain": True, "spell": "x y"}
    assert Example.words_of({"most": 4, "every": 2.5, "split": "word", "other": 1}) == ["--most", "4", "--by", "word"]
    assert Inside.words_of({"plain": True, "word": "x y"}) == ["--plain", "--spell", "x y"]
    assert Example.of({"atlas": Path("a"), "inside": Inside(plain=True)}).inside.plain

    def function(atlas: Path, *, most: int, spell: str, other: int = 0) -> None: ...

    assert options.taken_by(function) == {"most": 4, "spell": Path("x y")}


def test_a_plan_has_the_planned_fields() -> None:
    assert Example.planned_names() == {"most", "split"}
    assert Example.planned_names(alike=True) == {"split"}


def test_a_command_is_made_of_the_fields() -> None:
    called: list[tuple[Example, bool]] = []

    def verb(options: Example, *, json: bool) -> None:
        """Do it."""
        called.append((options, json))

    app = typer.Typer(rich_markup_mode=None)
    app.command("verb")(as_command(verb))
    said = CliRunner().invoke(app, ["--help"], terminal_width=200).output
    for line in (
        r"ATLAS <path>  A folder.  [required]",
        r"--most N  ",
        r"Seconds.  [default: now and then]",
        r"--by line|word  ",
        r"What is one.  [default: line]",
        r"--spell WORD  ",
    ):
        assert line in said, line
    assert "patience" not in said
    words = ["some", "--most", "4", "--by", "word", "--plain", "--spell", "x", "--json"]
    assert CliRunner().invoke(app, words).exit_code == 0
    [(options, json)] = called
    assert json
    assert options == Example(
        atlas=Path("some"), most=4, split="word", inside=Inside(plain=True, word=Path("x")), every=2.5
    )
    refused = CliRunner().invoke(app, ["some", "--most", "0"])
    assert isinstance(refused.exception, OptionError)
    assert len(called) == 1
