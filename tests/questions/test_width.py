"""B5: a layer of which half is noise can be halved and no more; where usefulness tells nothing, nothing is found."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import mnemoscope as ms
from mining.conftest import byte_tokenizer, odd_text
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.intervals import Estimate, Resamples
from mnemoscope.foundation.options.model_options import ModelOptions
from mnemoscope.mining import mine
from mnemoscope.mining.extending import load_mined
from mnemoscope.mining.passes import width
from mnemoscope.models import load_model
from mnemoscope.questions.beyond.width import Losses, Spread, exits, mean_spread, rate_bound
from mnemoscope.runs.plan import MiningPlan
from mnemoscope.runs.run import Run
from mnemoscope.runs.workers.worker import Worker
from models.conftest import build as build_tiny
from questions.known_model import Known, build
from support.handbuilt_answers import build_answers
from support.mined import mined_text

FOLLOWS = {"cat": "sat", "dog": "ran", "bird": "mat", "of": "the"}
USED = tuple(Known({word: 4.0}, {following: 3.0}) for word, following in FOLLOWS.items())
NOISE = tuple(Known({word: 1.0, "the": 2.0}, {"k20": 1e-4, "far": -1e-4}, rest=1.0) for word in FOLLOWS)
SILENT = Known({}, {"far": 1.0})


@pytest.fixture(scope="module")
def half_noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of four memories that say what follows and four that say nothing; one of two twins and dead ones."""
    folder = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)

    def text(lines: int) -> str:
        pairs = [[f"{word} {FOLLOWS[word]}" for word in rng.choice(list(FOLLOWS), 5)] for _ in range(lines)]
        return "\n\n".join(" ".join(line) for line in pairs) + "\n"

    twins = (NOISE[0], NOISE[0], *(SILENT for _ in range(6)))
    hf, tokenizer = build((tuple(m for pair in zip(USED, NOISE, strict=True) for m in pair), twins))
    model = load_model(hf, tokenizer=tokenizer)
    out = mined_text(model, folder, text(60), other=text(40), removals=0)
    ms.extend(out, model, ["width"])
    return out


def numbers(found: pl.DataFrame, name: str) -> dict[int | None, tuple[float, float, float]]:
    return {row["layer"]: (row["value"], row["low"], row["high"]) for row in found.filter(name=name).to_dicts()}


def test_a_layer_of_which_half_is_noise_can_be_halved_and_no_more(half_noise: Path) -> None:
    found = ms.answer(half_noise, "width")
    assert (numbers(found, "width_needed")[0], numbers(found, "memories_needed")[0]) == ((0.5, 0.5, 0.5), (4, 4, 4))
    assert numbers(found, "least_50")[0][0] == pytest.approx(0, abs=1e-3)
    assert numbers(found, "least_62")[0][1] > 0.05
    assert numbers(found, "width_needed_random")[0][0] > 0.5
    assert numbers(found, "random_above_least")[0][0] > 0.05
    # In the other layer nothing is of use: all of it can go.
    assert numbers(found, "width_needed")[1] == (0, 0, 0)


def test_memories_that_never_fire_and_twins_are_counted(half_noise: Path) -> None:
    found = ms.answer(half_noise, "width")
    prefixes = ms.open_atlas(half_noise).table("activity", layer=1)["prefixes"][0]
    assert {layer: one[0] for layer, one in numbers(found, "never_fires").items()} == {0: 0, 1: 6 / 8, None: 6 / 16}
    assert numbers(found, "rate_bound")[1][0] == pytest.approx(3 / prefixes)
    # The six silent ones have no key but a bias, which is the same as nothing.
    assert numbers(found, "duplicates")[1][0] == 2 / 8
    assert numbers(found, "duplicates")[0][0] == 4 / 8  # the noise is one memory four times


