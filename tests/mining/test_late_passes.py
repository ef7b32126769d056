"""Removals and predictions of models whose answers are known, and what is sampled, seeded and left out."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mining.conftest import odd_text, tables_of, tiny_model
from mnemoscope.atlas import open_atlas
from mnemoscope.errors import PlanDiffers
from mnemoscope.mining import mine
from mnemoscope.mining.passes.removals import random_position
from mnemoscope.mining.plan.removal_cost import default_removals
from mnemoscope.models.opening.handmade.models import PLANTED, PLANTED_SENTENCES


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted model on its sentences, with the same sentences as validation text."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "text.txt").write_text("\n".join(PLANTED_SENTENCES) + "\n")
    options: dict[str, Any] = {"split": "line", "removals": "all", "validation": folder / "text.txt"}
    return mine("handmade:planted", folder / "text.txt", out=folder / "atlas", **options)


def test_dropping_the_last_word_of_a_planted_ngram_silences_its_key(planted: Path) -> None:
    removals = pl.read_parquet(planted / "removals.parquet")
    assert set(removals["memory"]) <= {one.memory.memory for one in PLANTED}
    last = removals.filter(pl.col("removed") == "last")
    assert last.height > 10
    assert (last["removed_position"] == last["position"]).all()
    assert (last["coefficient"] > 0).all()
    # Every planted n-gram has another last word than the word before it, so its key is below zero there: ReLU gives 0.
    assert last["removed_coefficient"].to_list() == [0.0] * last.height


def test_a_dropped_word_outside_the_ngram_changes_nothing(planted: Path) -> None:
    removals = pl.read_parquet(planted / "removals.parquet")
    sizes = {(one.memory.layer, one.memory.memory): len(one.ngram) for one in PLANTED}
    far = [
        row
        for row in removals.iter_rows(named=True)
        if row["removed_position"] <= row["position"] - sizes[row["layer"], row["memory"]]
    ]
    assert len(far) > 10
    for row in far:  # above layer 0 the norm's scale may change with what other memories wrote
        assert row["removed_coefficient"] > 0
        assert row["layer"] > 0 or row["removed_coefficient"] == pytest.approx(row["coefficient"], rel=1e-4), row
    inside = [
        row
        for row in removals.iter_rows(named=True)
        if row["removed_position"] > row["position"] - sizes[row["layer"], row["memory"]]
    ]
    assert {row["removed_coefficient"] for row in inside} == {0.0}


def test_random_positions_follow_the_hash_and_reach_every_token() -> None:
    places = [random_position(0, 1, 2, 3, position) for position in range(200)]
    assert all(0 <= place <= position for position, place in enumerate(places))
    counts = np.bincount([random_position(0, layer, 7, 11, 4) for layer in range(5000)], minlength=5)
    assert (abs(counts / 5000 - 0.2) < 0.03).all()
    assert places != [random_position(1, 1, 2, 3, position) for position in range(200)]


def test_the_default_number_of_memories() -> None:
    def default(tokens: int, layers: int) -> int:
        return default_removals(mined_tokens=tokens, mined_sentences=tokens // 20, layers=layers)

    assert default(1_000, 12) == 10
    assert default(100_000_000, 12) == 100
    middle = default(1_200_000, 12)
    assert 10 < middle < 100
    # 50 triggers x 3 runs x (20 / 2 + 1) positions x 0.6 of the depth x 12 layers, half of 1.26 million positions
    assert middle == 630_000 // (50 * 3 * 11 * 0.6 * 12)


@pytest.mark.full
def test_the_sample_is_seeded_and_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(80))
    model = tiny_model("gpt2-relu")

    def mined(name: str, **options: Any) -> Path:
        return mine(model, tmp_path / "text.txt", out=tmp_path / name, split="line", batch_tokens=80, **options)

    five = open_atlas(mined("five", removals=5))
    memories = five.table("removals").select("layer", "memory").unique().group_by("layer").len().sort("layer")
    assert memories["len"].to_list() == [5] * len(five.layers)
    assert five.manifest["plan"]["removals"] == 5
    assert five.manifest["questions"]["removals_per_layer"] == 5
    other = open_atlas(mined("other", removals=5, seed=1))
    assert set(five.table("removals")["memory"]) != set(other.table("removals")["memory"])
    assert open_atlas(mined("none", removals=0)).table("removals").height == 0
    assert open_atlas(mined("default")).manifest["plan"]["removals"] == 10

    def stop(stage: str, done: float, total: float | None, note: str) -> None:
        if stage == "tables":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        mined("stopped", removals=5, progress=stop)
    with pytest.raises(PlanDiffers, match="removals was 5, now 10"):
        mined("stopped")
    mined("stopped", removals=5)
    assert (five.table("removals")["position"] > 0).all()


def test_a_validation_text_of_its_own_is_numbered_after_the_mined_one(planted: Path) -> None:
    atlas = open_atlas(planted)
    prefixes = atlas.table("prefixes")
    count = len(PLANTED_SENTENCES)
    assert prefixes["sentence"].to_list() == list(range(count, 2 * count))
    stored = atlas.sentences(prefixes["sentence"].to_list())
    assert stored["text"].to_list() == list(PLANTED_SENTENCES)
    assert stored["held_out"].all()
    assert atlas.manifest["corpus"]["overlap"] == {"sentences": count, "of": count, "share": 1.0}
    for row, tokens in zip(prefixes.iter_rows(named=True), stored["tokens"], strict=True):
        assert 0 <= row["position"] <= len(tokens) - 2
        assert row["next_token"] == tokens[row["position"] + 1]


@pytest.mark.full
def test_held_out_prefixes_are_distinct_sentences_with_a_next_token(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(400))
    for name, special in (("with", {}), ("without", {"unk_token": "<|endoftext|>"})):
        model = tiny_model("llama", **special)
        atlas = open_atlas(mine(model, tmp_path / "text.txt", out=tmp_path / name, split="line", prefixes=20))
        prefixes = atlas.table("prefixes")
        assert 5 < prefixes.height <= 20
        assert prefixes["sentence"].is_sorted()
        assert prefixes["sentence"].n_unique() == prefixes.height
        stored = atlas.sentences(prefixes["sentence"].to_list())
        assert stored["held_out"].all()
        first = 0 if model.beginning.token is not None else 1
        for place, tokens in zip(prefixes["position"], stored["tokens"], strict=True):
            assert first <= place <= len(tokens) - 2
    assert model.beginning.token is None


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


def test_the_same_run_twice_makes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(odd_text(100))
    model = tiny_model("gpt2")
    one, two = (mine(model, tmp_path / "text.txt", out=tmp_path / name, split="line") for name in ("one", "two"))
    assert tables_of(one) == tables_of(two)
