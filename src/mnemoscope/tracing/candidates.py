"""The best of some thousand scores on a CPU: few candidates are singled out by sweeps, and only they are sorted.

The `count`-th highest of the maxima of blocks of columns is reached by at least `count` scores of a row, and by few
more. One sweep takes the maxima and one compares with that limit; what passes is sorted as integers that hold score and
token, so equal scores need no care. `topk` takes several times as long here (LOG.md). Serves `top` of scores.py, which
says what is asked for, and knows other ways for large vocabularies and for graphics cards.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 16
"""Columns that share a maximum; they lie apart, so that the sweep runs along the row."""
_ROOM = 64
"""Candidates beyond twice those asked for, per row: rows with more are full of equal scores."""
_NOBODY = np.iinfo(np.int64).max

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def best_of_candidates(scores: Tensor, count: int, *, lowest: bool) -> tuple[Tensor, Tensor, Ints]:
    """The `count` best tokens of every row, their scores, and the rows in which they are still to be found.

    `scores [row, vocab]` are float32 on the CPU, `count` is less than their columns. A NaN is no candidate; rows with
    too few of them, or with many equal scores, are not decided.
    """
    numbers: Floats = scores.numpy()
    rows, vocabulary = numbers.shape
    limit = _limits(scores, count, lowest)[:, None]
    passing = numbers <= limit if lowest else numbers >= limit
    most = 2 * count + _ROOM
    undecided = np.zeros(rows, np.bool_)
    if np.count_nonzero(passing) > rows * most:
        undecided = np.count_nonzero(passing, axis=1) > most
        passing[undecided] = False
    place = np.flatnonzero(passing)
    row = place // vocabulary
    token = place - row * vocabulary
    found = np.bincount(row, minlength=rows)
    undecided |= found < count
    keys = np.full((rows, max(count, int(found.max(initial=0)))), _NOBODY)
    keys[row, np.arange(len(row)) - (found.cumsum() - found)[row]] = _keys(numbers[row, token], token, lowest)
    keys.sort(axis=1)
    tokens = keys[:, :count] & 0xFFFFFFFF
    tokens[undecided] = 0
    best = np.take_along_axis(numbers, tokens, 1)
    return torch.from_numpy(tokens), torch.from_numpy(best), np.flatnonzero(undecided)


def best_of_blocks(
    scores: Tensor, extremes: Tensor, count: int, *, lowest: bool, block: int
) -> tuple[Tensor, Tensor, Ints]:
    """What `best_of_candidates` says, of more columns: the best lie in the `count` blocks whose `extremes` are best.

    `extremes [row, block]` are the best of each `block` neighbouring columns of `scores [row, vocab]`. Of blocks with
    equal extremes the first are taken; whatever equals theirs in another comes behind, having a higher token id. A row
    with a NaN is not decided.
    """
    (rows, vocabulary), last = scores.shape, scores.shape[1] // block
    found, _, undecided = best_of_candidates(extremes, count, lowest=lowest)
    chosen = np.sort(found.numpy(), axis=1)
    whole = scores[:, : last * block].view(rows, last, block).numpy()
    taken = whole[np.arange(rows)[:, None], np.minimum(chosen, last - 1)]
    if rest := vocabulary - last * block:
        row, slot = np.nonzero(chosen == last)
        taken[row, slot] = np.inf if lowest else -np.inf
        taken[row, slot, :rest] = scores[:, last * block :].numpy()[row]
    place, best, more = best_of_candidates(torch.from_numpy(taken.reshape(rows, -1)), count, lowest=lowest)
    places = place.numpy()
    tokens = np.take_along_axis(chosen, places // block, 1) * block + places % block
    strange = np.flatnonzero(np.isnan(extremes.numpy()).any(1))
    return torch.from_numpy(tokens), best, np.unique(np.concatenate([undecided, more, strange]))


def _limits(scores: Tensor, count: int, lowest: bool) -> Floats:
    """What at least `count` scores of each row reach, `[row]`: the `count`-th best, or not much worse."""
    blocks, extremes = scores.shape[1] // _BLOCK, scores
    if blocks >= 2 * count:
        apart = scores[:, : blocks * _BLOCK].view(-1, _BLOCK, blocks)
        extremes = apart.amin(1) if lowest else apart.amax(1)
    place = count - 1 if lowest else extremes.shape[1] - count
    limits: Floats = np.partition(extremes.numpy(), place, axis=1)[:, place]
    return limits


def _keys(scores: Floats, tokens: Ints, lowest: bool) -> Ints:
    """Integers that ascend as the best first, of equal scores the lower token, which is their lower half."""
    bits = (scores + np.float32(0)).view(np.int32)  # of -0.0 it makes 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys: Ints = (ascending if lowest else ~ascending).astype(np.int64) << 32 | tokens
    return keys
