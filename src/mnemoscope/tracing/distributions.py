"""The shape of a softmax over the vocabulary: its normaliser, its largest probability and its entropy.

Terms and sums are float64, and only what is told is rounded to the scores' own format: to the same bits in whatever
order they were added up, so those of a graphics card, of PyTorch and of compiled C (distribution.c) are equal, but for
a number in a million.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mnemoscope.compiled import caller_of, compiled_function
from mnemoscope.tracing.ranking import threads_for

_FUNCTION, _ARGUMENTS = "measure_distributions_1", "pnnnnpnppp"
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


def distribution(scores: Tensor, *, highest: Tensor | None = None) -> Distribution:
    """The shape of `softmax(scores)`, `scores [row, vocab]`; not a number where a score is not, or is infinite.

    `highest [row]`, each row's largest score, saves a sweep.
    """
    highest = scores.amax(1) if highest is None else highest
    compiled = compiled_distribution()
    if compiled is not None and compiled.fits(scores):
        return compiled.measure(scores, highest)
    return _measure(scores, highest)


class CompiledDistribution:
    """Calls the compiled function."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @staticmethod
    def fits(scores: Tensor) -> bool:
        """Whether these scores are read as they lie."""
        return scores.device.type == "cpu" and scores.dtype == torch.float32 and scores.stride(1) == 1

    def measure(self, scores: Tensor, highest: Tensor) -> Distribution:
        """What `distribution` says, of scores that fit."""
        rows, vocabulary = scores.shape
        if highest.shape != (rows,) or highest.dtype != scores.dtype:
            raise ValueError(f"no highest score for each of {rows} rows")
        found = Distribution(*(scores.new_empty(rows) for _ in range(3)))
        self._function(
            scores.data_ptr(), rows, vocabulary, scores.stride(0), threads_for(scores),
            highest.data_ptr(), highest.stride(0),
            found.log_normaliser.data_ptr(), found.max_probability.data_ptr(), found.entropy.data_ptr(),
        )  # fmt: skip
        return found


@cache
def compiled_distribution() -> CompiledDistribution | None:
    """What was compiled as the package was installed, if it does what it should; None elsewhere."""
    return caller_of(compiled_function(_FUNCTION, _ARGUMENTS), CompiledDistribution, _measures_as_it_should)


def _measures_as_it_should(compiled: CompiledDistribution) -> bool:
    """Whether it knows far-off scores and what is no number: some compilers may be told not to."""
    scores = torch.linspace(-30, 3, 3 * 37, device="cpu").reshape(3, 37)
    scores[0, 5], scores[1, 7] = -1e9, torch.nan
    highest = scores.amax(1)
    found, wanted = (vars(measure(scores, highest)).values() for measure in (compiled.measure, _measure))
    return all(one.allclose(other, rtol=1e-6, equal_nan=True) for one, other in zip(found, wanted, strict=True))


def _measure(scores: Tensor, highest: Tensor) -> Distribution:
    """The same by PyTorch, some rows at a time."""
    step = max(1, (_TERMS if scores.device.type == "cpu" else _TERMS_ON_CARDS) // scores.shape[1])
    parts = zip(torch.split(scores, step), torch.split(highest, step), strict=True)
    return Distribution.join([_measure_some(part, own) for part, own in parts])


def _measure_some(scores: Tensor, highest: Tensor) -> Distribution:
    shift = highest.double()
    below = scores.double() - shift[:, None]
    terms = below.exp()
    total = terms.sum(1)
    logarithm = total.log()
    entropy = logarithm - terms.mul_(below).sum(1) / total
    return Distribution(*(each.to(scores.dtype) for each in (logarithm + shift, 1 / total, entropy)))
