"""Where what experts computed lies among the coefficients and weights of their layer, by hand."""

import pytest
import torch

from mnemoscope.models.memories.groups import Group, place, taken_from, weights_of

ROUTED = Group(
    torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), of=3, count=2, experts=torch.tensor([0, 0, 1]),
    tokens=torch.tensor([0, 2, 2]), weights=torch.tensor([0.5, 1.0, 0.25]),
)  # fmt: skip
"""Two experts of two memories, and three tokens: the first and the last went to expert 0, the last to expert 1 too."""
SHARED = Group(torch.tensor([[7.0], [8.0], [9.0]]), of=3, expert=2, first=4)
"""A shared expert of one memory, which every token goes through."""


def test_coefficients_are_written_to_their_place_and_read_there() -> None:
    whole = torch.zeros(3, 5)
    place(whole, ROUTED)
    place(whole, SHARED)
    assert whole.tolist() == [[1, 2, 0, 0, 7], [0, 0, 0, 0, 8], [3, 4, 5, 6, 9]]
    assert torch.equal(taken_from(whole, ROUTED), ROUTED.coefficients)
    assert torch.equal(taken_from(whole, SHARED), SHARED.coefficients)
    counted = torch.arange(15.0).view(3, 5)
    assert taken_from(counted, ROUTED).tolist() == [[0, 1], [10, 11], [12, 13]]
    assert taken_from(counted, SHARED).tolist() == [[4], [9], [14]]


@pytest.mark.full
def test_weights_stand_at_their_expert() -> None:
    assert weights_of(ROUTED, 3).tolist() == [[0.5, 0, 0], [0, 0, 0], [1, 0.25, 0]]
    assert weights_of(SHARED, 3).tolist() == [[0, 0, 1]] * 3
    weighed = Group(SHARED.coefficients, of=3, expert=2, first=4, weights=torch.tensor([0.5, 0.25, 0.75]).half())
    found = weights_of(weighed, 4)
    assert found.tolist() == [[0, 0, 0.5, 0], [0, 0, 0.25, 0], [0, 0, 0.75, 0]]
    assert found.dtype == torch.float32
    later = Group(ROUTED.coefficients, of=3, expert=1, count=2, experts=ROUTED.experts, tokens=ROUTED.tokens)
    assert weights_of(later, 3).tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 1]]
