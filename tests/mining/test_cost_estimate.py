"""What inspection says about a model, and how many tokens it expects; its seconds are not asserted."""

import random
from pathlib import Path

import pytest

from mining.conftest import WORDS, odd_text, tiny_model
from mnemoscope.corpus import open_source, prepare
from mnemoscope.mining import cost_estimate
from mnemoscope.mining.cost_estimate import Cost, describe, estimate
from mnemoscope.models import load_model


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_estimate, "_SECONDS", 0.02)


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


def test_a_small_text_is_counted_not_estimated(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "text.txt"
    path.write_text(odd_text(100))
    copy = prepare(
        open_source(str(path), split="line"), model, directory=tmp_path / "copy", longest=model.longest, split="line",
        vocabulary=model.sizes.vocabulary,
    )  # fmt: skip
    cost = estimate(model, path, split="line")
    assert cost.exact
    assert cost.mined_tokens == copy.counts["mined_tokens"]
    assert set(cost.seconds) == {"text", "mining", "values", "removals", "predictions", "patterns"}
    assert min(cost.seconds.values()) > 0
    assert cost.total_seconds == pytest.approx(sum(cost.seconds.values()))
    assert cost.tokens_per_second == pytest.approx(cost.mined_tokens / cost.seconds["mining"])


def test_the_size_of_a_large_text_is_judged_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_estimate, "_SAMPLE_TOKENS", 2_000)
    model, path = tiny_model(), tmp_path / "text.txt"
    chance = random.Random(3)
    path.write_text("".join(" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) + "\n" for _ in range(6_000)))
    copy = prepare(
        open_source(str(path), split="line"), model, directory=tmp_path / "copy", longest=model.longest, split="line",
        vocabulary=model.sizes.vocabulary,
    )  # fmt: skip
    cost = estimate(model, path, split="line")
    assert cost.mined_tokens == pytest.approx(int(copy.counts["mined_tokens"]), rel=0.2)
    capped = estimate(model, path, split="line", max_tokens=700)
    assert capped.mined_tokens <= 700


def test_the_state_grows_with_memories_and_signs_not_with_text(tmp_path: Path) -> None:
    def cost(name: str, lines: int) -> Cost:
        path = tmp_path / f"{lines}.txt"
        path.write_text(odd_text(lines))
        return estimate(tiny_model(name), path, split="line")

    assert cost("gpt2-relu", 30).state_bytes == cost("gpt2-relu", 90).state_bytes
    assert cost("gpt2-relu", 30).state_bytes < cost("gpt2", 30).state_bytes  # GELU keeps the lowest too
