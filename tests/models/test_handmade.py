"""The handmade models do what their names promise, by eye and by chance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.models import load_model, read_blocks, read_coefficients
from mnemoscope.models.opening.handmade.models import DEAD, PLANTED, PLANTED_SENTENCES, WORDS
from models import planted_experts


@pytest.fixture(scope="module")
def planted():
    return load_model("handmade:planted")


def coefficients(model, words):
    """Coefficients [layer][position, memory] of the sentence's own tokens."""
    found = {}
    ids = torch.tensor([[0, *model.encode([" ".join(words)])[0]]])
    with read_coefficients(model, lambda layer, tensor: found.update({layer: tensor[0, 1:]})):
        model.backbone(ids)
    return found


def test_the_worked_example_is_the_one_of_the_definitions():
    model = load_model("handmade:worked-example")
    assert (model.sizes.layers, model.sizes.hidden, model.sizes.memories) == (1, 2, (2,))
    assert (model.block, model.final_norm, model.has_negative) == ("pre-norm", False, False)
    assert (model.keys(0).tolist(), model.values(0).tolist()) == ([[1, 0], [0, 1]], [[2, 3], [4, 1]])
    blocks = {}
    with read_blocks(model, blocks.__setitem__):
        model.backbone(torch.tensor([[0, *model.encode(["both first second"])[0]]]))
    assert blocks[0].ffn_input[0, 1:].tolist() == [[0.5, 0.5], [1, 0], [0, 1]]
    assert blocks[0].coefficients[0, 1:].tolist() == [[0.5, 0.5], [1, 0], [0, 1]]
    assert blocks[0].ffn_output[0, 1:].tolist() == [[3, 2], [2, 3], [4, 1]]


def test_planted_memories_have_places_and_known_words():
    assert len({planted.memory for planted in PLANTED} | {DEAD}) == len(PLANTED) + 1 == 18
    assert {len(planted.ngram) for planted in PLANTED} == {1, 2, 3}
    assert {planted.memory.layer for planted in PLANTED} == {0, 1, 2}
    assert all({*planted.ngram, planted.promoted} <= set(WORDS) for planted in PLANTED)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS[2:]) | st.just("zebra"), min_size=1, max_size=31))
def test_a_planted_key_fires_exactly_where_its_ngram_ends(planted, words):
    found = coefficients(planted, words)
    for item in PLANTED:
        fires = found[item.memory.layer][:, item.memory.memory] > 0
        expected = [tuple(words[: end + 1][-len(item.ngram) :]) == item.ngram for end in range(len(words))]
        assert fires.tolist() == expected
    assert not (found[DEAD.layer][:, DEAD.memory] > 0).any()


def test_every_planted_ngram_occurs_in_the_planted_sentences_followed_by_its_token():
    for item in PLANTED:
        wanted = (*item.ngram, item.promoted)
        runs = [
            tuple(words[start : start + len(wanted)])
            for words in (sentence.split() for sentence in PLANTED_SENTENCES)
            for start in range(len(words))
        ]
        assert any(run[: len(item.ngram)] == item.ngram for run in runs), item
        assert all(len(sentence.split()) < 32 for sentence in PLANTED_SENTENCES)


def test_a_planted_value_promotes_its_token(planted):
    for item in PLANTED:
        value = planted.values(item.memory.layer)[item.memory.memory]
        for projection in ("raw", "gain", "lens"):
            scores = planted.scores(value, projection=projection)
            assert (WORDS[int(scores.argmax())], int((scores == scores.max()).sum())) == (item.promoted, 1)


def test_planted_words_are_read_and_shown(planted):
    texts, _ = planted.vocabulary()
    assert (texts[:4], planted.encode(["the zebra"])) == (["<s>", "<unk>", " the", " cat"], [[2, 1]])
    assert (planted.beginning.token, planted.beginning.kind, planted.longest) == (0, "bos", 31)


def test_planted_experts_fire_on_their_words_as_strongly_as_they_are_weighed():
    model, words, blocks = planted_experts.load(), planted_experts.WORDS[2:], {}
    with read_blocks(model, blocks.__setitem__):
        model.backbone(torch.tensor([[0, *model.encode([" ".join(words)])[0]]]))
    for (layer, token), route in planted_experts.ROUTES.items():
        if token >= 2:
            weights = blocks[layer].weights[0, token - 1]
            assert weights.nonzero()[:, 0].tolist() == sorted(route)
            if layer == 0:
                assert weights[list(route)].tolist() == pytest.approx([0.75, 0.25], abs=1e-5)
    for item in (*planted_experts.PLANTED_EXPERTS, None):
        place = planted_experts.UNROUTED if item is None else item.memory
        number = model.numbering(place.layer).firsts[place.expert] + place.memory
        found = blocks[place.layer].coefficients[0, 1:, number]
        wanted = [(0.75, 0.25)[item.choice] if item and word == item.word else 0.0 for word in words]
        assert (found > 0).tolist() == [each > 0 for each in wanted], place
        if place.layer == 0:
            assert found.tolist() == pytest.approx(wanted, abs=1e-4)
        promoted = "home" if item is None else item.promoted
        scores = model.scores(model.values(place.layer)[number], projection="raw")
        assert scores.tolist() == [float(word == promoted) for word in planted_experts.WORDS]
    assert len(planted_experts.PLANTED_EXPERTS) == 2 * 4 * 4 - 1
    assert planted_experts.ASTRAY in words
    # Nothing but its word is in what a token brings, and attention adds nothing.
    assert torch.equal(blocks[0].residual[0, 1:, : len(words) + 2], torch.eye(len(words) + 2)[2:])
    assert not blocks[0].residual[0, :, len(words) + 2 :].any()
