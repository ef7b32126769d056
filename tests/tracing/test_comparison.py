"""Before and after, and generation, on the planted model by eye and against plain loops."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.cells import cell_len

from mining.conftest import byte_tokenizer
from mnemoscope.errors import InterventionError, OptionError, PromptError
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.tracing import compare, generate, intervene
from mnemoscope.tracing.comparison import compare_streams
from models.conftest import build


@pytest.fixture(scope="module")
def planted() -> LanguageModel:
    return load_model("handmade:planted")


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))


def test_silencing_a_planted_memory_by_eye(planted: LanguageModel) -> None:
    found = compare(planted, "the cat sat on the", {"L1.M4": 0.0}, tokens=3)
    assert [difference.changed for difference in found.differences] == [False] * 4 + [True]
    last = found.differences[-1]
    assert (last.before.text.strip(), last.after.text.strip()) == ("mat", "<s>")
    assert [difference.kl for difference in found.differences[:4]] == [0.0] * 4
    mat = next(shift for shift in last.shifts if shift.token.text.strip() == "mat")
    assert mat.before > 0.9
    assert mat.after == pytest.approx(1 / 24)
    moved = {"before": {"id": 6, "text": " mat"}, "after": {"id": 0, "text": "<s>"}}
    assert found.changed_places() == [
        {"layer": 1, "position": 4, "ffn": moved, "output": moved},
        {"layer": 2, "position": 4, "residual": moved, "output": moved},
    ]
    assert found.generated_before.text == " mat<s>"
    # The beginning token ends a text.
    assert [step.end for step in found.generated_after.steps] == [True]
    text = str(found)
    assert "after 1 of 5 positions and at 2 of 15 places" in text
    assert max(cell_len(line) for line in text.splitlines()) <= 118
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_divergence_is_that_of_the_models_own_logits(tiny: LanguageModel) -> None:
    prompt, changes = "the cat sat", ["L0.M3=5", "L1.M2*4@1"]
    ids = torch.tensor([[0, *tiny.encode([prompt])[0]]])
    before = tiny.logits(ids)[0, 1:].double().softmax(1)
    with intervene(tiny, changes):
        after = tiny.logits(ids)[0, 1:].double().softmax(1)
    found = compare(tiny, prompt, changes, top=4)
    for j, difference in enumerate(found.differences):
        kl = sum(float(p) * float((p / q).log()) for p, q in zip(before[j], after[j], strict=True))
        assert difference.kl == pytest.approx(kl, rel=1e-4, abs=1e-9)
        best = set(before[j].topk(4).indices.tolist()) | set(after[j].topk(4).indices.tolist())
        assert {shift.token.id for shift in difference.shifts} == best
        for shift in difference.shifts:
            assert shift.before == pytest.approx(float(before[j, shift.token.id]), rel=1e-4)
            assert shift.after == pytest.approx(float(after[j, shift.token.id]), rel=1e-4)


def test_a_divergence_is_never_below_zero() -> None:
    """Of scores that hardly differ it is less than rounding leaves, which may be below zero."""
    model: Any = SimpleNamespace(sizes=SimpleNamespace(vocabulary=30), scores=lambda rows, *, projection: rows)
    before = torch.randn(100, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    after = before + 1e-9 * torch.randn(100, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert all(0 <= kl < 1e-15 for kl, _ in compare_streams(model, before, after, 3))
    before[:, 7] = -torch.inf  # a token that is never given, before or after
    assert all(0 <= kl < 1e-15 for kl, _ in compare_streams(model, before, before.clone(), 3))


def test_nothing_to_compare_is_refused(tiny: LanguageModel) -> None:
    with pytest.raises(InterventionError, match="there is no change to compare"):
        compare(tiny, "the", [])
    with pytest.raises(InterventionError, match="outside the model"):
        compare(tiny, "the", ["L9.M0=0"])


@pytest.mark.parametrize("changes", [(), ("L0.M3=5@last",), ("L1.M4=3@4",)])
def test_generation_is_a_loop_over_the_whole_text(tiny: LanguageModel, changes: tuple[str, ...]) -> None:
    words = tiny.encode(["the cat"])[0]
    steps = generate(tiny, "the cat", tokens=6, interventions=changes)
    before = tiny.logits(torch.tensor([[0, *words]]))
    for step in steps:
        with intervene(tiny, changes):
            shares = tiny.logits(torch.tensor([[0, *words]]))[0, -1].double().softmax(0)
        words.append(int(shares.argmax()))
        assert step.token.id == words[-1] == step.likely[0].token.id
        assert (step.position, step.probability) == (len(words) - 1, pytest.approx(float(shares.max()), rel=1e-4))
        # Between the steps nothing is changed.
        assert tiny.logits(torch.tensor([[0, *tiny.encode(["the cat"])[0]]])).equal(before)


def test_so_many_likely_tokens_are_told_and_no_change_is_no_difference(tiny: LanguageModel) -> None:
    assert [len(step.likely) for step in generate(tiny, "the", tokens=2)] == [5, 5]
    assert [len(step.likely) for step in generate(tiny, "the", tokens=2, likely=1)] == [1, 1]
    same = compare(tiny, "the cat", ["L0.M3*1"], top=2)
    assert (same.generated_before, same.generated_after, same.changed_places()) == (None, None, [])
    for difference in same.differences:
        assert (difference.kl, difference.changed) == (0.0, False)
        assert all((shift.change, shift.before) == (0.0, shift.after) for shift in difference.shifts)
        assert len(difference.shifts) == 2
    assert len(same.before.positions[0].prediction) == 2
    assert len(compare(tiny, "the", ["L0.M3=9"], memories=1).after.places[0][0].memories) == 1


def test_what_is_drawn_has_the_probability_that_the_model_gives(tiny: LanguageModel) -> None:
    """At temperature 1, whatever is drawn; close to 0 the best token is."""
    words = tiny.encode(["the"])[0]
    for step in generate(tiny, "the", tokens=6, temperature=2.0, seed=3):
        shares = tiny.logits(torch.tensor([[0, *words]]))[0, -1].double().softmax(0)
        words.append(step.token.id)
        assert step.probability == pytest.approx(float(shares[step.token.id]), rel=1e-4)
        assert step.likely[0].probability == pytest.approx(float(shares.max()), rel=1e-4)
    cold = [step.token.id for step in generate(tiny, "the", tokens=6, temperature=1e-6, seed=3)]
    assert cold == [step.token.id for step in generate(tiny, "the", tokens=6)]


def test_drawing_is_seeded(tiny: LanguageModel) -> None:
    def drawn(seed: int) -> list[int]:
        return [step.token.id for step in generate(tiny, "the", tokens=12, temperature=1.5, seed=seed)]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(4)}) > 1


def test_generation_ends_where_the_context_does(planted: LanguageModel) -> None:
    prompt = "cat sat on the mat and " * 5 + "a"  # 31 tokens: full
    assert list(generate(planted, prompt, tokens=3)) == []
    steps = list(generate(planted, "sat on the mat and " * 6, tokens=9, interventions=["L0.M0=0", "L2.M0=9"]))
    assert len(steps) == 1
    assert steps[0].end
    assert list(generate(planted, "cat", tokens=0)) == []


@pytest.mark.parametrize("where", ["tokenizer", "configuration", "generation configuration"])
def test_a_continuation_ends_with_an_end_of_text_token_that_is_not_the_beginning(where: str) -> None:
    plain = load_model(build("llama"), tokenizer=byte_tokenizer(bos_token="<|endoftext|>"))
    free = [step.token.id for step in generate(plain, "the cat", tokens=6)]
    assert len(free) == 6
    at = next(place for place in range(1, 6) if free[place] not in free[:place])
    llama, piece = build("llama"), byte_tokenizer().convert_ids_to_tokens(free[at])
    special = {"eos_token": piece} if where == "tokenizer" else {"additional_special_tokens": [piece]}
    if where == "configuration":
        llama.config.eos_token_id = free[at]
    elif where == "generation configuration":
        llama.generation_config.eos_token_id = [0, free[at]]
    model = load_model(llama, tokenizer=byte_tokenizer(bos_token="<|endoftext|>", **special))
    assert (model.beginning.token, model.ends) == (0, {0, free[at]})
    steps = list(generate(model, "the cat", tokens=6))
    assert [step.token.id for step in steps] == free[: at + 1]
    assert [step.end for step in steps] == [False] * at + [True]


def test_what_cannot_be_generated_is_refused_at_once(planted: LanguageModel) -> None:
    for numbers in ({"tokens": -1}, {"tokens": 1, "temperature": -0.5}, {"tokens": 1, "likely": 0}):
        with pytest.raises(OptionError):
            generate(planted, "cat", **numbers)  # type: ignore[arg-type]
    with pytest.raises(PromptError):
        generate(planted, "", tokens=1)
    with pytest.raises(InterventionError):
        generate(planted, "cat", tokens=1, interventions=["L9.M0=0"])
