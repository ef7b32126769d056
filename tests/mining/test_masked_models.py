"""Masked models (BERT, ModernBERT, DeBERTa, ELECTRA and eleven more): mined == loops over sentences."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoConfig, AutoModelForMaskedLM

from mining.agreement import assert_activity, assert_triggers, assert_values
from mining.masked_reference import (
    SlowMasked,
    WholeReference,
    check_masked_predictions,
    check_masked_removals,
    check_own_coefficients,
)
from mining.reference import Sentence
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.models import load_model
from models.expert_models import fill_randomly
from models.masked_models import SPECIAL, masked_tokenizer
from support.mined import mined_text

WORDS = 48
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
SIZES |= {"vocab_size": WORDS, "max_position_embeddings": 40, "type_vocab_size": 2, "attn_implementation": "eager"}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 6},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    "electra": {"embedding_size": 8},
    **{kind: {} for kind in ("roberta", "camembert", "xlm-roberta", "ernie", "data2vec-text", "roberta-prelayernorm")},
    "big_bird": {"attention_type": "original_full"},
    "megatron-bert": {},
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 12},
    "roformer": {"embedding_size": 8},
    "xlm-roberta-xl": {},
}
"""What is particular to each; of ModernBERT the second layer sees three tokens to each side."""


def build_masked(kind: str) -> Any:
    return fill_randomly(lambda: AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **(SIZES | KINDS[kind]))))


def draw(count: int, seed: int) -> list[list[int]]:
    """Different sentences of one to nine words, several of one word and of two."""
    chance = random.Random(seed)
    lengths = [*[1] * 6, *[2] * 4, *(chance.randint(3, 9) for _ in range(count - 10))]
    drawn = {tuple(chance.randrange(len(SPECIAL), WORDS) for _ in range(length)): None for length in lengths}
    return [list(words) for words in drawn]


def written(sentences: list[list[int]]) -> str:
    return "\n".join(" ".join(f"w{word}" for word in words) for words in sentences) + "\n"


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_table_is_the_slow_models(kind: str, tmp_path: Path) -> None:
    hf = build_masked(kind)
    mined, other = draw(40, seed=1), draw(14, seed=2)
    other = [words for words in other if words not in mined]
    options = {"triggers": 4, "removals": "all", "prefixes": 30, "seed": 3, "batch_tokens": 60}
    model = load_model(hf, tokenizer=masked_tokenizer(WORDS))
    out = mined_text(model, tmp_path, written(mined), other=written(other), **options)
    slow = SlowMasked(hf, before=1, after=2, mask=3)
    sentences = [Sentence("", tokens, number, 1, False) for number, tokens in enumerate(mined)]
    reference = WholeReference(slow, sentences)
    for layer in range(slow.layers):
        assert_triggers(Path(out), reference, layer, keep=4, signs=(1, -1))
        assert_activity(Path(out), reference, layer)
        assert_values(Path(out), reference, layer)
        assert check_own_coefficients(Path(out), reference, layer) > 10
    left_out = check_masked_removals(Path(out), slow, sentences, seed=3)
    assert left_out == open_atlas(out).manifest.questions.removals_excluded
    assert min(left_out.values()) > 0
    text = {len(mined) + number: tokens for number, tokens in enumerate(other)}
    rows = check_masked_predictions(Path(out), slow, text)
    for name in ("residual_top", "residual_final_rank", "active", "major", "votes_ffn", "votes_output"):
        assert len({row[name] for row in rows}) > 1, f"{name} is the same everywhere: nothing was compared"
    assert verify(out) == []


@pytest.mark.parametrize("own", [7, 0])
def test_only_so_many_memories_are_asked_with_their_token_masked(own: int, tmp_path: Path) -> None:
    model = load_model(build_masked("bert"), tokenizer=masked_tokenizer(WORDS))
    out = mined_text(model, tmp_path, written(draw(40, seed=1)), triggers=2, removals=0, prefixes=0, own=own)
    asked = [open_atlas(out).table("triggers", layer=layer)["own_coefficient"].drop_nulls() for layer in (0, 1)]
    assert sum(map(len, asked)) == own
    rows = pl.read_parquet(out / "triggers/layer-000.parquet")
    assert rows["next_token"].null_count() < rows.height, "what follows in the text is kept"
