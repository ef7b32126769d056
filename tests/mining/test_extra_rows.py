"""Heads and tokenizers of unequal size: what has no partner is no obstacle until it occurs in a text."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tokenizers import AddedToken

import mnemoscope as ms
from mining.conftest import ENDS, byte_tokenizer, load_bytes, odd_text, tables_of, tiny_model
from mnemoscope.errors import ModelDamaged, ModelUnsupported, PromptError
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from models.conftest import ROWS, build

OPTIONS: dict[str, Any] = {"removals": 4, "prefixes": 20, "neighbours": 3, "batch_tokens": 256, "split": "line"}


def with_more_tokens() -> Any:
    """The tokenizer with a pad token (special) and a plain one beyond the head's rows."""
    tokenizer = byte_tokenizer(**ENDS)
    filling = [AddedToken(f"<filling-{number}>", special=True) for number in range(ROWS - len(tokenizer))]
    tokenizer.add_tokens(filling)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.add_tokens([AddedToken("zebra", special=False, normalized=False)])
    assert tokenizer.convert_tokens_to_ids(["<pad>", "zebra"]) == [ROWS, ROWS + 1]
    return tokenizer


@pytest.mark.full
def test_tokens_beyond_the_head_change_nothing_where_they_do_not_occur(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(odd_text() + "a <pad> is plain text\n")
    plain = tiny_model()
    more = load_model(build("gpt2-relu"), tokenizer=with_more_tokens())
    assert more.sizes == plain.sizes
    assert (more.beginning, more.ends) == (plain.beginning, plain.ends)
    one = mine(plain, tmp_path / "a.txt", out=tmp_path / "plain", **OPTIONS)
    other = mine(more, tmp_path / "a.txt", out=tmp_path / "more", **OPTIONS)
    for name in tables_of(one):
        a, b = pl.read_parquet(one / name), pl.read_parquet(other / name)
        differs = [column for column in a.columns if not a[column].equals(b[column])]
        # Added tokens within the head's rows have a text, and no other row differs.
        named = {"vocabulary.parquet": ["text", "bytes"], "labels.parquet": ["label"]}
        assert differs == named.get(str(name), []), name
    assert pl.read_parquet(other / "vocabulary.parquet").height == ROWS
    assert ms.trace(more, "the cat").to_dict()["layers"]


def test_where_one_occurs_token_id_and_place_are_named(tmp_path: Path) -> None:
    model = load_model(build("gpt2-relu"), tokenizer=with_more_tokens())
    (tmp_path / "a.txt").write_text("the cat sat\nthe zebra sat\n")
    with pytest.raises(ModelDamaged) as caught:
        mine(model, tmp_path / "a.txt", out=tmp_path / "atlas", **OPTIONS)
    assert str(caught.value) == (
        "token id 281 ('zebra') is beyond the 280 rows of the model's head (document 1, sentence 'the zebra sat');"
        " use the tokenizer that belongs to the model"
    )
    assert not (tmp_path / "atlas").exists() or not any((tmp_path / "atlas").iterdir())
    with pytest.raises(PromptError, match=r"the prompt has token 281 \('zebra'\)"):
        ms.trace(model, "the zebra sat")


def test_a_head_with_more_rows_than_embeddings_is_refused_and_one_with_fewer_is_read() -> None:
    hf = build("llama")
    hf.lm_head = torch.nn.Linear(16, ROWS + 8, bias=False)
    with pytest.raises(ModelUnsupported, match=r"cannot be run: index out of range"):
        load_bytes(hf)
    hf.lm_head = torch.nn.Linear(16, ROWS - 5, bias=False)
    assert load_bytes(hf).sizes.vocabulary == ROWS - 5
