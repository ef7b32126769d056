"""Contributions, activity and events, by eye."""

import pytest
import torch

from mnemoscope.tracing.scoring.scores import activity_of


def test_activity_by_eye() -> None:
    norm = torch.tensor([1.0, 2.0, 4.0])
    # c = 4, 4, 4 | 10, 0, 0 | nothing | 1, 8, 1: the largest alone is 0.8, one of the two equal ones is enough for 0.9
    found = activity_of(torch.tensor([[4.0, -2.0, 1.0], [10.0, 0, 0], [0, 0, 0], [-1.0, 4.0, 0.25]]), norm)
    assert found["active"].tolist() == [2, 1, 0, 2]
    assert found["effective"].tolist() == pytest.approx([3.0, 1.0, 0.0, 100 / 66])
    assert found["top_share"].tolist() == pytest.approx([1 / 3, 1.0, 0.0, 0.8])
    assert found["major"].tolist() == [3, 1, 0, 2]
    assert found["is_major"].tolist() == [[True] * 3, [True, False, False], [False] * 3, [True, True, False]]


@pytest.mark.parametrize(("memories", "major"), [(10, 9), (9, 9), (1, 1)])
def test_of_equal_contributions_the_lower_memories_are_major(memories: int, major: int) -> None:
    """Nine of ten hold exactly 90 %; of nine all are needed."""
    found = activity_of(torch.ones(1, memories), torch.ones(memories))
    assert found["major"].tolist() == [major]
    assert found["is_major"][0].tolist() == [memory < major for memory in range(memories)]
