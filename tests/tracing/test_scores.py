"""Top tokens, ranks and lengths against plain loops, ties above all."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnemoscope.foundation.budget import Budget
from mnemoscope.tracing import norms_of, rank_of, rank_tokens, top
from mnemoscope.tracing.scoring import ranking
from mnemoscope.tracing.scoring import scores as scoring
from mnemoscope.tracing.scoring.ranking import BLOCK


def plain_top(row: list[float], count: int, lowest: bool) -> list[int]:
    order = sorted(range(len(row)), key=lambda token: (row[token] if lowest else -row[token], token))
    return order[:count]


def check(scores: torch.Tensor, count: int) -> None:
    """In both float formats."""
    for lowest in (False, True):
        expected = [plain_top(row, count, lowest) for row in scores.tolist()]
        for one in (scores, scores.double()):
            tokens, values = top(one, count, lowest=lowest)
            assert tokens.tolist() == expected
            assert values.equal(one.gather(1, torch.tensor(expected, dtype=torch.int64)))


# Few different scores: ties within blocks, between blocks and at the edge of the answer.
SCORES = st.sampled_from([-math.inf, -3.0, -1.0, -0.0, 0.0, 0.5, 0.5000001, 2.0])


@given(st.integers(1, 70), st.integers(1, 4), st.data())
def test_top_is_what_sorting_gives(size: int, count: int, data) -> None:
    rows = [data.draw(st.lists(SCORES, min_size=size, max_size=size)) for _ in range(3)]
    before, ranking.BLOCK = ranking.BLOCK, 4
    try:
        check(torch.tensor(rows), count)
    finally:
        ranking.BLOCK = before


@pytest.mark.fast(9, full=14)
@pytest.mark.parametrize("size", [1, 3, 41, 64, 700, 1024, 5120, 5121, 5184, 8192, 8193, 8256, 20_011, 50_257])
def test_top_of_any_vocabulary(size: int) -> None:
    """Rows without ties, with many, of one score alone, with zeros of both signs, with the best at the end."""
    chance = torch.Generator().manual_seed(size)
    scores = torch.randn(10, size + 15, generator=chance)[:, :size]  # rows with room between them
    scores[1] = scores[1].round(decimals=1)
    scores[2] = 0.25
    scores[3, ::2], scores[3, 1::2] = 0.0, -0.0
    scores[4] *= 1e-41  # below what is normal
    scores[5, ::BLOCK] = 5.0  # equal best of blocks
    scores[6, 9:], scores[7] = -math.inf, -math.inf
    scores[8, -5:], scores[8, :3] = 100.0, -100.0
    scores[9, size // 2 :] = 9.0
    for count in (0, 1, 20, 25):
        check(scores, count)
    check(scores.bfloat16(), 20)


def as_floats(given: torch.Tensor) -> list[Any]:
    """Numbers that can be compared, also those that are none."""
    return given.nan_to_num(nan=12345.0).tolist()


@pytest.mark.parametrize("size", [128, 300, 1024, 9000])
def test_rows_with_nan_are_sorted_whole(size: int) -> None:
    """As PyTorch sorts: what is no number comes first among the best, and last among the worst."""
    scores = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    scores[1, 7], scores[2, ::2] = math.nan, math.nan
    for lowest in (False, True):
        ordered, order = scores.sort(dim=1, descending=not lowest, stable=True)
        tokens, best = top(scores, 20, lowest=lowest)
        assert tokens.equal(order[:, :20])
        assert as_floats(best) == as_floats(ordered[:, :20])
    assert rank_of(scores, torch.tensor([0, 7, 0, 5])).tolist() == [
        int((row > row[token]).sum()) for row, token in zip(scores, (0, 7, 0, 5), strict=True)
    ]


@pytest.mark.fast(2)
@pytest.mark.parametrize("size", [128, 129, 255, 257, 511, 1000, 50_257])
@pytest.mark.parametrize(("best", "worst"), [(20, 20), (1, 0), (0, 3), (64, 7), (0, 0)])
def test_a_ranking_is_that_of_plain_sorting(size: int, best: int, worst: int) -> None:
    """Of rows of many kinds that lie apart: both ends and two ranks at once."""
    chance = torch.Generator().manual_seed(size)
    scores = torch.randn(10, size + 3, generator=chance)[:, :size]
    scores[1] = scores[1].round(decimals=1)
    scores[2], scores[3] = 0.25, -0.0
    scores[3, ::2] = 0.0
    scores[4] = torch.arange(size).float()  # every part has better ones
    scores[5] = -torch.arange(size).float()
    scores[6, 9:], scores[7, : size - 9] = -math.inf, math.inf
    scores[8] *= 1e-41
    scores[9] = scores[9].clamp(max=-1)  # many equal ones behind a better one
    scores[9, 5] = 0.0
    of = [torch.randint(size, (10,), generator=chance), torch.full((10,), size - 1)]
    found = rank_tokens(scores, best=best, worst=worst, of=of)
    for row, own in enumerate(scores.tolist()):
        order = plain_top(own, size, False)
        assert found.best[0][row].tolist() == order[:best]
        assert found.worst[0][row].tolist() == plain_top(own, worst, True)
        assert found.ranks[:, row].tolist() == [order.index(int(each[row])) for each in of]
    assert found.best[1].equal(scores.gather(1, found.best[0]))
    assert found.worst[1].equal(scores.gather(1, found.worst[0]))


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    for token in (-1, 300):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            rank_tokens(torch.zeros(2, 300), of=[torch.tensor([0, token])])


@given(st.integers(1, 30), st.data())
def test_the_rank_is_the_place_in_the_sorted_row(size: int, data) -> None:
    row = data.draw(st.lists(SCORES, min_size=size, max_size=size))
    order = plain_top(row, size, False)
    ranks = rank_of(torch.tensor([row] * size), torch.arange(size))
    assert ranks.tolist() == [order.index(token) for token in range(size)]


@pytest.mark.parametrize(("vocabulary", "rows"), [(3, [3, 3, 1]), (5, [2, 2, 2, 1]), (10, [1] * 7), (99, [1] * 7)])
def test_rows_whose_scores_may_exist_together(
    vocabulary: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten scores here; but one row at least."""
    monkeypatch.setattr(scoring, "BUDGET", Budget(prompt_scores=10))
    model: Any = SimpleNamespace(sizes=SimpleNamespace(vocabulary=vocabulary))
    parts = scoring.split_rows(model, torch.arange(14).reshape(7, 2))
    assert [len(part) for part in parts] == rows
    assert torch.cat(parts).equal(torch.arange(14).reshape(7, 2))


def test_a_vote_depends_on_the_memory_and_its_sign() -> None:
    codes = scoring.vote_codes(torch.tensor([[0, 3, 3, 1]]), torch.tensor([[1.0, -0.5, 2.0, 0.0]]))
    assert codes.tolist() == [[0, 7, 6, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lengths_do_not_depend_on_which_way_a_matrix_lies(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many rows are measured at a time: 3 here, so that the last part is a smaller one."""
    monkeypatch.setattr(scoring, "BUDGET", Budget(in_cache=3 * 4096))
    stored = torch.randn(4096, 7, generator=torch.Generator().manual_seed(3)).to(dtype)
    before = stored.clone()
    for vectors in (stored.T, stored.T.contiguous()):
        wanted = [math.sqrt(math.fsum(x * x for x in row)) for row in vectors.double().tolist()]
        found = norms_of(vectors)
        assert (found.dtype, found.tolist()) == (torch.float32, pytest.approx(wanted, rel=2e-7))
    assert stored.equal(before)
