"""What the pages tell readers to type: every command parses, the cheap ones run as written."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mnemoscope.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFRESH = _module()


def commands_of(page: str) -> list[str]:
    """Every `mnemoscope VERB ...` of a page: in fenced blocks a line each, in running text between backquotes."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in fenced for line in block.splitlines()]
    inline = re.findall(r"`(mnemoscope [^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    return [line for line in [*lines, *(" ".join(text.split()) for text in inline)] if line.startswith("mnemoscope ")]


def test_every_page_stands_in_the_site_s_contents() -> None:
    contents = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"docs/{page.stem}"' in contents, page.name


def cases() -> list[Any]:
    found = [(page, command) for page in PAGES for command in commands_of(page.read_text(encoding="utf-8"))]
    shown = [(page, command) for page, command in found if page.name != "cli.md"]
    return [pytest.param(command, id=f"{page.name}: {command}") for page, command in dict.fromkeys(shown)]


def check(command: str) -> None:
    """Raises what typer raises for a command that does not parse; runs nothing."""
    words = shlex.split(command, comments=True)
    words = words[1 : next((i for i, word in enumerate(words) if word in (">", "|", "&&", "2>&1")), None)]
    verb = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    if len(words) > 1:  # a bare name in running text names the verb
        verb.make_context(words[0], words[1:], resilient_parsing=False)


@pytest.mark.parametrize("command", cases())
def test_every_command_parses(command: str) -> None:
    check(command)


@pytest.mark.parametrize("command", ["mnemoscope mine a b --out c --bad", "mnemoscope mine a", "mnemoscope dance"])
def test_a_command_that_does_not_parse_is_found(command: str) -> None:
    with pytest.raises((typer.TyperException, KeyError)):
        check(command)


def test_the_pages_hold_commands() -> None:
    verbs = {str(case.values[0]).split()[1] for case in cases()}
    assert verbs >= {"demo", "inspect", "mine", "show", "merge", "verify", "train", "bench"}


@pytest.mark.whole
def test_the_cheap_commands_run_as_written(tmp_path: Path) -> None:
    """The tour's commands on the planted model, in order, refused ones included; the pages show what they print."""
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    # Of those that load a model, which takes seconds, only the first.
    dear = ("builtin", "demo", "--part", "merge", "cats-upper")
    cheap = [c for c in REFRESH.commands(page) if not any(word in c for word in dear)]
    assert len(cheap) >= 7
    scratch = REFRESH.Scratch(tmp_path)
    for command in cheap:
        printed = scratch.run(command)
        if command.startswith("mnemoscope show"):
            assert printed in page, f"docs/tour.md shows something else for {command}; python docs/refresh.py mends it"


def test_refreshing_pastes_what_is_printed(tmp_path: Path) -> None:
    page = "a\n\n```console\n$ echo new\nold\n$ false  # refused\n```\n\nb\n\n"
    page += "```python\nshown, and (not run\n```\n\n"
    page += "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    scratch = REFRESH.Scratch(tmp_path)
    with pytest.raises(IndexError):  # a refused command must say why
        REFRESH.refreshed(page, scratch)
    page = page.replace("false", "(echo no; echo why >&2; exit 2)")
    after = REFRESH.refreshed(page, scratch)
    assert "$ echo new\nnew\n$ (echo no; echo why >&2; exit 2)  # refused\nno\nwhy\n```" in after
    assert "print(1 + 1)\n```\n\n```text\n2\n```\n" in after
    assert REFRESH.refreshed(after, scratch) == after


def test_a_command_that_fails_fails_the_refreshing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        REFRESH.refreshed("```console\n$ exit 3\n```\n", REFRESH.Scratch(tmp_path))