def test_every_number_of_a_table_by_hand(tmp_path: Path) -> None:
    """As `build_answers` lays it out: two layers of four memories, three documents of ten tokens, four random draws.

    Of the least useful memories two cost nothing, the third and fourth a nat each in every document; of random ones in
    draw d, each costs a nat, and all d eighths of one.
    """
    found = ms.answer(build_answers(tmp_path, triggers={0: [], 1: []}, width=[4, 5, 6]), "width")
    value = {name: {layer: row[0] for layer, row in numbers(found, name).items()} for name in set(found["name"])}
    assert numbers(found, "width_needed") == dict.fromkeys((0, 1), (0.5, 0.5, 0.5))
    assert numbers(found, "memories_needed") == dict.fromkeys((0, 1), (2, 2, 2))
    assert numbers(found, "width_needed_random") == dict.fromkeys((0, 1), (1, 1, 1))
    # A quarter of four is the first part that takes one out; 37.5 % are one, 62.5 % are two, 93.75 % are three.
    gone = {25: 1, 38: 1, 50: 2, 62: 2, 75: 3, 88: 3, 94: 3, 100: 4}
    for percent in (6, 12, *gone):
        for kind, lost in (("least", lambda out: max(0, out - 2) / 10), ("random", lambda out: (out + 1.5 / 8) / 10)):
            expected = {layer: pytest.approx(lost(gone[percent])) for layer in (0, 1)} if percent in gone else {}
            assert value.get(f"{kind}_{percent}", {}) == expected
    # Half: draws cost 0.2, 0.2125, 0.225 and 0.2375 more; their deviation is 0.0125 sqrt(5 / 3), Student's t for four
    # of them 3.182, and the least useful ones are one more draw. Documents say the same.
    margin = 3.182 * 0.0125 * (5 / 3) ** 0.5 * (1 + 1 / 4) ** 0.5
    both = margin / 2**0.5
    for layer, off in ((0, margin), (1, margin), (None, both)):
        expected_ends = pytest.approx((0.21875, 0.21875 - off, 0.21875 + off))
        assert numbers(found, "random_above_least")[layer] == expected_ends
    assert found.filter(name="random_above_least")["count"].to_list() == [3] * 3
    # Of four memories the last never fires, in 19 prefixes.
    assert value["never_fires"] == {0: 1 / 4, 1: 1 / 4, None: 2 / 8}
    assert (value["rate_bound"], value["duplicates"]) == ({0: 3 / 19, 1: 3 / 19}, {0: 0, 1: 0, None: 0})
    # Above no probability 9 of 10 tokens stop, 4 of these wrong; above a half one, right; three documents are too few
    # to say that it is right in 95 of 100 cases.
    assert (value["stopped_0"], value["wrong_0"]) == ({0: 0.9, 1: 0.9}, {0: 12 / 27, 1: 12 / 27})
    assert (value["stopped_50"], value["wrong_50"]) == ({0: 0.1, 1: 0.1}, {0: 0, 1: 0})
    assert (value["stopped_60"], value["could_stop"]) == ({0: None, 1: None}, {0: 0, 1: 0})
    # 24, 25 and 26 nats over ten tokens each.
    assert (value["whole_loss"], found.filter(name="whole_loss")["count"].to_list()) == ({None: 2.5}, [30])
    assert value["documents"] == {None: 3}


def test_without_a_sentence_there_is_no_loss_but_memories_are_counted(tmp_path: Path) -> None:
    found = ms.answer(build_answers(tmp_path, triggers={0: []}, width=[]), "width")
    counted = found.filter(pl.col("value").is_not_null())
    assert set(counted["name"]) == {"never_fires", "rate_bound", "duplicates"}
    assert found.filter(name="random_above_least").height == 1  # the total alone: no layer was tried
    assert found.filter(pl.col("value").is_null())["count"].sum() == 0


def test_a_run_that_lacks_a_document_is_damage(tmp_path: Path) -> None:
    table = build_answers(tmp_path, triggers={0: [], 1: []}, width=[4, 5]).table("width")
    gone = (pl.col("layer") == 1) & (pl.col("kind") == "random") & (pl.col("document") == 5) & (pl.col("draw") == 2)
    with pytest.raises(AtlasDamaged, match="table width: layer 1 lacks documents"):
        Losses.of(table.filter(~gone.fill_null(False)), seed=0)


def spread(value: float, *, count: int = 4, deviation: float = 0.0, draws: tuple[float, ...] = (0.1, 0.4)) -> Spread:
    return Spread(value, np.array(draws), deviation, count, 7)


@pytest.mark.parametrize("count", [1, 9])
def test_one_draw_has_no_deviation_and_of_more_than_eight_the_table_says_nothing(count: int) -> None:
    assert mean_spread([spread(0.2), spread(0.3, count=count)]) == Estimate(0.25, 7)


