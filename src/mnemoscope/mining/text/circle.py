"""Controls by exchange: each item gets the triggers, targets or final tokens of another one."""

import numpy as np

from mnemoscope.mining.text.batches import Ints


def next_in_circle(count: int, *seed: int) -> Ints:
    """For each of `count` the next in a random circle of all; one alone has itself."""
    circle = np.random.default_rng(seed).permutation(count)
    following = np.empty(count, np.int64)
    following[circle] = np.roll(circle, -1)
    return following


def deal(values: Ints, *seed: int) -> Ints:
    """Rows that begin with at least 0, exchanged for the next in a random circle; -1 elsewhere and for one alone."""
    owners = np.flatnonzero(values.reshape(len(values), -1)[:, 0] >= 0)
    dealt = np.full_like(values, -1)
    if len(owners) > 1:
        dealt[owners] = values[owners[next_in_circle(len(owners), *seed)]]
    return dealt
