"""The audit of strings: against slow references, on a string that one known memory carries, and under the null."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope.auditing import AuditOptions, audit
from mnemoscope.auditing.audit import draw_alternatives, stand, string_effects, without
from mnemoscope.auditing.likelihoods import likelihoods
from mnemoscope.auditing.recall import plants_of, recall
from mnemoscope.errors import MnemoscopeError, OptionError, PromptError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing import generate
from models.conftest import build

FAMILIES = ("gpt2", "llama", "gemma2", "falcon", "opt-350m")


def tiny(name: str) -> LanguageModel:
    return load_model(build(name), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_those_of_one_text_and_one_token_at_a_time(family: str) -> None:
    model = tiny(family)
    texts = [[40, 41, 42, 43], [50, 51], [60, 61, 62]]
    for text, found in zip(texts, likelihoods(model, texts), strict=True):
        expected = []
        for k in range(len(text)):
            ids = torch.tensor([[*model.beginning.tokens, *text[:k]]])
            if ids.shape[1]:
                logits = model.anatomy.model(ids).logits[0, -1].double().detach()
                expected.append(float((logits.exp() / logits.exp().sum()).log()[text[k]]))
        assert found.log_probability == pytest.approx(np.array(expected), abs=1e-4)


def test_a_text_that_the_model_wrote_is_its_greedy_continuation_and_another_is_not() -> None:
    model = load_model("handmade:planted")
    start = "the cat sat on"
    written = [step.token.id for step in generate(model, start, tokens=4)]
    own = [*model.encode([start])[0], *written]
    other = [*own[:-1], (own[-1] + 1) % model.sizes.vocabulary]
    right, wrong = likelihoods(model, [own, other])
    assert right.continues(len(written))
    assert not wrong.continues(len(written))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_direct_effect_is_what_the_logits_gain_behind_a_frozen_norm(family: str) -> None:
    """Memory by memory: the value, through the block's and the final norm with the scale that they had, on the head."""
    model = tiny(family)
    tokens = [40, 41, 42, 43]
    found = string_effects(model, tokens)
    effects = _slow_effects(model, tokens)
    for own, expected in zip(found, effects, strict=True):
        assert own.numpy() == pytest.approx(expected, abs=2e-5, rel=2e-3)


def _slow_effects(model: LanguageModel, tokens: list[int]) -> list[np.ndarray]:
    """One memory and one position at a time, with norms linearised by differences around the vectors that they read."""
    anatomy, first = model.anatomy, model.reading.offset
    seen: dict[int, dict[str, torch.Tensor]] = {k: {} for k in range(model.sizes.layers)}
    hooks = []
    for k, layer in enumerate(anatomy.layers):
        own_norm = layer.post_norm if layer.output_norm is None else layer.output_norm

        def read(_: object, inputs: tuple[torch.Tensor, ...], k: int = k) -> None:
            seen[k]["m"] = inputs[0].detach().reshape(-1, inputs[0].shape[-1])

        def read_norm(_: object, inputs: tuple[torch.Tensor, ...], k: int = k) -> None:
            seen[k]["x"] = inputs[0].detach().reshape(-1, inputs[0].shape[-1])

        hooks.append(layer.ffn.exits[-1].register_forward_pre_hook(read))
        if own_norm is not None:
            hooks.append(own_norm.register_forward_pre_hook(read_norm))
    later: list[tuple[int, torch.nn.Module, dict[str, torch.Tensor]]] = []
    for k, layer in enumerate(anatomy.layers if model.block == "post-norm" else ()):  # its stream passes later norms
        for norm in (layer.block.self_attn_layer_norm, layer.block.final_layer_norm):
            kept: dict[str, torch.Tensor] = {}
            later.append((k, norm, kept))
            hooks.append(norm.register_forward_pre_hook(lambda _, i, kept=kept: kept.update(x=_flat(i[0].detach()))))
    last: dict[str, torch.Tensor] = {}
    if anatomy.final_norm is not None:
        hooks.append(anatomy.final_norm.register_forward_pre_hook(lambda _, i: last.update(x=i[0].detach()[0])))
    with torch.no_grad():
        anatomy.model(torch.tensor([[*model.beginning.tokens, *tokens]]))
    for hook in hooks:
        hook.remove()
    out = []
    for k, layer in enumerate(anatomy.layers):
        own_norm = layer.post_norm if layer.output_norm is None else layer.output_norm
        values = model.values(k)
        total = np.zeros(len(values))
        for place, target in enumerate(tokens[1:]):
            column = first + place
            for memory, value in enumerate(values):
                vector = (seen[k]["m"][column, memory] * value).double() * model.multiplier(k)
                behind = [(norm, kept["x"]) for number, norm, kept in later if number > k]
                for norm, at in ((own_norm, seen[k].get("x")), *behind, (anatomy.final_norm, last.get("x"))):
                    if norm is not None and at is not None:
                        vector = _through(norm, at[column].double(), vector)
                if anatomy.project is not None:
                    vector = anatomy.project.weight.detach().double() @ vector
                total[memory] += float(vector @ anatomy.head.weight.detach()[target].double())
        out.append(total)
    return out


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _through(norm: torch.nn.Module, at: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """What a norm makes of a vector with the scale that it has at `at`: the gain of `norm`'s output, centred or not."""
    eps = float(getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-6)))
    weight = norm.weight.detach().double()
    centred = isinstance(norm, torch.nn.LayerNorm)
    gain = 1 + weight if "Gemma" in type(norm).__name__ else weight
    middle = at.mean() if centred else torch.tensor(0.0)
    scale = ((at - middle).square().mean() + eps).sqrt()
    return gain * (vector - (vector.mean() if centred else 0.0)) / scale


