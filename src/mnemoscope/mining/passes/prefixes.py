"""The prefixes of the validation text that are asked about: they follow from text and plan before any model runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from mnemoscope.corpus import TokenizedCorpus
from mnemoscope.errors import AtlasDamaged, MiningError
from mnemoscope.foundation.files import write_bytes
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.steps import read_saved

PREFIXES = "prefixes.safetensors"
"""The list of prefixes: of a run in its work folder, of a finished part in its `state/`."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Prefixes:
    """`tokens[0..position]` of each sentence, in order of sentence id; all `[prefix]`."""

    sentence: Ints
    document: Ints
    position: Ints
    next_token: Ints

    def save(self, run: MiningRun) -> None:
        """Writes the list to the work folder, with the hash of its plan; raises StoreFailed."""
        write_bytes(run.context.work / PREFIXES, save(vars(self), {"inputs": run.plan.hash()}))

    @classmethod
    def of(cls, run: MiningRun) -> Self:
        """The list in the work folder; raises MiningError where there is none of this plan."""
        path = run.context.work / PREFIXES
        saved = read_saved(path, run.plan.hash())
        if saved is None:
            raise MiningError(
                f"the list of prefixes is missing, or is of another run ({path}); run the same command again, "
                "which makes it"
            )
        return cls(**saved)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The list of a finished part; raises AtlasDamaged."""
        try:
            return cls(**load_file(path))
        except (OSError, SafetensorError, TypeError) as error:
            raise AtlasDamaged(f"{path} does not hold a part's prefixes ({error}); mine that part again") from error

    @classmethod
    def choose(cls, copy: TokenizedCorpus, *, count: int, seed: int, first: int) -> Self:
        """At most `count` prefixes, one per sentence: a random sentence, a random position with a token after it.

        `first` is the first position that counts (1 where position 0 is an attention sink). Fewer where the validation
        text has fewer sentences that are long enough. A validation text of its own is numbered after the mined text:
        its sentence i has the id `sentences of the mined corpus + i`, its documents likewise.
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
        return cls(ids[chosen] + sentences, text.documents(ids[chosen]) + documents, position, following)
