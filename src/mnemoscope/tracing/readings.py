"""What is read off scores: which tokens are best and worst, ranks, and the shape of the softmax.

On a CPU compiled C reads them (reading.c), all that is asked of a row while a core's cache holds it; on other devices,
in other number formats, of lists that are longer, and where nothing was compiled, PyTorch does, with the same result.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from mnemoscope.compiled import caller_of, compiled_function
from mnemoscope.tracing.distributions import Distribution, measure_rows
from mnemoscope.tracing.ranking import Best, Ranking, rank_rows, sort_rows

_FUNCTION, _ARGUMENTS = "read_scores_1", "pnnnnnppnpppnppppp"
_LEAST, _MOST = 128, 64
"""Tokens of a vocabulary, at least, and best ones asked for, at most, where the compiled function finds any."""
_SHARED = 1 << 16
"""Scores for each thread, at least: of fewer, handing them over takes longer than it saves."""


def read_scores(
    scores: Tensor, *, best: int = 0, worst: int = 0, of: Sequence[Tensor] = (), room: Tensor | None = None
) -> tuple[Ranking, Distribution]:
    """What `rank_tokens` says of `scores [row, vocab]`, and `distribution`.

    Where PyTorch reads them it takes as many rows at a time as `room [row, vocab]` has, which saves an allocation.
    """
    if (compiled := _compiled_for(scores, max(best, worst))) is not None:
        return compiled.read(scores, best, worst, of)
    rankings, shapes, step = list[Ranking](), list[Distribution](), max(1, len(scores) if room is None else len(room))
    for start in range(0, max(1, len(scores)), step):
        rows = slice(start, start + step)
        part = scores[rows]
        own = None if room is None else room[: len(part)]
        rankings.append(rank_rows(part, best=best, worst=worst, of=[tokens[rows] for tokens in of], room=own))
        shapes.append(measure_rows(part))
    return Ranking.join(rankings), Distribution.join(shapes)


def rank_tokens(
    scores: Tensor, *, best: int = 0, worst: int = 0, of: Sequence[Tensor] = (), room: Tensor | None = None
) -> Ranking:
    """So many best and worst tokens of every row of `scores [row, vocab]`, 0: none; and the ranks of tokens `of [row]`.

    Fewer columns than asked for give all of them. `room` of the same shape as `scores` may save an allocation.
    """
    if (compiled := _compiled_for(scores, max(best, worst))) is not None:
        return compiled.rank(scores, best, worst, of)
    return rank_rows(scores, best=best, worst=worst, of=of, room=room)


def top(scores: Tensor, count: int, *, lowest: bool = False) -> Best:
    """The `count` best tokens of every row and their scores: `([row, rank] int64, [row, rank])`, best first.

    `scores [row, vocab]`; with `lowest` the lowest scores instead, most negative first. Equal scores go by token id.
    Fewer columns than `count` give all of them.
    """
    return rank_tokens(scores, worst=count).worst if lowest else rank_tokens(scores, best=count).best


def rank_of(scores: Tensor, tokens: Tensor) -> Tensor:
    """The rank `[row]` of one token per row of `scores [row, vocab]`: how many come before it."""
    return rank_tokens(scores, of=[tokens]).ranks[0]


def distribution(scores: Tensor) -> Distribution:
    """The shape of `softmax(scores)`, `scores [row, vocab]`; not a number where a score is not, or is infinite."""
    if (compiled := _compiled_for(scores, 0)) is not None:
        return compiled.read(scores, 0, 0, ())[1]
    return measure_rows(scores)


class CompiledReading:
    """Calls the compiled function."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function

    @staticmethod
    def fits(scores: Tensor, count: int) -> bool:
        """Whether so many best tokens of these scores can be asked for."""
        enough = count == 0 or (scores.shape[1] >= _LEAST and count <= _MOST)
        return scores.device.type == "cpu" and scores.dtype == torch.float32 and enough

    def rank(self, scores: Tensor, best: int, worst: int, of: Sequence[Tensor]) -> Ranking:
        """What `rank_tokens` says, of scores that fit."""
        return self._ask(scores, best, worst, of, None)

    def read(self, scores: Tensor, best: int, worst: int, of: Sequence[Tensor]) -> tuple[Ranking, Distribution]:
        """What `read_scores` says, of scores that fit."""
        shape = Distribution(*(scores.new_empty(len(scores)) for _ in range(3)))
        return self._ask(scores, best, worst, of, shape), shape

    def _ask(
        self, scores: Tensor, best: int, worst: int, of: Sequence[Tensor], shape: Distribution | None
    ) -> Ranking:
        """The ranking; `shape` is written to where it is given."""
        if scores.stride(1) != 1:
            scores = scores.contiguous()
        rows, vocabulary = scores.shape
        room, whole = scores.new_empty, partial(scores.new_empty, dtype=torch.int64)
        high, low = ((whole(rows, count), room(rows, count)) for count in (best, worst))
        undecided = room(rows, dtype=torch.uint8)
        tokens = torch.stack([each.long() for each in of]) if of else whole(0, rows)
        if tokens.shape != (len(of), rows):
            raise ValueError(f"ranks are asked for of {tokens.shape[1]} tokens, in {rows} rows")
        ranks = torch.empty_like(tokens)
        numbers = [None] * 3 if shape is None else [each.data_ptr() for each in vars(shape).values()]
        found = self._function(
            scores.data_ptr(), rows, vocabulary, scores.stride(0), _threads_for(scores),
            best, high[0].data_ptr(), high[1].data_ptr(), worst, low[0].data_ptr(), low[1].data_ptr(),
            undecided.data_ptr(), len(of), tokens.data_ptr(), ranks.data_ptr(),
            *numbers,
        )  # fmt: skip
        if found > 0:
            raise IndexError(f"{found} tokens are outside a vocabulary of {vocabulary}")
        if found < 0:
            wrong = undecided.nonzero()[:, 0]
            for (token, score), lowest in ((high, False), (low, True)):
                token[wrong], score[wrong] = sort_rows(scores[wrong], token.shape[1], lowest=lowest)
        return Ranking(high, low, ranks)


