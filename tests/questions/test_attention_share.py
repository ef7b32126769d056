"""B1: shares add up, what is planted is found, and what is not is not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.mining import mine
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.questions import answer
from models.conftest import build
from support.handbuilt_answers import VOCABULARY, build_answers

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 3, "removals": 0, "neighbours": 0, "prefixes": 40}


def planted(who: str) -> LanguageModel:
    """A GPT-2 of one block in which attention alone, or one memory alone, predicts `1` whatever stands before.

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
    assert (total["embedding_share"], found[f"{who}_moves"]) == (pytest.approx(0, abs=1e-4), 1)
    assert (found[f"{other}_moves"], found[f"{who}_changed"], found[f"{other}_changed"]) == (0, 1, 0)
    # Both are the same for every prefix, and each next token is also another's: nothing is written for this prefix.
    assert found[f"{who}_next_above_control"] == pytest.approx(0, abs=1e-6)


# Two prefixes, of positions 1 and 4, whose final tokens are 7 and 8; layer 1 has no attention at the first one.
# Logits, their means over all tokens, and those of the other prefix's final token:
PARTS = ("final_logit", "final_logit_mean", "embedding_logit", "embedding_logit_mean", "embedding_logit_other")
REST = ("bias_logit", "bias_logit_mean", "rest_logit", "rest_logit_mean", "other_top", "other_next_token")
WHOLE: dict[int, dict[str, float]] = {
    0: dict(zip(PARTS + REST, (8, 2, 3, 1, 2, 0.5, 0.25, 0.5, 0.25, 8, 2), strict=True)),
    1: dict(zip(PARTS + REST, (4, 2, 1, 0.5, 0.5, 0.5, 0, 0, -0.25, 7, 1), strict=True)),
}
ATTENTION = ("attention_logit", "attention_logit_mean", "attention_logit_other", "attention_norm", "attended")
FFN = ("ffn_logit", "ffn_logit_mean", "ffn_logit_other", "ffn_norm", "effective")
NEXT = ("attention_logit_next", "attention_logit_other_next", "ffn_logit_next", "ffn_logit_other_next")
# By prefix and layer: what is given to the text's next token, 1 and 2, and to the other prefix's.
GIVEN = {(0, 0): (1, -0.5, 1, 0), (1, 0): (0, -0.5, 2, 2), (0, 1): (None, None, 0, 0.5), (1, 1): (1, 0.25, 1, 0)}
TOPS = ("input_top", "attention_top", "residual_top", "ffn_top", "output_top", "ffn_alone_top")
ROWS: dict[tuple[int, int], tuple[tuple[float | None, ...], ...]] = {
    # Attention moves 3 to the final 7, its own token; the memories, which read what attention read, do so alone.
    (0, 0): ((1, 0.5, 0.75, 2, 1.5), (1, 0, 0.5, 1, 2), (3, 7, 7, 9, 7, 7)),
    # What was there stays through attention; then a composition of 8 and 7, which is neither.
    (1, 0): ((-0.5, -0.25, -0.125, 4, 3), (2, 1, 1, 2, 4), (8, 2, 8, 7, 5, None)),
    (0, 1): ((None,) * 5, (2, 0.5, 1, 3, 1), (7, None, 7, 7, 7, None)),  # agreement
    # Attention composes the other prefix's 7; the memories say 8 and have it.
    (1, 1): ((1, 0.5, 0.25, 6, 2), (0.5, 0.25, 0.5, 4, 3), (5, 6, 7, 8, 8, None)),
}
BY_HAND = {
    # Of logits 8 and 4, and of 6 and 2 above the mean; attention in layer 1 of the second alone.
    "attention_logit_share": (0.5 / 12, 1 / 4, 1.5 / 12),
    "attention_share": (0.25 / 8, 0.5 / 2, 0.75 / 8),
    "attention_control": (0.375 / 8, -0.25 / 2, 0.125 / 8),
    "attention_next_above_control": (1, 0.75, 1.375),
    "ffn_logit_share": (3 / 12, 2.5 / 12, 5.5 / 12),
    "ffn_share": (2 / 8, 1.75 / 8, 3.75 / 8),
    "ffn_control": (0.5 / 8, 0.75 / 8, 1.25 / 8),
    "ffn_next_above_control": (0.5, 0.25, 0.75),
    "ffn_above_attention": (1.75 / 8, 1.75 / 8 - 0.5 / 2, 3 / 8),
    "attention_norm": (3, 6, 4),
    "ffn_norm": (1.5, 3.5, 2.5),
    "attention_own": (1 / 2, 0, 1 / 3),
    "attention_residual": (1 / 2, 0, 1 / 3),
    "attention_agreement": (0, 0, 0),
    "attention_composition": (0, 1, 1 / 3),
    "attention_changed": (1 / 2, 1, 2 / 3),
    "ffn_own": (0, 1 / 2, 1 / 4),
    "ffn_residual": (1 / 2, 0, 1 / 4),
    "ffn_agreement": (0, 1 / 2, 1 / 4),
    "ffn_composition": (1 / 2, 0, 1 / 4),
    "ffn_changed": (1 / 2, 1 / 2, 1 / 2),
    "attention_moves": (1 / 2, 0, 1 / 3),
    "attention_moves_control": (0, 1, 1 / 3),
    "ffn_moves": (1 / 2, 1 / 2, 1 / 2),
    "ffn_moves_control": (0, 0, 0),
    "ffn_moves_above_attention": (0, 1 / 2, 1 / 2 - 1 / 3),
    # Positions 1 and 4 see 2 and 5 tokens, and the one before the sentence.
    "attended": (2.25, 2, 6.5 / 3),
    "attended_of_positions": ((1.5 / 3 + 3 / 6) / 2, 2 / 6, (1.5 / 3 + 5 / 6) / 3),
    "effective": (3, 2, 2.5),
    "effective_of_memories": (3 / 4, 2 / 4, 2.5 / 4),
}
TOTALS = {
    "final_logit": 6,
    "final_logit_above_mean": 4,
    "documents": 2,
    "embedding_logit_share": 4 / 12,
    "embedding_share": 2.5 / 8,
    "embedding_control": 1 / 8,
    "bias_logit_share": 1 / 12,
    "bias_share": 0.75 / 8,
    "rest_logit_share": 0.5 / 12,
    "rest_share": 0.5 / 8,
    "unaccounted": 0.5 / 12,  # the parts of the second make 4.5
}


