"""The table `token_activations` against one sentence at a time with plain hooks; stops, numbers that are none."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import ENDS, byte_tokenizer, odd_text, stop_at_third, tables_of
from mining.expert_reference import ExpertReference
from mining.reference import Reference
from mining.reference_passes import distinct
from mnemoscope.atlas import open_atlas, verify
from mnemoscope.errors import AtlasUnfinished, Interrupted, NotFinite
from mnemoscope.mining import mine, steps
from mnemoscope.mining.passes import removals
from mnemoscope.mining.passes.removals import ShortenedRuns
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import read_coefficients
from models.conftest import build
from models.expert_models import build_mixture
from support.mined import mined_text

TABLE = "token_activations"
OPTIONS: dict[str, Any] = {"split": "line", "triggers": 12, "batch_tokens": 60}
OPTIONS |= dict.fromkeys(("removals", "neighbours", "prefixes"), 0)


def mined(hf: Any, folder: Path, *, begins: bool = True, **more: Any) -> tuple[LanguageModel, Path]:
    model = load_model(hf, tokenizer=byte_tokenizer(**(ENDS if begins else {})))
    return model, mined_text(model, folder, odd_text(80), **OPTIONS, **more)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Path]:
    return mined(build("llama"), tmp_path_factory.mktemp("gated"), token_activations=True)


def slow_rows(atlas: Path, hf: Any, name: str, *, begins: bool) -> dict[tuple[int, ...], np.ndarray]:
    """By layer, memory, sign and rank of the ten best prefixes: the coefficient at every token of their sentence."""
    beginning = 0 if begins else None
    text = distinct(odd_text(80), byte_tokenizer(), beginning)
    kind = partial(ExpertReference, hf, name) if name == "mixtral" else partial(Reference, hf)
    reference, found = kind(text, beginning=beginning), {}
    for layer in range(reference.layers):
        first = open_atlas(atlas).table("triggers", layer=layer).filter(pl.col("rank") == pl.col("prefix_group"))
        best = first.group_by("memory", "sign", maintain_order=True).head(10)
        for memory, sign, rank, sentence in best.select("memory", "sign", "rank", "sentence").iter_rows():
            found[layer, memory, sign, rank] = reference.coefficients[layer][sentence][:, memory]
    return found


def check(atlas: Path, hf: Any, name: str, *, begins: bool = True) -> None:
    expected, opened = slow_rows(atlas, hf, name, begins=begins), open_atlas(atlas)
    rows = {
        (layer, memory, sign, rank): (np.array(shares, np.float64), scale)
        for layer in opened.layers
        for memory, sign, rank, shares, scale in opened.table(TABLE, layer=layer)
        .select("memory", "sign", "rank", "coefficients", "scale")
        .iter_rows()
    }
    assert list(rows) == list(expected)
    for place, (shares, scale) in rows.items():
        largest = np.abs(expected[place]).max()
        assert scale == pytest.approx(largest, rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(shares * scale, expected[place], atol=1e-3 * largest + 1e-6)
    assert {sign for _, _, sign, _ in rows} == ({1} if name == "gpt2-relu" else {1, -1})
    assert len(expected) > 100


def test_every_token_of_the_best_ten(gated: tuple[LanguageModel, Path]) -> None:
    check(gated[1], gated[0].anatomy.model, "llama")
    assert verify(gated[1]) == []
    assert open_atlas(gated[1]).manifest["plan"][TABLE] is True
    assert not (gated[1] / "work").exists()


@pytest.mark.full
@pytest.mark.parametrize(("name", "begins"), [("gpt2-relu", True), ("gpt2", False), ("mixtral", True)])
def test_other_families(name: str, begins: bool, tmp_path: Path) -> None:
    hf = build_mixture(name) if name == "mixtral" else build(name)
    model, atlas = mined(hf, tmp_path, begins=begins)
    assert not open_atlas(atlas).has(TABLE, layer=0)
    assert ms.extend(atlas, model, [TABLE]).made == (TABLE,)
    check(atlas, model.anatomy.model, name, begins=begins)
    assert verify(atlas) == []


def test_mined_and_added_later_are_the_same(gated: tuple[LanguageModel, Path], tmp_path: Path) -> None:
    """But for the plan that each file states."""
    model, other = mined(build("llama"), tmp_path)
    with pytest.raises(AtlasUnfinished, match=r"mnemoscope extend .* token_activations"):
        open_atlas(other)["L0.M0"].token_activations()
    ms.extend(other, model, [TABLE])
    for layer in (0, 1):
        one, added = (open_atlas(atlas).table(TABLE, layer=layer) for atlas in (gated[1], other))
        assert one.equals(added)


@pytest.mark.full
def test_stopped_and_gone_on_with_gives_the_same_bytes(gated: Any, tmp_path: Path, monkeypatch: Any) -> None:
    model, whole = gated
    text, out = whole.path.parent / "text.txt", tmp_path / "atlas"
    monkeypatch.setattr(steps, "PIECE_TOKENS", 1)
    taken = stop_at_third(monkeypatch, ShortenedRuns)
    for _ in range(2):
        try:
            mine(model, text, out=out, token_activations=True, checkpoint_every=0, **OPTIONS)
        except Interrupted:
            assert taken[-1] is None
    assert tables_of(out) == tables_of(whole)
    items = [str(one) for one in taken if one is not None]
    assert len(set(items)) == len(items) > 3


@pytest.mark.full
def test_a_number_that_is_none_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    model, atlas = mined(build("llama"), tmp_path)

    @contextmanager
    def without_numbers(model: LanguageModel, callback: Any, **more: Any) -> Iterator[None]:
        def read(layer: int, coefficients: torch.Tensor) -> None:
            callback(layer, coefficients * (float("nan") if layer == 1 else 1))

        with read_coefficients(model, read, **more):
            yield

    monkeypatch.setattr(removals, "read_coefficients", without_numbers)
    with pytest.raises(NotFinite, match="layer 1"):
        ms.extend(atlas, model, [TABLE], force=True)


def test_a_memory_s_frame_has_the_texts_of_its_tokens(gated: tuple[LanguageModel, Path]) -> None:
    opened = open_atlas(gated[1])
    memory = opened["L1.M3"]
    rows = memory.token_activations()
    triggers = memory.triggers(sign=None)
    both = rows.join(triggers, on=["sign", "rank"], maintain_order="left")
    assert len(both) == len(rows) > 10
    for row in both.to_dicts():
        assert "".join(row["texts"]) == row["text"]
        assert row["coefficients"][row["position"]] == pytest.approx(row["coefficient"], rel=2e-3)
        assert row["texts"][row["position"]] == row["trigger_text"]
    assert pl.Series(rows["coefficients"]).list.len().to_list() == [len(texts) for texts in rows["texts"]]
