"""`mnemoscope trace`: what it prints, its JSON, and what it refuses."""

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from mnemoscope.cli import main

Capture = pytest.CaptureFixture[str]
MODEL = "handmade:planted"
PROMPT = "the cat sat on the"


def test_it_shows_the_memory_that_decides(capsys: Capture) -> None:
    assert main(["trace", MODEL, PROMPT, "--generate", "2"]) == 0
    out = capsys.readouterr().out
    assert "100.0% +L1.M4 → ·mat" in out
    assert out.endswith("Continued:\n  ·mat<s>\n")
    assert max(cell_len(line) for line in out.splitlines()) <= 118


def test_json_is_the_trace_as_python_has_it(capsys: Capture) -> None:
    assert main(["trace", MODEL, PROMPT, "--json", "--top", "2", "--generate", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"trace", "comparison", "generation", "python"}
    assert found["comparison"] is None
    assert found["trace"]["layers"][1]["positions"][4]["memories"][0]["memory"] == "L1.M4"
    assert len(found["trace"]["positions"][0]["prediction"]) == 2
    assert found["generation"][0]["token"]["text"] == " mat"
    assert main(["trace", MODEL, PROMPT, "--json", "--set", "L1.M4=0"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed["trace"]["positions"][4]["prediction"][0]["text"] == " mat"
    assert changed["comparison"]["after"]["positions"][4]["prediction"][0]["text"] == "<s>"
    assert changed["comparison"]["interventions"] == ["L1.M4=0"]
    assert "L1.M4=0" in changed["python"]


@pytest.mark.parametrize("change", [(), ("--set", "L1.M4*2")])
def test_figure_1_is_written_beside_what_is_printed(change: tuple[str, ...], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "figure1.svg"
    drawn = ["trace", MODEL, PROMPT, *change, "--figure1", "1", "--out", str(out)]
    assert main(drawn) == 0
    printed = capsys.readouterr()
    assert "L1.M4" in printed.out
    assert printed.err.endswith(f"{out}: Figure 1 of layer 1\n")
    assert "L1.M4" in out.read_text()
    assert main([*drawn, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (one,) = found["figure1"]["memories"]
    assert (one["memory"], found["file"]) == ("L1.M4", str(out))
    assert main([*drawn[: -4 - len(change)], "--json", "--memories", "1"]) == 0
    plain = json.loads(capsys.readouterr().out)["trace"]["layers"][1]["positions"][-1]["memories"][0]
    assert one["coefficient"] == pytest.approx(plain["coefficient"] * (2 if change else 1))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cat", "--position", "1"], "position 1"),
        (["cat", "--figure1", "1"], "--figure1 LAYER and --out FILE go together"),
        (["cat", "--out", "a.svg"], "--figure1 LAYER and --out FILE go together"),
        (["cat", "--figure1", "1", "--out", "a.jpg"], "'a.jpg' is no picture"),
        (["cat", "--figure1", "3", "--out", "a.svg"], "there is no layer 3: the model has layers 0 to 2"),
    ],
)
def test_it_refuses_in_one_line(words: list[str], line: str, capsys: Capture) -> None:
    assert main(["trace", MODEL, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err