def by_hand(directory: Path, more: Mapping[tuple[int, int], Mapping[str, float | None]] = {}, **changes: Any) -> Atlas:
    predictions = {
        place: WHOLE[place[0]]
        | dict(zip(ATTENTION + FFN + TOPS, sum(row, ()), strict=True))
        | dict(zip(NEXT, GIVEN[place], strict=True))
        | dict(more.get(place, {}))
        for place, row in ROWS.items()
    }
    return build_answers(directory, prefixes=[(0, 1, 1, 7), (1, 4, 2, 8)], predictions=predictions, **changes)


def test_every_number_by_hand(tmp_path: Path) -> None:
    table = answer(by_hand(tmp_path), "attention_share")
    values = {(row["layer"], row["name"]): row["value"] for row in table.to_dicts()}
    expected = {(layer, name): row[place] for name, row in BY_HAND.items() for place, layer in enumerate((0, 1, None))}
    assert values == pytest.approx(expected | {(None, name): value for name, value in TOTALS.items()}, abs=1e-7)
    counts = {(row["layer"], row["name"]): row["count"] for row in table.to_dicts()}
    for name in ("attention_share", "attention_logit_share", "attention_control", "attention_next_above_control"):
        assert [counts[layer, name] for layer in (0, 1, None)] == [2, 1, 2]  # each prefix once
    for name in ("attention_norm", "attention_changed", "attention_moves", "attended"):
        assert [counts[layer, name] for layer in (0, 1, None)] == [2, 1, 3]
    assert [counts[layer, "ffn_share"] for layer in (0, 1, None)] == [2, 2, 2]
    assert [counts[layer, "ffn_moves"] for layer in (0, 1, None)] == [2, 2, 4]
    assert counts[None, "unaccounted"] == counts[None, "final_logit"] == 2


