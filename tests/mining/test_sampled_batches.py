"""Which batches histogram and deviation see: all until 200,000 tokens have been read, then every 16th.

A run long enough for both numbers, through a model so small that it takes seconds; the numbers stand here once more,
because an atlas's figures depend on them.
"""

from pathlib import Path

import polars as pl
import pytest

from mining.conftest import byte_tokenizer
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from models.conftest import build

LENGTH, IN_A_BATCH, BATCHES = 60, 100, 65
"""Tokens of a sentence, sentences of a batch, batches: 390,000 tokens, of which the first 34 batches hold 204,000."""
FULLY, EVERY = 34, 16


@pytest.mark.full
def test_all_batches_until_200_000_tokens_then_every_16th(tmp_path: Path) -> None:
    lines = [f"{number:06d}" + "." * (LENGTH - 6) for number in range(5 * IN_A_BATCH * BATCHES // 4)]
    tokenizer = byte_tokenizer(bos_token="<|endoftext|>")
    assert {len(tokenizer.encode(line)) for line in lines} == {LENGTH}
    hf = build("gpt2-relu", n_layer=1, n_inner=2)
    # A text's held-out documents are not mined; as many lines are given as leave 65 full batches.
    (tmp_path / "text.txt").write_text("\n".join(lines))
    out = mine(
        load_model(hf, tokenizer=tokenizer), tmp_path / "text.txt", out=tmp_path / "atlas", split="line", triggers=2,
        max_sentences=IN_A_BATCH * BATCHES, batch_tokens=IN_A_BATCH * (LENGTH + 1), prefixes=0, removals=0,
    )  # fmt: skip
    activity = pl.read_parquet(out / "activity/layer-000.parquet")
    sampled = sum(number < FULLY or number % EVERY == 0 for number in range(BATCHES))
    assert set(activity["prefixes"]) == {BATCHES * IN_A_BATCH * LENGTH}
    assert set(activity["sampled"]) == {sampled * IN_A_BATCH * LENGTH}
    assert set(activity["histogram"].list.sum()) == {sampled * IN_A_BATCH * LENGTH}
