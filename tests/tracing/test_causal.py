"""The causal check on the planted model by eye, and against a plain loop on a tiny one."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from mining.conftest import byte_tokenizer, odd_text
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.errors import InterventionError, MemoryIdError, ModelDiffers, OptionError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel, load_model, read_blocks
from mnemoscope.tracing import CausalCheck, Token, causal_check, intervene
from mnemoscope.tracing.causal import MEASURES, summarise_changes
from mnemoscope.tracing.controls import draw_control
from models.conftest import build
from support.mined import mined_text


@pytest.fixture(scope="module")
def known(planted: Path) -> tuple[LanguageModel, Atlas]:
    return load_model("handmade:planted"), open_atlas(planted)


@pytest.fixture(scope="module")
def gelu(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Atlas]:
    folder = tmp_path_factory.mktemp("gelu")
    model = load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    return model, open_atlas(mined_text(model, folder, odd_text(40), triggers=8))


def test_a_planted_memory_is_the_cause_of_its_token(known: tuple[LanguageModel, Atlas]) -> None:
    model, atlas = known
    found = causal_check(model, atlas, "L1.M4", tokens=1)  # fires on `sat on the`, promotes `mat`
    assert [token.text.strip() for token in found.own] == ["mat"]
    # No other memory of the layer fires there, so that there is nothing to compare it with.
    assert (found.controls, found.controls_missing) == ((), 10)
    rows = {(row["measure"], row["of"]): row for row in found.table.to_dicts()}
    own = rows["own_tokens_probability", "memory"]
    assert own["mean"] == pytest.approx(1 / 24 - 0.926, abs=1e-3)
    assert rows["own_tokens_probability", "controls"]["mean"] is None
    assert rows["own_tokens_probability", "difference"]["mean"] is None
    assert rows["next_token_probability", "memory"]["mean"] == pytest.approx(own["mean"])
    text = str(found)
    assert "prefixes with a known next token: 1" in text
    assert text.startswith("L1.M4 set to zero on its top triggers (1 prefixes), beside others of layer 1 as strong")
    assert "\np of own tokens      -0.8839  -         -\n" in text  # of one prefix there is no interval
    assert max(map(len, text.splitlines())) <= 118
    json.dumps(found.to_dict(), allow_nan=False)


def coefficients_at(model: LanguageModel, ids: list[int]) -> np.ndarray:
    """Layer 0's coefficients at the last position."""
    found: list[torch.Tensor] = []
    with torch.inference_mode(), read_blocks(model, lambda _, block: found.append(block.coefficients), layers=[0]):
        model.backbone(torch.tensor([ids]))
    return found[0][0, -1].numpy()


