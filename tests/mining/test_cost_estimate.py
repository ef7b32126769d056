"""What inspection says about a model, and how many tokens it expects; its seconds are not asserted."""

import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mining.conftest import WORDS, byte_tokenizer, odd_text, tiny_model
from mining.reference import sentences_of
from mnemoscope.corpus import open_source, prepare
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.mining import cost_estimate
from mnemoscope.mining.cost_estimate import Cost, ExpectedText, Speeds, describe, estimate, expected_text, stage_seconds
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.runs.plan import batch_order


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_estimate, "TIMED_SECONDS", 0.02)


def test_a_model_is_described_in_plain_values() -> None:
    facts = describe(load_model("handmade:planted"))
    assert (facts["model"], facts["dtype"], facts["device"]) == ("handmade:planted", "float32", "cpu")
    assert facts["layers"] == len(facts["memories"])
    assert set(facts["proof"]) == {"residual", "ablation", "keys", "scores"}
    assert max(facts["proof"].values()) < 1e-4
    facts = describe(tiny_model())
    assert (facts["block"], facts["gated"], facts["activation"]) == ("pre-norm", False, "relu")
    assert facts["negative_coefficients"] is False
    assert 0 < facts["ffn_share"] < 1
    assert facts["beginning"]["token"] == 0


def counts_of(model: LanguageModel, path: Path) -> Mapping[str, Any]:
    """What preparing the whole text counts."""
    source, vocabulary = open_source(str(path), split="line"), model.sizes.vocabulary
    out = path.parent / "copy"
    return prepare(source, model, directory=out, longest=model.longest, split="line", vocabulary=vocabulary).counts


