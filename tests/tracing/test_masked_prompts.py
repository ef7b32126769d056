"""Prompts of models that read sentences whole: every number beside a slow reading, one sentence at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mnemoscope as ms
from mnemoscope.cli import main
from mnemoscope.errors import ModelUnsupported, OptionError, PromptError
from mnemoscope.foundation.options.chat_prompt import MaskedPrompt
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing import causal_check, compare, generate
from mnemoscope.tracing.layer_sum import layer_sum
from models.masked_models import KINDS, MASK, SlowMasked, build_masked, load_masked, masked_pair, masked_tokenizer
from support.mined import mined_text

TEXT = "w9 w8 w12 w17 w30"
IDS = [9, 8, 12, 17, 30]
AT = 2
ASKED = [9, 8, MASK, 17, 30]
STREAMS = {"residual": "residual", "ffn": "update", "output": "output"}


@pytest.fixture(scope="module")
def bert() -> tuple[LanguageModel, SlowMasked]:
    return masked_pair("bert")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("models") / "bert"
    build_masked("bert").save_pretrained(place)
    masked_tokenizer().save_pretrained(place)
    return str(place)


def check(found: Any, slow: SlowMasked, tokens: list[int], changes: Any = None) -> None:
    """Positions, streams, coefficients and the sums behind the predictions are the slow model's."""
    with torch.no_grad():
        blocks, logits = slow.read(tokens, changes or {})
    assert [one["token"]["id"] for one in found["positions"]] == tokens
    shares = logits.softmax(1)
    for j, position in enumerate(found["positions"]):
        for guess in position["prediction"]:
            assert guess["probability"] == pytest.approx(float(shares[j + 1, guess["id"]]), abs=2e-5)
        written = found["logits"][j]
        parts = [written["embedding"], written["bias"], written["rest"]]
        parts += [layer[name] or 0.0 for layer in written["layers"] for name in ("attention", "ffn")]
        assert written["logit"] == pytest.approx(float(logits[j + 1, position["prediction"][0]["id"]]), abs=1e-4)
        assert sum(parts) == pytest.approx(written["logit"], abs=1e-4)
        attended = [one["position"] for layer in written["layers"] for one in layer["attended"]]
        assert {*attended} - {None} <= {*range(len(tokens))}  # neither end of the frame has a position
    for layer, block in enumerate(blocks):
        said = {name: slow.lens(getattr(block, of)).softmax(1) for name, of in STREAMS.items()}
        norms = slow.values(layer).norm(dim=1)
        for j, state in enumerate(found["layers"][layer]["positions"]):
            for name, rows in said.items():
                assert state[name][0]["probability"] == pytest.approx(float(rows[j + 1].max()), abs=2e-5), name
            m = block.coefficients[j + 1]
            best = (m.abs() * norms).argsort(descending=True)[:4].tolist()
            assert [int(one["memory"].partition(".M")[2]) for one in state["memories"]] == best
            assert [one["coefficient"] for one in state["memories"]] == pytest.approx(m[best].tolist(), abs=1e-4)


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_the_slow_models(kind: str) -> None:
    model, slow = masked_pair(kind)
    found = ms.trace(model, TEXT, mask=AT, top=3, memories=4)
    check(found.to_dict(), slow, ASKED)
    written = ms.trace(model, "w9 w8 <mask> w17 w30", top=3, memories=4)
    assert (written.positions, written.places, written.mask) == (found.positions, found.places, AT)
    assert ms.trace(model, TEXT, mask=-3, top=3, memories=4).positions == found.positions
    assert str(found).count("Layer by layer at position 2, <mask>") == 1
    assert "predicted there" in str(found)


def changing(layer: int, *changes: tuple[int, str, float, slice]) -> dict[int, Any]:
    def change(coefficients: Tensor) -> None:
        for memory, how, value, columns in changes:
            coefficients[columns, memory] = value if how == "=" else coefficients[columns, memory] * value

    return {layer: change}


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_changes_are_made_at_the_mask_from_a_position_or_at_own_positions(kind: str) -> None:
    model, slow = masked_pair(kind)
    made = ["L0.M3=2.5@last", "L1.M5*-3@3", "L2.M7=-4"]
    changes = changing(0, (3, "=", 2.5, slice(AT + 1, AT + 2)))
    changes |= changing(1, (5, "*", -3.0, slice(4, 6))) | changing(2, (7, "=", -4.0, slice(1, 6)))
    found = ms.trace(model, TEXT, mask=AT, top=3, memories=4, interventions=made)
    check(found.to_dict(), slow, ASKED, changes)
    both = compare(model, model.prompt_text(TEXT, mask=AT), made, top=3, memories=4)
    assert (both.after.positions, both.before.mask) == (found.positions, AT)
    with torch.no_grad():
        rows = [slow.read(ASKED, one)[1].log_softmax(1)[AT + 1] for one in ({}, changes)]
    assert both.differences[AT].kl == pytest.approx(float((rows[0].exp() * (rows[0] - rows[1])).sum()), abs=1e-5)
    assert "Probabilities at position 2" in str(both)
    with ms.intervene(model, made):
        assert ms.trace(model, TEXT, mask=AT, top=3, memories=4).positions == found.positions


