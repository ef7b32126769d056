"""Traces against a slow reference on every kind of block and head; by eye on the planted model; and what is refused."""

import json
import re
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

import mnemoscope as ms
from mining.conftest import PLAIN_TEXT, byte_tokenizer
from mining.slow_fairseq import SlowFairseq, Variant, write_checkpoint
from mining.slow_model import SlowTransformer
from mnemoscope.errors import InterventionError, OptionError, PromptError
from mnemoscope.foundation.budget import Budget
from mnemoscope.models import LanguageModel, load_model
from mnemoscope.models.readout.shared_readout import SharedReadout
from mnemoscope.tracing import Trace, adopt_votes, block_predictions, trace
from mnemoscope.tracing.block_predictions import STREAMS
from mnemoscope.tracing.scoring import scores
from models.conftest import build
from models.expert_models import build_mixture
from support.mined import mined_text
from tracing.slow_trace import Changed, check_trace

END = "<|endoftext|>"
PROMPT = "the cat <|endoftext|> sat"
FAMILIES = ("gpt2", "gpt2-relu", "gpt_neox", "gptj", "opt", "opt-350m", "gemma2", "olmo2", "llama", "bloom")


def tiny(name: str, **special: str) -> tuple[LanguageModel, SlowTransformer]:
    hf = build(name)
    model = load_model(hf, tokenizer=byte_tokenizer(**special or {"bos_token": END}))
    return model, SlowTransformer(hf, beginning=model.beginning.token)


@pytest.fixture(scope="module")
def planted() -> LanguageModel:
    return load_model("handmade:planted")


@pytest.mark.fast(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_number_is_the_slow_models(name: str) -> None:
    model, slow = tiny(name)
    tokens = model.encode([PROMPT])[0]
    found = trace(model, PROMPT, top=4, memories=5).to_dict()
    check_trace(found, slow, tokens, top=4, memories=5)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_without_a_beginning_token() -> None:
    model, slow = tiny("gpt2-relu", pad_token=END)
    assert model.beginning.token is None
    found = trace(model, PROMPT, top=3, memories=30)
    assert found.beginning is None
    check_trace(found.to_dict(), slow, model.encode([PROMPT])[0], top=3, memories=24)


@pytest.mark.parametrize("variant", [Variant(tied=True, final_norm=False), Variant(tied=False, final_norm=True)])
def test_the_two_level_head_of_the_paper(variant: Variant, tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path / "model.pt", variant)
    slow, model = SlowFairseq(weights, variant), load_model(f"fairseq:{tmp_path / 'model.pt'}")
    prompt = "the cat y on z"
    found = trace(model, prompt, top=4, memories=6).to_dict()
    check_trace(found, slow, model.encode([prompt])[0], top=4, memories=6)


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["gpt2", "gptj", "opt-350m", "gemma2", "llama"])
def test_with_changes_every_number_is_the_changed_slow_models(name: str) -> None:
    model, slow = tiny(name)
    tokens = model.encode([PROMPT])[0]
    last = len(tokens) - 1
    changed = Changed(slow, [(0, 3, "set", 2.5, 0), (0, 5, "scale", -3.0, 2), (1, 7, "set", -4.0, last)])
    found = trace(model, PROMPT, top=3, memories=4, interventions=["L0.M3=2.5", "L0.M5*-3@2", "L1.M7=-4@last"])
    check_trace(found.to_dict(), slow, tokens, top=3, memories=4)
    changed.close()
    assert [str(change) for change in found.interventions] == ["L0.M3=2.5", "L0.M5*-3@2", "L1.M7=-4@last"]
    check_trace(trace(model, PROMPT, top=3, memories=4).to_dict(), slow, tokens, top=3, memories=4)


