"""Removals and predictions of models whose answers are known, and what is sampled, seeded and left out."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import odd_text, tiny_model
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.mining import mine
from mnemoscope.mining.passes.removals import ShortenedRuns
from mnemoscope.models.opening.handmade.models import PLANTED, PLANTED_SENTENCES
from mnemoscope.runs.plan import default_removals


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted model on its sentences, with the same sentences as validation text."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "text.txt").write_text("\n".join(PLANTED_SENTENCES) + "\n")
    options: dict[str, Any] = {"split": "line", "removals": "all", "validation": folder / "text.txt"}
    return mine("handmade:planted", folder / "text.txt", out=folder / "atlas", **options).path


def test_a_dropped_word_silences_a_key_only_within_its_ngram(planted: Path) -> None:
    removals = pl.read_parquet(planted / "removals.parquet")
    sizes = {(one.memory.layer, one.memory.memory): len(one.ngram) for one in PLANTED}
    assert set(removals["memory"]) <= {memory for _, memory in sizes}
    inside, far = 0, 0
    for row in removals.iter_rows(named=True):
        assert row["coefficient"] > 0
        assert row["removed"] != "last" or row["removed_position"] == row["position"]
        if row["removed_position"] > row["position"] - sizes[row["layer"], row["memory"]]:
            inside += 1
            # Other words are there then, so the key is below zero, of which ReLU makes 0.
            assert row["removed_coefficient"] == 0.0
        else:  # above layer 0 the norm's scale may change with what other memories wrote
            far += 1
            assert row["removed_coefficient"] > 0
            assert row["layer"] > 0 or row["removed_coefficient"] == pytest.approx(row["coefficient"], rel=1e-4), row
    assert min(inside, far) > 10


def test_the_default_number_of_memories() -> None:
    def default(tokens: int, layers: int) -> int:
        return default_removals(mined_tokens=tokens, mined_sentences=tokens // 20, layers=layers)

    assert default(1_000, 12) == 5  # 60 memories in all
    assert default(1_000, 7) == 9
    assert default(1_000, 80) == 2
    assert default(100_000_000, 12) == 100
    middle = default(1_200_000, 12)
    assert 10 < middle < 100
    # 50 triggers x 3 runs x (20 / 2 + 1) positions x 0.6 of the depth x 12 layers, half of 1.26 million positions
    assert middle == 630_000 // (50 * 3 * 11 * 0.6 * 12)


@pytest.mark.full
def test_the_sample_is_seeded_and_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(80))
    model = tiny_model("gpt2-relu")

    def mined(name: str, **options: Any) -> Atlas:
        text = tmp_path / "text.txt"
        return open_atlas(mine(model, text, out=tmp_path / name, split="line", batch_tokens=80, prefixes=0, **options))

    five, other, usual = mined("five", removals=5), mined("other", removals=5, seed=1), mined("usual")
    memories = five.table("removals").select("layer", "memory").unique().group_by("layer").len()
    assert memories["len"].to_list() == [5] * len(five.layers)
    assert five.manifest["plan"]["removals"] == five.manifest["questions"]["removals_per_layer"] == 5
    assert set(five.table("removals")["memory"]) != set(other.table("removals")["memory"])
    assert mined("none", removals=0).table("removals").height == 0
    assert usual.manifest["plan"]["removals"] == 30  # 60 of both layers


def test_a_validation_text_of_its_own_is_numbered_after_the_mined_one(planted: Path) -> None:
    atlas = open_atlas(planted)
    prefixes = atlas.table("prefixes")
    count = len(PLANTED_SENTENCES)
    assert prefixes["sentence"].to_list() == list(range(count, 2 * count))
    stored = atlas.sentences(prefixes["sentence"].to_list())
    assert stored["text"].to_list() == list(PLANTED_SENTENCES)
    assert stored["held_out"].all()
    assert atlas.manifest["corpus"]["overlap"] == {"sentences": count, "of": count, "share": 1.0}


@pytest.mark.full
def test_predictions_do_not_depend_on_how_they_are_batched(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(300))
    model = tiny_model("gpt2")
    found, shapes = [], list[tuple[int, int]]()
    model.anatomy.model.get_input_embeddings().register_forward_pre_hook(
        lambda module, given: shapes.append(tuple(given[0].shape)) if given[0].dim() == 2 else None
    )
    areas: dict[str, int] = {}

    def note(stage: str, done: float, total: float | None, unit: str) -> None:
        """The largest forward of several sentences, beginning tokens and padding counted, since the last look."""
        least = 1 if stage == "removals" else 2  # whose sentences lie in one row
        areas[stage] = max([areas.get(stage, 0), *(rows * columns for rows, columns in shapes if rows >= least)])
        shapes.clear()

    for size in (40, 4000):
        text, out = tmp_path / "text.txt", tmp_path / str(size)
        atlas = mine(model, text, out=out, split="line", batch_tokens=size, progress=note)
        found.append((pl.read_parquet(atlas / "predictions.parquet"), pl.read_parquet(atlas / "removals.parquet")))
        for stage in ("mining", "removals", "predictions", "attention"):
            most = max(size, model.sizes.context) if stage == "removals" else size
            assert min(size, 128) * 0.9 <= areas[stage] <= most, (stage, areas[stage])
        areas.clear()
    for one, other in zip(*found, strict=True):
        assert one.columns == other.columns
        assert one.height == other.height > 20
    one, other = found[0][0], found[1][0]
    assert one.select(pl.col(pl.Int32)).equals(other.select(pl.col(pl.Int32)))
    assert np.allclose(one["residual_final_probability"], other["residual_final_probability"], atol=1e-6)


@pytest.mark.full
def test_memory_that_runs_out_halves_the_batches_of_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows or more in one take are too much: the atlas says so, and its coefficients are the same."""
    (tmp_path / "text.txt").write_text(odd_text(30))
    model = tiny_model("gpt2")
    options: dict[str, Any] = {"split": "line", "removals": 5, "prefixes": 0, "batch_tokens": 64}
    whole = mine(model, tmp_path / "text.txt", out=tmp_path / "whole", **options)
    take = ShortenedRuns.take

    def scarce(runs: ShortenedRuns, items: slice, answer: Any) -> None:
        if items.stop - items.start > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(runs, items, answer)

    monkeypatch.setattr(ShortenedRuns, "take", scarce)
    halved = mine(model, tmp_path / "text.txt", out=tmp_path / "halved", **options)
    one, other = (open_atlas(folder).table("removals") for folder in (whole, halved))
    assert one.drop("removed_coefficient").equals(other.drop("removed_coefficient"))
    np.testing.assert_allclose(one["removed_coefficient"], other["removed_coefficient"], rtol=1e-5, atol=1e-6)
    steps = [open_atlas(folder).manifest["questions"]["out_of_memory_steps"]["removals"] for folder in (whole, halved)]
    assert steps[0] == []
    assert len(steps[1]) > 0
