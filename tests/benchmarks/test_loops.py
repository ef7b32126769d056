"""The benchmark's loops do the work that they are timed for; no speed is asserted."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from benchmarks.speed import documentation, loops
from benchmarks.speed.documentation import in_text_order, measure_text, neighbour_rate, value_rate
from benchmarks.speed.loops import USER_BATCH, ResearchLoop, UserLoop, compare_loops, mine_batches, overlap

from mining.conftest import odd_text, tiny_model
from mnemoscope.corpus import TokenizedCorpus, open_source, prepare
from mnemoscope.mining.text.batch_loader import BatchLoader
from mnemoscope.mining.text.state import MiningState, StateShape
from mnemoscope.models import LanguageModel

KEEP = 5


@pytest.fixture(params=["with a beginning", "without"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return tiny_model() if request.param == "with a beginning" else tiny_model(pad_token="<|endoftext|>")


@pytest.fixture
def copy(model: LanguageModel, tmp_path: Path) -> TokenizedCorpus:
    (tmp_path / "text.txt").write_text(odd_text(200))
    return prepare(
        open_source(str(tmp_path / "text.txt"), split="line"),
        model,
        directory=tmp_path / "copy",
        longest=model.longest,
        split="line",
        vocabulary=model.sizes.vocabulary,
    )


@pytest.fixture
def loader(copy: TokenizedCorpus, model: LanguageModel) -> BatchLoader:
    return BatchLoader(copy, model, batch_tokens=256, seed=0)


def test_the_research_loop_finds_what_mining_finds(model: LanguageModel, loader: BatchLoader) -> None:
    research = ResearchLoop(model, KEEP)
    batches = [loader(number) for number in range(loader.count)]
    assert len(batches) > 3
    for batch in batches:
        research.read(batch)
    state, _ = mine_batches(model, batches, keep=KEEP)
    extra = 0 if model.beginning.token is None else 1
    for layer in range(model.sizes.layers):
        mined = {name: one[: model.sizes.memories[layer]] for name, one in state.triggers[layer].state().items()}
        found, places = research.best[layer].T, research.where[layer].T
        full = mined["sentence"][:, -1] >= 0  # a memory that fires less often has no filler rows
        assert full.float().mean() > 0.5
        assert torch.allclose(found[full], mined["magnitude"][full].float(), atol=1e-5)
        ids = places // 4096
        position = places % 4096 - extra
        clear = found[full][:, 0] - found[full][:, 1] > 1e-4
        assert torch.equal(ids[full][clear, 0], mined["sentence"][full][clear, 0])
        assert torch.equal(position[full][clear, 0], mined["position"][full][clear, 0].long())


def test_the_user_loop_reads_sentences_in_text_order_and_counts_them(
    model: LanguageModel, copy: TokenizedCorpus, loader: BatchLoader
) -> None:
    first = list(islice(in_text_order(copy), 3 * USER_BATCH))
    user = UserLoop(model, in_text_order(copy))
    batch = loader(0)
    read = user.read(batch)
    groups = [sum(map(len, first[start : start + USER_BATCH])) for start in range(0, len(first), USER_BATCH)]
    sums = [sum(groups[: n + 1]) for n in range(len(groups))]
    assert read == next(total for total in sums if total >= batch.tokens)


def test_all_loops_are_compared(model: LanguageModel, copy: TokenizedCorpus, loader: BatchLoader) -> None:
    rates = compare_loops(model, loader, in_text_order(copy), rounds=2, warm=300, keep=KEEP)
    loops = {"bare forward", "stopped forward", "mining", "user loop", "research loop"}
    assert set(rates.per_second) == set(rates.ratio) == loops
    assert rates.ratio["bare forward"] == 1.0
    assert min(rates.per_second.values()) > 0
    assert 0 < rates.tokens <= loader.tokens(range(loader.count)) - 300


@pytest.mark.full
def test_a_model_is_measured_on_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text(odd_text(2000))
    monkeypatch.setattr(documentation, "TEXT", str(tmp_path / "text.txt"))
    monkeypatch.setattr(documentation, "named_model", lambda name, dtype, device: tiny_model())
    found = measure_text("tiny", device=torch.device("cpu"), dtype="float32", rounds=1, warm=300)
    assert min(found["tokens_per_second"].values()) > 0
    assert (found["dtype"], found["bfloat16_overlap"]) == ("float32", 1.0), "the same model twice"
    assert found["values"]["ratio"] > 0
    assert found["neighbours"]["ratio"] > 0


@pytest.mark.parametrize(("rate", "name"), [(value_rate, "value pass"), (neighbour_rate, "neighbours")])
def test_projecting_is_measured_in_turn_with_its_product(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, rate: Callable[..., dict[str, float]], name: str
) -> None:
    rates = rate(model, layers=1)
    assert set(rates) == {name, "matrix product", "ratio"}
    assert min(rates.values()) > 0

    read = iter([8.0, 2.0, 10.0, 4.0, 5.0, 1.0, 6.0, 3.0, 40.0, 8.0])  # seconds of both, round by round

    class Stopwatch(loops.Stopwatch):
        def __exit__(self, *error: object) -> None:
            self.seconds = next(read)

    monkeypatch.setattr(documentation, "Stopwatch", Stopwatch)
    memories = sum(model.sizes.memories[:2])
    assert rate(model) == {name: memories / 8, "matrix product": memories / 3, "ratio": 0.25}
    assert next(read, None) is None


def test_the_overlap_is_the_mean_share_of_common_sentences() -> None:
    first, second = (MiningState(StateShape({0: 3}, 4, (1,))) for _ in range(2))
    # Two of four in common, all two in common, and a memory without triggers, which does not count.
    rows = ([[1, 2, 3, 4], [7, 8, -1, -1], [-1] * 4], [[4, 9, 1, 6], [8, 7, 5, -1], [2, -1, -1, -1]])
    for state, sentences in zip((first, second), rows, strict=True):
        triggers = state.triggers[0]
        triggers.load({**triggers.state(), "sentence": torch.tensor(sentences)})
    assert (overlap(first, second), overlap(first, first)) == (pytest.approx((0.5 + 1.0) / 2), 1.0)
