"""`demo` for real, on the built-in model and a little of its own text."""

import json
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas import verify
from mnemoscope.cli import main
from support.handbuilt_atlas import build_atlas

pytestmark = pytest.mark.full
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo of a few thousand tokens; the whole demo is in runs/demo.sh."""
    out = tmp_path_factory.mktemp("demo") / "atlas"
    assert main(["demo", "--out", str(out), "--max-tokens", "4000"]) == 0
    return out


@pytest.fixture
def nothing_is_mined(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished demo was mined again")

    monkeypatch.setattr("mnemoscope.mining.mine", mine, raising=False)


def test_a_finished_demo_is_shown_again_within_80_columns(atlas: Path, nothing_is_mined: None, capsys: Capture) -> None:
    assert verify(atlas) == []
    assert main(["demo", "--out", str(atlas)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    said = json.loads((atlas / "manifest.json").read_text())
    tokens, memories = said["corpus"]["counts"]["mined_tokens"], said["model"]["sizes"]["memories"]
    assert 3_500 < tokens <= 4_000
    assert lines[0] == f"{atlas}: {sum(memories):,} memories in {len(memories)} layers, {tokens:,} tokens of text"
    shown = lines.index(next(line for line in lines if line.startswith("next: ")))
    assert lines[shown - 2] == f"the paper's questions, answered: open {atlas}/report/index.html in a browser"
    assert (atlas / "report" / "index.html").stat().st_size > 100_000
    assert max(map(len, lines[1 : shown - 2])) <= 84
    assert lines[shown] == f"next: mnemoscope serve {atlas} --model builtin:pydocs"
    assert lines[shown + 1].startswith(f"      mnemoscope show {atlas} L")
    assert main(["show", *lines[shown + 1].split()[2:]]) == 0


def test_json_has_the_layers_and_the_striking_memories(atlas: Path, nothing_is_mined: None, capsys: Capture) -> None:
    assert main(["demo", "--out", str(atlas), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    layers = json.loads((atlas / "manifest.json").read_text())["layers"]
    assert [row["layer"] for row in found["layers"]] == layers
    assert all(0 <= row["dead"] <= 1 and 0 < row["active"] < 1 for row in found["layers"])
    rows = found["striking"]
    assert 1 <= len(rows) <= 10
    assert len({row["top_token"] for row in rows}) == len(rows)
    assert min(row["prefixes"] for row in rows) >= 5
    for row in rows:
        assert row["score"] == pytest.approx(row["working_probability"] * row["agreement"])
        assert 0 < row["max_probability"] < 1
        assert row["prefix"].endswith(row["trigger_text"])


def test_an_atlas_that_is_not_the_demo_s_is_left_alone(tmp_path: Path, nothing_is_mined: None, capsys: Capture) -> None:
    other = build_atlas(tmp_path / "other")
    assert main(["demo", "--out", str(other)]) == 2
    assert "is an atlas, but not the demo's; choose another folder" in capsys.readouterr().err
    assert verify(other) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes on a machine of its own, more beside other work
def test_the_whole_demo_has_striking_memories(tmp_path: Path, capsys: Capture) -> None:
    assert main(["demo", "--out", str(tmp_path / "atlas"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["striking"]) == 10