def _threads_for(scores: Tensor) -> int:
    return min(torch.get_num_threads(), scores.numel() // _SHARED)


def _compiled_for(scores: Tensor, count: int) -> CompiledReading | None:
    """What reads these scores and finds so many best tokens, or None: PyTorch does."""
    compiled = compiled_reading()
    return compiled if compiled is not None and compiled.fits(scores, count) else None


@cache
def compiled_reading() -> CompiledReading | None:
    """What was compiled as the package was installed, if it does what it should; None elsewhere."""
    return caller_of(compiled_function(_FUNCTION, _ARGUMENTS, ctypes.c_int64), CompiledReading, _reads_as_it_should)


def _reads_as_it_should(compiled: CompiledReading) -> bool:
    """Whether it knows ties, zeros of both signs, far-off scores and what is no number: some compilers may be told not
    to.
    """
    scores = torch.zeros(4, 2 * _LEAST, device="cpu")
    scores[0, 1::2], scores[0, 9], scores[0, 5] = -0.0, 1, -1e9
    scores[1, 7], scores[2, :7] = torch.nan, torch.inf
    scores[3] = torch.linspace(-30, 3, 2 * _LEAST)
    tokens = [torch.full((4,), 4, device="cpu")]
    (found, shape), wanted = compiled.read(scores, 3, 2, tokens), rank_rows(scores, best=3, worst=2, of=tokens)
    alike = found.best[0].equal(wanted.best[0]) and found.worst[0].equal(wanted.worst[0])
    numbers = zip(vars(shape).values(), vars(measure_rows(scores)).values(), strict=True)
    close = all(one.allclose(other, rtol=1e-6, equal_nan=True) for one, other in numbers)
    return alike and close and found.ranks.equal(wanted.ranks)