@pytest.mark.parametrize(("sign", "at", "controls"), [(1, "last", 3), (-1, "last", 3), (1, "all", 18)])
def test_every_mean_is_that_of_a_plain_loop(
    gelu: tuple[LanguageModel, Atlas], sign: int, at: str, controls: int
) -> None:
    model, atlas = gelu
    # Sixteen runs are made together, so eighteen controls take two forwards.
    found = causal_check(model, atlas, "L0.M5", sign=sign, controls=controls, triggers=4, tokens=2, at=at, seed=7)
    value = sign * model.values(0)[5]
    scores = model.scores(value[None], projection="gain", layer=0)[0]
    own = scores.topk(2).indices.tolist()
    assert [token.id for token in found.own] == own
    groups = atlas["L0.M5"].triggers(sign).filter(pl.col("rank") == pl.col("prefix_group")).head(4).to_dicts()
    assert found.triggers == len(groups) > 1
    changes: dict[str, list[list[float]]] = {"memory": [], "controls": []}
    generator, every, single = np.random.default_rng((7, 0, 5)), set(), []
    norms = model.values(0).norm(dim=1).numpy()
    for group in groups:
        words = atlas.sentences([group["sentence"]])["tokens"][0].to_list()[: group["position"] + 1]
        same = atlas["L0.M5"].triggers(sign).filter(prefix_group=group["rank"])
        following = same["next_token"].drop_nulls().to_list()

        def asked(words: list[int] = words, following: list[int] = following) -> list[float]:
            log_p = model.logits(torch.tensor([[0, *words]]))[0, -1].double().log_softmax(0)
            ours = [float(log_p[token]) for token in own]
            then = float(log_p[following[0]]) if following else float("nan")
            summed, mean, first = np.exp(ours).sum(), np.mean(ours), np.exp(ours[0])
            return [float(summed), float(mean), float(first), ours[0], np.exp(then), then]

        before = np.array(asked())

        def zeroed(name: str, before: np.ndarray = before) -> np.ndarray:
            with intervene(model, {name: 0.0}, at=at):  # type: ignore[arg-type]
                return np.array(asked()) - before

        changes["memory"].append(zeroed("L0.M5").tolist())
        sizes = np.abs(coefficients_at(model, [0, *words])) * norms
        drawn = [draw_control(sizes, 5, barred=(), generator=generator) for _ in range(controls)]
        away = [zeroed(f"L0.M{control}") for control in drawn]
        changes["controls"].append(np.mean(away, axis=0).tolist())
        single += [change * sizes[5] / sizes[control] for change, control in zip(away, drawn, strict=True)]
        every |= set(drawn)
    table = {(row["measure"], row["of"]): row for row in found.table.to_dicts()}
    measures = list(dict.fromkeys(row["measure"] for row in found.table.to_dicts()))
    changes["difference"] = (np.array(changes["memory"]) - np.array(changes["controls"])).tolist()
    for name, rows in changes.items():
        for measure, values in zip(measures, np.array(rows).T, strict=True):
            known = values[np.isfinite(values)]
            row = table[measure, name]
            assert row["count"] == len(known)
            if len(known):
                assert row["mean"] == pytest.approx(known.mean(), rel=1e-3, abs=1e-6)
            if len(known) > 1 and name != "difference":
                assert known.min() - 1e-6 <= row["low"] <= row["mean"] <= row["high"] <= known.max() + 1e-6
            elif len(known) > 1:
                size = np.sqrt(np.nanmean(np.square(single), axis=0))[measures.index(measure)]
                assert row["mean"] - row["low"] >= 1.96 * size - 1e-6 <= row["high"] - row["mean"]
    assert found.controls == tuple(MemoryId(0, number) for number in sorted(every))


def test_a_check_in_a_terminal() -> None:
    """A mean with its interval, a mean of one trigger, and none."""
    rows = [
        {"measure": measure, "of": of, "mean": mean, "low": low, "high": high, "count": count}
        for measure, count in zip(MEASURES, (3, 3, 3, 3, 1, 0), strict=True)
        for of, mean, low, high in (
            ("memory", -0.25, -0.5, -0.125),
            ("controls", 0.0, None, None),
            ("difference", None if count == 0 else 1.5, None, None),
        )
    ]
    own = (Token(3, " mat"), Token(4, "x" * 120))
    controls = (MemoryId(1, 0), MemoryId(1, 2))
    found = CausalCheck(MemoryId(1, 4), -1, "last", 7, 3, controls, 5, own, pl.DataFrame(rows))
    lines = str(found).splitlines()
    assert lines[0].startswith(
        "L1.M4 set to zero on its lowest triggers (3 prefixes), beside others of layer 1 as strong"
    )
    assert lines[0].endswith("(2 drawn, 5 missing)")
    assert lines[1] == f"its own tokens: ·mat {'x' * 120}"
    assert lines[2:4] == ["prefixes with a known next token: 0", ""]
    assert lines[4] == "mean change of       memory                        controls  difference"
    assert lines[5] == "p of own tokens      -0.2500 (-0.5000 to -0.1250)  +0.0000   +1.5000"
    assert lines[10] == "log p of next token  -0.2500 (-0.5000 to -0.1250)  +0.0000   -"
    said = found.to_dict()
    expected = {"memory": "L1.M4", "sign": -1, "triggers": 3, "controls": ["L1.M0", "L1.M2"], "controls_missing": 5}
    assert ({name: said[name] for name in expected}, said["own_tokens"][0]) == (expected, {"id": 3, "text": " mat"})
    assert said["rows"] == rows


