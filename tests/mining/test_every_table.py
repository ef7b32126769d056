"""Every table of a small atlas against brute force: what other tests say of every family, soon said of two."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mining.agreement import assert_agrees
from mining.conftest import byte_tokenizer, odd_text, tables_of
from mining.reference import Reference, Sentence
from mining.reference_passes import check_predictions, check_removals, check_values_at_work, distinct, held_out
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import merge, mine
from mnemoscope.models import LanguageModel, load_model
from models.conftest import ROWS, build

END = "<|endoftext|>"
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 4, "removals": 2, "seed": 3, "batch_tokens": 60}


class Small:
    """A tiny model, a few odd lines, and the atlas of them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.hf, tokenizer, raw = build(name), byte_tokenizer(bos_token=END, eos_token=END), odd_text(30, seed=2)
        self.model: LanguageModel = load_model(self.hf, tokenizer=tokenizer)
        self.sentences: list[Sentence] = distinct(raw, tokenizer, 0)
        self.folder, self.text = folder, folder / "text.txt"
        self.text.write_text(raw)
        self.atlas = mine(self.model, self.text, out=folder / "atlas", **OPTIONS)


@pytest.fixture(scope="module", params=["gpt2-relu", "llama"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(str(request.param), tmp_path_factory.mktemp("small"))


def test_triggers_activity_values_neighbours_and_texts(small: Small) -> None:
    reference = Reference(small.hf, small.sentences, beginning=0)
    assert_agrees(small.atlas, reference, keep=4, layers=(0, 1), vocabulary=ROWS)
    assert verify(small.atlas) == []
    assert not (small.atlas / "work").exists()


def test_predictions_and_values_at_work(small: Small) -> None:
    slow, text = SlowTransformer(small.hf, beginning=0), held_out(small.sentences, 0)
    prefixes, predictions = check_predictions(small.atlas, slow, text, asked=4_000)
    assert len(prefixes) >= 3
    assert len({row["residual_final_rank"] for row in predictions}) > 3
    assert check_values_at_work(small.atlas, slow, text, prefixes) > 20


def test_removals(small: Small) -> None:
    tokens = {number: sentence.tokens for number, sentence in enumerate(small.sentences)}
    slow = SlowTransformer(small.hf, beginning=0)
    rows, left_out = check_removals(small.atlas, slow, tokens, seed=3, removals=2, layers=(0, 1))
    said = open_atlas(small.atlas).manifest["questions"]
    assert said["removals_per_layer"] == 2
    assert said["removals_excluded"]["length_one"] in left_out
    assert len(rows) > 20


def test_two_parts_make_the_same_bytes(small: Small) -> None:
    parts = [mine(small.model, small.text, out=small.folder / f"{i}", part=(i, 2), **OPTIONS) for i in (1, 2)]
    merged = merge(small.folder / "merged", parts, model=small.model)
    assert tables_of(merged) == tables_of(small.atlas)
    kept = [pl.read_parquet(part / "activity/layer-000.parquet")["prefixes"][0] for part in parts]
    assert 0 < min(kept) < sum(kept) == pl.read_parquet(merged / "activity/layer-000.parquet")["prefixes"][0]
