"""The best and worst tokens by score, and the ranks of given ones.

Ranks are 0-based and ties go to the lower token id, everywhere (definitions.md section 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.foundation.budget import BUDGET, rows_within

BLOCK = 32
"""Neighbouring tokens per maximum: the best k tokens lie in the k blocks with the best maxima."""

Best = tuple[Tensor, Tensor]
"""Tokens `[row, rank]`, int64, and their scores `[row, rank]`, best first."""


@dataclass(frozen=True)
class Ranking:
    """Of rows of scores the best tokens, the worst, worst first, and the ranks `[of, row]` of given ones."""

    best: Best
    worst: Best
    ranks: Tensor


def rank_tokens(scores: Tensor, *, best: int = 0, worst: int = 0, of: Sequence[Tensor] = ()) -> Ranking:
    """The `best` and `worst` tokens of every row of `scores [row, vocab]`, fewer if there are fewer, and the ranks of
    tokens `of [row]`.
    """
    ranks = [_rank(scores, tokens) for tokens in of]
    return Ranking(
        _best(scores, best, lowest=False),
        _best(scores, worst, lowest=True),
        torch.stack(ranks) if ranks else scores.new_empty(0, len(scores), dtype=torch.int64),
    )


def top(scores: Tensor, count: int, *, lowest: bool = False) -> Best:
    """The `count` best tokens per row of `scores [row, vocab]`, or the lowest; fewer if there are fewer."""
    return rank_tokens(scores, worst=count).worst if lowest else rank_tokens(scores, best=count).best


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank `[row]` of one token per row of `scores [row, vocab]`: how many come before it."""
    return rank_tokens(scores, of=[tokens]).ranks[0]


def _sort_rows(scores: Tensor, count: int, *, lowest: bool) -> Best:
    values, tokens = scores.sort(dim=1, descending=not lowest, stable=True)
    return tokens[:, :count], values[:, :count]


def _best(scores: Tensor, count: int, *, lowest: bool) -> Best:
    vocabulary = scores.shape[1]
    count = min(count, vocabulary)
    if count == 0:
        return scores.new_empty(len(scores), 0, dtype=torch.int64), scores[:, :0]
    if count == vocabulary:
        return _sort_rows(scores, count, lowest=lowest)
    candidates, columns, tied = scores, None, torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    if vocabulary > 4 * count * BLOCK:
        extremes = _block_extremes(scores, lowest=lowest)
        best = extremes.topk(count + 1, dim=1, largest=not lowest)
        tied = _ties(best.values, count, lowest=lowest) | extremes.isnan().any(1)
        blocks = best.indices[:, :count].sort(dim=1).values
        columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
        worst = float("inf") if lowest else float("-inf")
        candidates = scores.gather(1, columns.clamp(max=vocabulary - 1)).masked_fill(columns >= vocabulary, worst)
    finalists = candidates.topk(count + 1, dim=1, largest=not lowest)
    tied |= _ties(finalists.values, count, lowest=lowest)
    # Candidates ascend in token id, so sorting by place first lets the stable sort by score break ties by id.
    place = finalists.indices[:, :count].sort(dim=1).values
    values, order = candidates.gather(1, place).sort(dim=1, descending=not lowest, stable=True)
    place = place.gather(1, order)
    tokens = place if columns is None else columns.gather(1, place)
    rows = tied.nonzero()[:, 0]
    if len(rows):
        tokens[rows], values[rows] = _sort_rows(scores[rows], count, lowest=lowest)
    return tokens, values


def _ties(values: Tensor, count: int, *, lowest: bool) -> Tensor:
    """Whether the last of `count` values `[row, rank]` and the next are equal, or one is NaN."""
    last, following = values[:, count - 1], values[:, count]
    return ~(last < following if lowest else last > following)


def _block_extremes(scores: Tensor, *, lowest: bool) -> Tensor:
    """The highest (or lowest) score `[row, block]` of each BLOCK neighbouring tokens of `scores [row, vocab]`."""
    whole = scores.shape[1] // BLOCK * BLOCK
    blocks, tail = scores[:, :whole].reshape(len(scores), whole // BLOCK, BLOCK), scores[:, whole:]
    extremes = blocks.amin(2) if lowest else blocks.amax(2)
    if tail.shape[1]:
        extremes = torch.cat([extremes, tail.amin(1, keepdim=True) if lowest else tail.amax(1, keepdim=True)], 1)
    return extremes


def _rank(scores: Tensor, tokens: Tensor) -> Tensor:
    given = scores.gather(1, tokens[:, None])
    rows = rows_within(BUDGET.in_cache, scores.shape[1]) * torch.get_num_threads()
    rows = rows if scores.device.type == "cpu" else max(1, len(scores))
    marks = torch.empty_like(scores[:rows])
    counts = [
        [compare(part, mark, out=marks[: len(part)]).sum(1) for compare in (torch.gt, torch.eq)]
        for part, mark in zip(torch.split(scores, rows), torch.split(given, rows), strict=True)
    ]
    above, equal = map(torch.cat, zip(*counts, strict=True))
    rank, tied = above.long(), (equal > 1).nonzero()[:, 0]
    if len(tied):
        before = torch.arange(scores.shape[1], device=scores.device)[None] < tokens[tied, None]
        rank[tied] += ((scores[tied] == given[tied]) & before).sum(1)
    return rank
