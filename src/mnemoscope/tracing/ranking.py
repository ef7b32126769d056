"""Which tokens score best and worst, and how many come before a given one: what comparing scores says of them.

Ranks are 0-based and ties go to the lower token id, everywhere (definitions.md section 2). On a CPU compiled C compares
(ranking.c), a row while the cache holds it; for other devices and number formats, lists that are longer, and where
nothing was compiled, PyTorch does, with the same result.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from mnemoscope.compiled import caller_of, compiled_function

BLOCK = 64
"""Neighbouring tokens whose maximum is looked at first: the best k tokens lie in the k blocks with the best maxima."""
_FUNCTION, _ARGUMENTS = "rank_tokens_1", "pnnnnnppnpppnpp"
_LEAST, _MOST = 128, 64
"""Tokens of a vocabulary, at least, and best ones asked for, at most, that the compiled function takes."""
_SHARED = 1 << 16
"""Scores for each thread, at least: of fewer, handing them over takes longer than it saves."""

Best = tuple[Tensor, Tensor]
"""Tokens `[row, rank]`, int64, and their scores `[row, rank]`, best first."""


@dataclass(frozen=True)
class Ranking:
    """What was asked of rows of scores: their best tokens, their worst, worst first, and ranks `[of, row]` of some."""

    best: Best
    worst: Best
    ranks: Tensor

    @classmethod
    def join(cls, parts: "Sequence[Ranking]") -> "Ranking":
        """That of all rows of the parts."""
        if len(parts) == 1:
            return parts[0]
        ranks = torch.cat([part.ranks for part in parts], 1)
        return cls(_join([part.best for part in parts]), _join([part.worst for part in parts]), ranks)


def rank_tokens(
    scores: Tensor, *, best: int = 0, worst: int = 0, of: Sequence[Tensor] = (), scratch: Tensor | None = None
) -> Ranking:
    """So many best and worst tokens of every row of `scores [row, vocab]`, 0: none; and the ranks of tokens `of [row]`.

    Fewer columns than asked for give all of them. `scratch` of the same shape as `scores` may save an allocation.
    """
    compiled = compiled_ranking()
    if compiled is not None and compiled.fits(scores, max(best, worst)):
        return compiled.rank(scores, best, worst, of)
    ranks = [_rank(scores, tokens, scratch) for tokens in of]
    return Ranking(
        _best(scores, best, lowest=False),
        _best(scores, worst, lowest=True),
        torch.stack(ranks) if ranks else scores.new_empty(0, len(scores), dtype=torch.int64),
    )


def top(scores: Tensor, count: int, *, lowest: bool = False) -> Best:
    """The `count` best tokens of every row and their scores: `([row, rank] int64, [row, rank])`, best first.

    `scores [row, vocab]`; with `lowest` the lowest scores instead, most negative first. Equal scores go by token id.
    Fewer columns than `count` give all of them.
    """
    return rank_tokens(scores, worst=count).worst if lowest else rank_tokens(scores, best=count).best


def rank_of(scores: Tensor, tokens: Tensor, *, scratch: Tensor | None = None) -> Tensor:
    """The rank `[row]` of one token per row of `scores [row, vocab]`: how many come before it.

    `scratch` of the same shape as `scores` may save an allocation.
    """
    return rank_tokens(scores, of=[tokens], scratch=scratch).ranks[0]


def threads_for(scores: Tensor) -> int:
    """How many threads a compiled function deals the rows of `scores` to."""
    return min(torch.get_num_threads(), scores.numel() // _SHARED)


class CompiledRanking:
    """Calls the compiled function."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function

    @staticmethod
    def fits(scores: Tensor, count: int) -> bool:
        """Whether so many best tokens of these scores can be asked for."""
        rows, vocabulary = scores.shape
        return (
            scores.device.type == "cpu" and scores.dtype == torch.float32
            and rows > 0 and vocabulary >= _LEAST and count <= _MOST
        )  # fmt: skip

    def rank(self, scores: Tensor, best: int, worst: int, of: Sequence[Tensor]) -> Ranking:
        """What `rank_tokens` says, of scores that fit."""
        if scores.stride(1) != 1:
            scores = scores.contiguous()
        rows, vocabulary = scores.shape
        whole, room = partial(scores.new_empty, dtype=torch.int64), scores.new_empty
        high, low = ((whole(rows, count), room(rows, count)) for count in (best, worst))
        undecided = scores.new_empty(rows, dtype=torch.uint8)
        tokens = torch.stack([each.long() for each in of]) if of else whole(0, rows)
        ranks = torch.empty_like(tokens)
        outside = self._function(
            scores.data_ptr(), rows, vocabulary, scores.stride(0), threads_for(scores),
            best, high[0].data_ptr(), high[1].data_ptr(), worst, low[0].data_ptr(), low[1].data_ptr(),
            undecided.data_ptr(), len(of), tokens.data_ptr(), ranks.data_ptr(),
        )  # fmt: skip
        if outside:
            raise IndexError(f"{outside} tokens are outside a vocabulary of {vocabulary}")
        if undecided.any():
            wrong = undecided.nonzero()[:, 0]
            for (token, score), lowest in ((high, False), (low, True)):
                token[wrong], score[wrong] = _sort(scores[wrong], token.shape[1], lowest=lowest)
        return Ranking(high, low, ranks)


