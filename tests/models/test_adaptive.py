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


def test_band_sizes():
    assert BANDS.sizes() == (4, 6, 5)


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
def test_probabilities_sum_to_one(tied_words, tied_projections):
    softmax = filled(AdaptiveSoftmax(BANDS, 8, tied_words=tied_words, tied_projections=tied_projections))
    found = softmax(5 * vectors())
    assert found.shape == (6, 15)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(6))


def test_a_word_of_a_tail_is_its_class_times_its_share_within():
    # One number wide: log p(class) and log p(word | class) can be written down.
    softmax = AdaptiveSoftmax(Bands((1, 3), (1, 1)), 1, tied_words=True, tied_projections=True).requires_grad_(False)
    softmax.head.word_proj.weight.fill_(0.0)
    softmax.head.class_proj.weight.fill_(1.0)
    softmax.tail[0][0].weight.fill_(2.0)
    softmax.tail[0][2].weight.copy_(torch.tensor([[0.0], [1.0]]))
    e = torch.tensor(1.0).exp()
    in_tail, second = e / (1 + e), e**2 / (1 + e**2)
    expected = torch.stack([1 - in_tail, in_tail * (1 - second), in_tail * second])
    torch.testing.assert_close(softmax(torch.tensor([[1.0]])).exp()[0], expected)


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


def test_tied_projections_are_stored_the_other_way_round():
    tied = AdaptiveSoftmax(BANDS, 8, tied_words=True, tied_projections=True)
    free = AdaptiveSoftmax(BANDS, 8, tied_words=True, tied_projections=False)
    assert [tuple(tail[0].weight.shape) for tail in tied.tail] == [(8, 4), (8, 2)]
    assert [tuple(tail[0].weight.shape) for tail in free.tail] == [(4, 8), (2, 8)]


def test_length_and_sign_of_a_vector_matter():
    softmax = filled(AdaptiveSoftmax(BANDS, 8, tied_words=False, tied_projections=False))
    assert not softmax.linear
    rows = vectors(40)
    orders = [softmax(scale * rows).argsort(1).tolist() for scale in (1.0, 0.01)]
    assert orders[0] != orders[1]
    assert softmax(-rows).argmax(1).tolist() != softmax(rows).argmin(1).tolist()


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


def test_half_precision_weights_give_float32_probabilities():
    softmax = filled(AdaptiveSoftmax(BANDS, 8, tied_words=True, tied_projections=True)).bfloat16()
    found = softmax(vectors().bfloat16())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(1), torch.ones(6))


def test_each_word_is_looked_up_in_its_band():
    words = filled(AdaptiveInput(BANDS, 8))
    ids = torch.tensor([[0, 3, 4, 9], [10, 14, 1, 0]])
    found = words(ids)
    starts = {0: 0, 1: 4, 2: 10}
    for row in range(2):
        for column in range(4):
            token = int(ids[row, column])
            band = 0 if token < 4 else 1 if token < 10 else 2
            table, project = words.embeddings[band]
            torch.testing.assert_close(found[row, column], project.weight @ table.weight[token - starts[band]])


@pytest.mark.parametrize("id", [15, 99, -1])
def test_an_id_beyond_the_words_is_an_error_not_a_guess(id):
    with pytest.raises(IndexError):
        AdaptiveInput(BANDS, 8)(torch.tensor([[id]]))
