"""The options of mining: their defaults, and those that are small languages (which layers, which part, how many).

The command line fills `MiningOptions`, `mine(..., **options)` builds one, the plan derives from it, and the command
that an error names leaves out what is usual. Knows neither model nor text, and needs no torch.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mnemoscope.errors import OptionError
from mnemoscope.foundation.model_options import AS_USUAL, ModelOptions

DTYPES = ("float32", "bfloat16", "float16")
"""The number formats that models are run in."""
TRIGGERS, TRIGGERS_OF_EXPERTS = 50, 25
"""Triggers kept of a memory and sign: usually, and in a model of experts, which has many more memories."""
LENS_TOKENS = 200_000
"""Tokens of an atlas's text that a lens is fitted on, at most."""
AUTO = "auto"
"""The device that is a graphics card of CUDA where there is one, else the CPU; of an object in memory, where it is."""


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """What a run of mining may be told beside its model, its text and its folder; None means: found out by the run.

    Raises OptionError where one is not an option at all; what depends on the model is checked once that is loaded.
    """

    validation: str | os.PathLike[str] | None = None
    """The text for questions on held-out prefixes; None: sentences held out of the corpus."""
    split: str = "sentence"
    """What one text is: `sentence`, `line` or `document`."""
    triggers: int | None = None
    """Triggers per memory and sign; None: 50, of a model of experts 25."""
    per_sentence: int | str = 1
    """Triggers that one sentence may give: 1 or `all`."""
    layers: str | Sequence[int] | None = None
    """The mined layers, as `0-3,7` or numbers; None: all."""
    max_sentences: int | None = None
    max_tokens: int | None = None
    prefixes: int = 4000
    """Held-out prefixes that questions are asked on."""
    removals: int | str | None = None
    """Memories per layer whose triggers lose tokens, or `all`; None: as many as the text is worth."""
    neighbours: int = 10
    """Memories with the most similar values kept of each memory; 0 compares none."""
    part: str | tuple[int, int] | None = None
    """(I, N) or `I/N`: only every N-th batch."""
    batch_tokens: int | None = None
    """Padded tokens per batch; None: from the model's sizes."""
    dtype: str = "float32"
    device: str = AUTO
    """What the model runs on; `auto` is settled when it is loaded, and on going on it is what the run was begun on."""
    seed: int = 0
    """For the random samples."""
    checkpoint_every: float = 60.0
    """Seconds of work that a sudden stop may cost."""
    keep_work: bool = False
    """Whether the working copy of the text stays."""
    text_field: str = "text"
    """The text's field in JSONL or Parquet."""
    ids_field: str | None = None
    """The field of token ids that takes the place of a text; a row is one sentence then, whatever `split` says."""
    name: str | None = None
    """What the model is called where it is shown; None: as its folder, file or id on the hub. Decides no byte."""
    text_name: str | None = None
    """What the text is called where it is shown; None: as its file or data set."""
    skip_bad_rows: int = 0
    """Rows without a text that are passed over, at most."""
    skip_special: bool = False
    """Whether special tokens are never triggers; they are counted in activity all the same."""
    opening: ModelOptions = AS_USUAL
    """How the model is opened; of a model already loaded, its own count."""
    accept_versions: bool = False
    """Whether to go on where other versions of libraries began."""
    force: bool = False
    """Whether a finished atlas, or one begun otherwise, is replaced."""

    def __post_init__(self) -> None:
        check_fields(self.text_field, self.ids_field)
        if self.layers is not None:
            parse_layers(self.layers)
        if self.part is not None:
            parse_part(self.part)
        if self.removals is not None:
            parse_removals(self.removals)
        if self.checkpoint_every < 0:
            raise OptionError(f"--checkpoint-every must not be negative, not {self.checkpoint_every}")

    @property
    def cut(self) -> str:
        """How documents are cut into sentences: as `split` says, those of token ids and chats not at all."""
        return "document" if self.ids_field is not None or is_chat(self.text_field) else self.split

    @property
    def share(self) -> tuple[int, int] | None:
        """The part that is mined; None for the whole."""
        return None if self.part is None else parse_part(self.part)


def check_fields(text_field: str, ids_field: str | None) -> None:
    """Raises OptionError where a row is to be read as text and as ids."""
    if ids_field is not None and text_field != MiningOptions.text_field:
        raise OptionError(
            f"--text-field {text_field!r} and --ids-field {ids_field!r}: a row is read as one of the two; leave one out"
        )


def is_chat(text_field: str) -> bool:
    """Whether a field holds the messages of a chat, by its name."""
    return text_field.rpartition(".")[2] == "messages"


def parse_layers(layers: str | Sequence[int]) -> tuple[int, ...]:
    """The layers that `0-3,7` (or a sequence) names, each once, ascending; raises OptionError."""
    pieces = layers.split(",") if isinstance(layers, str) else [str(int(layer)) for layer in layers]
    chosen: set[int] = set()
    for piece in pieces:
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise OptionError(f"--layers {_spoken(layers)!r} does not name layers; write them as 0-3,7")
        chosen.update(range(first, last + 1))
    if not chosen:
        raise OptionError("--layers names no layer; write them as 0-3,7")
    return tuple(sorted(chosen))


def choose_layers(layers: str | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The layers named, of a model that has `count`; all of them for None. Raises OptionError."""
    if layers is None:
        return tuple(range(count))
    chosen = parse_layers(layers)
    if chosen[-1] >= count:
        beyond = next(layer for layer in chosen if layer >= count)
        raise OptionError(f"--layers {_spoken(layers)!r}: {beyond} is not within the model's layers 0-{count - 1}")
    return chosen


def parse_part(part: str | tuple[int, int]) -> tuple[int, int]:
    """The part (I, N) that `I/N` names; raises OptionError unless 1 <= I <= N."""
    text = part if isinstance(part, str) else f"{part[0]}/{part[1]}"
    found = re.fullmatch(r"\s*(\d{1,6})/(\d{1,6})\s*", text)
    if found and 1 <= int(found[1]) <= int(found[2]):
        return int(found[1]), int(found[2])
    raise OptionError(f"--part {text!r} is not a part; write 1/3, 2/3 or 3/3 for three parts")


def parse_removals(removals: str | int) -> int | str:
    """A number of memories per layer, or `all`; raises OptionError."""
    text = str(removals).strip()
    if text == "all":
        return text
    if re.fullmatch(r"\d{1,9}", text):
        return int(text)
    raise OptionError(f"--removals {text!r} is not a number of memories per layer, nor all")


def _spoken(layers: str | Sequence[int]) -> str:
    return layers if isinstance(layers, str) else ",".join(map(str, layers))
