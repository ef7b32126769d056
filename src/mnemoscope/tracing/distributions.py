"""The shape of a softmax over the vocabulary: its normaliser, its largest probability and its entropy.

Terms and sums are float64, and only the result is rounded to the scores' own format: to the same bits in whatever order
they were added up, so those of a graphics card and of a processor are equal, but for a number in a million.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnemoscope.tracing.ranking import Ranking, rank_tokens

TERMS, TERMS_ON_CARDS = 1 << 20, 1 << 24
"""Terms that exist at one time where PyTorch adds them up: 8 MiB on a CPU, elsewhere as few calls as memory allows."""


@dataclass(frozen=True)
class Distribution:
    """`softmax(scores)` as three numbers a row, each `[row]`; log of the normaliser and entropy in nats."""

    log_normaliser: Tensor
    max_probability: Tensor
    entropy: Tensor

    @classmethod
    def join(cls, parts: "Sequence[Distribution]") -> "Distribution":
        """Those of all rows of the parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(torch.cat, zip(*(vars(part).values() for part in parts), strict=True)))


def distribution(scores: Tensor) -> Distribution:
    """The shape of `softmax(scores)`, `scores [row, vocab]`, some rows at a time; not a number where a score is not."""
    step = max(1, (TERMS if scores.device.type == "cpu" else TERMS_ON_CARDS) // scores.shape[1])
    return Distribution.join([_measure(part) for part in torch.split(scores, step)])


def read_scores(
    scores: Tensor, *, best: int = 0, worst: int = 0, of: Sequence[Tensor] = (), room: Tensor | None = None
) -> tuple[Ranking, Distribution]:
    """What `rank_tokens` says of `scores [row, vocab]`, and `distribution`.

    As many rows at a time as `room [row, vocab]` has, which saves an allocation.
    """
    rankings, shapes, step = list[Ranking](), list[Distribution](), max(1, len(scores) if room is None else len(room))
    for start in range(0, max(1, len(scores)), step):
        rows = slice(start, start + step)
        part = scores[rows]
        own = None if room is None else room[: len(part)]
        rankings.append(rank_tokens(part, best=best, worst=worst, of=[tokens[rows] for tokens in of], room=own))
        shapes.append(distribution(part))
    return Ranking.join(rankings), Distribution.join(shapes)


def _measure(scores: Tensor) -> Distribution:
    shift = scores.amax(1).double()
    below = scores.double() - shift[:, None]
    terms = below.exp()
    total = terms.sum(1)
    logarithm = total.log()
    entropy = logarithm - terms.mul_(below).sum(1) / total
    return Distribution(*(each.to(scores.dtype) for each in (logarithm + shift, 1 / total, entropy)))
