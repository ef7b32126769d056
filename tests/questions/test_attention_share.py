"""B1: shares add up, what is planted is found, and what is not is not."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import byte_tokenizer, tiny_model
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.questions import answer
from models.conftest import build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 3, "removals": 0, "neighbours": 0, "prefixes": 40}


def planted(who: str) -> LanguageModel:
    """A GPT-2 of one block in which attention alone, or one memory alone, says `1` whatever stands before.

    Its final norm centres and scales; the embedding lies in entries that the head does not read.
    """
    hf = build("gpt2-relu", n_layer=1, vocab_size=300)
    for name, weight in hf.named_parameters():
        weight.zero_() if "ln_" not in name or name.endswith("bias") else weight.fill_(1.0)
    hf.lm_head.weight = torch.nn.Parameter(torch.zeros(300, 16), requires_grad=False)
    block = hf.transformer.h[0]
    hf.transformer.wte.weight[:, 0], hf.transformer.wte.weight[:, 1] = 1.0, -1.0
    for token in range(300):
        hf.transformer.wte.weight[token, 2 + token % 2] = 0.1
    hf.lm_head.weight[1, 8], hf.lm_head.weight[1, 9] = 1.0, -1.0
    push = torch.zeros(16)
    push[8], push[9] = 4.0, -4.0
    if who == "attention":
        block.attn.c_attn.bias[32:] = 1.0  # every value is one
        block.attn.c_proj.weight[0] = push
    else:
        block.mlp.c_fc.bias[5] = 1.0  # one memory fires everywhere
        block.mlp.c_proj.weight[5] = push
    return load_model(hf, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def numbers(table: pl.DataFrame, layer: int | None = None) -> dict[str, float]:
    """The values of one layer, or the totals, by name."""
    rows = table.filter(pl.col("layer").is_null() if layer is None else pl.col("layer") == layer)
    return dict(zip(rows["name"], rows["value"], strict=True))


def text_of(folder: Path) -> Path:
    chance = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home"]
    (folder / "text.txt").write_text("\n\n".join(" ".join(chance.choice(words, 6)) for _ in range(400)) + "\n")
    return folder / "text.txt"


@pytest.mark.parametrize(("who", "other"), [("attention", "ffn"), ("ffn", "attention")])
def test_what_alone_makes_the_prediction_has_all_of_it(who: str, other: str, tmp_path: Path) -> None:
    out = mine(planted(who), text_of(tmp_path), out=tmp_path / "atlas", **OPTIONS)
    table = answer(out, "attention_share")
    found, total = numbers(table, 0), numbers(table)
    assert found[f"{who}_share"] == pytest.approx(1, abs=1e-4)
    assert found[f"{other}_share"] == pytest.approx(0, abs=1e-4)
    assert total["embedding_share"] == pytest.approx(0, abs=1e-4)
    assert found[f"{who}_moves"] == 1
    assert found[f"{other}_moves"] == 0
    assert found[f"{who}_changed"] == 1
    assert found[f"{other}_changed"] == 0
    # Both are the same for every prefix: nothing is written for this prefix in particular.
    assert found[f"{who}_above_control"] == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    folder = tmp_path_factory.mktemp("shares")
    return open_atlas(mine(tiny_model("gpt2"), text_of(folder), out=folder / "atlas", **OPTIONS))


def test_it_is_what_plain_sums_of_the_tables_say(atlas: Atlas) -> None:
    rows = atlas.table("attention").join(atlas.table("prefixes"), on="prefix")
    rows = rows.join(atlas.table("predictions"), on=["prefix", "layer"])
    table = answer(atlas, "attention_share")
    whole = numbers(table)
    once = list({row["prefix"]: row for row in rows.rows(named=True)}.values())
    logit = sum(row["final_logit"] for row in once)
    lifted = sum(row["final_logit"] - row["final_logit_mean"] for row in once)
    for layer in (0, 1):
        found = numbers(table, layer)
        own = rows.filter(pl.col("layer") == layer).rows(named=True)
        for part in ("attention", "ffn"):
            plain = sum(row[f"{part}_logit"] for row in own)
            mean = sum(row[f"{part}_logit_mean"] for row in own)
            other = sum(row[f"{part}_logit_other"] for row in own)
            assert found[f"{part}_logit_share"] == pytest.approx(plain / logit, rel=1e-5)
            assert found[f"{part}_share"] == pytest.approx((plain - mean) / lifted, rel=1e-5)
            assert found[f"{part}_control"] == pytest.approx((other - mean) / lifted, rel=1e-5)
        composed = [r["residual_top"] not in (r["input_top"], r["attention_top"]) for r in own]
        assert found["attention_composition"] == pytest.approx(sum(composed) / len(own))
        moved = [r["input_top"] != r["final_top"] and r["residual_top"] == r["final_top"] for r in own]
        assert found["attention_moves"] == pytest.approx(sum(moved) / len(own))
        moved = [r["residual_top"] != r["final_top"] and r["output_top"] == r["final_top"] for r in own]
        assert found["ffn_moves"] == pytest.approx(sum(moved) / len(own))
        seen = [r["attended"] / (r["position"] + 2) for r in own]
        assert found["attended_of_positions"] == pytest.approx(sum(seen) / len(own), rel=1e-5)
    for kind in ("share", "logit_share"):
        parts = [whole[f"{part}_{kind}"] for part in ("attention", "ffn", "embedding", "bias", "rest")]
        assert sum(parts) == pytest.approx(1, abs=1e-4)
    assert whole["unaccounted"] < 1e-4


def test_every_number_has_a_count_and_an_interval(atlas: Atlas) -> None:
    table = answer(atlas, "attention_share").filter(pl.col("name") != "documents")
    assert table["value"].null_count() == table["low"].null_count() == table["high"].null_count() == 0
    prefixes = len(atlas.table("prefixes"))
    assert set(table["count"]) == {prefixes, 2 * prefixes}
    assert ((table["low"] <= table["value"] + 1e-9) & (table["value"] <= table["high"] + 1e-9)).all()
