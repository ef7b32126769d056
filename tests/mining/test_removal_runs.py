"""Runs that go on from a sentence's beginning give the same `removals` as whole runs, and compute fewer tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from mining.conftest import odd_text, tiny_model
from mnemoscope.mining import mine, removals
from mnemoscope.models.shared_prefix import SharedPrefix

EXACT = pl.exclude("removed_coefficient")


def mined(out: Path, text: Path, *, beginning: bool = True, **options: Any) -> tuple[pl.DataFrame, int]:
    """The table, and the tokens that the embedding was given in that pass."""
    special = {} if beginning else {"unk_token": "<|endoftext|>"}
    model = tiny_model("llama", **special)
    counts: dict[str, int] = {}
    stages = [""]
    model.anatomy.model.get_input_embeddings().register_forward_pre_hook(
        lambda module, given: counts.update({stages[-1]: counts.get(stages[-1], 0) + given[0].numel()})
    )
    atlas = mine(
        model, text, out=out, split="line", removals=20, prefixes=5,
        progress=lambda stage, *_: stages.append(stage), **options,
    )  # fmt: skip
    return pl.read_parquet(atlas / "removals.parquet"), counts["removals"]


@pytest.mark.parametrize("beginning", [True, False])
def test_shared_beginnings_say_the_same(beginning: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text(odd_text(15))
    found = [mined(tmp_path / "shared", text, beginning=beginning)]
    monkeypatch.setattr(removals, "_SENTENCES", 2)
    found.append(mined(tmp_path / "few", text, beginning=beginning))
    monkeypatch.setattr(removals, "_KEPT", 1)
    found.append(mined(tmp_path / "one", text, beginning=beginning))
    monkeypatch.setattr(SharedPrefix, "of", lambda *_, **__: None)
    whole, tokens = mined(tmp_path / "whole", text, beginning=beginning)
    assert whole.height > 500
    assert whole["removed_position"].n_unique() > 10
    assert found[0][1] < 0.85 * tokens  # whole rows and those without the first token share nothing
    for shared, _ in found:
        assert shared.select(EXACT).equals(whole.select(EXACT))
        one, other = shared["removed_coefficient"].to_numpy(), whole["removed_coefficient"].to_numpy()
        assert np.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_only_some_layers_with_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text(odd_text(15))
    shared, _ = mined(tmp_path / "shared", text, layers="1", batch_tokens=50)
    monkeypatch.setattr(SharedPrefix, "of", lambda *_, **__: None)
    whole, _ = mined(tmp_path / "whole", text, layers="1", batch_tokens=50)
    assert shared.select(EXACT).equals(whole.select(EXACT))
    assert np.allclose(shared["removed_coefficient"], whole["removed_coefficient"], rtol=1e-5, atol=1e-5)
