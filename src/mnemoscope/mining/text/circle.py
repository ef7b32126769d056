"""Controls by exchange: each item gets the triggers, targets or final tokens of another one."""

import numpy as np
from numpy.typing import NDArray


def next_in_circle(count: int, *seed: int) -> NDArray[np.int64]:
    """For each of `count` the next in a random circle of all; one alone has itself."""
    circle = np.random.default_rng(seed).permutation(count)
    found = np.empty(count, np.int64)
    found[circle] = np.roll(circle, -1)
    return found
