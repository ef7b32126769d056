"""The tree of errors: the drawing in docs/errors.md and the classes are the same."""

import ast
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

import mnemoscope as ms
from mnemoscope import errors
from mnemoscope.attribution import attribute_prompts, diff_prompts
from mnemoscope.errors import Interrupted, MnemoscopeError, OptionError, Terminated, command_line
from mnemoscope.foundation.options.fleet_options import FleetOptions
from mnemoscope.foundation.options.prompt_options import AttributeOptions, ChatOptions, DiffOptions, TraceOptions


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


@pytest.mark.parametrize(
    ("line", "in_python"),
    [
        (
            "is finished already; choose another folder, or --force to mine it again",
            "is finished already; choose another folder, or force=True to mine it again",
        ),
        ("--max-tokens 0 is impossible", "max_tokens=0 is impossible"),
        ("--seed -1 is impossible", "seed=-1 is impossible"),
        ("--split 'c' is not known", "split='c' is not known"),
        ("--per-sentence must be 1 or all", "per_sentence must be 1 or all"),
        ("take --device cpu or --dtype float32", "take device='cpu' or dtype='float32'"),
        ("mine it with --part I/N", "mine it with part='I/N'"),
        ("give the model (--model)", "give the model (model)"),
        ("make it with `mnemoscope lens A --model M --force`", "make it with `mnemoscope lens A --model M --force`"),
        ("a word--with two hyphens, a-b, 3 -- 4", "a word--with two hyphens, a-b, 3 -- 4"),
        ("give both --for and --against", "give both target and against"),
        ("use those versions, --accept-versions to go on", "use those versions, accept_versions=True to go on"),
    ],
)
def test_errors_name_arguments_in_python_and_flags_on_the_command_line(line: str, in_python: str) -> None:
    error = OptionError(line)
    assert str(error) == in_python
    with command_line():
        assert str(error) == line
    assert str(error) == in_python


def _raised() -> Iterator[tuple[str, str]]:
    """The text of every error that is raised outside of the command line's own rooms, and where."""
    root = Path(errors.__file__).parent
    for path in sorted(root.rglob("*.py")):
        room = path.relative_to(root).parts[0]
        if room in ("cli", "cluster", "web", "__main__.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                for part in ast.walk(node):
                    if isinstance(part, ast.JoinedStr):
                        texts = [str(one.value) if isinstance(one, ast.Constant) else "X" for one in part.values]
                        yield "".join(texts), f"{path.relative_to(root)}:{part.lineno}"
                    elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value, f"{path.relative_to(root)}:{part.lineno}"


def test_every_flag_that_an_error_names_is_an_argument_in_python() -> None:
    functions = [getattr(ms, name) for name in ms.__all__ if callable(getattr(ms, name))]
    functions += [
        attribute_prompts,
        diff_prompts,
        FleetOptions,
        ChatOptions,
        TraceOptions,
        AttributeOptions,
        DiffOptions,
    ]
    arguments = {name for function in functions for name in signature(function).parameters}
    of_commands = {"annotations", "promotes", "fires_on", "plant_times"}  # only verbs come there
    flags = 0
    for text, where in _raised():
        for flag in re.findall(r"(?<![\w`-])--([a-z][a-z-]+[0-9]?)", re.sub("`[^`]*`", "", text)):
            flags += 1
            name = "target" if flag == "for" else flag.replace("-", "_")
            assert name in arguments | of_commands, f"{where}: --{flag} is no argument"
            said = str(OptionError(text))
            assert name in said.replace(f"--{flag}", ""), f"{where}: --{flag} becomes {said}"
            assert f"--{flag}" not in said, f"{where}: --{flag} stays"
    assert flags > 40
