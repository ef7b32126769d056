"""Plants strings into the training text, each repeated as often as its group: the ground truth of `mnemoscope audit`.

A repetition is a sentence of its own, at a seeded position of a document that cannot be held out. The groups follow
from the seed and the order of the file only (Carlini et al. 2019, The Secret Sharer).
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mnemoscope.corpus.sources.secrets import read_secrets
from mnemoscope.errors import OptionError, TrainingError

Plants = tuple[tuple[str, int], ...]


def plan_plants(path: Path, *, times: Sequence[int], seed: int) -> Plants:
    """Divides the strings of a file at random into equal groups, one for each number in `times`. Raises OptionError for
    impossible repetitions and what `read_secrets` raises.
    """
    if not times or min(times) < 1 or len(set(times)) < len(times):
        raise OptionError(f"--plant-times {','.join(map(str, times))} is impossible; give different numbers from 1 on")
    texts = read_secrets(path).texts
    groups = np.random.default_rng((seed, 5)).permutation(len(texts)) % len(times)
    return tuple((text, int(times[group])) for text, group in zip(texts, groups.tolist(), strict=True))


def parse_times(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--plant-times {text!r} is no list of numbers; write one as 1,4,16,64") from None


def plant(documents: list[list[str]], plants: Plants, *, usable: Sequence[int], seed: int) -> None:
    """Inserts every repetition between two sentences of a random document of `usable`, in place. Raises
    TrainingError.
    """
    if plants and not len(usable):
        raise TrainingError("no document is left to plant strings into; give a text of more documents")
    generator = np.random.default_rng((seed, 6))
    for text, times in plants:
        for number in generator.choice(np.asarray(usable), times).tolist():
            sentences = documents[number]
            sentences.insert(int(generator.integers(len(sentences) + 1)), text)
