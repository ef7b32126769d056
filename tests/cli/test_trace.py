"""`mnemoscope trace`: what it prints, its JSON, and what it refuses."""

import json

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


def test_it_refuses_in_one_line(capsys: Capture) -> None:
    assert main(["trace", MODEL, "cat", "--position", "1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "position 1" in err
