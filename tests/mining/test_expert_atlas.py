"""Brute force == mined, for mixtures of experts of every kind; parts, merges and resumed runs make the same bytes."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import END, ENDS, byte_tokenizer, odd_text, tables_of
from mining.equal_atlases import assert_equal_atlases
from mining.expert_reference import ExpertReference, SlowMixture, assert_mixture, flattened
from mining.reference import documents_of, sentences_of
from mining.reference_passes import check_predictions, check_removals, check_values_at_work, distinct, given
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.mining import mine
from mnemoscope.models import load_model
from models.expert_models import MIXTURES, build_mixture
from support.mined import mined_text


def reference_of(hf: Any, name: str, tokenizer: Any, text: str, *, beginning: int | None) -> ExpertReference:
    longest = 64 - (beginning is not None)
    found = sentences_of(documents_of(text, "line"), lambda line: [line], tokenizer, longest=longest)
    return ExpertReference(hf, name, found, beginning=beginning)


@pytest.mark.fast(0, full=6)
@pytest.mark.parametrize("name", list(MIXTURES))
def test_every_mixture(name: str, text: Path, tmp_path: Path) -> None:
    hf, tokenizer = build_mixture(name), byte_tokenizer(**ENDS)
    out = mine(load_model(hf, tokenizer=tokenizer), text, out=tmp_path / "atlas", split="line", triggers=7, removals=2)
    reference = reference_of(hf, name, tokenizer, text.read_text(), beginning=0)
    assert_mixture(out, reference, tmp_path / "flat", keep=7, vocabulary=280)
    assert verify(out) == []


@pytest.mark.full
def test_without_a_beginning_token_and_in_small_batches(text: Path, tmp_path: Path) -> None:
    hf, tokenizer = build_mixture("qwen2_moe"), byte_tokenizer()
    options = {"split": "line", "triggers": 7, "removals": 0, "prefixes": 10, "batch_tokens": 100}
    out = mine(load_model(hf, tokenizer=tokenizer), text, out=tmp_path / "atlas", **options)
    reference = reference_of(hf, "qwen2_moe", tokenizer, text.read_text(), beginning=None)
    assert_mixture(out, reference, tmp_path / "flat", keep=7, vocabulary=280)


def test_an_atlas_of_experts_is_read_by_name(text: Path, tmp_path: Path) -> None:
    model = load_model(build_mixture("deepseek_v2"), tokenizer=byte_tokenizer(bos_token=END))
    out = mine(model, text, out=tmp_path / "atlas", split="line", triggers=7, removals=2, prefixes=20)
    atlas = open_atlas(out)
    assert (atlas.manifest["model"]["experts"], atlas.manifest["model"]["shared_experts"]) == (4, 1)
    for name, expert in (("L0.M3", None), ("L1.E2.M5", 2), ("L1.S0.M7", 4)):
        memory = atlas[name]
        assert str(memory.id) == name
        for rows in (memory.triggers(None), memory.value(), memory.activity(), memory.neighbours(), memory.patterns()):
            assert set(rows["expert"]) <= {expert}
            assert set(rows["memory"]) <= {memory.id.memory}
        assert memory.activity().height == 1
        # A name leads to the memory whose numbers these are.
        best = memory.triggers().row(0, named=True)
        trace = ms.trace(model, atlas.vocabulary.text(atlas.prefixes([(best["sentence"], best["position"])])[0]))
        assert trace.positions


class Widths:
    """Stands for `HandRead` where only the experts' widths are asked for."""

    def __init__(self, *widths: int) -> None:
        self._widths = list(widths)

    def widths(self, layer: int) -> list[int]:
        return self._widths


def twin(name: str, dense: Any, **changes: Any) -> Any:
    """A mixture with the weights of `dense` outside its feed-forward layers."""
    hf = build_mixture(name, **changes)
    known = {path: weight for path, weight in dense.state_dict().items() if ".mlp." not in path}
    hf.load_state_dict(known, strict=False)
    return hf


