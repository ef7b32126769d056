"""What a stranger put into an atlas cannot act on the terminal: names and texts with control codes, in every verb."""

import hashlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from mnemoscope.cli import main
from mnemoscope.cli.drawing import stdout_console
from mnemoscope.cli.runner import FilteredStream, emit
from support.handbuilt_atlas import build_atlas

Capture = pytest.CaptureFixture[str]

HOSTILE = "a\x1b]0;pwned\x07\x1b[2Jb\x9b31mc\u202ed\r"
SHOWN = "a␛]0;pwned␇␛[2Jb\\u009b31mc\\u202ed␍"
DRAWN = SHOWN.replace("␇", "").replace("␍", "")
"""Rich leaves these two out of what it draws."""
ACTING = re.compile("[^\n -~\u00a1-\u200d\u2010-\u2027\u2030-\ud7ff\ue000-\uffff]")
VERBS = (
    *(["show", "ATLAS", "L0.M0"], ["verify", "ATLAS"], ["analyze", "ATLAS"], ["analyze", "ATLAS", "layer_activity"]),
    *(["search", "ATLAS", "capital"], ["report", "ATLAS"], ["merge", "OUT", "ATLAS"], ["show", HOSTILE, "L0.M0"]),
    *(["serve", HOSTILE], ["inspect", HOSTILE], ["trace", HOSTILE, "the"], ["mine", HOSTILE, HOSTILE, "--out", "OUT"]),
    *(["train", "--corpus", HOSTILE, "--out", "OUT"], ["search", "ATLAS", HOSTILE], [HOSTILE]),
)


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    """The hand-built atlas with a hostile manifest: model, text, counts and the name of a file."""
    path = build_atlas(tmp_path / "atlas")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["model"]["spec"] = manifest["corpus"]["spec"] = HOSTILE
    manifest["corpus"]["counts"][HOSTILE] = 1
    manifest["files"][HOSTILE] = {"bytes": 0, "sha256": "0" * 64}
    raw = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(raw)
    (path / "manifest.sha256").write_text(hashlib.sha256(raw).hexdigest() + "\n")
    return path


@pytest.mark.fast(5)
@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0][:8])
def test_no_control_code_reaches_the_terminal(words: list[str], atlas: Path, tmp_path: Path, capsys: Capture) -> None:
    places = {"ATLAS": str(atlas), "OUT": str(tmp_path / "out")}
    main([places.get(word, word) for word in words])
    out, err = capsys.readouterr()
    assert out + err
    assert ACTING.findall(out + err) == []


def test_what_would_have_acted_is_seen(atlas: Path, capsys: Capture) -> None:
    assert main(["show", str(atlas), "L0.M0"]) == 0
    assert f"model {DRAWN}, text {DRAWN}" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(atlas)]) == 2
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert "damaged" in err.splitlines()[-1]


def test_json_says_the_same_in_escapes(capsys: Capture) -> None:
    emit({HOSTILE: HOSTILE})
    out = capsys.readouterr().out
    assert json.loads(out) == {HOSTILE: HOSTILE}
    assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", out) == []


def test_a_drawn_text_neither_acts_nor_is_markup_while_the_consoles_own_styles_stay(monkeypatch: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", FilteredStream(screen))  # type: ignore[arg-type]
    console = stdout_console(piped_width=120)
    table = Table(box=None)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row("[link=http://x]y[/link] :smile:")
    console.print(Text(HOSTILE, style="bold"))
    console.print(table)
    written = screen.getvalue()
    assert "\x1b[1m" in written
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert ACTING.findall(plain) == []
    # A cell is as wide as its text was before what cannot be seen was shown, so its end may be cut.
    assert plain.count(DRAWN[:-1]) == 3
    assert "[link=http://x]y[/link] :smile:" in plain


def test_consoles_are_made_in_one_place() -> None:
    """Another console would write its texts as they are."""
    folder = Path(__file__).parents[2] / "src" / "mnemoscope"
    makers = [path.name for path in folder.rglob("*.py") if re.search(r"\b(Console|_Plain)\(", path.read_text())]
    assert makers == ["drawing.py"]


def test_a_traceback_and_a_strangers_warning_are_seen_too() -> None:
    script = (
        "import sys, typer, warnings\n"
        "from mnemoscope.cli.runner import run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def verb(debug: bool = False) -> None:\n"
        "    warnings.warn('w\\x1b[2J')\n"
        "    raise ValueError('v\\x1b[2J')\n"
        "sys.exit(run(app, ['--debug']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "w␛[2J" in done.stderr
    assert done.stderr.count("v␛[2J") == 2
    assert "\x1b" not in done.stderr
