"""The prefixes of the validation text that the questions of Figures 7-11 are asked about: seeded, listed, kept.

They follow from the text and the plan before any model runs. A validation text of its own is numbered after the mined
text: its sentence i has the id `sentences of the mined corpus + i`, its documents likewise.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from mnemoscope.atlas.store import write_bytes
from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import AtlasDamaged

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Prefixes:
    """`tokens[0..position]` of each sentence, in order of sentence id; all `[prefix]`."""

    sentence: Ints
    document: Ints
    position: Ints
    next_token: Ints

    def save(self, path: Path) -> None:
        """Writes the list whole or not at all; raises StoreFailed."""
        write_bytes(path, save(vars(self)))

    @classmethod
    def load(cls, path: Path) -> "Prefixes":
        """The list saved at `path`; raises AtlasDamaged."""
        try:
            return cls(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise AtlasDamaged(f"{path} does not hold a part's prefixes ({error}); mine that part again") from error


def choose_prefixes(copy: TokenizedCorpus, *, count: int, seed: int, first: int) -> Prefixes:
    """At most `count` prefixes, one per sentence: a random sentence, a random position with a token after it.

    `first` is the first position that counts (1 where position 0 is an attention sink). Fewer where the validation
    text has fewer sentences that are long enough.
    """
    validation = copy.validation
    if isinstance(validation, TokenizedCorpus):
        text, ids = validation, np.arange(validation.sentences)
        sentences, documents = copy.sentences, int(copy.counts["documents"])
    else:
        text, ids, sentences, documents = copy, np.array(validation, np.int64), 0, 0
    lengths = np.array(text.lengths[ids], np.int64)
    usable = np.flatnonzero(lengths >= first + 2)
    generator = np.random.default_rng((seed, 4))
    chosen = np.sort(generator.permutation(usable)[:count])
    position = generator.integers(first, lengths[chosen] - 1) if len(chosen) else np.empty(0, np.int64)
    pairs = zip(ids[chosen].tolist(), position.tolist(), strict=True)
    following = np.array([int(text.tokens(sentence)[place + 1]) for sentence, place in pairs], np.int64)
    return Prefixes(ids[chosen] + sentences, text.documents(ids[chosen]) + documents, position, following)
