"""The shape of a softmax over the vocabulary: its normaliser, its largest probability and its entropy.

Terms and sums are float64, and only what is told is rounded to the scores' own format: to the same bits in whatever
order they were added up, so those of a graphics card, of PyTorch and of compiled C (distribution.c) are equal, but for
a number in a million. This is PyTorch's way; readings.py says where C takes its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TERMS, _TERMS_ON_CARDS = 1 << 20, 1 << 24
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


def measure_rows(scores: Tensor) -> Distribution:
    """The shape of `softmax(scores)`, `scores [row, vocab]`, some rows at a time; not a number where a score is not."""
    step = max(1, (_TERMS if scores.device.type == "cpu" else _TERMS_ON_CARDS) // scores.shape[1])
    return Distribution.join([_measure(part) for part in torch.split(scores, step)])


def _measure(scores: Tensor) -> Distribution:
    shift = scores.amax(1).double()
    below = scores.double() - shift[:, None]
    terms = below.exp()
    total = terms.sum(1)
    logarithm = total.log()
    entropy = logarithm - terms.mul_(below).sum(1) / total
    return Distribution(*(each.to(scores.dtype) for each in (logarithm + shift, 1 / total, entropy)))
