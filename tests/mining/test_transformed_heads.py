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
from mnemoscope.questions import answer
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


@pytest.mark.parametrize("kind", ["bert", "modernbert-decoder"])
def test_questions_about_values_say_how_often_the_linear_part_agrees(kind: str, tmp_path: Path) -> None:
    hf, tokenizer = build_transformed(kind), byte_tokenizer(**ENDS)
    # Nearly linear for what is far above zero: so the linear part agrees at some prefixes, and not at others.
    (next(m for n, m in hf.named_modules() if n.endswith(("transform.dense", "lm_head.dense")))).weight *= 2
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, odd_text(200), triggers=3, removals=1, prefixes=60)
    atlas, slow = open_atlas(out), SlowTransformer(hf, beginning=0)
    prefixes = atlas.table("prefixes")
    agrees = 0
    for row in prefixes.rows(named=True):
        (tokens,) = atlas.sentences([row["sentence"]], columns=["sentence", "tokens"])["tokens"].to_list()
        final = slow.read(tokens[: row["position"] + 1])[0][-1].output
        agrees += int(slow.stream_scores(final).argmax()) == row["final_top"]
    assert 0 < agrees < prefixes.height
    for question in ("value_agreement", "value_rank", "value_confidence"):
        found = answer(atlas, question).filter(pl.col("name") == "linearised_head")
        assert found["layer"].to_list() == [None]
        assert found.select("value", "count").row(0) == (agrees / prefixes.height, prefixes.height)