def test_a_block_behind_the_last_layer_has_the_last_word() -> None:
    """Its state-space model adds to the stream, so the prediction is not what the last layer's output says."""
    model = load_model(build_mixture("nemotron_h"), tokenizer=byte_tokenizer(bos_token=END))
    found = trace(model, "the cat", top=3)
    shares = model.logits(torch.tensor([[0, *model.encode(["the cat"])[0]]]))[0, 1:].softmax(1)
    for at, own in zip(found.positions, shares, strict=True):
        best = own.topk(3)
        assert [one.token.id for one in at.prediction] == best.indices.tolist()
        assert [one.probability for one in at.prediction] == pytest.approx(best.values.tolist(), rel=1e-4)
    last = [state.output[0].token.id for state in found.places[-1]]
    right = [at.prediction[0].token.id == top for at, top in zip(found.positions, last, strict=True)]
    assert [at.output.decided is not None for at in found.positions] == right
    assert any(at.output.decided is None for at in found.positions)


def test_votes_that_are_kept_are_those_of_a_fresh_model() -> None:
    model, _ = tiny("gemma2")
    prompts = ("the cat", "a dog ran home", "the cat")
    kept = [trace(model, prompt).to_dict() for prompt in prompts]
    fresh = [trace(tiny("gemma2")[0], prompt).to_dict() for prompt in prompts]
    assert [one["layers"] for one in kept] == [one["layers"] for one in fresh]


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "opt-350m"])
def test_votes_of_an_atlas_are_those_that_tracing_projects(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them by both ways, and a trace that projects none; layers that were not mined are projected."""
    atlas = ms.open_atlas(mined_text(tiny(name)[0], tmp_path, "\n".join(PLAIN_TEXT), layers="1"))
    model, slow = tiny(name)
    assert adopt_votes(model, atlas)
    assert bool((scores.known_votes(model)[0] < 0).all())
    taken = scores.known_votes(model)[1].clone()
    every = torch.arange(2 * model.sizes.memories[1])
    assert taken.equal(scores.votes(tiny(name)[0], [torch.empty(0, dtype=torch.int64), every])[1])

    projected: list[int] = []
    folded_values = scores.folded_values

    def count(model: LanguageModel, layer: int, memories: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
        projected.extend([layer] * len(memories))
        return folded_values(model, layer, memories, signs)

    monkeypatch.setattr(scores, "folded_values", count)
    check_trace(trace(model, PROMPT, memories=5).to_dict(), slow, model.encode([PROMPT])[0], top=10, memories=5)
    assert set(projected) == {0}


def test_votes_of_another_model_or_number_format_are_not_taken(tmp_path: Path) -> None:
    atlas = ms.open_atlas(mined_text(tiny("gpt2")[0], tmp_path, "\n".join(PLAIN_TEXT)))
    other = load_model(build("gpt2"), tokenizer=byte_tokenizer(bos_token=END), dtype="bfloat16")
    assert other.fingerprint == atlas.manifest.model.fingerprint
    for model in (other, tiny("gpt2-relu")[0]):
        assert not adopt_votes(model, atlas)
        assert all(bool((known < 0).all()) for known in scores.known_votes(model))


def test_the_planted_model_by_eye(planted: LanguageModel) -> None:
    found = trace(planted, "the cat sat on the")
    assert [token.text.strip() for token in found.tokens] == ["the", "cat", "sat", "on", "the"]
    assert [at.prediction[0].token.text.strip() for at in found.positions] == ["<s>", "sat", "<s>", "the", "mat"]
    # `cat` fires L0.M0, `sat on` L0.M3 and `sat on the` L1.M4; nothing else fires, and nothing in layer 2.
    fired = {(place.position, str(one.memory)) for row in found.places for place in row for one in place.memories}
    assert fired == {(1, "L0.M0"), (3, "L0.M3"), (4, "L1.M4")}
    mat = found.places[1][4]
    assert (mat.event, mat.active, mat.major) == ("ffn", 1, 1)
    assert mat.memories[0].share == mat.top_share == mat.effective == 1.0
    assert mat.memories[0].vote.text.strip() == mat.ffn_vote.text.strip() == "mat"
    assert mat.memories[0].agrees
    assert (found.places[2][4].event, found.positions[4].output.decided) == ("residual", 1)
    assert found.positions[4].residual.decided == 2
    assert found.positions[1].output.to_dict() == {"first": 0, "decided": 0}


def test_it_prints_in_118_columns_and_escapes(planted: LanguageModel) -> None:
    text = str(trace(planted, "the cat sat on the"))
    assert "100.0% +L1.M4 → ·mat" in text
    assert "layer 1" in text
    model, _ = tiny("llama")
    prompt = "<script>alert(1)</script>\x1b[31m\u202e漢字漢字漢字漢字 cat\n"
    for one in (trace(planted, "a dog ran home " * 6), trace(model, prompt)):
        assert max(cell_len(line) for line in str(one).splitlines()) <= 118
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", str(one))
        html = one._repr_html_()
        assert "<script" not in html
        assert len(re.findall("<tr[ >]", html)) == 3 + 2 * len(one.places)


def test_another_position_may_be_drawn(planted: LanguageModel) -> None:
    found = trace(planted, "the cat sat")
    assert "after position 1, ·cat" in found.text(position=1) == found.text(position=-2)
    with pytest.raises(PromptError, match="position 3 is not in the prompt"):
        found.text(position=3)


def test_the_longest_prompt_and_impossible_numbers(planted: LanguageModel) -> None:
    assert len(trace(planted, "cat " * 31).positions) == 31
    for numbers in ({"top": 0}, {"memories": -1}):
        with pytest.raises(OptionError, match=r"impossible|not possible"):
            trace(planted, "cat", **numbers)
    assert trace(planted, "cat", memories=0).places[0][0].memories == ()
    assert len(trace(planted, "cat", top=1000).places[0][0].output) == planted.sizes.vocabulary


def test_ten_of_each_are_told_unless_another_number_is_asked_for() -> None:
    model, _ = tiny("gpt2")
    for found in (trace(model, "the"), ms.tracing.compare(model, "the", ["L0.M3=1"]).after):
        place = found.places[1][0]
        assert {len(one) for one in (place.residual, place.ffn, place.output, place.memories)} == {10}
        assert len(found.positions[0].prediction) == 10


def test_numbers_beyond_the_model_are_told() -> None:
    model, _ = tiny("gpt2")
    with pytest.raises(InterventionError, match="NaN or infinite"):
        trace(model, PROMPT, interventions=["L0.M3=3e38", "L0.M4=-3e38", "L0.M5=3e38"])


def test_the_built_in_model(tmp_path: Path) -> None:
    model = ms.load_model("builtin:pydocs")
    found = ms.trace(model, "Return a list of")
    assert isinstance(found, Trace)
    assert found.to_dict()["positions"][-1]["token"]["text"] == " of"
    logits = model.logits(torch.tensor([[0, *model.encode(["Return a list of"])[0]]]))[0, -1]
    assert found.positions[-1].prediction[0].token.id == int(logits.argmax())
    # A large coefficient for a memory of the last layer lifts what its value promotes.
    dominant = found.places[-1][-1].memories[0]
    memory, vote = dominant.memory, dominant.vote
    with ms.intervene(model, {str(memory): 30.0}):
        lifted = model.logits(torch.tensor([[0, *model.encode(["Return a list of"])[0]]]))[0, -1]
    assert lifted.softmax(0)[vote.id] > 2 * logits.softmax(0)[vote.id]


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "llama", "gptj"])
def test_streams_that_share_products_say_what_each_says_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny(name)
    assert SharedReadout.of(model) is not None
    traces = [trace(model, PROMPT, top=4)]
    of_five_rows = Budget(prompt_scores=5 * model.sizes.vocabulary)
    monkeypatch.setattr(block_predictions, "BUDGET", of_five_rows)
    traces.append(trace(model, PROMPT, top=4))
    monkeypatch.setattr(SharedReadout, "of", lambda model: None)
    traces.append(trace(model, PROMPT, top=4))
    states = [[state for places in found.places for state in places] for found in traces]
    for of_shared in states[:2]:
        for found, expected in zip(of_shared, states[2], strict=True):
            assert found.ffn_vote == expected.ffn_vote
            for stream in STREAMS:
                own, other = getattr(found, stream), getattr(expected, stream)
                assert [one.token for one in own] == [one.token for one in other]
                assert [one.probability for one in own] == pytest.approx([one.probability for one in other], rel=1e-4)