def test_in_a_batch_every_text_is_changed_at_its_own_mask(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, slow = bert
    texts = ["w9 <mask> w12", "w9 w8 <mask>", "<mask> w20 w21"]
    with ms.intervene(model, ["L0.M3=2.5@last"]):
        found = model.coefficients(texts, layers=[0, 1], as_arrays=True)
    for number, text in enumerate(texts):
        tokens = model.prompt_tokens(text)
        at = tokens.index(MASK) + 1
        with torch.no_grad():
            blocks, _ = slow.read(tokens, changing(0, (3, "=", 2.5, slice(at, at + 1))))
        for layer in (0, 1):
            np.testing.assert_allclose(found[layer][number], blocks[layer].coefficients[1:-1], atol=1e-5)


def test_coefficients_and_streams_are_of_own_positions(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, slow = bert
    with torch.no_grad():
        blocks, _ = slow.read(IDS)
        masked, _ = slow.read(ASKED)
    found = model.coefficients(TEXT, layers=[1], as_arrays=True)[1]  # a sentence is read as it stands
    np.testing.assert_allclose(found[0], blocks[1].coefficients[1:-1], atol=1e-5)
    whole = model.capture([TEXT, "w9"], ["residual", "layer_output"], layers=[2])
    np.testing.assert_allclose(whole["residual", 2][0], blocks[2].residual[1:-1], atol=1e-5)
    assert np.isnan(whole["layer_output", 2][1, 1:]).all()
    asked = model.prompt_text(TEXT, mask=AT)
    at_mask = model.coefficients(asked, layers=[1], at="last", as_arrays=True)[1]
    np.testing.assert_allclose(at_mask[0], masked[1].coefficients[AT + 1], atol=1e-5)
    assert model.coefficients(asked, layers=[1], at=1)["position"].to_list() == [1] * 24
    with pytest.raises(PromptError, match=r"texts\[1\] cannot be read: the prompt holds 0 masks"):
        model.coefficients([asked, TEXT], at="last")


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_every_token_is_masked_in_turn(kind: str) -> None:
    model, slow = masked_pair(kind)
    found, texts = ms.mask_each(model, TEXT), model.vocabulary()[0]
    with torch.no_grad():
        rows = [slow.read([*IDS[:j], MASK, *IDS[j + 1 :]])[1][j + 1] for j in range(len(IDS))]
    for j, (one, scores) in enumerate(zip(found.to_dicts(), rows, strict=True)):
        assert (one["position"], one["token"]) == (j, texts[IDS[j]])
        assert one["rank"] == int((scores > scores[IDS[j]]).sum())
        assert (one["predicted"], one["right"]) == (texts[int(scores.argmax())], one["rank"] == 0)
        assert one["probability"] == pytest.approx(float(scores.softmax(0)[IDS[j]]), abs=1e-5)
        assert one["share"] == pytest.approx(float(scores.softmax(0).max()), abs=1e-5)
    with ms.intervene(model, ["L2.M7=3@last"]):
        changed = ms.mask_each(model, TEXT)
    with torch.no_grad():
        _, scores = slow.read([*IDS[:4], MASK], changing(2, (7, "=", 3.0, slice(5, 6))))
    assert changed["probability"][4] == pytest.approx(float(scores[5].softmax(0)[IDS[4]]), abs=1e-5)


def test_a_word_that_the_model_knows_is_right() -> None:
    """A head whose bias is for w12 alone."""
    network = build_masked("bert")
    network.cls.predictions.bias[12] = 100.0
    found = ms.mask_each(load_masked(network), TEXT)
    assert found["right"].to_list() == [False, False, True, False, False]


def test_a_layer_is_summed_at_the_mask(bert: tuple[LanguageModel, SlowMasked]) -> None:
    model, slow = bert
    found = layer_sum(model, model.prompt_text(TEXT, mask=AT), 1, memories=24)
    with torch.no_grad():
        blocks, _ = slow.read(ASKED)
    assert (found["position"], found["where"]) == (AT, "at")
    assert found["total"]["length"] == pytest.approx(float(blocks[1].update[AT + 1].norm()), abs=1e-4)


def test_a_token_is_masked_not_its_letters() -> None:
    """`w1 w1` is masked as tokens are: nothing of the text is read anew."""
    model = load_masked(build_masked("bert"))
    prompt = model.prompt_text(TEXT, mask=-1)
    assert isinstance(prompt, MaskedPrompt)
    assert model.prompt_tokens(prompt) == [*IDS[:-1], MASK]
    assert prompt not in (TEXT, model.prompt_text(TEXT, mask=0))
    assert TEXT != prompt == model.prompt_text(TEXT, mask=-1)
    found = ms.trace(model, prompt, top=1, memories=0)
    assert (found.prompt, found.mask, found.made_by["options"]["mask"]) == (TEXT, 4, -1)


def test_the_causal_check_masks_the_trigger(tmp_path: Path) -> None:
    network = build_masked("bert")
    model, slow = load_masked(network), SlowMasked(network)
    numbers = np.random.default_rng(5).integers(5, 60, (30, 6))
    text = "".join(" ".join(f"w{number}" for number in row) + "\n" for row in numbers.tolist())
    atlas = mined_text(model, tmp_path, text, prefixes=0, removals=0)
    for at in ("last", "all"):
        found = causal_check(model, atlas, "L1.M4", triggers=3, tokens=2, controls=2, at=at)
        rows = atlas["L1.M4"].triggers().head(3).to_dicts()
        stored = dict(atlas.sentences([row["sentence"] for row in rows], columns=["sentence", "tokens"]).rows())
        own, changes = [token.id for token in found.own], []
        for row in rows:
            tokens, place = list(stored[row["sentence"]]), row["position"]
            target, tokens[place] = tokens[place], MASK
            columns = slice(1, len(tokens) + 1) if at == "all" else slice(place + 1, place + 2)
            with torch.no_grad():
                before, after = (
                    slow.read(tokens, made)[1].log_softmax(1)[place + 1]
                    for made in ({}, changing(1, (4, "=", 0.0, columns)))
                )
            changes.append([float((after - before)[target]), float((after - before)[own].mean())])
        for column, measure in enumerate(("next_token_log_probability", "own_tokens_log_probability")):
            (row,) = found.table.filter(measure=measure, of="memory").to_dicts()
            assert row["mean"] == pytest.approx(np.mean(changes, 0)[column], abs=1e-5)
        assert found.triggers == row["count"] == 3


def test_the_command_shows_what_python_has(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model(folder)
    assert main(["trace", folder, TEXT, "--mask", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trace"]["positions"] == ms.trace(model, TEXT, mask=2).to_dict()["positions"]
    assert (found["generation"], found["trace"]["mask"]) == (None, 2)
    assert "print(ms.trace(model, prompt, mask=2))" in found["python"]
    assert main(["trace", folder, TEXT, "--mask", "2", "--set", "L1.M3=4@last"]) == 0
    assert "Before and after L1.M3=4@last" in capsys.readouterr().out
    assert main(["trace", folder, TEXT, "--mask", "each", "--json"]) == 0
    each = json.loads(capsys.readouterr().out)
    assert each["masked"] == ms.mask_each(model, TEXT).to_dicts()
    assert each["made_by"]["options"] == {"prompt": TEXT, "mask": "each"}
    assert main(["trace", folder, TEXT, "--mask", "each"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [[str(j), f"·w{token}"] for j, token in enumerate(IDS)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((TEXT,), "the prompt holds 0 masks"),
        (("w9 <mask> <mask>",), "the prompt holds 2 masks"),
        (("w9 <mask>", "--mask", "0"), "the prompt holds 2 masks"),
        (("w9 <mask>", "--mask", "each"), "the prompt holds a mask"),
        ((TEXT, "--mask", "99"), "position 99 is not in the prompt, which has positions 0 to 4"),
        ((TEXT, "--mask", "two"), "--mask 'two' is impossible"),
        ((TEXT, "--mask", "each", "--generate", "2"), "--mask each shows every token; leave out"),
        (("w9 <mask>", "--generate", "2"), "continues no text"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    words: tuple[str, ...], line: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", folder, *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert line in shown.err.splitlines()[-1]


def test_a_mask_in_a_model_that_has_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for mask in ("1", "each"):
        assert main(["trace", "handmade:planted", "the old", "--mask", mask]) == 2
        assert "handmade:planted has no mask token" in capsys.readouterr().err
    with pytest.raises(OptionError, match="has no mask token"):
        ms.trace(load_model("handmade:planted"), "the old", mask=1)


def test_nothing_is_continued(bert: tuple[LanguageModel, SlowMasked]) -> None:
    other = load_masked(build_masked("bert"))
    for ask in (
        lambda: generate(bert[0], "w9 <mask>", tokens=1),
        lambda: ms.audit(bert[0], ["w9 w8 w7 w6"]),
        lambda: ms.diff(bert[0], "w9 <mask>", other=other, generate=3),
    ):
        with pytest.raises(ModelUnsupported, match="continues no text"):
            ask()
