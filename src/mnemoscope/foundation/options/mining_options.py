"""The options of mining: their defaults, and the parsers of those with a syntax (layers, part, removals).

The command line fills `MiningOptions`, `mine(..., **options)` builds one, and the plan derives from it. The command
that an error names leaves out defaults. Knows neither model nor text, and needs no torch.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelOptions

DTYPES = ("float32", "bfloat16", "float16")
RULES = 12
"""Raised when this package's own rules change a number. A plan holds it."""
UNRELEASED = "was made by an unreleased version; mine it again"
"""Said of an atlas or a run with another number."""
TRIGGERS, TRIGGERS_OF_EXPERTS = 50, 25
"""Triggers kept per memory and sign: usually, and in a model of experts, which has many more memories."""
LENS_TOKENS = 200_000
"""Most tokens of an atlas's text that a lens is fitted on."""
LENS_KINDS = ("ridge", "tuned")
AUTO = "auto"
"""The device: a CUDA card where there is one, else the CPU; for an object in memory, its own device."""


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Options of a run, except model, text and folder; None: the run decides. Raises OptionError."""

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
    sample: float | None = None
    """The seeded share of documents that are read at all, above 0 and at most 1; None: all."""
    max_sentences: int | None = None
    """Most distinct sentences that are mined; None: all."""
    max_tokens: int | None = None
    """Most tokens of them in all, or of the text that a lens is fitted on."""
    prefixes: int = 4000
    """Held-out prefixes that questions are asked on."""
    removals: int | str | None = None
    """Memories per layer whose triggers lose tokens, or `all`; None: by the size of the text."""
    neighbours: int = 10
    """Memories with the most similar values kept of each memory; 0 compares none."""
    part: str | tuple[int, int] | None = None
    """(I, N) or `I/N`: only every N-th batch."""
    batch_tokens: int | None = None
    """Padded tokens per batch; None: from the model's sizes."""
    dtype: str = "float32"
    """float32, bfloat16 or float16; a model in memory keeps its own."""
    device: str = AUTO
    """The model's device; `auto` is resolved when it is loaded, and a resumed run keeps its device."""
    seed: int = 0
    checkpoint_every: float = 60.0
    """Seconds of work that a sudden stop may cost."""
    keep_work: bool = False
    """Whether the working copy of the text stays."""
    text_field: str = "text"
    """The field of a row that holds its text, such as `meta.text`; one named `messages` holds a chat."""
    ids_field: str | None = None
    """The field of token ids that replaces a text; each row is one sentence then, whatever `split` is."""
    name: str | None = None
    """The model's display name; None: its folder, file or id on the hub. Changes no byte."""
    text_name: str | None = None
    """The text's display name; None: its file or data set."""
    skip_bad_rows: int = 0
    """Most rows without a text that are skipped."""
    skip_special: bool = False
    """Whether special tokens are excluded as triggers; activity counts them all the same."""
    token_activations: bool = False
    """Whether to keep the coefficients at every token of the best triggers' sentences."""
    random: bool = False
    """Whether to draw firings of every memory at random."""
    opening: ModelOptions = AS_USUAL
    """How the model is opened; a model already loaded keeps its own options."""
    accept_versions: bool = False
    """Whether to resume a run that other library versions began."""
    force: bool = False
    """Whether to replace a finished atlas, or one begun with another plan."""

    def __post_init__(self) -> None:
        check_fields(self.text_field, self.ids_field)
        if self.layers is not None:
            parse_layers(self.layers)
        if self.part is not None:
            parse_part(self.part)
        if self.removals is not None:
            parse_removals(self.removals)
        if self.sample is not None and not 0 < self.sample <= 1:
            raise OptionError(f"--sample {self.sample:g} is no share of the documents; give one above 0, at most 1")
        if self.checkpoint_every < 0:
            raise OptionError(f"--checkpoint-every must not be negative, not {self.checkpoint_every}")

    @property
    def cut(self) -> str:
        """How documents are cut into sentences: by `split`; token ids and chats are not cut."""
        return "document" if self.ids_field is not None or is_chat(self.text_field) else self.split

    @property
    def share(self) -> tuple[int, int] | None:
        """The part that is mined, (I, N); None for the whole."""
        return None if self.part is None else parse_part(self.part)


def check_fields(text_field: str, ids_field: str | None) -> None:
    """Raises OptionError where a row would be read both as text and as ids."""
    if ids_field is not None and text_field != MiningOptions.text_field:
        raise OptionError(
            f"--text-field {text_field!r} and --ids-field {ids_field!r}: a row is read as one of the two; leave one out"
        )


def is_chat(text_field: str) -> bool:
    """Whether a field holds the messages of a chat, judged by its name."""
    return text_field.rpartition(".")[2] == "messages"


def parse_layers(layers: str | Sequence[int]) -> tuple[int, ...]:
    """The layers that `0-3,7` (or a sequence) names, each once, ascending."""
    pieces = layers.split(",") if isinstance(layers, str) else [str(int(layer)) for layer in layers]
    chosen: set[int] = set()
    for piece in pieces:
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise OptionError(f"--layers {_spoken(layers)!r} does not name layers; write them as 0-3,7")
        chosen.update(range(first, last + 1))
    if not chosen:
        raise OptionError("--layers names no layer; write them as 0-3,7")
    return tuple(sorted(chosen))


def choose_layers(layers: str | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The named layers of a model with `count` layers, all for None."""
    if layers is None:
        return tuple(range(count))
    chosen = parse_layers(layers)
    if chosen[-1] >= count:
        raise OptionError(f"--layers {_spoken(layers)!r}: {chosen[-1]} is not within the model's layers 0-{count - 1}")
    return chosen


def parse_part(part: str | tuple[int, int]) -> tuple[int, int]:
    """The part (I, N) that `I/N` names."""
    text = part if isinstance(part, str) else f"{part[0]}/{part[1]}"
    match = re.fullmatch(r"\s*([0-9]{1,6})/([0-9]{1,6})\s*", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise OptionError(f"--part {text!r} is not a part; write 1/3, 2/3 or 3/3 for three parts")


def parse_removals(removals: str | int) -> int | str:
    text = str(removals).strip()
    if text == "all":
        return text
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    raise OptionError(f"--removals {text!r} is not a number of memories per layer, nor all")


def _spoken(layers: str | Sequence[int]) -> str:
    return layers if isinstance(layers, str) else ",".join(map(str, layers))
