"""Selects the held-out documents that are independent of the training text: those that share no run of tokens with it.

A document that shares one returns to training, and so do those that share one with it, until none moves. Works on token
streams; the hash rule is elsewhere.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN = 50
"""Length in tokens of a run that a held-out document may not share with training text."""

Tokens = NDArray[np.uint16]


def independent_candidates(streams: Sequence[Tokens], candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The candidates that share no run of `RUN` tokens with any document that ends up in training. Stores only the
    candidates' runs, so memory does not grow with the training text.
    """
    held = candidates.copy()
    runs = {i: _runs(streams[i]) for i in map(int, np.flatnonzero(candidates))}
    known = np.unique(np.concatenate([*runs.values(), np.empty(0, np.uint64)]))
    if not len(known):
        return held
    places = {i: np.searchsorted(known, own) for i, own in runs.items()}
    taken = np.zeros(len(known), bool)  # which runs occur in training text
    for i in map(int, np.flatnonzero(~candidates)):
        own = _runs(streams[i])
        index = np.minimum(np.searchsorted(known, own), len(known) - 1)
        taken[index[known[index] == own]] = True
    while moved := [k for k in places if held[k] and taken[places[k]].any()]:
        for k in moved:
            held[k] = False
            taken[places[k]] = True
    return held


def _runs(tokens: NDArray[np.generic]) -> NDArray[np.uint64]:
    """A 64-bit hash of every run of RUN tokens."""
    count = len(tokens) - RUN
    if count < 1:
        return np.empty(0, np.uint64)
    body = tokens[1:].astype(np.uint64)  # without the beginning token
    out = np.zeros(count, np.uint64)
    for i in range(RUN):
        out = out * np.uint64(0x9E3779B97F4A7C15) + body[i : i + count] + np.uint64(1)
        out ^= out >> np.uint64(29)
    return out