@cache
def compiled_ranking() -> CompiledRanking | None:
    """What was compiled as the package was installed, if it does what it should; None elsewhere."""
    return caller_of(compiled_function(_FUNCTION, _ARGUMENTS, ctypes.c_int64), CompiledRanking, _ranks_as_it_should)


def _ranks_as_it_should(compiled: CompiledRanking) -> bool:
    """Whether it knows ties, zeros of both signs and what is no number: some compilers may be told not to."""
    scores = torch.zeros(3, 2 * _LEAST, device="cpu")
    scores[0, 1::2], scores[0, 9], scores[0, 5] = -0.0, 1, -torch.inf
    scores[1, 7], scores[2, :7] = torch.nan, torch.inf
    token = torch.tensor([4, 4, 4])
    found = compiled.rank(scores, 3, 2, [token])
    high, low = _best(scores, 3, lowest=False), _best(scores, 2, lowest=True)
    alike = found.best[0].equal(high[0]) and found.worst[0].equal(low[0])
    return alike and found.ranks[0].equal(_rank(scores, token, None))


def _best(scores: Tensor, count: int, *, lowest: bool) -> Best:
    vocabulary = scores.shape[1]
    count = min(count, vocabulary)
    if count == 0:
        return scores.new_empty(len(scores), 0, dtype=torch.int64), scores[:, :0]
    if count == vocabulary:
        return _sort(scores, count, lowest=lowest)
    candidates, columns, tied = scores, None, torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    if vocabulary > 4 * count * BLOCK:
        best = _block_extremes(scores, lowest=lowest).topk(count + 1, dim=1, largest=not lowest)
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
    place = place.gather(1, order)
    tokens = place if columns is None else columns.gather(1, place)
    rows = tied.nonzero()[:, 0]
    if len(rows):
        tokens[rows], values[rows] = _sort(scores[rows], count, lowest=lowest)
    return tokens, values


def _block_extremes(scores: Tensor, *, lowest: bool) -> Tensor:
    """The highest (or lowest) score `[row, block]` of each BLOCK neighbouring tokens of `scores [row, vocab]`."""
    whole = scores.shape[1] // BLOCK * BLOCK
    blocks, tail = scores[:, :whole].reshape(len(scores), whole // BLOCK, BLOCK), scores[:, whole:]
    found = blocks.amin(2) if lowest else blocks.amax(2)
    if tail.shape[1]:
        found = torch.cat([found, tail.amin(1, keepdim=True) if lowest else tail.amax(1, keepdim=True)], 1)
    return found


def _join(parts: Sequence[Best]) -> Best:
    tokens, scores = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(scores)


def _sort(scores: Tensor, count: int, *, lowest: bool) -> Best:
    values, tokens = scores.sort(dim=1, descending=not lowest, stable=True)
    return tokens[:, :count], values[:, :count]


def _rank(scores: Tensor, tokens: Tensor, scratch: Tensor | None) -> Tensor:
    own = scores.gather(1, tokens[:, None])
    marks = torch.empty_like(scores) if scratch is None else scratch
    rank = torch.gt(scores, own, out=marks).sum(1).long()
    tied = (torch.eq(scores, own, out=marks).sum(1) > 1).nonzero()[:, 0]
    if len(tied):
        before = torch.arange(scores.shape[1], device=scores.device)[None] < tokens[tied, None]
        rank[tied] += ((scores[tied] == own[tied]) & before).sum(1)
    return rank
