"""Every table of a small atlas against brute force, on every kind of beginning; other tests go through the families."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mining.agreement import assert_agrees
from mining.conftest import END, ENDS, byte_tokenizer, odd_text, tables_of
from mining.reference import Reference, Sentence
from mining.reference_passes import check_predictions, check_removals, check_values_at_work, distinct, held_out
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import merge, mine
from mnemoscope.models import LanguageModel, load_model
from models.conftest import ROWS, build

OPTIONS: dict[str, Any] = {"split": "line", "triggers": 4, "seed": 3, "batch_tokens": 60}
OPTIONS |= {"token_activations": True, "random": True}
BEGINNINGS = {"bos": ENDS, "end-of-text": {"eos_token": END}, "none": {}}


class Small:
    """A tiny model, a few odd lines, and the atlas of them."""

    def __init__(self, name: str, kind: str, removals: int | str, folder: Path) -> None:
        self.hf, tokenizer, raw = build(name), byte_tokenizer(**BEGINNINGS[kind]), odd_text(30, seed=2)
        self.model: LanguageModel = load_model(self.hf, tokenizer=tokenizer)
        self.kind, self.beginning, self.removals = kind, self.model.beginning.token, removals
        self.sentences: list[Sentence] = distinct(raw, tokenizer, self.beginning)
        self.folder, self.text = folder, folder / "text.txt"
        self.text.write_text(raw)
        self.atlas = self.mine("atlas")

    def mine(self, name: str, **more: Any) -> Path:
        return mine(self.model, self.text, out=self.folder / name, removals=self.removals, **OPTIONS, **more).path


@pytest.fixture(
    scope="module", ids=str, params=[("gpt2-relu", "bos", 2), ("llama", "none", "all"), ("gpt2", "end-of-text", 3)]
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(*request.param, tmp_path_factory.mktemp("small"))


def test_triggers_activity_values_neighbours_and_texts(small: Small) -> None:
    reference = Reference(small.hf, small.sentences, beginning=small.beginning)
    assert_agrees(small.atlas, reference, keep=4, layers=(0, 1), vocabulary=ROWS)
    assert verify(small.atlas) == []
    assert not (small.atlas / "work").exists()
    said = open_atlas(small.atlas).manifest["model"]["beginning"]
    assert said == {"kind": small.kind, "token": None if small.kind == "none" else 0}


def test_predictions_and_values_at_work(small: Small) -> None:
    slow, text = SlowTransformer(small.hf, beginning=small.beginning), held_out(small.sentences, small.beginning)
    prefixes, predictions = check_predictions(small.atlas, slow, text, asked=4_000)
    assert len(prefixes) >= 3
    assert len({row["residual_final_rank"] for row in predictions}) > 3
    assert check_values_at_work(small.atlas, slow, text, prefixes) > 20


def test_removals(small: Small) -> None:
    tokens = {number: sentence.tokens for number, sentence in enumerate(small.sentences)}
    slow = SlowTransformer(small.hf, beginning=small.beginning)
    rows, left_out = check_removals(small.atlas, slow, tokens, seed=3, removals=small.removals, layers=(0, 1))
    said = open_atlas(small.atlas).manifest["questions"]
    assert said["removals_per_layer"] == small.removals
    # Without a beginning token position 0 is an attention sink: of two tokens a removal would leave nothing but it.
    short, other = ("length_two", "length_one") if small.kind == "none" else ("length_one", "length_two")
    assert said["removals_excluded"][short] in left_out
    assert said["removals_excluded"][other] == 0
    assert min(row["position"] for row in rows) >= (2 if small.kind == "none" else 1)
    assert len(rows) > 20


def test_two_parts_make_the_same_bytes(small: Small) -> None:
    parts = [small.mine(str(i), part=(i, 2)) for i in (1, 2)]
    merged = merge(small.folder / "merged", parts, model=small.model)
    made = tables_of(merged)
    assert made == tables_of(small.atlas)
    optional = {f"{name}.parquet" for name in ("random/layer-001", "random_sentences", "token_activations/layer-001")}
    assert optional <= made.keys()
    kept = [pl.read_parquet(part / "activity/layer-000.parquet")["prefixes"][0] for part in parts]
    assert 0 < min(kept) < sum(kept) == pl.read_parquet(merged / "activity/layer-000.parquet")["prefixes"][0]
