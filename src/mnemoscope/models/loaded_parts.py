"""The common result of the readers of all formats, and one-line errors.

huggingface.py and fairseq/ pass a model as stored to loading.py, which converts its number format, places it on a
device and has it proved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions, full_name, is_path
from mnemoscope.foundation.reading import Reading
from mnemoscope.models.anatomy.anatomy import Anatomy
from mnemoscope.models.tokens.model_tokens import Beginning, Reader, chosen_beginning
from mnemoscope.models.tokens.sources import Sources


@dataclass(frozen=True)
class LoadedParts:
    """A network with its tokenizer and properties.

    in_memory  the network is a user's object: a change of dtype or device works on a copy
    spec       its name without the additions of `opening`
    name       its name for itself, if a file of it states one; else it is shown as `spec`
    config     the fingerprint covers it, with weights and tokens
    context    tokens of the longest input
    anatomy    finds the parts of the network once it is placed
    beginning  the token before every sentence, for a head of so many rows
    unread     names of stored weights that the model did not take
    boundaries row lengths beyond which the computation differs (company.py)
    ends       the end-of-text tokens, for a head of so many rows
    padding    the token that fills up shorter rows, if any
    reading    how sentences are read, for a head of so many rows, unless it is behind a beginning token alone
    sources    reads the sources of an encoder-decoder, of at most `longest_source` tokens
    """

    network: Any
    in_memory: bool
    spec: str
    config: dict[str, Any]
    tokens: Reader
    context: int
    anatomy: Callable[[Any], Anatomy]
    beginning: Callable[[int], Beginning]
    ends: Callable[[int], frozenset[int]]
    padding: Callable[[int], int | None] = lambda rows: None
    opening: ModelOptions = AS_USUAL
    name: str | None = None
    boundaries: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()
    reading: Callable[[int], Reading] | None = None
    sources: Reader | None = None
    longest_source: int = 0

    @property
    def hub(self) -> str | None:
        return None if ":" in self.spec or is_path(full_name(self.spec)) else self.spec

    def reads(self, rows: int) -> Reading:
        """How the model reads a sentence; its beginning token is the first of the frame."""
        return Reading.of(self.begins(rows).token) if self.reading is None else self.reading(rows)

    def begins(self, rows: int) -> Beginning:
        usual, asked = self.beginning(rows), self.opening.beginning
        if self.reading is not None:
            if asked is not None:
                raise OptionError("--beginning is of decoders alone; this model has a frame of its own")
            return Beginning(next(iter(self.reading(rows).before), None), "frame")
        return usual if asked is None else chosen_beginning(asked, usual, self.tokens, rows=rows)

    def sources_of(self, reading: Reading) -> Sources | None:
        """What reads sources, if the model reads some."""
        if self.sources is None or reading.source is None:
            return None
        rows = len(self.network.get_encoder().get_input_embeddings().weight)
        return Sources(self.sources, reading.source, self.longest_source, rows)


def raised_by_package(error: BaseException) -> bool:
    raisers = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    return bool(raisers) and raisers[-1].partition(".")[0] == __name__.partition(".")[0]


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if text.endswith(":") and len(lines) > 1:
        text += f" {lines[1]}"
    return text if len(text) <= 200 else text[:197] + "..."
