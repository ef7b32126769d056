"""The shape of a softmax over the vocabulary: its normaliser, its largest probability and its entropy.

Terms and sums are float64, and only the result is rounded to the scores' format. So the result does not depend on the
order of the sum, and a graphics card and a processor agree, except for one number in a million. `max_probability`, of
a multiple of the scores, is faster and less exact.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.tracing.scoring.ranking import Ranking, rank_tokens

TERMS, TERMS_ON_CARDS = 1 << 17, 1 << 24
"""Terms that exist at one time: on a CPU what a core's cache holds, elsewhere as few calls as memory allows."""


@dataclass(frozen=True)
class Distribution:
    """`softmax(scores)` as three numbers a row, each `[row]`: log of the normaliser and entropy in nats; and the mean
    and standard deviation of the scores.
    """

    log_normaliser: Tensor
    max_probability: Tensor
    entropy: Tensor
    mean: Tensor
    deviation: Tensor

    def distance(self, scores: Tensor) -> Tensor:
        """How far a score of each row is from the mean, in standard deviations, `[row]`; NaN where all are equal."""
        return (scores - self.mean).abs() / self.deviation


def read_scores(
    scores: Tensor, *, best: int, worst: int = 0, of: Sequence[Tensor] = ()
) -> tuple[Ranking, Distribution]:
    """`rank_tokens` of `scores [row, vocab]`, with `best` of 1 or more, and the shape of their softmax; NaN where a
    score is NaN.
    """
    ranking = rank_tokens(scores, best=best, worst=worst, of=of)
    highest = ranking.best[1][:, 0].double()
    total, weighted, below, squares = _sums(scores, highest)
    mean, nats = below / scores.shape[1], math.log(2)
    deviation = (squares / scores.shape[1] - mean.square()).sqrt() * nats
    entropy = total.log() - weighted / total * nats
    shape = total.log() + highest, 1 / total, entropy, highest + mean * nats, deviation
    return ranking, Distribution(*(each.to(scores.dtype) for each in shape))


def max_probability(scores: Tensor, extreme: Tensor, factor: Tensor) -> Tensor:
    """The largest probability `[row]` of `softmax(factor * scores)`; `extreme [row]` are the scores that `factor [row]`
    makes the highest. Terms are float32 and parts add up in float64: off by less than 1e-6, in less than half the time.
    """
    total, bits = torch.zeros_like(factor, dtype=torch.float64), (factor.double() / math.log(2)).to(scores.dtype)
    for part, above, times, sums in _tiles(scores, extreme[:, None], bits[:, None], total):
        sums += part.sub(above).mul_(times).exp2_().sum(1)
    return (1 / total).to(scores.dtype)


def _sums(scores: Tensor, highest: Tensor) -> Tensor:
    """Sums `[4, row]` over x = score - highest, in bits: of 2^x, x 2^x, x and x^2."""
    sums = torch.zeros(4, len(scores), dtype=torch.float64, device=scores.device)
    for part, above, of_rows in _tiles(scores, highest[:, None], sums.T):
        # Powers of two take PyTorch up to a third less time than those of e.
        bits = part.to(torch.float64, copy=True).sub_(above).mul_(1 / math.log(2))
        terms = bits.exp2()
        of_rows += torch.stack([terms.sum(1), terms.mul_(bits).sum(1), bits.sum(1), bits.square_().sum(1)], 1)
    return sums


def _tiles(scores: Tensor, *of_rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of the scores that exist at one time in another format, each with its rows of the others."""
    most = TERMS * torch.get_num_threads() if scores.device.type == "cpu" else TERMS_ON_CARDS
    rows = max(1, most // scores.shape[1])
    for first in range(0, len(scores), rows):
        others = [each[first : first + rows] for each in of_rows]
        for start in range(0, scores.shape[1], most):
            yield scores[first : first + rows, start : start + most], *others
