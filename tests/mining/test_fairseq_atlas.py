"""Atlases of fairseq checkpoints: brute force == mined under a two-level head, and every verb that reads a MODEL."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mining.agreement import assert_agrees
from mining.conftest import tables_of
from mining.reference import Reference, Sentence, documents_of, sentences_of
from mining.slow_fairseq import split_words
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.cli import main
from mnemoscope.foundation.budget import Budget
from mnemoscope.mining import cost_estimate, mine
from mnemoscope.mining.passes.vectors import projector, values
from mnemoscope.models import load_model
from models.checkpoints import CONTEXT, END, KINDS, LAYERS, ROWS, UNKNOWN, WORDS, Kind, Slow, args_of, weights_of, write
from support.mined import mined_text

Capture = pytest.CaptureFixture[str]


class WrittenReference(Reference):
    """The brute-force reference over the slow network of a checkpoint."""

    def __init__(self, slow: Slow, sentences: list[Sentence]) -> None:
        self.slow, self.sentences, self.first, self.layers = slow, sentences, 0, LAYERS
        self.mined = [number for number, sentence in enumerate(sentences) if not sentence.held_out]
        self.coefficients: list[dict[int, np.ndarray]] = [{} for _ in range(LAYERS)]
        for number in self.mined:
            for layer, own in enumerate(slow.hidden([END, *sentences[number].tokens])[1]):
                self.coefficients[layer][number] = own[1:].numpy()

    def scores(self, layer: int) -> np.ndarray:
        return self.slow.gain(layer, self.slow.values(layer)).numpy()

    def opposite(self, layer: int) -> np.ndarray:
        return self.slow.gain(layer, -self.slow.values(layer)).numpy()


def checkpoint(folder: Path, kind: Kind) -> tuple[str, Slow]:
    args, weights = args_of(kind), weights_of(kind)
    return write(folder, args, weights), Slow(args, weights)


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "name", ["tied", "other bands and factors", "final norm", "post-norm, gelu, untied", "plain, shared"]
)
def test_brute_force_is_what_is_mined(name: str, text: Path, tmp_path: Path) -> None:
    model, slow = checkpoint(tmp_path / "model", KINDS[name])
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=7)
    found = sentences_of(documents_of(text.read_text(), "line"), lambda one: [one], split_words, longest=CONTEXT - 1)
    assert any(len(sentence.tokens) == CONTEXT - 1 for sentence in found)  # windows
    assert any(UNKNOWN in sentence.tokens for sentence in found)
    assert_agrees(out, WrittenReference(slow, found), keep=7, layers=range(LAYERS), vocabulary=ROWS)
    assert verify(out) == []
    model_facts = open_atlas(out).manifest["model"]
    assert model_facts["spec"] == "fairseq:model.pt"
    assert model_facts["head"] == ("linear" if slow.args.adaptive_softmax_cutoff is None else "adaptive softmax")
    assert model_facts["beginning"] == {"token": END, "kind": "end-of-text"}


def test_small_blocks_of_scores_say_the_same(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(checkpoint(tmp_path / "model", KINDS["tied"])[0])
    count = model.sizes.memories[0]
    wanted = values.Targets(*(np.zeros(n, np.int64) for n in (count, count, 0, 0)))
    whole = values.ValuePass(model).columns(0, wanted)
    monkeypatch.setattr(projector, "BUDGET", Budget(scores=1))
    small = projector.Projector.of(model)
    vectors = model.fold_as_value(0, model.values(0)[:3])
    assert small.rows == 16
    assert small.read_all(vectors, lambda share: len(share.scores)) == [3]
    pieces = values.ValuePass(model).columns(0, wanted)
    for name, column in whole.items():
        np.testing.assert_allclose(np.ma.filled(pieces[name], 0), np.ma.filled(column, 0), rtol=1e-5, err_msg=name)


def test_bottom_tokens_are_those_of_the_negated_value(tmp_path: Path, text: Path) -> None:
    """Under two levels that is not the other end of the value's own list."""
    name, _ = checkpoint(tmp_path / "model", replace(KINDS["tied"], tied=False, tied_projections=False))
    table = open_atlas(mine(name, text, out=tmp_path / "atlas", split="line")).table("values", layer=0)
    model = load_model(name)
    opposite = model.scores(-model.values(0), projection="gain", layer=0)
    assert table["bottom_tokens"].list.first().to_list() == opposite.argmax(1).tolist()
    lowest = model.scores(model.values(0), projection="gain", layer=0).argmin(1).tolist()
    assert table["bottom_tokens"].list.first().to_list() != lowest
    scores = np.array(table["bottom_scores"].list.first())
    np.testing.assert_allclose(scores, opposite.amax(1), rtol=1e-5)
    assert (scores <= 0).all()  # log-probabilities


def test_triggers_read_as_text(tmp_path: Path) -> None:
    name, _ = checkpoint(tmp_path / "model", KINDS["tied"])
    text = "\n".join(f"the {word} sat , on <unk> @-@ 東京 ." for word in WORDS[:14])
    atlas = open_atlas(mined_text(name, tmp_path, text))
    rows = pl.concat([atlas[f"L0.M{memory}"].triggers() for memory in range(24)])
    assert rows.height > 20
    for row in rows.iter_rows(named=True):
        words = row["text"].split()[: row["position"] + 1]
        assert row["prefix"] == "".join(f" {word}" for word in words)
        assert row["trigger_text"] == f" {words[-1]}"


@pytest.mark.full
def test_every_verb_that_takes_a_model(tmp_path: Path, capsys: Capture, text: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cost_estimate, "TIMED_SECONDS", 0.02)
    name, _ = checkpoint(tmp_path / "model", KINDS["tied"])
    (tmp_path / "model" / "dict.txt").rename(tmp_path / "words.txt")
    words, out = ["--dict", str(tmp_path / "words.txt")], str(tmp_path / "atlas")
    assert main(["inspect", name, *words, "--corpus", str(text), "--split", "line"]) == 0
    printed = capsys.readouterr().out
    assert "family fairseq, pre-norm ungated relu" in printed
    assert "  head        adaptive softmax\n" in printed
    assert "  beginning   end-of-text, token 2\n" in printed
    assert main(["mine", name, str(text), "--split", "line", "--out", out, *words, "--json"]) == 0
    capsys.readouterr()
    assert main(["show", out, "L1.M3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["value"]["top_texts"]) == 20
    parts = [str(tmp_path / f"part-{i}") for i in (1, 2)]
    for i, part in enumerate(parts, 1):
        assert main(["mine", name, str(text), "--split", "line", "--out", part, *words, "--part", f"{i}/2"]) == 0
    assert main(["merge", str(tmp_path / "merged"), *parts, *words]) == 0
    assert main(["verify", str(tmp_path / "merged")]) == 0
    assert tables_of(tmp_path / "merged") == tables_of(Path(out))