def test_a_mean_and_its_interval() -> None:
    """Of a hundred zeros and ones the mean's standard error is 0.05."""

    def mean(*values: float) -> dict[str, float | int | None]:
        """Of what a memory's triggers change, each measure by as much."""
        changes = np.array(values).reshape(-1, 1, 1).repeat(len(MEASURES), axis=2)
        table = summarise_changes(changes, np.ones((len(values), 0)), seed=3)
        (row,) = table.filter(measure=MEASURES[0], of="memory").drop("measure", "of").to_dicts()
        return row

    found = mean(*[0.0, 1.0] * 50)
    assert (found["mean"], found["count"], found["low"]) == (0.5, 100, pytest.approx(0.5 - 1.96 * 0.05, abs=0.015))
    assert found["high"] == pytest.approx(0.5 + 1.96 * 0.05, abs=0.015)
    assert mean(3.0) == {"mean": 3.0, "low": None, "high": None, "count": 1}
    assert mean() == {"mean": None, "low": None, "high": None, "count": 0}


def test_a_difference_is_as_unsure_as_one_control_of_the_memory_s_strength_is_far_from_none() -> None:
    """Two triggers, one control each, which changes 0.1 and -0.1; the memory is twice as strong as they are."""
    changes = np.full((2, 2, len(MEASURES)), -0.5)
    changes[:, 1] = np.array([0.1, -0.1])[:, None]
    table = summarise_changes(changes, np.full((2, 1), 2.0), seed=0)
    rows = {row["of"]: row for row in table.filter(measure=MEASURES[0]).to_dicts()}
    assert (rows["memory"]["low"], rows["memory"]["high"]) == (-0.5, -0.5)
    assert rows["difference"]["mean"] == pytest.approx(-0.5)
    end = np.hypot(0.1, 1.959964 * 0.2)
    assert (rows["difference"]["low"], rows["difference"]["high"]) == pytest.approx((-0.5 - end, -0.5 + end))


def test_controls_are_seeded_and_never_the_memory_itself(gelu: tuple[LanguageModel, Atlas]) -> None:
    model, atlas = gelu
    first, again, other = (causal_check(model, atlas, "L1.M5", seed=seed, triggers=2) for seed in (1, 1, 2))
    assert first.controls == again.controls
    assert first.table.equals(again.table)
    assert not first.table.equals(other.table)
    assert 1 < len(set(first.controls)) <= 20
    assert re.search(r"log p of own tokens  [+-][\d.]+ \([+-][\d.]+ to [+-][\d.]+\)  [+-]", str(first))
    assert max(map(len, str(first).splitlines())) <= 118
    assert first.memory not in first.controls


@pytest.mark.parametrize("smaller", [{"n_positions": 4}, {"vocab_size": 60}], ids=str)
def test_triggers_that_another_model_cannot_read_are_refused(
    gelu: tuple[LanguageModel, Atlas], smaller: dict[str, int]
) -> None:
    """One whose context is shorter, or whose head has fewer rows, though it is asked in spite of being another."""
    other = load_model(build("gpt2", **smaller), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    with pytest.raises(ModelDiffers, match=r"^a trigger of L0\.M5 cannot be read by"):
        causal_check(other, gelu[1], "L0.M5", force=True)


def test_what_cannot_be_checked_is_one_line(
    known: tuple[LanguageModel, Atlas], gelu: tuple[LanguageModel, Atlas]
) -> None:
    model, atlas = known
    with pytest.raises(InterventionError, match=r"L0\.M5 has no trigger .* never above zero"):
        causal_check(model, atlas, "L0.M5")  # the dead memory
    with pytest.raises(InterventionError, match="never below zero"):
        causal_check(model, atlas, "L1.M4", sign=-1)
    with pytest.raises(MemoryIdError):
        causal_check(model, atlas, "L7.M0")
    none = dict.fromkeys(("sign", "controls", "triggers", "tokens"), 0)
    for name, value in [("sign", 2), ("at", "first"), ("seed", -1), *none.items()]:
        with pytest.raises(OptionError, match=f"{name}={value!r}.* is not possible"):
            causal_check(model, atlas, "L1.M4", **{name: value})  # type: ignore[arg-type]
    least = causal_check(model, atlas, "L1.M4", controls=1, triggers=1, tokens=1, seed=0)
    assert (len(least.controls), least.controls_missing, least.triggers, len(least.own)) == (0, 1, 1, 1)
    with pytest.raises(ModelDiffers, match="load handmade:planted"):
        causal_check(gelu[0], atlas, "L1.M4")
    causal_check(model, atlas, "L1.M4", force=True)