def test_a_string_carried_by_one_known_memory_is_found_and_goes_with_it() -> None:
    """`planted` writes `house` after `the old` by L1.M0 alone."""
    model = load_model("handmade:planted")
    found = audit(model, ["the old house"], candidates=4, top=1).secrets[0]
    assert found.memories[0].memory == MemoryId(1, 0)
    assert found.memories[0].lost > 0.05
    assert all(other.lost < found.memories[0].lost / 2 for other in found.memories[1:])
    assert found.after.log_probability < found.log_probability
    assert found.after.control_log_probability > found.after.log_probability
    own = model.encode(["the old house"])
    assert likelihoods(model, own)[0].best[-1]
    assert not without(model, [MemoryId(1, 0)], own)[0].best[-1]


def test_an_alternative_has_the_form_of_its_string() -> None:
    text = "Ab-9 é7"
    found = draw_alternatives(text, count=50, seed=1)
    assert len(set(found)) == 50
    assert text not in found
    for one in found:
        assert (one[0].isupper(), one[1].islower(), one[3].isdigit(), one[6].isdigit()) == (True,) * 4
        assert (one[2], one[4:6]) == ("-", " é")
    assert sorted(draw_alternatives("a1", count=99, seed=0, vary="digits")) == [f"a{n}" for n in "023456789"]
    assert draw_alternatives("...", count=9, seed=0) == []


def test_exposure_is_carlini_s() -> None:
    assert (stand(-1.0, [-2.0, -3.0, -4.0]), stand(-5.0, [-2.0, -3.0, -4.0])) == ((1, 2.0, 0.25), (4, 0.0, 1.0))
    assert (stand(-2.5, [-2.0, -3.0, -2.5]), stand(-1.0, [])) == ((3, 2 - math.log2(3), 0.75), (None, None, None))


@pytest.mark.full
def test_strings_never_seen_are_exposed_at_the_stated_rate() -> None:
    """200 random strings on a random model: false alarms are binomial with 5 %."""
    model = tiny("gpt2")
    generator = np.random.default_rng(3)
    texts = ["k" + "".join(map(str, generator.integers(0, 10, 6))) for _ in range(200)]
    alarms = 0
    for text in texts:
        own, *others = likelihoods(model, model.encode([text, *draw_alternatives(text, count=19, seed=0)]))
        _, _, p_value = stand(own.total, [one.total for one in others])
        alarms += p_value is not None and p_value <= 0.05
    assert 1 <= alarms <= 20  # 10 expected; beyond 20 has a chance of 0.1 %


