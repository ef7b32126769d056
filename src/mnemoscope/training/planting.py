"""Strings planted into the training text, each so often as its group says: the ground truth of `mnemoscope audit`.

A repetition is a sentence of its own, at a seeded place of a document that cannot be held out. Which strings are held
by which group follows from the seed and the order of the file alone (Carlini et al. 2019, The Secret Sharer).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mnemoscope.corpus.sources.secrets import read_secrets
from mnemoscope.errors import OptionError, TrainingError

Plants = tuple[tuple[str, int], ...]
"""Every planted string with its repetitions, in the order of the file."""


def plan_plants(path: Path, *, times: Sequence[int], seed: int) -> Plants:
    """The strings of a file, dealt to groups of equal size at random, one for each number of `times`.

    Raises OptionError for impossible repetitions and what `read_secrets` raises.
    """
    if not times or min(times) < 1 or len(set(times)) < len(times):
        raise OptionError(f"--plant-times {','.join(map(str, times))} is impossible; give different numbers from 1 on")
    texts = read_secrets(path).texts
    groups = np.random.default_rng((seed, 5)).permutation(len(texts)) % len(times)
    return tuple((text, int(times[group])) for text, group in zip(texts, groups.tolist(), strict=True))


def parse_times(text: str) -> tuple[int, ...]:
    """The numbers of `1,4,16,64`; raises OptionError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--plant-times {text!r} is no list of numbers; write one as 1,4,16,64") from None


def plant(documents: list[list[str]], plants: Plants, *, usable: Sequence[int], seed: int) -> None:
    """Puts every repetition between two sentences of a random document of `usable`, in place; raises TrainingError."""
    if plants and not len(usable):
        raise TrainingError("no document is left to plant strings into; give a text of more documents")
    generator = np.random.default_rng((seed, 6))
    for text, times in plants:
        for number in generator.choice(np.asarray(usable), times).tolist():
            sentences = documents[number]
            sentences.insert(int(generator.integers(len(sentences) + 1)), text)
