"""Shortened sentences: the same answers as a plain forward of each, whatever is asked."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mining.conftest import byte_tokenizer, odd_text
from mnemoscope.atlas import open_atlas
from mnemoscope.mining import mine
from mnemoscope.mining.passes.removals import WHOLE, Requests, ShortenedRuns
from mnemoscope.mining.text.batches import even_parts
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.forward.hooks import read_coefficients
from models.conftest import LAYERS, MEMORIES, ROWS, build

SENTENCES = {3: 2, 7: 30, 8: 12, 20: 30, 21: 5}
"""The lengths of sentences by their numbers."""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> NamedSentences:
    folder = tmp_path_factory.mktemp("named")
    (folder / "sentences").mkdir()
    random = np.random.default_rng(0)
    tokens = [random.integers(0, ROWS, length).tolist() for length in SENTENCES.values()]
    table = pl.DataFrame(
        {"sentence": list(SENTENCES), "tokens": tokens}, schema_overrides={"tokens": pl.List(pl.Int32)}
    )
    table.write_parquet(folder / "sentences" / "part-00000.parquet")
    return NamedSentences(folder)


@pytest.fixture(scope="module", params=["<|endoftext|>", None])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    """With a beginning token, and without one."""
    tokens = byte_tokenizer(**({} if request.param is None else {"bos_token": request.param}))
    return load_model(build("gpt2"), tokenizer=tokens)


def ask(count: int, *, seed: int, beginning: int) -> Requests:
    """Requests of random places, gaps and memories; without a beginning token, never of two tokens."""
    random = np.random.default_rng(seed)
    columns: dict[str, list[int]] = {name: [] for name in ("layer", "memory", "sentence", "gap", "position")}
    for _ in range(count):
        sentence = int(random.choice([number for number, length in SENTENCES.items() if length > 2 - beginning]))
        position = int(random.integers(2 - beginning, SENTENCES[sentence]))
        gap = int(random.choice([WHOLE, 0, int(random.integers(0, position))]))
        asked = (int(random.integers(0, LAYERS)), int(random.integers(0, MEMORIES)), sentence, gap, position)
        for name, value in zip(columns, asked, strict=True):
            columns[name].append(value)
    return Requests(**{name: np.array(values, np.int64) for name, values in columns.items()})


def answered(runs: ShortenedRuns, count: int, *, pieces: int = 1) -> np.ndarray[Any, Any]:
    """Every answer, each of which was given exactly once, the cuts in so many pieces."""
    found = np.full(count, np.nan)

    def answer(layer: int, numbers: Any, coefficients: Tensor) -> None:
        assert np.isnan(found[numbers]).all()
        found[numbers] = coefficients.numpy()

    assert [0, *(cut.stop for cut in runs.cuts)] == [*(cut.start for cut in runs.cuts), runs.cuts[-1].stop]
    for cut in runs.cuts:
        for part in even_parts(cut, pieces):
            runs.take(part, answer)
    return found


def plainly(model: LanguageModel, sentences: NamedSentences, requests: Requests) -> list[float]:
    """Every answer from a forward of its own."""
    found = []
    for layer, memory, sentence, gap, position in zip(*vars(requests).values(), strict=True):
        tokens = sentences.of(sentence)[: position + 1].tolist()
        shortened = tokens[:-1] if gap == WHOLE else tokens[:gap] + tokens[gap + 1 :]
        read: dict[int, Tensor] = {}
        with torch.inference_mode(), read_coefficients(model, read.__setitem__):
            model.backbone(torch.tensor([[*model.beginning.tokens, *shortened]]))
        found.append(float(read[int(layer)][0, -1, memory]))
    return found


@pytest.mark.fast(1)
@pytest.mark.parametrize(("area", "pieces"), [(1, 1), (40, 2), (60, 3), (4096, 1), (4096, 5)])
def test_every_answer_is_that_of_a_plain_forward(
    area: int, pieces: int, model: LanguageModel, sentences: NamedSentences
) -> None:
    requests = ask(120, seed=area + pieces, beginning=model.beginning.length)
    runs = ShortenedRuns(requests, model, sentences, area=area)
    found = answered(runs, 120, pieces=pieces)
    np.testing.assert_allclose(found, plainly(model, sentences, requests), rtol=2e-4, atol=2e-5)


def test_batches_hold_as_many_tokens_as_they_may(model: LanguageModel, sentences: NamedSentences) -> None:
    requests = ask(300, seed=5, beginning=model.beginning.length)
    runs, ran = ShortenedRuns(requests, model, sentences, area=50), list[int]()
    with model.anatomy.model.transformer.wte.register_forward_hook(
        lambda _, inputs, output: ran.append(inputs[0].numel())
    ):
        answered(runs, 300)
    assert max(ran) <= 50
    distinct = {row[2:4] for row in zip(*vars(requests).values(), strict=True)}
    assert len(ran) < len(distinct)  # several in a batch, each once


def test_nothing_asked_is_nothing_run(model: LanguageModel, sentences: NamedSentences) -> None:
    assert ShortenedRuns(ask(0, seed=0, beginning=1), model, sentences, area=100).cuts == []


@pytest.mark.full
def test_memory_that_runs_out_halves_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows or more in one take are too much: the atlas says so, and its coefficients are the same."""
    (tmp_path / "text.txt").write_text(odd_text(30))
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    options: dict[str, Any] = {"split": "line", "removals": 5, "prefixes": 0, "batch_tokens": 64}
    whole = mine(model, tmp_path / "text.txt", out=tmp_path / "whole", **options)
    take = ShortenedRuns.take

    def scarce(runs: ShortenedRuns, items: slice, answer: Any) -> None:
        if items.stop - items.start > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(runs, items, answer)

    monkeypatch.setattr(ShortenedRuns, "take", scarce)
    halved = mine(model, tmp_path / "text.txt", out=tmp_path / "halved", **options)
    one, other = (open_atlas(folder).table("removals") for folder in (whole, halved))
    assert one.drop("removed_coefficient").equals(other.drop("removed_coefficient"))
    np.testing.assert_allclose(one["removed_coefficient"], other["removed_coefficient"], rtol=1e-5, atol=1e-6)
    steps = [open_atlas(folder).manifest["questions"]["out_of_memory_steps"]["removals"] for folder in (whole, halved)]
    assert steps[0] == []
    assert len(steps[1]) > 0


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 3))
def test_parts_cover_all_items_evenly(count: int, parts: int, start: int) -> None:
    cuts = even_parts(slice(start, start + count), parts)
    assert [item for cut in cuts for item in range(cut.start, cut.stop)] == list(range(start, start + count))
    sizes = [cut.stop - cut.start for cut in cuts]
    assert len(cuts) == min(parts, count)
    assert max(sizes) - min(sizes) <= 1