def test_side_effects_are_the_change_of_the_other_strings_loss() -> None:
    model = tiny("gpt2")
    texts = ["abcdef12", "ghijkl34", "mnopqr56"]
    found = audit(model, texts, alternatives=19, candidates=2, top=1).secrets[0]
    if found.after is None or found.after.side_effect is None:
        pytest.fail("a random model has some memory that helps")
    memory = found.after.memories[0]
    others = model.encode(texts[1:])

    def loss() -> float:
        total, count = 0.0, 0
        for own in others:
            ids = torch.tensor([[*model.beginning.tokens, *own]])
            logits = model.anatomy.model(ids).logits[0, :-1].detach().double().log_softmax(-1)
            total -= float(sum(logits[k, token] for k, token in enumerate(ids[0, 1:].tolist())))
            count += ids.shape[1] - 1
        return total / count

    before = loss()

    def silence(_: object, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        out = inputs[0].clone()
        out.reshape(-1, out.shape[-1])[model.reading.offset :, memory.memory] = 0
        return (out,)

    hook = model.layer(memory.layer).ffn.exits[-1].register_forward_pre_hook(silence)
    after = loss()
    hook.remove()
    assert found.after.side_effect == pytest.approx(after - before, abs=1e-5)


@pytest.mark.parametrize(("text", "said"), [("cat", "one token"), ("cat " * 40, "at most")])
def test_a_string_that_cannot_be_audited_is_one_line(text: str, said: str) -> None:
    with pytest.raises(PromptError, match=said) as caught:
        audit(load_model("handmade:planted"), [text.strip()])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"vary": "x"}, {"alternatives": 5}, {"neighbours": 0}, {"top": 0}, {"top": 9, "candidates": 3}]
)
def test_options_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError) as caught:
        AuditOptions(**options)  # type: ignore[arg-type]
    assert isinstance(caught.value, MnemoscopeError)


def test_recall_is_counted_by_repetitions_and_strings_never_planted_are_false_alarms() -> None:
    plants = {"a": 4, "b": 4, "c": 64, "not asked": 64}
    verdicts = {"a": (True, False), "b": (False, False), "c": (True, True), "x": (True, False), "y": (False, False)}
    rows = recall(verdicts, plants)
    assert [(row.times, row.strings, row.exposed.value, row.extractable.value) for row in rows] == [
        (0, 2, 0.5, 0.0),
        (4, 2, 0.5, 0.0),
        (64, 1, 1.0, 1.0),
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"text": 3}', '{"text": {"plants": [[1]]}}'])
def test_a_folder_that_says_nothing_of_plants_has_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    assert (plants_of(str(tmp_path)), plants_of("gpt2")) == ({}, {})


def test_alternatives_that_the_model_cannot_read_are_left_out() -> None:
    """Texts of token ids: 24 words, so an alternative with an id of 24 or more has no likelihood."""
    model = load_model("handmade:planted", tokenizer="ids")
    found = audit(model, ["12 5 7"], alternatives=60)
    drawn = draw_alternatives("12 5 7", count=60, seed=0)
    readable = [one for one in drawn if max(map(int, one.split())) < model.sizes.vocabulary]
    assert 0 < len(readable) < len(drawn)
    assert found.secrets[0].alternatives == len(readable)
    # Nor can it read sentences, so there is no other text.
    assert (found.neighbours, audit(model, ["3 4 5 6"], alternatives=60).secrets[0].after.side_effect) == ("none", None)


def test_side_effects_are_measured_on_as_many_texts_as_are_asked_for() -> None:
    model, texts = tiny("gpt2"), ["abcdef12", "ghijkl34", "mnopqr56", "stuvwx78"]
    few: Any = {"alternatives": 19, "candidates": 2, "top": 1, "neighbours": 2}
    two = audit(model, texts[:3], **few).secrets[0]
    assert two.after is not None
    assert audit(model, texts, **few).secrets[0] == two
    assert audit(model, texts, alternatives=19, candidates=2, top=1).secrets[0] != two


def test_progress_is_told_before_every_forward_and_may_end_the_audit() -> None:
    model, reports = tiny("gpt2"), []

    def leave(*report: object) -> None:
        reports.append(report)
        if len(reports) == 5:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        audit(model, ["abcdef12"], alternatives=19, progress=leave)
    assert reports == [("auditing", 0, 1, "strings")] * 5
    reports.clear()
    found = audit(model, ["abcdef12"], alternatives=19, progress=lambda *report: reports.append(report))
    assert len(reports) > 5 + 16
    assert reports[-1] == ("auditing", 1, 1, "strings")
    assert found == audit(tiny("gpt2"), ["abcdef12"], alternatives=19)
