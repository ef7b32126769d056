"""Removals and predictions == the slow reference, on every kind of block and of beginning, from mine() on."""

from pathlib import Path

import polars as pl
import pytest

from mining.conftest import END, ENDS, byte_tokenizer, odd_text, tiny_model
from mining.reference import documents_of
from mining.reference_passes import check_predictions, check_removals, check_values_at_work, distinct, given, held_out
from mining.slow_model import SlowTransformer
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import mine
from mnemoscope.mining.passes.vectors.neighbours import NeighbourPass
from mnemoscope.models import LanguageModel, load_model
from models.conftest import build
from models.uncommon_models import UNCOMMON, build_uncommon
from support.mined import mined_text

KINDS = ("gpt2", "opt-350m", "gemma2", "gemma4", "gpt_neox", "llama", "opt-no-final-norm", "olmo2", "gemma4 small")


@pytest.mark.fast(0, full=4)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block(kind: str, tmp_path: Path) -> None:
    hf, tokenizer = (build_uncommon if kind in UNCOMMON else build)(kind), byte_tokenizer(**ENDS)
    raw, other = odd_text(40), odd_text(30, seed=1)
    options = {"triggers": 6, "removals": 4, "prefixes": 24, "seed": 3, "batch_tokens": 300}
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, raw, other=other, **options)
    slow = SlowTransformer(hf, beginning=0)
    mined = distinct(raw, tokenizer, 0)
    text = given(mined, distinct(other, tokenizer, 0), len(documents_of(raw, "line")), 0)
    prefixes, predictions = check_predictions(out, slow, text, asked=24)
    assert len(prefixes) == 24
    factor = [slow.multiplier(layer) for layer in range(slow.layers)]
    assert check_values_at_work(out, slow, text, prefixes, factor=factor) > 40
    for name in ("residual_top", "residual_final_rank", "output_top_residual_rank", "active", "major", "votes_ffn"):
        assert len({row[name] for row in predictions}) > 1, f"{name} is the same everywhere: nothing was compared"
    tokens = {number: sentence.tokens for number, sentence in enumerate(mined)}
    rows, left_out = check_removals(out, slow, tokens, seed=3, removals=4, layers=(0, 1))
    assert len(rows) > 60
    questions = open_atlas(out).manifest["questions"]
    assert (questions["prefixes_asked"], questions["prefixes"]) == (24, len(prefixes))
    assert questions["removals_per_layer"] == 4
    assert questions["removals_excluded"]["length_one"] in left_out
    assert questions["removals_excluded"]["length_two"] == 0
    assert verify(out) == []


def test_prefixes_of_sentences_are_drawn_evenly(tmp_path: Path) -> None:
    """One position of 0..n-2 each: with 400 sentences of 5 tokens every position is drawn about as often."""
    tokenizer = byte_tokenizer(bos_token=END)
    lines = [f"{a}{b}{c}{d}{e}" for a in "kq" for b in "vwxyz" for c in "vwxy" for d in "jkz" for e in "kjqz"]
    (tmp_path / "other.txt").write_text("\n".join(lines[:400]) + "\n")
    (tmp_path / "text.txt").write_text("the cat sat\n")
    model = load_model(build("gpt2-relu"), tokenizer=tokenizer)
    drawn = []
    for seed in (0, 1):
        options = {"split": "line", "validation": tmp_path / "other.txt", "seed": seed, "prefixes": 300}
        out = mine(model, tmp_path / "text.txt", out=tmp_path / f"atlas-{seed}", **options)
        drawn.append(pl.read_parquet(out / "prefixes.parquet").select("sentence", "position"))
        counts = drawn[-1]["position"].value_counts().sort("position").rows()
        assert [position for position, _ in counts] == [0, 1, 2, 3]
        assert all(45 < count < 105 for _, count in counts)  # 75 expected, standard deviation 7.5
    assert not drawn[0].equals(drawn[1])


@pytest.mark.fast(1)
@pytest.mark.parametrize(("name", "factor"), [("granite", 0.4 / 3), ("cohere", 0.2)])
def test_multipliers_count_for_values_at_work(name: str, factor: float, tmp_path: Path) -> None:
    hf, tokenizer = build(name), byte_tokenizer(**ENDS)
    raw = odd_text(100)
    model = load_model(hf, tokenizer=tokenizer)
    out = mined_text(model, tmp_path, raw, removals=1, prefixes=9)
    text = held_out(distinct(raw, tokenizer, 0), 0)
    prefixes = pl.read_parquet(out / "prefixes.parquet").rows(named=True)
    assert check_values_at_work(out, SlowTransformer(hf, beginning=0), text, prefixes, factor=factor) > 20


def test_without_prefixes_no_value_is_at_work(tmp_path: Path) -> None:
    model = tiny_model()
    out = mined_text(model, tmp_path, odd_text(30), prefixes=0, removals=1)
    for layer in (0, 1):
        values = open_atlas(out).table("values", layer=layer)
        assert values["target"].is_not_null().any()
        assert values.select(pl.col("working_logit", "working_probability").is_null().all()).row(0) == (True, True)
    assert open_atlas(out).manifest["questions"]["value_scales"] == [None, None]
    assert verify(out) == []


def test_without_neighbours_no_value_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    fetched: list[int] = []
    values = LanguageModel.values
    monkeypatch.setattr(LanguageModel, "values", lambda self, layer: fetched.append(layer) or values(self, layer))
    assert not any(NeighbourPass(model, (0, 1), most=0).columns(0).values())
    assert fetched == []
    neighbours = NeighbourPass(model, (0, 1), most=2)
    for layer in (0, 1):
        assert len(neighbours.columns(layer)["memory"]) == 2 * model.sizes.memories[layer]
    assert fetched == [0, 1]
