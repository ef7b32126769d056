"""Shortened sentences as trees and one by one: the same answers as a plain forward of each, whatever is asked."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mining.conftest import byte_tokenizer, odd_text
from mnemoscope.atlas import open_atlas
from mnemoscope.mining import mine
from mnemoscope.mining.batches import even_parts, fill
from mnemoscope.mining.removal_runs import WHOLE, LoneRuns, Requests, TreeRuns, plan_runs
from mnemoscope.mining.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.hooks import read_coefficients
from mnemoscope.models.tree_forward import TreeForward
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


def answered(runs: LoneRuns | TreeRuns, count: int, *, pieces: int = 1) -> np.ndarray[Any, Any]:
    """Every answer, each of which was given exactly once, the cuts in so many pieces."""
    found = np.full(count, np.nan)

    def answer(layer: int, numbers: Any, coefficients: Tensor) -> None:
        assert np.isnan(found[numbers]).all()
        found[numbers] = coefficients.numpy()

    assert [0, *(cut.stop for cut in runs.cuts)] == [*(cut.start for cut in runs.cuts), runs.cuts[-1].stop]
    for cut in runs.cuts:
        for part in even_parts(cut, pieces, sizes=runs.sizes):
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


@pytest.mark.parametrize("kind", [LoneRuns, TreeRuns])
@pytest.mark.parametrize(("area", "pieces"), [(1, 1), (40, 2), (60, 3), (4096, 1), (4096, 5)])
def test_every_answer_is_that_of_a_plain_forward(
    kind: type, area: int, pieces: int, model: LanguageModel, sentences: NamedSentences
) -> None:
    requests = ask(120, seed=area + pieces, beginning=model.beginning.length)
    more = () if kind is LoneRuns else (TreeForward(model, longest=32),)
    runs = kind(requests, model, sentences, *more, area=area)
    found = answered(runs, 120, pieces=pieces)
    np.testing.assert_allclose(found, plainly(model, sentences, requests), rtol=2e-4, atol=2e-5)


@settings(max_examples=25)
@given(count=st.integers(1, 12), seed=st.integers(0, 999), area=st.integers(1, 80))
def test_few_requests_as_trees(
    count: int, seed: int, area: int, model: LanguageModel, sentences: NamedSentences
) -> None:
    requests = ask(count, seed=seed, beginning=model.beginning.length)
    runs = TreeRuns(requests, model, sentences, TreeForward(model, longest=32), area=area)
    np.testing.assert_allclose(
        answered(runs, count), plainly(model, sentences, requests), rtol=2e-4, atol=2e-5
    )  # fmt: skip


def test_sizes_are_the_tokens_that_are_run(model: LanguageModel, sentences: NamedSentences) -> None:
    """Batches hold as many tokens as they may; only a tree of one run may be larger than they are."""
    requests = ask(300, seed=5, beginning=model.beginning.length)
    runs = TreeRuns(requests, model, sentences, TreeForward(model, longest=32), area=50)
    ran: list[int] = []
    embed = model.anatomy.model.transformer.wte
    with embed.register_forward_hook(lambda _, inputs, output: ran.append(inputs[0].numel())):
        for item, size in enumerate(runs.sizes.tolist()):
            ran.clear()
            runs.take(slice(item, item + 1), lambda *_: None)
            assert ran == [size]
            assert size <= 50
        ran.clear()
        answered(runs, 300)
    assert max(ran) <= 50
    assert len(ran) < len(runs.sizes)
    lone = LoneRuns(requests, model, sentences, area=50)
    with embed.register_forward_hook(lambda _, inputs, output: ran.append(inputs[0].numel())):
        trees, _ = sum(ran), ran.clear()
        answered(lone, 300)
    assert trees < 0.8 * sum(ran)


def test_a_model_that_allows_trees_is_run_so_and_another_as_ever(tmp_path: Path, sentences: NamedSentences) -> None:
    tokens = byte_tokenizer(bos_token="<|endoftext|>")
    requests = ask(30, seed=0, beginning=1)
    for name, kind in (("gpt2", TreeRuns), ("gpt_neo", LoneRuns), ("bloom", LoneRuns)):
        model = load_model(build(name), tokenizer=tokens)
        assert type(plan_runs(requests, model, sentences, area=100)) is kind
    few = Requests(**{name: each[:1] * 0 for name, each in vars(requests).items()} | {"position": np.array([1])})
    assert type(plan_runs(few, load_model(build("gpt2"), tokenizer=tokens), sentences, area=100)) is LoneRuns


def test_nothing_asked_is_nothing_run(model: LanguageModel, sentences: NamedSentences) -> None:
    nothing = ask(0, seed=0, beginning=1)
    assert list(plan_runs(nothing, model, sentences, area=100).cuts) == []
    assert TreeRuns(nothing, model, sentences, TreeForward(model, longest=32), area=100).cuts == []


def test_memory_that_runs_out_halves_the_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trees or more in one take are too much: the atlas says so, and its coefficients are the same."""
    (tmp_path / "text.txt").write_text(odd_text(30))
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    options: dict[str, Any] = {"split": "line", "removals": 5, "prefixes": 0, "batch_tokens": 64}
    whole = mine(model, tmp_path / "text.txt", out=tmp_path / "whole", **options)
    take = TreeRuns.take

    def scarce(runs: TreeRuns, items: slice, answer: Any) -> None:
        if items.stop - items.start > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        take(runs, items, answer)

    monkeypatch.setattr(TreeRuns, "take", scarce)
    halved = mine(model, tmp_path / "text.txt", out=tmp_path / "halved", **options)
    one, other = (open_atlas(folder).table("removals") for folder in (whole, halved))
    assert one.drop("removed_coefficient").equals(other.drop("removed_coefficient"))
    np.testing.assert_allclose(one["removed_coefficient"], other["removed_coefficient"], rtol=1e-5, atol=1e-6)
    steps = [open_atlas(folder).manifest["questions"]["out_of_memory_steps"]["removals"] for folder in (whole, halved)]
    assert steps[0] == []
    assert len(steps[1]) > 0


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 60))
def test_batches_are_filled_in_order(sizes: list[int], area: int) -> None:
    cuts = fill(np.array(sizes, np.int64), area)
    assert [item for cut in cuts for item in range(cut.start, cut.stop)] == list(range(len(sizes)))
    sums = [sum(sizes[cut]) for cut in cuts]
    assert all(total <= area or cut.stop - cut.start == 1 for total, cut in zip(sums, cuts, strict=True))
    assert all(total + sizes[cut.stop] > area for total, cut in zip(sums, cuts[:-1], strict=False))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 3))
def test_parts_of_even_sizes_cover_all(sizes: list[int], parts: int, start: int) -> None:
    padded = np.array([7] * start + sizes, np.int64)
    items = slice(start, start + len(sizes))
    cuts = even_parts(items, parts, sizes=padded)
    assert [item for cut in cuts for item in range(cut.start, cut.stop)] == list(range(items.start, items.stop))
    assert 1 <= len(cuts) <= parts
    assert len(cuts) > 1 or parts == 1 or len(sizes) == 1
    largest = max(sizes)
    for cut in cuts:
        assert sum(sizes[cut.start - start : cut.stop - start]) <= sum(sizes) / parts + 2 * largest
