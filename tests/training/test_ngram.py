"""The n-gram baseline against interpolated Kneser-Ney as the paper writes it, with dictionaries."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from mnemoscope.training.evaluate import NgramModel

VOCABULARY = 7


class SlowNgram:
    """Chen and Goodman 1999, section 4.1.6: counts for the longest n-grams, different predecessors for the others."""

    def __init__(self, stream: list[int], order: int) -> None:
        grams = [[tuple(stream[i : i + n]) for i in range(len(stream) - n + 1)] for n in range(1, order + 2)]
        self.order = order
        self.counts: list[Counter[tuple[int, ...]]] = [Counter(g[1:] for g in set(grams[n])) for n in range(1, order)]
        self.counts.append(Counter(grams[order - 1]))
        self.discounts = []
        for counts in self.counts:
            ones, twos = (sum(c == k for c in counts.values()) for k in (1, 2))
            self.discounts.append(ones / (ones + 2 * twos) if ones else 0.5)

    def probability(self, context: tuple[int, ...], word: int) -> float:
        """Of `word` after the whole of `context`; longer contexts than the order allows are cut."""
        context = context[len(context) - min(len(context), self.order - 1) :]
        shorter = self.probability(context[1:], word) if context else 1 / VOCABULARY
        counts, discount = self.counts[len(context)], self.discounts[len(context)]
        own = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}
        if not own:
            return shorter
        total = sum(own.values())
        return (max(own.get(word, 0) - discount, 0) + discount * len(own) * shorter) / total


def stream(length: int, seed: int) -> list[int]:
    """Tokens of which 5 never follows 2, and 6 never occurs."""
    chance = random.Random(seed)
    found = [0]
    while len(found) < length:
        token = min(5, int(chance.expovariate(0.6)))
        if (found[-1], token) != (2, 5):
            found.append(token)
    return found


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_are_those_of_the_definition(order: int) -> None:
    seen, unseen = stream(120, 1), [*stream(40, 2), 6, 2, 5, 1]
    fast, slow = NgramModel(np.array(seen), order=order, vocabulary=VOCABULARY), SlowNgram(seen, order)
    logs = [math.log(slow.probability(tuple(unseen[:i]), word)) for i, word in enumerate(unseen)]
    everything = fast.nats(np.array(unseen), skip=np.empty(0, np.int64))
    assert everything == pytest.approx(-sum(logs), rel=1e-9)
    without = fast.nats(np.array(unseen), skip=np.array([0, 7]))
    assert without == pytest.approx(-sum(logs) + logs[0] + logs[7], rel=1e-9)
