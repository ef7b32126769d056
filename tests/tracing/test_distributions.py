"""The shape of a softmax against plain sums in double precision."""

import math
from collections.abc import Iterable

import pytest
import torch

from mnemoscope.foundation.budget import Budget
from mnemoscope.tracing import max_probability, read_scores, top
from mnemoscope.tracing.scoring import distributions, ranking
from mnemoscope.tracing.scoring.distributions import Distribution

NAMES = ("log_normaliser", "max_probability", "entropy", "mean", "deviation")


def plain(row: Iterable[float]) -> tuple[float, ...]:
    """The numbers of a row, each sum rounded once."""
    scores = list(row)
    highest, mean = max(scores), math.fsum(scores) / len(scores)
    below = [score - highest for score in scores]
    terms = [math.exp(x) for x in below]
    total = math.fsum(terms)
    return (
        highest + math.log(total),
        1 / total,
        math.log(total) - math.fsum(term * x for term, x in zip(terms, below, strict=True)) / total,
        mean,
        math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores)),
    )


def distribution(scores: torch.Tensor) -> Distribution:
    return read_scores(scores, best=1)[1]


def at_work(scores: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return max_probability(scores, torch.where(factor < 0, scores.amin(1), scores.amax(1)), factor)


def as_float32(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float64).float())


@pytest.mark.parametrize("size", [*range(1, 18), 128, 1000, 50_257])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0, 400.0])
def test_each_number_is_the_rounded_exact_one(size: int, spread: float) -> None:
    """To the bit: of rows that lie apart, of any number of tokens."""
    chance = torch.Generator().manual_seed(size)
    rows = 40 if size < 18 else 5
    scores = (spread * torch.randn(rows, size + 3, generator=chance))[:, :size]
    before = scores.clone()
    shape = distribution(scores)
    assert scores.equal(before)  # what was given is not changed
    wanted = [[as_float32(number) for number in plain(row)] for row in scores.double().tolist()]
    own = [list(row) for row in zip(*(getattr(shape, name).tolist() for name in NAMES), strict=True)]
    if spread < 30 and size > 1:
        assert [row[:3] for row in own] == [row[:3] for row in wanted]
    # A normaliser of nearly 1 has few digits to tell an entropy of nearly 0.
    assert own == [pytest.approx(row, rel=1.2e-7, abs=1e-14) for row in wanted]


@pytest.mark.parametrize("size", [1, 2, 17, 50_257])
def test_the_largest_probability_of_a_multiple_of_the_scores(size: int) -> None:
    """Of both signs, from factors that leave all tokens alike to those that leave one."""
    scores = torch.randn(12, size, generator=torch.Generator().manual_seed(size))
    before = scores.clone()
    factor = torch.tensor([-300.0, -30.0, -3.3, -1.0, -1e-3, 0.0, 1e-3, 1 / 3, 1.0, 3.3, 30.0, 300.0]).double()
    wanted = (factor[:, None] * scores.double()).softmax(1).amax(1)
    assert torch.allclose(at_work(scores, factor).double(), wanted, rtol=1e-6, atol=0)
    assert scores.equal(before)


def test_each_power_is_exact_however_far_off() -> None:
    """A row of one score and its best: the entropy of two tokens, from equal ones to where nothing is left."""
    below = torch.cat([torch.linspace(-720, 0, 20_001), torch.linspace(-2, 0, 2_001), torch.tensor([-1e30, -1e-30])])
    scores = torch.stack([torch.zeros_like(below), below], 1)
    shape = distribution(scores)
    p = below.double().exp() / (1 + below.double().exp())
    wanted = torch.log1p(below.double().exp()) - p * below.double()
    assert torch.allclose(shape.entropy.double(), wanted, rtol=1e-7, atol=1e-15)
    assert shape.max_probability.equal((1 / (1 + below.double().exp())).float())


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("size", [9, 300])
def test_scores_are_read_as_they_are_ranked_and_measured(size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows at a time; what is no number in one row changes no other."""
    monkeypatch.setattr(ranking, "BUDGET", Budget(in_cache=rows * size))
    scores = torch.randn(7, size, generator=torch.Generator().manual_seed(size)).round(decimals=1)
    scores[4, 2] = math.nan
    of = [torch.arange(7), torch.zeros(7, dtype=torch.int64)]
    for one in (scores, scores.double()):
        ranks, shape = read_scores(one, best=5, worst=2, of=of)
        for found, wanted in ((ranks.best, top(one, 5)), (ranks.worst, top(one, 2, lowest=True))):
            assert found[0].equal(wanted[0])
            assert found[1].allclose(wanted[1], equal_nan=True)
        above = [[(row > row[token]).sum() + (row[:token] == row[token]).sum() for token in range(7)] for row in one]
        assert ranks.ranks.tolist() == [[int(row[n]) for n, row in enumerate(above)], [int(row[0]) for row in above]]
        for name in NAMES:
            told, alone = getattr(shape, name), getattr(distribution(one), name)
            assert told.isnan().tolist() == alone.isnan().tolist() == [n == 4 for n in range(7)]
            assert told.nan_to_num().equal(alone.nan_to_num())


def test_large_scores_keep_a_small_entropy() -> None:
    scores = torch.full((1, 5000), 900.0)
    scores[0, 17] = 1000.0
    assert float(distribution(scores).entropy[0]) == pytest.approx(0.0, abs=1e-12)
    scores[0, 18] = 1000.0
    assert float(distribution(scores).entropy[0]) == pytest.approx(math.log(2), rel=1e-7)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 8, 16, 18])
def test_what_is_not_finite_shows_in_the_entropy_of_its_row(wrong: float, place: int) -> None:
    """Wherever it is, the last and smaller part of a row too; and in no other row."""
    scores = torch.randn(3, 19, generator=torch.Generator().manual_seed(1))
    scores[1, place] = wrong
    shape = distribution(scores)
    assert shape.entropy.isfinite().tolist() == [True, False, True]
    assert shape.entropy.isnan()[1]


@pytest.mark.parametrize("scores", [torch.empty(0, 300), torch.empty(0, 300).double()])
def test_nothing_is_read_off_no_rows(scores: torch.Tensor) -> None:
    none = torch.empty(0, dtype=torch.int64)
    ranks, shape = read_scores(scores, best=3, of=[none, none])
    assert ranks.best[0].shape == ranks.best[1].shape == (0, 3)
    assert (ranks.ranks.shape, shape.entropy.shape) == ((2, 0), (0,))


def test_other_formats_keep_theirs_and_rows_may_lie_in_columns() -> None:
    scores = torch.randn(9, 30, generator=torch.Generator().manual_seed(4))
    for other in (scores.double(), scores.T.contiguous().T):
        found = distribution(other)
        assert found.entropy.dtype == other.dtype
        assert found.entropy.float().equal(distribution(scores).entropy)


@pytest.mark.parametrize("at_once", [1, 30, 61, 1000])
def test_however_many_terms_exist_at_a_time(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(7, 30, generator=torch.Generator().manual_seed(5))
    whole = distribution(scores)
    monkeypatch.setattr(distributions, "TERMS", at_once)
    parts = distribution(scores)
    assert all(getattr(parts, name).equal(getattr(whole, name)) for name in NAMES)
    assert torch.allclose(at_work(scores, torch.ones(7)), whole.max_probability, rtol=1e-6, atol=0)
