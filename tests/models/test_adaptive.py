"""Adaptive input and softmax alone: against torch's own adaptive softmax, and against loops over words."""

import pytest
import torch

from mnemoscope.models.modules.fairseq_decoder import AdaptiveInput
from mnemoscope.models.modules.projections import AdaptiveSoftmax, Bands

BANDS = Bands((4, 10, 15), (8, 4, 2))


def filled(module):
    """The module with random weights."""
    torch.manual_seed(0)
    for parameter in module.requires_grad_(False).parameters():
        parameter.normal_()
    return module


def vectors(rows=6, hidden=8):
    return torch.randn(rows, hidden, generator=torch.Generator().manual_seed(1))


def ours_and_torchs():
    own = filled(AdaptiveSoftmax(BANDS, 8, tied_words=False, tied_projections=False))
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 15, [4, 10], div_value=2.0).requires_grad_(False)
    theirs.head.weight.copy_(own.head.weight)
    for tail, (to_band, words) in zip(own.tail, theirs.tail, strict=True):
        to_band.weight.copy_(tail[0].weight)
        words.weight.copy_(tail[2].weight)
    return own, theirs.log_prob


def test_the_softmax_is_that_of_torch():
    own, theirs = ours_and_torchs()
    torch.testing.assert_close(own(vectors()), theirs(vectors()))


def test_so_are_its_gradients_by_which_tuned_lenses_are_trained():
    found = []
    for softmax in ours_and_torchs():
        rows = vectors().requires_grad_()
        (softmax(rows) * torch.linspace(-1, 2, 15)).sum().backward()
        found.append(rows.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("tied_words", "tied_projections"), [(False, False), (True, False), (True, True), (False, True)]
)
def test_a_tokens_vector_gives_its_score_before_it_is_normalised(tied_words, tied_projections):
    """That of its class, by the first level's rows after the words, and that of the word in it."""
    softmax = filled(AdaptiveSoftmax(BANDS, 8, tied_words=tied_words, tied_projections=tied_projections))
    first, rows = softmax.head(vectors()).double(), vectors().double()
    tokens = torch.tensor([14, 0, 9, 3, 4, 10])
    found = softmax.vectors_of(tokens)
    assert found.dtype == torch.float64
    for vector, token in zip(found, tokens.tolist(), strict=True):
        band = 0 if token < 4 else 1 if token < 10 else 2
        wanted = first[:, token if band == 0 else 4 + band - 1]
        if band:
            to_band, _, words = softmax.tail[band - 1]
            wanted = wanted + to_band(vectors()).double() @ words.weight[token - (4, 10)[band - 1]].double()
        torch.testing.assert_close(rows @ vector, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(softmax.mean_vector(), softmax.vectors_of(torch.arange(15)).mean(0))


def test_scores_go_where_they_are_told_to():
    softmax = filled(AdaptiveSoftmax(BANDS, 8, tied_words=True, tied_projections=True))
    room = torch.full((9, 15), 7.0)
    with torch.inference_mode():
        given = softmax.scores(vectors(), out=room[:6])
    assert given.data_ptr() == room.data_ptr()
    assert torch.equal(room[:6], softmax(vectors()))
    assert (room[6:] == 7.0).all()
    batch = vectors().view(2, 3, 8)
    assert torch.equal(softmax(batch), softmax(vectors()).view(2, 3, 15))


@pytest.mark.parametrize("id", [15, 99, -1])
def test_an_id_beyond_the_words_is_an_error_not_a_guess(id):
    with pytest.raises(IndexError):
        AdaptiveInput(BANDS, 8)(torch.tensor([[id]]))
