"""`search`: what its tables and JSON say of the hand-built atlas."""

import json
from pathlib import Path

import pytest

from mnemoscope.cli import main


@pytest.fixture(scope="module")
def atlas(handbuilt: Path) -> str:
    return str(handbuilt)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["search", *arguments]) == 0
    return capsys.readouterr().out


def test_a_sentence_is_one_hit_that_names_its_memories(atlas: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(asked(capsys, atlas, "capital", "--in", "words,triggers", "--json"))
    sentences = [hit["sentence"] for hit in found["hits"]]
    assert len(sentences) == len(set(sentences)) == found["total"]
    assert found["totals"]["triggers"] == 3
    for hit in found["hits"]:
        assert hit["memories"][0] == hit["memory"]
    assert [len(hit["memories"]) for hit in found["hits"]] == [1, 2]
    lines = asked(capsys, atlas, "capital").splitlines()
    assert [line.partition("rank 0")[2].strip() for line in lines if "rank 0" in line] == [
        "The «capital» of France is",
        "; 2 memories fire in it  The «capital» of Italy is Rome.",
    ]


def test_the_only_near_token_is_taken_and_said(atlas: str, capsys: pytest.CaptureFixture[str]) -> None:
    exact = json.loads(asked(capsys, atlas, "--promotes", " Paris", "--json"))
    near = json.loads(asked(capsys, atlas, "--promotes", "PARIS", "--json"))
    assert (exact["near"], near["near"]) == (False, True)
    assert (near["tokens"], near["hits"]) == (exact["tokens"], exact["hits"])
    assert "·Paris (no token reads 'PARIS'; this is the only near one)" in asked(capsys, atlas, "--promotes", "PARIS")
    assert "near" not in asked(capsys, atlas, "--promotes", "·Paris")
