"""The shape of a softmax over the vocabulary: its normaliser, its largest probability and its entropy.

Terms and sums are float64, and only the result is rounded to the scores' format. So the result does not depend on the
order of the sum, and a graphics card and a processor agree, except for one number in a million.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.tracing.scoring.ranking import Ranking, rank_tokens

TERMS, TERMS_ON_CARDS = 1 << 15, 1 << 24
"""Terms that exist at one time: on a CPU what a core's cache holds, elsewhere as few calls as memory allows."""


@dataclass(frozen=True)
class Distribution:
    """`softmax(scores)` as three numbers a row, each `[row]`; log of the normaliser and entropy in nats."""

    log_normaliser: Tensor
    max_probability: Tensor
    entropy: Tensor


def read_scores(
    scores: Tensor, *, best: int, worst: int = 0, of: Sequence[Tensor] = ()
) -> tuple[Ranking, Distribution]:
    """`rank_tokens` of `scores [row, vocab]`, with `best` of 1 or more, and the shape of their softmax; NaN where a
    score is NaN.
    """
    ranking = rank_tokens(scores, best=best, worst=worst, of=of)
    highest = ranking.best[1][:, 0]
    total, weighted = _sums(scores, highest, entropy=True)
    logarithm = total.log()
    shape = logarithm + highest.double(), 1 / total, logarithm - weighted / total * math.log(2)
    return ranking, Distribution(*(each.to(scores.dtype) for each in shape))


def max_probability(scores: Tensor) -> Tensor:
    """The largest probability `[row]` of `softmax(scores)`, in three quarters of the time of the whole shape."""
    return (1 / _sums(scores, scores.amax(1), entropy=False)[0]).to(scores.dtype)


def _sums(scores: Tensor, highest: Tensor, *, entropy: bool) -> Tensor:
    """Sums `[2, row]` of the terms exp(score - highest), and with `entropy` of each times its exponent in bits."""
    most = TERMS * torch.get_num_threads() if scores.device.type == "cpu" else TERMS_ON_CARDS
    rows, shift = max(1, most // scores.shape[1]), highest.double()[:, None]
    sums = shift.new_zeros(2, len(scores))
    for some, above, own in zip(*map(torch.split, (scores, shift, sums.T), [rows] * 3), strict=True):
        for part in torch.split(some, most, 1):
            # Powers of two take PyTorch up to a third less time than those of e.
            bits = part.to(torch.float64, copy=True).sub_(above).mul_(1 / math.log(2))
            terms = bits.exp2()
            own[:, 0] += terms.sum(1)
            if entropy:
                own[:, 1] += terms.mul_(bits).sum(1)
    return sums
