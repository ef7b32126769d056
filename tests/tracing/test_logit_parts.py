"""The stream around a block, and how many positions attention looks at, by eye."""

import math

import pytest
import torch

from mnemoscope.tracing.scoring.logit_parts import LayerStreams, attended_positions


def streams(attended: torch.Tensor | None = None) -> LayerStreams:
    before = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
    summed = torch.tensor([[2.0, 2.0], [0.0, 8.0], [0.0, 1.0]])
    return LayerStreams(before, summed, summed + 1, summed * 2, summed * 3, attended)


def test_streams_go_to_a_device_together() -> None:
    moved = streams(torch.ones(3)).on(torch.device("meta"))
    assert {one.device.type for one in vars(moved).values()} == {"meta"}
    assert streams().on(torch.device("meta")).attended is None


def test_streams_of_a_block_that_tells_no_sum() -> None:
    """There what attention adds and what it was added to are one."""
    came, residual, added, output = torch.arange(8.0).reshape(4, 1, 2)
    found = LayerStreams.of({"input": came}, [residual, added, output], None)
    assert [one.tolist() for one in (found.before, found.summed, found.residual)] == [[[0, 1]], [[2, 3]], [[2, 3]]]
    assert [one.tolist() for one in (found.added, found.output)] == [[[4, 5]], [[6, 7]]]
    summed = LayerStreams.of({"input": came, "sum": came + 9}, [residual, added, output], torch.ones(1))
    assert summed.summed.tolist() == [[9, 10]]
    assert summed.attended is not None


@pytest.mark.parametrize(
    ("weights", "positions"),
    [
        ([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], 1.5),  # two and one, over two heads
        ([[0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0]], 7 / 3),
        ([[0.25, 0.25, 0.0]], 2.0),  # a sink takes the rest
        ([[0.0, 0.0]], 1.0),  # or all
        ([[0.75, 0.25]], math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4))),
    ],
)
def test_the_effective_number_of_attended_positions(weights: list[list[float]], positions: float) -> None:
    found = attended_positions(torch.tensor([weights, weights], dtype=torch.float32))
    assert found.tolist() == pytest.approx([positions] * 2)
