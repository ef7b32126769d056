"""The circle in which controls are dealt."""

import numpy as np
import pytest

from mnemoscope.mining.text.circle import deal, next_in_circle


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_following_the_circle_leads_through_all_and_back(count: int) -> None:
    found, place, visited = next_in_circle(count, 4, 13), 0, []
    assert found.shape == (count,)
    for _ in range(count):
        visited.append(place)
        place = int(found[place])
    assert (sorted(visited), place) == (list(range(count)), 0)


def test_every_seed_has_a_circle_of_its_own() -> None:
    first, again, other = (next_in_circle(50, 4, last) for last in (13, 13, 14))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert deal(np.array([-1, 7, -1]), 4).tolist() == [-1, -1, -1]
    assert deal(np.array([[-1, -1], [7, 8], [3, 4]]), 4).tolist() == [[-1, -1], [3, 4], [7, 8]]
