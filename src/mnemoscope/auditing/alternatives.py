"""Random strings of the form of a given one, and where the given one stands among them (Carlini et al. 2019).

A digit becomes another digit, a letter another letter of its case; everything else stays. A string that was never seen
is as likely as they are to stand anywhere, as long as what is varied was random in the first place: this is what makes
the rank a test.
"""

import math
import string
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VARIED = ("all", "digits")
"""What differs between alternatives: digits and letters, or digits alone."""
_SETS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def draw_alternatives(text: str, *, count: int, seed: int, vary: str = "all") -> list[str]:
    """At most `count` different strings of the form of `text`, never `text` itself; fewer where there are not so many.

    Letters beyond the 26 of English stay as they are.
    """
    sets = {char: each for each in (_SETS if vary == "all" else _SETS[:1]) for char in each}
    places = [(place, sets[char]) for place, char in enumerate(text) if char in sets]
    possible = math.prod(len(each) for _, each in places) - 1
    generator = np.random.default_rng((seed, *text.encode()))
    found: dict[str, None] = {}
    while len(found) < min(count, possible):
        chars = list(text)
        for place, each in places:
            chars[place] = each[int(generator.integers(len(each)))]
        if (drawn := "".join(chars)) != text:
            found[drawn] = None
    return list(found)


@dataclass(frozen=True)
class Standing:
    """The rank (from 1) of a string among `candidates`, itself one of them; of equal log probabilities it is last."""

    rank: int
    candidates: int

    @property
    def exposure(self) -> float:
        """log2(candidates) - log2(rank), in bits: 0 for the last, log2(candidates) for the first."""
        return math.log2(self.candidates) - math.log2(self.rank)

    @property
    def p_value(self) -> float:
        """The chance that a string of this form that was never seen stands as high, or higher."""
        return self.rank / self.candidates


def stand(own: float, others: NDArray[np.float64]) -> Standing | None:
    """Where a log probability stands among those of alternatives; None where there are none."""
    return Standing(1 + int((others >= own).sum()), 1 + len(others)) if len(others) else None
