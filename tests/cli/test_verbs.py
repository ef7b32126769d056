"""Every other verb for real, on small models and texts: what it prints, and one JSON document with `--json`."""

import json
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mnemoscope import training
from mnemoscope.cli import main
from mnemoscope.cli.app import app
from mnemoscope.mining import cost_estimate
from mnemoscope.models.opening.handmade.models import PLANTED_SENTENCES
from mnemoscope.training import text as training_text
from support.handbuilt_atlas import build_atlas

pytestmark = pytest.mark.full
Capture = pytest.CaptureFixture[str]
MODEL = "handmade:planted"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(PLANTED_SENTENCES) + "\n")
    return path


@pytest.fixture
def documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    def documents(part: str = "all") -> Iterator[str]:
        return (f"The object {a} takes the argument {b} and returns a value." for a in range(30) for b in range(20))

    monkeypatch.setattr(training_text, "documents", documents)
    sizes = {"layers": 1, "hidden": 16, "memories": 16, "heads": 2, "vocabulary": 300, "context": 16}
    monkeypatch.setattr(training, "Recipe", partial(training.Recipe, **sizes))


def test_every_verb_prints_one_json_document(
    text: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, documentation: None
) -> None:
    """A second document, or a line before or after, would not parse. Four verbs have tests of their own."""
    monkeypatch.setattr(cost_estimate, "TIMED_SECONDS", 0.01)
    names = "whole", "first", "second", "merged", "shared"
    whole, first, second, merged, shared = (str(tmp_path / name) for name in names)
    mining = ["mine", MODEL, str(text), "--split", "line"]
    commands = [
        *(["inspect", MODEL, "--corpus", str(text), "--split", "line"], [*mining, "--out", whole]),
        *([*mining, "--out", first, "--part", "1/2"], [*mining, "--out", second, "--part", "2/2"]),
        *(["merge", merged, first, second], [*mining, "--out", shared, "--prepare"], ["worker", shared]),
        *(["status", shared], ["analyze", whole], ["report", whole], ["show", whole, "L0.M0"]),
        *(["search", whole, "cat"], ["trace", MODEL, "the cat sat", "--set", "L0.M0=0", "--generate", "2"]),
        ["attribute", MODEL, "the cat sat", "--singles", "2"],
        ["diff", MODEL, "the cat sat", "--other-prompt", "the old", "--for", " mat", "--against", " house"],
        *(["compare", whole, merged], ["extend", merged, "roles"], ["lens", whole, "--max-tokens", "200"]),
        *(["audit", MODEL, "--secrets", str(text), "--atlas", whole, "--alternatives", "19"], ["verify", merged]),
        ["train", "--out", str(tmp_path / "model"), "--steps", "1", "--batch", "1"],
        ["export", whole, "--to", "jsonl", "--out", str(tmp_path / "lines")],
    ]
    elsewhere = {"demo", "serve", "mcp", "push"}
    assert {command[0] for command in commands} | elsewhere == {info.name for info in app.registered_commands}
    for command in commands:
        assert main([*command, "--json"]) == 0, command
        assert isinstance(json.loads(capsys.readouterr().out), dict), command
    tables = sorted(path.relative_to(merged) for path in Path(merged).rglob("*.parquet"))
    assert tables
    assert all((Path(merged) / path).read_bytes() == (Path(whole) / path).read_bytes() for path in tables)


def test_a_folder_may_bear_any_name(text: Path, tmp_path: Path, capsys: Capture) -> None:
    """No reader takes the folder's name for a pattern, not even where that pattern fits another folder."""
    plain, odd = tmp_path / "plain", tmp_path / "a[1]*? #%20"
    (tmp_path / "other.txt").write_text("\n".join(PLANTED_SENTENCES[:1]) + "\n")
    mine = ["mine", MODEL, str(text), "--split", "line", "--out"]
    assert main([*mine, str(plain)]) == 0
    assert main([*mine[:2], str(tmp_path / "other.txt"), *mine[3:], str(tmp_path / "a1bc #%20")]) == 0
    assert main([*mine, str(odd)]) == 0
    for verb, *more in (["analyze"], ["report"], ["search", "cat"], ["show", "L0.M0"], ["verify"]):
        capsys.readouterr()
        assert main([verb, str(plain), *more]) == 0
        expected = capsys.readouterr().out.replace(str(plain), "ATLAS")
        assert main([verb, str(odd), *more]) == 0
        out = capsys.readouterr().out.replace(shlex.quote(str(odd)), "ATLAS").replace(str(odd), "ATLAS")
        assert out == expected
    assert (odd / "manifest.json").read_bytes() == (plain / "manifest.json").read_bytes()


def test_inspect_tells_anatomy_proof_and_cost(text: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_estimate, "TIMED_SECONDS", 0.01)
    assert main(["inspect", MODEL]) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("handmade:planted: family ")
    assert "  proof       residual " in plain
    assert "mining" not in plain
    assert main(["inspect", MODEL, "--corpus", str(text), "--split", "line", "--max-tokens", "20"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(plain)
    assert f"mining {text}: about " in out or f"mining {text}: " in out
    assert "  memory      " in out
    assert max(map(len, out.replace(str(text), "TEXT").splitlines())) < 120


def test_inspect_says_that_an_atlas_is_one(tmp_path: Path, capsys: Capture) -> None:
    assert main(["inspect", str(build_atlas(tmp_path))]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path} is an atlas: ")
