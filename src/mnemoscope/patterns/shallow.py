"""Shallow patterns: surface features that the triggers of a memory share more often than random prefixes do.

Every feature of every trigger is tried, and the correction counts them all (paper, section 3.2; definitions: a pattern
recurs in at least 3 prefix groups).
"""

from dataclasses import dataclass
from math import log10

import numpy as np

from mnemoscope.patterns.background import Background
from mnemoscope.patterns.chance import LEVEL, lift, log10_tail
from mnemoscope.patterns.merging import Candidate, merged
from mnemoscope.patterns.prefixes import Prefixes
from mnemoscope.patterns.sharing import FEWEST, Groups, shared
from mnemoscope.patterns.surface import family_of, reach, tokens_said
from mnemoscope.patterns.words import Integers


@dataclass(frozen=True)
class Shallow:
    """The shallow patterns of a layer's memories, by the memory's place."""

    kept: dict[int, list[Candidate]]
    unlikely: dict[int, list[Candidate]]
    """Before overlapping ones were merged."""
    tried: Integers
    """How many patterns each memory was tried for, words included."""


def shallow_patterns(groups: Groups, prefixes: Prefixes, *, background: Background, words: Integers) -> Shallow:
    """The shallow patterns of each memory; `words` says how many words are tried beside the features."""
    found = shared(groups, prefixes.features)
    tried = found.per_memory(groups.memories.size) + words
    least = reach()[family_of(found.key)]
    held = background.features.held(found.key)
    farthest = int(least.max(initial=0)) + 1
    longer = np.array([background.longer(than) for than in range(farthest)])[least]
    eligible = np.stack([groups.tried(prefixes.length, than) for than in range(farthest)])[least, found.memory]
    average = found.count * longer <= eligible * held
    unlikely: dict[int, list[Candidate]] = {}
    for index in np.flatnonzero((found.count >= FEWEST) & ~average).tolist():
        memory = int(found.memory[index])
        numbers = int(found.count[index]), int(eligible[index]), int(held[index]), float(longer[index])
        log10_p = log10_tail(*numbers)
        if log10_p > log10(LEVEL / tried[memory]):
            continue
        key = int(found.key[index])
        unlikely.setdefault(memory, []).append(
            Candidate(
                key, int(found.mask[index]), log10_p, lift(*numbers), tokens_said(key), background.features.showing(key)
            )
        )
    sizes = np.diff(groups.starts)
    kept = {
        memory: merged(
            candidates, groups=int(sizes[memory]), background=background.size, limit=log10(LEVEL / tried[memory])
        )
        for memory, candidates in unlikely.items()
    }
    return Shallow(kept, unlikely, tried)
