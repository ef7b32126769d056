"""Decoders with a transform before the head's matrix (BERT's family, ModernBERT): mined == brute force."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mining.agreement import assert_agrees
from mining.conftest import ENDS, byte_tokenizer, odd_text
from mining.reference import Reference
from mining.reference_passes import check_predictions, check_removals, check_values_at_work, distinct, held_out
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.models import load_model
from models.transformed_heads import ROWS, TRANSFORMED, build_transformed
from support.mined import mined_text


@pytest.mark.fast(4)
@pytest.mark.parametrize("kind", list(TRANSFORMED))
def test_every_kind_of_transformed_head(kind: str, tmp_path: Path) -> None:
    hf, tokenizer = build_transformed(kind), byte_tokenizer(**ENDS)
    raw = odd_text(100)
    options = {"triggers": 6, "removals": 2, "prefixes": 24, "seed": 3, "batch_tokens": 300}
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, raw, **options)
    assert open_atlas(out).manifest.model.head == "linearised"
    mined = distinct(raw, tokenizer, 0)
    reference = Reference(hf, mined, beginning=0)
    assert_agrees(out, reference, keep=6, layers=(0, 1), vocabulary=ROWS)
    slow = SlowTransformer(hf, beginning=0)
    text = held_out(mined, 0)
    prefixes, predictions = check_predictions(out, slow, text, asked=24)
    assert len(prefixes) > 5
    assert check_values_at_work(out, slow, text, prefixes) > 20
    for name in ("residual_top", "residual_final_rank", "output_top_residual_rank", "active", "major", "votes_ffn"):
        assert len({row[name] for row in predictions}) > 1, f"{name} is the same everywhere: nothing was compared"
    check_removals(out, slow, dict(enumerate(s.tokens for s in mined)), seed=3, removals=2, layers=(0, 1))
    parts = pl.read_parquet(out / "attention.parquet")
    parts = parts.group_by("prefix", maintain_order=True).agg(
        pl.col("embedding_logit", "rest_logit", "bias_logit", "final_logit").first(),
        pl.col("attention_logit", "ffn_logit").sum(),
    )
    assert parts["rest_logit"].abs().max() > 1e-3  # what the function changes is in it
    added = parts.select(pl.sum_horizontal(pl.exclude("prefix", "final_logit")))
    np.testing.assert_allclose(added.to_numpy()[:, 0], parts["final_logit"].to_numpy(), atol=1e-4)
    for prefix, logit in zip(prefixes, parts["final_logit"], strict=True):
        logits = slow.read(text.tokens[prefix["sentence"]][: prefix["position"] + 1])[1]
        assert abs(float(logits[prefix["final_top"]]) - logit) < 1e-4
    values = pl.read_parquet(out / "values/layer-000.parquet")
    assert values.select(pl.col("literal_top", "literal_max_probability", "literal_target_rank").is_null().all()).row(
        0
    ) == (True, True, True)
    assert verify(out) == []
