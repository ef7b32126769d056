"""The tree of errors: the docstring's drawing, docs/errors.md and the classes are the same."""

import inspect
import re
from pathlib import Path

from mnemoscope import errors
from mnemoscope.errors import Interrupted, MnemoscopeError

DRAWING = inspect.getdoc(errors) or ""


def drawn(text: str) -> list[tuple[int, str]]:
    """Depth and name of every line of the drawing."""
    found = re.finditer(r"^ *((?:\|   )*)(?:(?:\|--|`--) )?([A-Z]\w+)(?:  .*|)$", text, re.M)
    lines = [(match.group(0), match.group(2)) for match in found]
    margin = min(len(line) - len(line.lstrip(" ")) for line, _ in lines)
    return [((line.index(name) - margin) // 4, name) for line, name in lines]


def real(cls: type[MnemoscopeError], depth: int = 0) -> list[tuple[int, str]]:
    """Depth and name of every class, children in the order of their definition."""
    rows = [(depth, cls.__name__)]
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            rows += real(child, depth + 1)
    return rows


def test_the_drawing_is_the_tree() -> None:
    tree = DRAWING[DRAWING.index("    MnemoscopeError\n") :]
    assert drawn(tree) == real(MnemoscopeError)
    assert len(real(MnemoscopeError)) > 20


def test_the_page_is_the_drawing() -> None:
    page = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    tree = DRAWING[DRAWING.index("    MnemoscopeError\n") :]
    assert page.split("```")[1].strip() == "\n".join(line[4:] for line in tree.splitlines()).strip()


def test_exit_codes() -> None:
    codes = {cls.__name__: cls.exit_code for cls in _all(MnemoscopeError)}
    assert codes.pop("Interrupted") == Interrupted.exit_code == 130
    assert set(codes.values()) == {2}


def _all(cls: type[MnemoscopeError]) -> list[type[MnemoscopeError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all(child))]


def test_every_error_says_what_it_is_for() -> None:
    for cls in _all(MnemoscopeError):
        assert cls.__doc__, cls