@pytest.mark.full
@pytest.mark.parametrize("split", [1, 3])
def test_a_dense_layer_in_experts_has_the_same_atlas(split: int, text: Path, tmp_path: Path) -> None:
    """One expert that is always chosen, or rows shared among experts that are all chosen, is the dense layer."""
    dense = build_mixture("qwen3_moe", mlp_only_layers=[0, 1], intermediate_size=24)
    width = 24 // split
    sizes = dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), split)
    hf = twin("qwen3_moe", dense, moe_intermediate_size=width, **sizes)
    for own, block in zip(dense.model.layers, hf.model.layers, strict=True):
        own.mlp.down_proj.weight *= split
        gate, up, down = own.mlp.gate_proj.weight, own.mlp.up_proj.weight, own.mlp.down_proj.weight
        block.mlp.gate.weight.zero_()  # so that every expert has the weight 1 / split
        for e in range(split):
            part = slice(e * width, (e + 1) * width)
            block.mlp.experts.gate_up_proj[e] = torch.cat([gate[part], up[part]])
            block.mlp.experts.down_proj[e] = down[:, part]
        up /= split
    tokenizer = byte_tokenizer(bos_token=END)
    options = {"split": "line", "triggers": 7, "removals": 3, "prefixes": 20}
    one, other = (
        mine(load_model(own, tokenizer=tokenizer), text, out=tmp_path / name, **options)
        for own, name in ((dense, "dense"), (hf, "experts"))
    )
    flat = flattened(other, Widths(*[width] * split), tmp_path / "flat")
    for path in (flat / "values").iterdir():  # in the dense twin the weight lies in the second keys
        pl.read_parquet(path).with_columns((pl.col("up_norm") / split).cast(pl.Float32)).write_parquet(path)
    assert_equal_atlases(one, flat)


USUAL = ("mixtral", "qwen2_moe", "deepseek_v2", "flex_olmo", "nemotron_h", "gemma4")
# The linear attention of Qwen3-Next rounds in float32: numbers are off by up to 1.3e-5 of themselves; 1e-5 is allowed.
OTHERS = [name for name in MIXTURES if name not in (*USUAL, "qwen3_next")]


@pytest.mark.fast(0, full=3)
@pytest.mark.parametrize("name", [*USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_predictions_values_at_work_and_removals(name: str, tmp_path: Path) -> None:
    """As for dense models (test_passes.py), by the loop; `routed_memories` by hand."""
    hf, tokenizer = build_mixture(name), byte_tokenizer(**ENDS)
    raw, other = odd_text(40), odd_text(30, seed=1)
    options = {"triggers": 6, "removals": 4, "prefixes": 24, "seed": 3, "batch_tokens": 300}
    out = mined_text(load_model(hf, tokenizer=tokenizer), tmp_path, raw, other=other, **options)
    slow, mined = SlowMixture(hf, name, beginning=0), distinct(raw, tokenizer, 0)
    flat = flattened(out, slow.hand, tmp_path / "flat")
    table = pl.read_parquet(flat / "predictions.parquet")
    table.drop("routed_memories").write_parquet(flat / "predictions.parquet")
    text = given(mined, distinct(other, tokenizer, 0), len(documents_of(raw, "line")), 0)
    prefixes, _ = check_predictions(flat, slow, text, asked=24)
    assert len(prefixes) == 24
    later = [slow.multiplier(layer) for layer in range(slow.layers)]
    assert check_values_at_work(flat, slow, text, prefixes, factor=later) > 40
    tokens = {number: sentence.tokens for number, sentence in enumerate(mined)}
    rows, _ = check_removals(flat, slow, tokens, seed=3, removals=4, layers=range(slow.layers))
    assert len(rows) > 30 * slow.layers
    assert any(row["removed_coefficient"] == 0 for row in rows), "the text's removals lose an expert now and then"
    reachable = {(row["prefix"], row["layer"]): row["routed_memories"] for row in table.to_dicts()}
    for row in prefixes:
        ids = [0, *text.tokens[row["sentence"]][: row["position"] + 1]]
        for layer, weights in enumerate(slow.hand.read(ids)[1]):
            widths = slow.hand.widths(layer)
            own = sum(width for width, weight in zip(widths, weights[-1].tolist(), strict=True) if weight)
            assert reachable[row["prefix"], layer] == own


@pytest.mark.full
def test_parts_of_a_mixture_merge_to_the_bytes_of_one_run(text: Path, tmp_path: Path) -> None:
    model = load_model(build_mixture("deepseek_v2"), tokenizer=byte_tokenizer(bos_token=END))
    options = {"split": "line", "triggers": 7, "removals": 2, "prefixes": 20, "batch_tokens": 200}
    whole = mine(model, text, out=tmp_path / "whole", **options)
    parts = [mine(model, text, out=tmp_path / f"part{i}", part=f"{i}/2", **options) for i in (1, 2)]
    merged = ms.merge(tmp_path / "merged", parts, model=model)
    assert tables_of(merged) == tables_of(whole)
    assert verify(merged) == []
