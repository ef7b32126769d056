"""Scores over a vocabulary read as answers: the best tokens, the rank of one, the shape of the distribution.

Ranks are 0-based and ties go to the lower token id, everywhere (definitions.md section 2). Knows nothing of layers or
texts; where scores come from is the model's business.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 64
"""Neighbouring tokens whose maximum is looked at first: the best k tokens lie in the k blocks with the best maxima."""


@dataclass(frozen=True)
class Distribution:
    """`softmax(scores)` as three numbers a row, each `[row]`; log of the normaliser and entropy in nats."""

    log_normaliser: Tensor
    max_probability: Tensor
    entropy: Tensor


def top(scores: Tensor, count: int, *, lowest: bool = False) -> tuple[Tensor, Tensor]:
    """The `count` best tokens of every row and their scores: `([row, rank] int64, [row, rank])`, best first.

    `scores [row, vocab]`; with `lowest` the lowest scores instead, most negative first. Equal scores go by token id.
    Fewer columns than `count` give all of them.
    """
    vocabulary = scores.shape[1]
    count = min(count, vocabulary)
    if count == 0 or vocabulary <= 4 * count * BLOCK:
        return _sort(scores, count, lowest=lowest)
    whole = vocabulary // BLOCK * BLOCK
    blocks = scores[:, :whole].reshape(len(scores), -1, BLOCK)
    tail = scores[:, whole:]
    extremes = blocks.amin(2) if lowest else blocks.amax(2)
    if tail.shape[1]:
        extremes = torch.cat([extremes, (tail.amin(1) if lowest else tail.amax(1))[:, None]], 1)
    best = extremes.topk(count + 1, dim=1, largest=not lowest)
    tied = best.values[:, count - 1] == best.values[:, count]
    chosen = best.indices[:, :count].sort(dim=1).values
    columns = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    worst = float("inf") if lowest else float("-inf")
    candidates = scores.gather(1, columns.clamp(max=vocabulary - 1)).masked_fill(columns >= vocabulary, worst)
    found = candidates.topk(count + 1, dim=1, largest=not lowest)
    tied |= found.values[:, count - 1] == found.values[:, count]
    # Candidates ascend in token id, so sorting by place first makes the stable sort by score break ties rightly.
    place = found.indices[:, :count].sort(dim=1).values
    values, order = candidates.gather(1, place).sort(dim=1, descending=not lowest, stable=True)
    tokens = columns.gather(1, place.gather(1, order))
    rows = tied.nonzero()[:, 0]
    if len(rows):
        tokens[rows], values[rows] = _sort(scores[rows], count, lowest=lowest)
    return tokens, values


def _sort(scores: Tensor, count: int, *, lowest: bool) -> tuple[Tensor, Tensor]:
    values, tokens = scores.sort(dim=1, descending=not lowest, stable=True)
    return tokens[:, :count], values[:, :count]


def rank_of(scores: Tensor, tokens: Tensor, *, scratch: Tensor | None = None) -> Tensor:
    """The rank `[row]` of one token per row of `scores [row, vocab]`: how many come before it.

    `scratch` of the same shape as `scores` saves an allocation.
    """
    own = scores.gather(1, tokens[:, None])
    marks = torch.empty_like(scores) if scratch is None else scratch
    rank = torch.gt(scores, own, out=marks).sum(1).long()
    tied = (torch.eq(scores, own, out=marks).sum(1) > 1).nonzero()[:, 0]
    if len(tied):
        before = torch.arange(scores.shape[1], device=scores.device)[None] < tokens[tied, None]
        rank[tied] += ((scores[tied] == own[tied]) & before).sum(1)
    return rank


def distribution(scores: Tensor, *, highest: Tensor | None = None, scratch: Tensor | None = None) -> Distribution:
    """The shape of `softmax(scores)`, `scores [row, vocab]`.

    `highest [row]`, each row's largest score, saves a sweep; `scratch` of the same shape as `scores` an allocation.
    """
    shift = (scores.amax(1) if highest is None else highest)[:, None]
    terms = torch.sub(scores, shift, out=scratch).exp_()
    total = terms.sum(1)
    mean = terms.mul_(scores).sum(1) / total
    log_normaliser = total.log() + shift[:, 0]
    return Distribution(log_normaliser, 1 / total, log_normaliser - mean)