# Cross-attention, which only layer 0 tells apart: the stream that it is added to, its own token, and its numbers.
CROSS = ("cross_input_top", "cross_attention_top", "cross_attention_norm", "cross_attention_logit")
CROSS += tuple(f"cross_attention_logit_{kind}" for kind in ("mean", "other", "next", "other_next"))
CROSSING: dict[tuple[int, int], tuple[float | None, ...]] = {
    (0, 0): (7, 9, 2, 0.5, 0.25, 0.5, 1, 0),  # what attention had made of it stays
    (1, 0): (2, 8, 4, 1, 0.5, 0.25, 0, 0.5),  # attention's 2 becomes the final 8, its own token
    (0, 1): (None,) * 8,
    (1, 1): (None,) * 8,
}
CHANGED = {
    "cross_attention_logit_share": (1.5 / 12, None, 1.5 / 12),
    "cross_attention_share": (0.75 / 8, None, 0.75 / 8),
    "cross_attention_control": (0, None, 0),
    "cross_attention_next_above_control": (0.25, None, 0.25),
    "cross_attention_norm": (3, None, 3),
    "cross_attention_own": (1 / 2, None, 1 / 2),
    "cross_attention_residual": (1 / 2, None, 1 / 2),
    "cross_attention_agreement": (0, None, 0),
    "cross_attention_composition": (0, None, 0),
    "cross_attention_changed": (1 / 2, None, 1 / 2),
    "cross_attention_moves": (1 / 2, None, 1 / 2),
    "cross_attention_moves_control": (0, None, 0),
    "attention_own": (1, 0, 2 / 3),
    "attention_residual": (0, 0, 0),
    "attention_changed": (1, 1, 1),
    # Beside both attentions.
    "ffn_above_attention": (1 / 8, 1.75 / 8 - 0.5 / 2, 2.25 / 8),
}


def test_cross_attention_by_hand(tmp_path: Path) -> None:
    plan = {"model": "t5", "corpus": "pairs.jsonl", "seed": 7, "source_field": "from"}
    more = {place: dict(zip(CROSS, row, strict=True)) for place, row in CROSSING.items()}
    table = answer(by_hand(tmp_path, more, plan=plan), "attention_share")
    values = {(row["layer"], row["name"]): row["value"] for row in table.to_dicts()}
    by_layer = BY_HAND | CHANGED
    expected = {(layer, name): row[place] for name, row in by_layer.items() for place, layer in enumerate((0, 1, None))}
    totals = TOTALS | {"cross_attention_told": 1 / 2, "unaccounted": 2 / 12}
    assert values == pytest.approx(expected | {(None, name): value for name, value in totals.items()}, abs=1e-7)


def test_the_beginning_token_is_a_position_more(tmp_path: Path) -> None:
    sizes = {"layers": 2, "memories": [4, 4], "vocabulary": VOCABULARY}
    model = {"spec": "x", "fingerprint": "a" * 64, "sizes": sizes, "beginning": {"token": 0, "kind": "bos"}}
    table = answer(by_hand(tmp_path, model=model), "attention_share")
    assert numbers(table, 1)["attended_of_positions"] == pytest.approx(2 / 6)


@pytest.fixture(scope="module")
def atlas(gated_atlas: Path) -> Atlas:
    return open_atlas(gated_atlas)


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


def test_the_interval_of_what_follows_holds_the_spread_between_tokens(tmp_path: Path) -> None:
    """Layer 0's attention: token 1 is given 1 as the next one and -0.5 as another's, token 2 is given 0 and -0.5."""
    table = answer(by_hand(tmp_path), "attention_share")
    row = table.filter(layer=0, name="attention_next_above_control").to_dicts()[0]
    spread = 1.959964 * np.hypot(1 - -0.5, 0 - -0.5) / 2
    # Of two documents each resample holds one, the other or both: 1.5 or 0.5.
    assert (row["low"], row["high"]) == pytest.approx((1 - np.hypot(0.5, spread), 1 + np.hypot(0.5, spread)))
