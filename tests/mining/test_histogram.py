"""The histogram against bisection among the edges of the format, one number at a time."""

from bisect import bisect_right

import pytest
import torch

from mnemoscope.foundation.memory_names import HISTOGRAM_BINS, HISTOGRAM_EDGES
from mnemoscope.kernels import reference
from mnemoscope.kernels.reference import count_bins

ODD = (0.0, -0.0, 1e-45, 1e-40, 2.0**-126, 3e38, float("inf"), *map(abs, HISTOGRAM_EDGES))


def expected(block: torch.Tensor) -> list[list[int]]:
    found = []
    for column in block.flatten(0, 1).T.tolist():
        counts = [0] * HISTOGRAM_BINS
        for number in column:
            counts[bisect_right(HISTOGRAM_EDGES, number)] += 1
        found.append(counts)
    return found


def numbers(*shape: int, negative: bool, seed: int) -> torch.Tensor:
    """Edges, their neighbours on both sides, and numbers of every size."""
    chance = torch.Generator().manual_seed(seed)
    found = torch.randn(shape, generator=chance) * torch.exp2(torch.randint(-14, 10, shape, generator=chance).float())
    odd = torch.tensor(ODD)[torch.randint(len(ODD), shape, generator=chance)]
    found = torch.where(torch.rand(shape, generator=chance) < 0.5, odd, found)
    found = found * torch.where(torch.rand(shape, generator=chance) < 0.5, -1.0, 1.0)
    for towards in (-torch.inf, torch.inf):
        beside = torch.nextafter(found, torch.full_like(found, towards))
        found = torch.where(torch.rand(shape, generator=chance) < 0.2, beside, found)
    return found if negative else found.abs()


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("memories", [1, 7, 8, 24, 513])
def test_bins_are_those_of_the_edges(memories: int, negative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "SLICE", 40 * memories)  # so few that a block has several slices
    for seed, (batch, positions) in enumerate(((3, 7), (1, 300), (30, 25), (1, 1))):
        whole = numbers(batch, positions + 3, memories, negative=negative, seed=seed)
        block = whole[:, 2 : positions + 2]  # as a block lies in the batch that it is part of
        assert count_bins(block).T.tolist() == expected(block)


def test_half_precision_is_counted_as_its_float32() -> None:
    block = numbers(4, 30, 16, negative=True, seed=5).bfloat16()
    assert count_bins(block).T.tolist() == expected(block.float())
