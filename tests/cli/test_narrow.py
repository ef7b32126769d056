"""Terminals of 40 and 50 columns: no digit is cut, and the token on which a memory fires stays in sight."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.cli import main
from mnemoscope.cli.drawing import print_table, stdout_console
from mnemoscope.foundation.formatting import Table
from mnemoscope.mining import mine
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?%?")


class Terminal:
    """A stream that says that it is a terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow")
    lines = [f"{'a long way from here ' * 3}{line}" for line in PLANTED_SENTENCES]
    (folder / "text.txt").write_text("\n".join([*PLANTED_SENTENCES, *lines]) + "\n")
    text = folder / "text.txt"
    return mine("handmade:planted", text, out=folder / "atlas", split="line", validation=text, device="cpu").path


def shown(words: list[str], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    assert main(words) == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)


VERBS = """
    show L0.M0; show L1.M2; analyze value_agreement; analyze layer_activity; analyze refinement_events; search cat
    search --promotes \u00b7cat; search --tokens-like c; status; verify
"""


@pytest.mark.fast(1)
@pytest.mark.parametrize("words", re.split(r"; |\n *", VERBS.strip()))
@pytest.mark.parametrize("width", [40, 50, 80])
def test_no_number_is_cut(atlas: Path, words: str, width: int, monkeypatch: Any, capsys: Any) -> None:
    verb, *rest = words.split()
    command = [verb, str(atlas), *rest]
    wide = shown(command, 200, monkeypatch, capsys)
    narrow = shown(command, width, monkeypatch, capsys)
    path = re.escape(str(atlas))
    numbers = [Counter(NUMBER.findall(re.sub(path, "", "".join(text.split("\n"))))) for text in (wide, narrow)]
    of_lines = Counter(NUMBER.findall(re.sub(path, "", narrow)))
    missing = Counter(NUMBER.findall(re.sub(path, "", wide))) - of_lines
    assert not {number for number in missing if number not in of_lines and number not in numbers[1]}, narrow
    assert "…" not in re.sub("…[^\n]*«", "", narrow), narrow


@pytest.mark.parametrize("width", [40, 50, 80])
@pytest.mark.parametrize("memory", ["L0.M0", "L1.M2", "L2.M5"])
def test_the_marked_token_stays_in_sight(atlas: Path, memory: str, width: int, monkeypatch: Any, capsys: Any) -> None:
    lines = shown(["show", str(atlas), memory], width, monkeypatch, capsys).split("\n")
    rows = [line for line in lines if re.match(r" *\d+ +-?\d+\.\d{3} ", line) and "«" in line]
    fired = [line for line in lines if re.match(r" *\d+ +-?\d+\.\d{3} ", line)]
    assert rows == fired
    assert all("»" in line and len(line) <= width for line in rows), rows


def test_a_table_without_room_becomes_lists(capsys: pytest.CaptureFixture[str]) -> None:
    console = stdout_console(piped_width=20)
    columns = ("memory", ">score", ">rank", "text")
    print_table(console, Table(columns, [("L10.E3.M222", "123.456", "12,345", "words enough to be broken")]))
    out = capsys.readouterr().out
    for whole in ("memory: L10.E3.M222", "score: 123.456", "rank: 12,345"):
        assert whole in out
