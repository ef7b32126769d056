"""Top tokens, ranks and distributions against plain loops, ties above all."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.tracing import distribution, rank_of, top
from mnemoscope.tracing import scores as scoring
from mnemoscope.tracing.candidates import best_of_blocks, best_of_candidates
from mnemoscope.tracing.scores import BLOCK, block_extremes


def plain_top(row: list[float], count: int, lowest: bool) -> list[int]:
    order = sorted(range(len(row)), key=lambda token: (row[token] if lowest else -row[token], token))
    return order[:count]


def check(scores: torch.Tensor, count: int) -> None:
    """All ways: by all scores that pass a limit, by the best blocks, and, as on a graphics card, by torch alone."""
    usual = scoring.FEW
    try:
        for lowest in (False, True):
            expected = [plain_top(row, count, lowest) for row in scores.tolist()]
            for scoring.FEW, given in ((0, scores), (scores.shape[1], scores), (0, scores.double())):
                tokens, values = top(given, count, lowest=lowest)
                assert tokens.tolist() == expected
                assert values.equal(given.gather(1, torch.tensor(expected, dtype=torch.int64)))
    finally:
        scoring.FEW = usual


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BLOCK", 4)


# Few different scores: ties within blocks, between blocks and at the edge of the answer.
SCORES = st.sampled_from([-math.inf, -3.0, -1.0, -0.0, 0.0, 0.5, 0.5000001, 2.0])


@given(st.integers(1, 70), st.integers(1, 4), st.data())
def test_top_is_what_sorting_gives(size: int, count: int, data) -> None:
    rows = [data.draw(st.lists(SCORES, min_size=size, max_size=size)) for _ in range(3)]
    before, scoring.BLOCK = scoring.BLOCK, 4
    try:
        check(torch.tensor(rows), count)
    finally:
        scoring.BLOCK = before


@pytest.mark.parametrize("size", [5120, 5121, 5183, 5184, 8192, 20_000])
def test_top_of_a_real_vocabulary(size: int) -> None:
    scores = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    check(scores, 20)
    check(scores.round(decimals=1), 20)  # ties by the hundred
    scores[:, -5:] = 100.0  # the best lie in the last, short block
    scores[:, :3] = -100.0
    check(scores, 20)


def test_padded_rows_of_a_head_tie_and_go_by_token() -> None:
    scores = torch.randn(2, 6000, generator=torch.Generator().manual_seed(0))
    scores[:, 5000:] = 9.0
    tokens, _ = top(scores, 20)
    assert tokens.tolist() == [list(range(5000, 5020))] * 2
    scores[:, 5000:] = -math.inf
    check(scores, 20)
    scores[:] = -math.inf
    check(scores, 20)
    scores[:] = 0.0
    check(scores, 20)


def test_a_tie_across_blocks_goes_to_the_lower_token(small_blocks: None) -> None:
    scores = torch.zeros(1, 40)
    scores[0, [3, 4, 39]] = 1.0  # the end of one block, the start of the next, and far away
    assert top(scores, 2)[0].tolist() == [[3, 4]]
    assert top(-scores, 2, lowest=True)[0].tolist() == [[3, 4]]
    scores[0, 39] = 2.0
    assert top(scores, 2)[0].tolist() == [[39, 3]]


@pytest.mark.parametrize("size", [41, 64, 700, 1024, 3072, 8192])
def test_top_of_a_small_vocabulary(size: int) -> None:
    """Rows without ties, with many, of one score alone, and with zeros of both signs."""
    scores = torch.randn(6, size, generator=torch.Generator().manual_seed(size))
    scores[1] = scores[1].round(decimals=1)
    scores[2] = 0.25
    scores[3, ::2], scores[3, 1::2] = 0.0, -0.0
    scores[4] *= 1e-41  # below what is normal
    scores[5] = -scores[5].abs()
    check(scores, 20)
    check(scores[:, torch.arange(size - 1)], 1)


def test_rows_with_nan_or_many_equal_scores_are_left_to_others() -> None:
    scores = torch.randn(4, 1024, generator=torch.Generator().manual_seed(0))
    scores[1, 7] = math.nan
    scores[3] = scores[3].clamp(max=-1)
    scores[3, 5] = 0.0
    assert best_of_candidates(scores[:3], 20, lowest=False)[2].tolist() == []  # the NaN is no candidate
    scores[1, ::3] = math.nan
    tokens, best, undecided = best_of_candidates(scores, 20, lowest=False)
    assert undecided.tolist() == [1, 3]
    for row in (0, 2):
        assert tokens[row].tolist() == plain_top(scores[row].tolist(), 20, False)
        assert best[row].equal(scores[row, tokens[row]])
    assert top(scores, 20)[0][3, 0] == 5


@pytest.mark.parametrize("size", [8193, 8256, 20_011, 50_257])
@pytest.mark.parametrize("count", [1, 20, 25])
def test_top_of_a_large_vocabulary(size: int, count: int) -> None:
    """Rows without ties, with many, with equal best of blocks, of one score alone, with zeros of both signs."""
    scores = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    scores[1] = scores[1].round(decimals=1)
    scores[2, ::BLOCK] = 5.0
    scores[3] = 0.25
    scores[4, ::2], scores[4, 1::2] = 0.0, -0.0
    scores[5, 9:] = -math.inf
    scores[6, -3:] = 9.0  # in the last, short block
    check(scores, count)
    check(torch.randn(3, size + 15)[:, :size], count)  # rows with room between them


def test_rows_with_nan_in_a_large_vocabulary_are_sorted_whole() -> None:
    scores = torch.randn(3, 9000, generator=torch.Generator().manual_seed(0))
    scores[1, 4321] = math.nan
    extremes = block_extremes(scores)
    tokens, best, undecided = best_of_blocks(scores, extremes, 20, lowest=False, block=BLOCK)
    assert undecided.tolist() == [1]
    for row in (0, 2):
        assert tokens[row].tolist() == plain_top(scores[row].tolist(), 20, False)
        assert best[row].equal(scores[row, tokens[row]])
    assert top(scores, 20)[0][1, 0] == 4321


def test_fewer_tokens_than_asked_for_are_all_given() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    assert top(scores, 20)[0].tolist() == [[1, 2, 0]]
    assert top(scores[:, :1], 20)[0].tolist() == [[0]]


def test_none_asked_for_is_none() -> None:
    for size in (0, 1, 300):
        tokens, values = top(torch.zeros(2, size), 0)
        assert tokens.shape == values.shape == (2, 0)


def test_half_precision_scores_keep_their_ties() -> None:
    scores = torch.randn(3, 6000, generator=torch.Generator().manual_seed(1)).bfloat16()
    check(scores, 20)


@given(st.integers(1, 30), st.data())
def test_the_rank_is_the_place_in_the_sorted_row(size: int, data) -> None:
    row = data.draw(st.lists(SCORES, min_size=size, max_size=size))
    order = plain_top(row, size, False)
    ranks = rank_of(torch.tensor([row] * size), torch.arange(size))
    assert ranks.tolist() == [order.index(token) for token in range(size)]


@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=40), st.floats(-50, 50))
def test_the_distribution_is_the_softmax(row: list[float], shift: float) -> None:
    scores = torch.tensor([row], dtype=torch.float32) + shift
    exact = [float(x) for x in scores[0].double()]
    normaliser = max(exact) + math.log(sum(math.exp(x - max(exact)) for x in exact))
    p = [math.exp(x - normaliser) for x in exact]
    entropy = -sum(q * math.log(q) for q in p if q > 0)
    before = scores.clone()
    shape = distribution(scores)
    assert scores.equal(before)  # what was given is not changed
    assert float(shape.log_normaliser) == pytest.approx(normaliser, abs=1e-5 * max(1, abs(normaliser)))
    assert float(shape.max_probability) == pytest.approx(max(p), abs=1e-5)
    assert float(shape.entropy) == pytest.approx(entropy, abs=3e-5)


def test_room_given_for_the_distribution_is_used_and_changes_nothing() -> None:
    scores = torch.randn(4, 100, generator=torch.Generator().manual_seed(2))
    room = torch.full_like(scores, 7.0)
    with_room, without = distribution(scores, scratch=room), distribution(scores)
    assert (room != 7.0).all()
    for name in ("log_normaliser", "max_probability", "entropy"):
        assert getattr(with_room, name).equal(getattr(without, name))


def test_the_highest_scores_may_be_given() -> None:
    scores = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0]])
    for given_ in (None, scores.amax(1)):
        shape = distribution(scores, highest=given_)
        assert shape.max_probability.tolist() == pytest.approx([0.75, 0.5])
        assert shape.log_normaliser.tolist() == pytest.approx([math.log(4.0), 2.0 + math.log(2.0)])
        assert shape.entropy.tolist() == pytest.approx([math.log(4.0) - 0.75 * math.log(3.0), math.log(2.0)])


@pytest.mark.parametrize("size", [640, 641, 130])
def test_the_extremes_of_blocks_of_64(size: int) -> None:
    scores = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    for lowest, extreme in ((False, max), (True, min)):
        found = scoring.block_extremes(scores, lowest=lowest)
        assert found.tolist() == [[extreme(row[at : at + 64]) for at in range(0, size, 64)] for row in scores.tolist()]
        given_, own = (top(scores, 2, lowest=lowest, extremes=one) for one in (found, None))
        assert given_[0].equal(own[0])


@pytest.mark.parametrize(("vocabulary", "rows"), [(3, [3, 3, 1]), (5, [2, 2, 2, 1]), (10, [1] * 7), (99, [1] * 7)])
def test_rows_whose_scores_may_exist_together(
    vocabulary: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten scores here; but one row at least."""
    monkeypatch.setattr(scoring, "SCORES", 10)
    model: Any = SimpleNamespace(sizes=SimpleNamespace(vocabulary=vocabulary))
    parts = scoring.split_rows(model, torch.arange(14).reshape(7, 2))
    assert [len(part) for part in parts] == rows
    assert torch.cat(parts).equal(torch.arange(14).reshape(7, 2))


def test_a_vote_depends_on_the_memory_and_its_sign() -> None:
    codes = scoring.vote_codes(torch.tensor([[0, 3, 3, 1]]), torch.tensor([[1.0, -0.5, 2.0, 0.0]]))
    assert codes.tolist() == [[0, 7, 6, 2]]


def test_large_scores_keep_a_small_entropy() -> None:
    # Next to 1,000 float32 has steps of 6e-5, and so have the scores themselves.
    scores = torch.full((1, 5000), 900.0)
    scores[0, 17] = 1000.0
    assert float(distribution(scores).entropy[0]) == pytest.approx(0.0, abs=1e-4)
    scores[0, 18] = 1000.0
    assert float(distribution(scores).entropy[0]) == pytest.approx(math.log(2), abs=1e-4)
