"""What is read off a block of coefficients, against plain Python."""

import math
from bisect import bisect_right

import pytest
import torch
from torch import Tensor

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, HISTOGRAM_EDGES
from mnemoscope.kernels.reference import Observer, Swept

CPU = torch.device("cpu")


def numbers(rows: int, places: int, memories: int, *, seed: int) -> Tensor:
    """Coefficients as they lie in a batch: some zeros of both signs, edges of bins, and columns that lie before."""
    chance = torch.Generator().manual_seed(seed)
    found = torch.randn(rows, places + 2, memories, generator=chance) * torch.exp2(
        torch.randint(-12, 8, (1, 1, memories), generator=chance).float()
    )
    odd = torch.tensor([0.0, -0.0, *HISTOGRAM_EDGES, 1e-42])[torch.randint(38, found.shape, generator=chance)]
    found = torch.where(torch.rand(found.shape, generator=chance) < 0.2, odd, found)
    found[:, :, 0], found[:, :, 1] = -0.0, 1.5
    return found[:, 2:]


def read(block: Tensor, *, negative: bool, sampled: bool) -> tuple[Swept, Tensor]:
    """What an observer reads off a block, with the histogram."""
    observer = Observer()
    swept = observer.sweep(block, negative=negative, sampled=sampled)
    return swept, observer.histogram(block.shape[2], negative=negative, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memories", [64, 7])
def test_the_same_as_in_plain_python(memories: int, dtype: torch.dtype) -> None:
    block = numbers(2, 37, memories, seed=9).to(dtype)
    swept, counts = read(block, negative=True, sampled=True)
    assert swept.lows is not None
    assert swept.squares is not None
    for memory in range(memories):
        rows = block[:, :, memory].tolist()
        assert swept.peaks[:, memory].tolist() == [max(row) for row in rows]
        assert swept.lows[:, memory].tolist() == [min(row) for row in rows]
        assert swept.least[memory] == min(map(min, rows))
        assert swept.fired[:, memory].tolist() == [sum(number > 0 for number in row) for row in rows]
        sizes = [math.fsum(map(abs, row)) for row in rows]
        for row, size, total, squares in zip(
            rows, sizes, swept.sums[:, memory].tolist(), swept.squares[:, memory].tolist(), strict=True
        ):
            assert total == pytest.approx(math.fsum(row), abs=1e-14 * size + 1e-300)
            assert squares == pytest.approx(math.fsum(number * number for number in row), rel=1e-14)
        bins = [0] * HISTOGRAM_BINS
        for number in (number for row in rows for number in row):
            bins[bisect_right(HISTOGRAM_EDGES, number)] += 1
        assert counts[memory].tolist() == bins


def test_what_cannot_go_below_zero_has_no_lows_and_its_least_is_no_negative_zero() -> None:
    block = numbers(3, 21, 64, seed=2).abs()
    block[:, :, 0], block[1, 4, 1] = -0.0, 0.5
    swept, _ = read(block, negative=False, sampled=True)
    assert swept.lows is None
    least = block.amin((0, 1))
    assert swept.least.tolist() == [float(own) if own > 0 else 0.0 for own in least]
    assert not swept.least.signbit().any()


def test_more_positions_of_one_bin_than_a_counter_holds() -> None:
    block = torch.full((2, 70_000, 64), 3.0)
    block[0, :9, 5] = -0.25
    swept, counts = read(block, negative=True, sampled=True)
    assert counts[5, bisect_right(HISTOGRAM_EDGES, 3.0)] == 140_000 - 9
    assert counts[5, bisect_right(HISTOGRAM_EDGES, -0.25)] == 9
    assert counts.sum(1).tolist() == [140_000] * 64
    assert swept.fired[:, 5].tolist() == [70_000 - 9, 70_000]


def test_what_is_not_a_number_shows_in_the_sums() -> None:
    for strange in (math.nan, math.inf, -math.inf):
        for sampled in (False, True):
            block = numbers(3, 20, 64, seed=1)
            block[1, 7, 3] = strange
            sums = read(block, negative=True, sampled=sampled)[0].sums
            assert torch.isfinite(sums).logical_not().nonzero().tolist() == [[1, 3]]
