"""Models whose memories never fire, or whose values are zero: every pass ends, and every answer is a number or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch

from mining.conftest import load_bytes
from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.mining import mine
from mnemoscope.questions import write_all
from models.conftest import build


def mined(change: Callable[[Any], None], text: Path, out: Path) -> Atlas:
    """An atlas of a tiny ReLU model with every feed-forward layer changed."""
    hf = build("gpt2-relu")
    with torch.no_grad():
        for block in hf.transformer.h:
            change(block.mlp)
    atlas = open_atlas(mine(load_bytes(hf), text, out=out, split="line", triggers=5, batch_tokens=150))
    # Nobody made their tables.
    assert list(write_all(atlas).unanswered) == ["lenses", "memorised", "width", "importance"]
    assert verify(out) == []
    for path in out.rglob("*.parquet"):
        table = pl.read_parquet(path)
        for column in table.select(pl.col(pl.Float32, pl.Float64)):
            assert column.drop_nulls().is_finite().all(), (path, column.name)
    return atlas


def never_fires(mlp: Any) -> None:
    mlp.c_fc.bias.fill_(-1000.0)


def no_values(mlp: Any) -> None:
    mlp.c_proj.weight.zero_()
    mlp.c_proj.bias.zero_()


def test_no_memory_fires(text: Path, tmp_path: Path) -> None:
    atlas = mined(never_fires, text, tmp_path / "atlas")
    for layer in atlas.layers:
        assert atlas.table("triggers", layer=layer).is_empty()
        assert atlas.table("values", layer=layer)["target"].null_count() == atlas.memories(layer)
    assert atlas.table("removals").is_empty()
    assert atlas.table("patterns").is_empty()
    predictions = atlas.table("predictions")
    assert not predictions.is_empty()
    for name in ("active", "effective", "top_share", "major", "votes_ffn", "votes_ffn_major", "votes_output"):
        assert (predictions[name] == 0).all(), name


def test_values_are_zero(text: Path, tmp_path: Path) -> None:
    """An update of 0 makes equal scores, whose top is the token with the lowest id; no weight, no major one."""
    predictions = mined(no_values, text, tmp_path / "atlas").table("predictions")
    assert (predictions["ffn_vote_top"] == 0).all()
    assert (predictions["residual_top"] == predictions["output_top"]).all()
    assert (predictions["active"] > 0).any()
    for name in ("effective", "top_share", "major", "votes_ffn_major"):
        assert (predictions[name] == 0).all(), name
    # The votes of values without a direction go to that token, too.
    assert (predictions["votes_ffn"] >= predictions["active"]).all()
