"""How many positions attention looks at, by eye; test_logit_sums.py adds up the parts."""

import math

import pytest
import torch

from mnemoscope.tracing.scoring.logit_parts import attended_positions


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
