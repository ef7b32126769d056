"""The tree of errors: the drawing in docs/errors.md and the classes are the same."""

from pathlib import Path

from mnemoscope import errors
from mnemoscope.errors import Interrupted, MnemoscopeError, Terminated


def tree(cls: type[MnemoscopeError], before: str = "", branch: str = "", below: str = "") -> list[str]:
    """The drawing of a class and those below it, in the order of their definition: leaves with what they say."""
    children = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
    name = f"{before}{branch}{cls.__name__}"
    said = (cls.__doc__ or "").removesuffix(".")
    lines = [name if children else f"{name:<28}{said if said.startswith('NaN') else said[:1].lower() + said[1:]}"]
    for child in children:
        last = child is children[-1]
        lines += tree(child, before + below, "`-- " if last else "|-- ", "    " if last else "|   ")
    return lines


def test_the_page_draws_the_tree() -> None:
    page = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    assert page.split("```")[1].strip().splitlines() == tree(MnemoscopeError)
    assert len(tree(MnemoscopeError)) > 20


def test_exit_codes() -> None:
    codes = {cls.__name__: cls.exit_code for cls in _all(MnemoscopeError)}
    assert codes.pop("Interrupted") == Interrupted.exit_code == 130
    assert codes.pop("Terminated") == Terminated.exit_code == 75
    assert set(codes.values()) == {2}


def _all(cls: type[MnemoscopeError]) -> list[type[MnemoscopeError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all(child))]


def test_every_error_says_what_it_is_for() -> None:
    for cls in _all(MnemoscopeError):
        assert cls.__doc__, cls
