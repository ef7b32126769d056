"""Draws random strings of the form of a string, and ranks the string among them (Carlini et al. 2019).

A digit becomes another digit, a letter another letter of its case; the rest stays. A string that the model never saw
has a uniform rank among them, provided that the varied characters were random in the first place: so the rank is a
test.
"""

import math
import string
from collections.abc import Sequence

import numpy as np

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


def stand(own: float, others: Sequence[float]) -> tuple[int, float, float] | tuple[None, None, None]:
    """The rank (from 1; in a tie last) of a string among others, its exposure (log2 of all less log2 of the rank, in
    bits), and the probability that an unseen string of this form ranks as high or higher; None without others.
    """
    if not others:
        return None, None, None
    rank, candidates = 1 + sum(other >= own for other in others), 1 + len(others)
    return rank, math.log2(candidates) - math.log2(rank), rank / candidates
