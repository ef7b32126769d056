"""Draws random strings of the form of a string, and ranks the string among them (Carlini et al. 2019).

A digit becomes another digit, a letter another letter of its case; the rest stays. A string that the model never saw
has a uniform rank among them, provided that the varied characters were random in the first place: so the rank is a
test.
"""

import math
import string
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SETS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def draw_alternatives(text: str, *, count: int, seed: int, vary: str = "all") -> list[str]:
    """At most `count` distinct strings of the form of `text`, without `text`. Letters beyond the 26 of English stay."""
    sets = {char: each for each in (_SETS if vary == "all" else _SETS[:1]) for char in each}
    places = [(place, sets[char]) for place, char in enumerate(text) if char in sets]
    possible = math.prod(len(each) for _, each in places) - 1
    generator = np.random.default_rng((seed, *text.encode()))
    alternatives: dict[str, None] = {}
    while len(alternatives) < min(count, possible):
        chars = list(text)
        for place, each in places:
            chars[place] = each[int(generator.integers(len(each)))]
        if (drawn := "".join(chars)) != text:
            alternatives[drawn] = None
    return list(alternatives)


@dataclass(frozen=True)
class Standing:
    """The rank (from 1) of a string among `candidates`, which include it; in a tie it is last."""

    rank: int
    candidates: int

    @property
    def exposure(self) -> float:
        """log2(candidates) - log2(rank), in bits."""
        return math.log2(self.candidates) - math.log2(self.rank)

    @property
    def p_value(self) -> float:
        """The probability that an unseen string of this form ranks as high or higher."""
        return self.rank / self.candidates


def stand(own: float, others: NDArray[np.float64]) -> Standing | None:
    return Standing(1 + int((others >= own).sum()), 1 + len(others)) if len(others) else None