@pytest.mark.parametrize("count", range(2, 9))
def test_few_draws_are_as_unsure_as_student_says(count: int) -> None:
    """19 of 20 times a t of one degree of freedom less than there are draws is no larger than the margin's."""
    found = mean_spread([spread(0.0, deviation=1.0, count=count, draws=(0.0, 0.0))])
    most, freedom = found.high / math.sqrt(1 + 1 / count), count - 1
    steps = np.linspace(-most, most, 20_001)
    scale = math.gamma(count / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = scale * (1 + steps**2 / freedom) ** (-count / 2)
    inside = float(((density[1:] + density[:-1]) / 2 * np.diff(steps)).sum())
    assert inside == pytest.approx(0.95, abs=1e-4)  # t is known to three decimals


def test_the_bound_on_a_rate_never_seen() -> None:
    assert (rate_bound(pl.Series([300, 600])).value, rate_bound(pl.Series([0])).value) == (0.01, 1.0)
    assert rate_bound(pl.Series([], dtype=pl.Int64)).value is None


def test_could_stop_is_of_the_lowest_threshold_that_is_right_often_enough() -> None:
    rows = pl.DataFrame(
        [
            {"threshold": threshold, "document": document, "tokens": 100, "stopped": stopped, "wrong": wrong}
            for document in range(50)
            for threshold, stopped, wrong in ((0.5, 60, 20), (0.8, 30, 1), (0.9, 20, 0))
        ],
        schema_overrides={"threshold": pl.Float32},
    )
    found = exits(rows)
    assert (found["stopped_50"].value, found["wrong_50"].value, found["could_stop"].value) == (0.6, 1 / 3, 0.3)
    # Half as many errors at the lowest threshold are still too many, a twentieth of them are not.
    fewer = pl.when(pl.col("threshold") == 0.5).then
    assert exits(rows.with_columns(wrong=fewer(10).otherwise(pl.col("wrong"))))["could_stop"].value == 0.3
    assert exits(rows.with_columns(wrong=fewer(1).otherwise(pl.col("wrong"))))["could_stop"].value == 0.6
    never = exits(rows.filter(pl.col("wrong") > 1))
    assert (never["could_stop"].count, never["could_stop"].value) == (5000, 0)
    assert exits(rows.clear())["could_stop"].value is None


def slow_width(lost: dict[int, np.ndarray], tokens: np.ndarray, memories: int) -> float:
    out = 0
    for count in sorted(lost):
        if lost[count].sum() / tokens.sum() > 0.01:
            break
        out = count
    return 1 - out / memories


def test_widths_and_their_resamples_are_those_of_a_loop(half_noise: Path) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(5, 40, 12).astype(float)
    curve = {count: tokens * rng.normal(0.004 * count, 0.01, 12) for count in (1, 2, 4, 6)}
    losses = Losses(tokens, tokens, {(0, "least"): curve}, seed=5)
    found = losses.width_needed(losses.curve(0, "least"), 8)
    weights = Resamples(12, 5).sums(np.eye(12)).astype(int)  # how often each document is in each resample
    draws = sorted(slow_width({n: lost * row for n, lost in curve.items()}, tokens * row, 8) for row in weights)
    assert (found.value, found.low, found.high) == (slow_width(curve, tokens, 8), draws[49], draws[1949])
    assert found.low < found.high
    # One document tells no interval, none tells nothing.
    assert Losses(tokens[:1], tokens[:1], {}, seed=5).width_needed({1: np.array([0.0])}, 8).low is None
    assert Losses(tokens[:0], tokens[:0], {}, seed=5).width_needed({1: tokens[:0]}, 8).value is None


@pytest.mark.full
def test_where_usefulness_is_shuffled_random_memories_cost_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 times one random order plays the useful one, beside four others: real losses of a random model."""
    monkeypatch.setattr(width, "DRAWS", 1000)
    monkeypatch.setattr(width, "ablation_counts", lambda memories: [memories // 2])
    (tmp_path / "text.txt").write_text(odd_text(150, seed=1))
    hf = build_tiny("gpt2-relu", n_layer=1)
    model = load_model(hf, tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    text, asked = tmp_path / "text.txt", {"split": "line", "removals": 0, "prefixes": 40}
    out = mine(model, text, out=tmp_path / "atlas", validation=text, **asked)
    asked = pass_of(out, model)
    for cut in asked.steps.cuts:
        asked.take(cut)
    lost = asked.answers["loss"][:, 1:] - asked.answers["whole"][:, None]  # the first run is by usefulness
    assert lost.shape[1] == 1000
    losses = Losses(asked.text.predicted.astype(float), asked.answers["whole"], {}, seed=0)
    found = [mean_spread([losses.spread(own[:, 0], own[:, 1:])]) for own in np.split(lost, 200, axis=1)]
    above = sum(one.low is not None and one.low > 0 for one in found)
    below = sum(one.high is not None and one.high < 0 for one in found)
    assert above <= 10
    assert below <= 10
    # That the test could fail: without the draws' own spread many would be found.
    assert np.std([one.value for one in found]) > 0
    blind = [losses.increase(own[:, 1:].mean(1) - own[:, 0]) for own in np.split(lost, 200, axis=1)]
    assert sum(one.low is not None and one.low > 0 for one in blind) > 20


def pass_of(out: Path, model: Any) -> Any:
    atlas = ms.open_atlas(out)
    plan = MiningPlan.from_document(atlas.manifest.plan, out)
    with torch.inference_mode():
        loaded = load_mined(atlas, plan, model, opening=ModelOptions())
        return width.WidthPass(Worker(Run(directory=out, plan=plan), loaded))