def test_a_small_text_is_counted_not_estimated(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "text.txt"
    path.write_text(odd_text(100))
    cost = estimate(model, path, MiningOptions(split="line"))
    assert cost.exact
    assert cost.mined_tokens == counts_of(model, path)["mined_tokens"]
    stages = ("text", "mining", "scales", "values", "roles", "removals", "predictions", "attention", "patterns")
    assert set(cost.seconds) == set(stages)
    assert min(cost.seconds.values()) > 0
    assert cost.total_seconds == pytest.approx(sum(cost.seconds.values()))


def test_the_size_of_a_large_text_is_judged_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_estimate, "TEXT_SAMPLE_TOKENS", 2_000)
    model, path = tiny_model(), tmp_path / "text.txt"
    chance = random.Random(3)
    path.write_text("".join(" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) + "\n" for _ in range(6_000)))
    cost = estimate(model, path, MiningOptions(split="line"))
    assert not cost.exact
    assert cost.mined_tokens == pytest.approx(int(counts_of(model, path)["mined_tokens"]), rel=0.03)
    assert estimate(model, path, MiningOptions(split="line", max_tokens=700)).mined_tokens == 700


def test_the_state_grows_with_memories_and_signs_not_with_text(tmp_path: Path) -> None:
    def cost(name: str, lines: int) -> Cost:
        path = tmp_path / f"{lines}.txt"
        path.write_text(odd_text(lines))
        return estimate(tiny_model(name), path, MiningOptions(split="line"))

    assert cost("gpt2-relu", 30).state_bytes == cost("gpt2-relu", 90).state_bytes
    # Of a trigger a coefficient, a sentence and a position; a histogram of 36 bins, and what is counted and added up.
    each = {"triggers": 50 * (4 + 8 + 4), "activity": 36 * 8 + 3 * 8 + 2 * 4 + 3 * 32}
    memories = sum(tiny_model().sizes.memories)
    assert cost("gpt2-relu", 30).state_bytes == memories * sum(each.values())
    with_lowest = memories * (2 * each["triggers"] + each["activity"])
    assert cost("gpt2", 30).state_bytes == with_lowest  # GELU keeps the lowest too


COUNTS = {"read_whole": False, "sentences": 1_000, "tokens": 20_000, "mined_tokens": 1, "held_out_sentences": 1}


@pytest.mark.parametrize(
    ("scale", "held_out"),
    [(2.0, 200), (40.0, 4_000), (80.0, 4_000), (300.0, 6_000)],
    ids=["10 % of a small text", "4,000 of 40,000", "4,000 of 80,000", "2 % of a large text"],
)
def test_a_text_that_was_read_in_part_holds_out_what_the_rule_does(scale: float, held_out: int) -> None:
    text = expected_text(COUNTS, 1_000, scale=scale, exact=False, most=None)
    assert text == ExpectedText(round(20_000 * scale) - 20 * held_out, 20.0, held_out)
    capped = expected_text(COUNTS, 1_000, scale=scale, exact=False, most=5)
    assert capped == ExpectedText(5, 20.0, held_out)


def test_of_a_text_that_was_read_whole_the_counts_are_known() -> None:
    counts = {"read_whole": True, "sentences": 50, "tokens": 300, "mined_tokens": 251, "held_out_sentences": 8}
    assert expected_text(counts, 50, scale=1.0, exact=True, most=None) == ExpectedText(251, 6.0, 8)
    # The caps leave out what is neither mined nor held out.
    assert expected_text(counts, 50, scale=1.0, exact=False, most=None) == ExpectedText(252, 6.0, 8)


def test_what_is_measured_is_shared_out_as_it_was_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that goes faster each time that it is looked at: intervals of 1, 3, 5 ... seconds."""
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: (looked := next(looks)) * (looked + 1) / 2)
    monkeypatch.setattr(cost_estimate, "time", clock)
    monkeypatch.setattr(cost_estimate, "TIMED_SECONDS", 1.0)
    model, path = tiny_model(), tmp_path / "text.txt"
    path.write_text("".join(f"the cat sat on mat {number}\n" for number in range(12)))
    lines = sentences_of(path.read_text().splitlines(), lambda line: [line], byte_tokenizer(), longest=model.longest)
    held_out, mean = sum(one.held_out for one in lines), sum(len(one.tokens) for one in lines) / len(lines)
    assert 0 < held_out < len(lines)
    cost = estimate(model, path, MiningOptions(split="line"))
    # Reading takes 1 second; of two batches, of two lengths of lines, the beginning is looked at, and not the end; then
    # the first takes 5 with histogram and the second 7 without. 128 streams take 9, one layer's values 11.
    mined = [len(one.tokens) for one in lines if not one.held_out]
    short, long = (mined.count(length) * length for length in sorted(set(mined)))
    first, second = np.array([short, long])[batch_order(2, seed=0)].tolist()
    assert first != second
    speeds = Speeds(5 / first, 7 / second, 9 / 128, 11.0 * model.sizes.layers)
    text = ExpectedText(short + long, mean, held_out)
    assert cost.seconds == pytest.approx({"text": 1} | stage_seconds(text, speeds, model.sizes.memories))
    assert cost.tokens_per_second == pytest.approx(first / 5)


SPEEDS = Speeds(sampled_token=3.0, token=1.0, reading=0.25, values=7.0)


def test_the_seconds_of_texts_are_worked_out_by_hand() -> None:
    seconds = stage_seconds(ExpectedText(201_600, 8.0, 5_000), SPEEDS, [700, 1_400])
    assert seconds == {
        # 200,000 tokens with histogram, then one batch of 16: (15 * 1 + 3) / 16 each.
        "mining": 3 * 200_000 + 1_600 * 18 / 16,
        "scales": 4_000 * 5,
        "values": 7.0,
        "roles": 7.0,
        # 100 memories of each layer, 50 triggers, three tokens; 5 tokens of 8 through 0.6 of both layers.
        "removals": pytest.approx(100 * 50 * 3 * 5 * 0.6 * 2),
        # 4,000 prefixes of 5 tokens, and two products of each layer.
        "predictions": 4_000 * (5 + 2 * 2 * 0.25),
        "attention": pytest.approx(0.8 * 4_000 * (5 + 2 * 2 * 0.25)),
        "patterns": 2_100 / 250,
    }
    seconds = stage_seconds(ExpectedText(100, 10.0, 3), SPEEDS, [70])
    assert seconds["mining"] == 300
    assert seconds["removals"] == 100 * 6  # as many tokens as there are to lose, whatever the memories
    assert seconds["predictions"] == 3 * (6 + 2 * 0.25)
