"""The options of mining and of some verbs on an atlas, and the syntax of some of them. Knows neither model nor text."""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mnemoscope.errors import OptionError
from mnemoscope.foundation.options.declared import DeclaredOptions, like, option
from mnemoscope.foundation.options.model_options import AS_USUAL, ModelArgument, ModelOptions

DTYPES = ("float32", "bfloat16", "float16")
SPLITS = ("sentence", "line", "document")
RULES = 12
"""Raised when this package's own rules change a number. A plan holds it."""
UNRELEASED = "was made by an unreleased version; mine it again"
"""Said of an atlas or a run with another number."""
TRIGGERS, TRIGGERS_OF_EXPERTS = 50, 25
"""Triggers kept per memory and sign: usually, and in a model of experts, which has many more memories."""
_MOST_KEPT = 30_000
"""Rows of one memory, at most: tables number them in 16 bits."""
LENS_TOKENS = 200_000
"""Most tokens of an atlas's text that a lens is fitted on."""
LENS_KINDS = ("ridge", "tuned")
AUTO = "auto"
"""The device: a CUDA card where there is one, else the CPU; for an object in memory, its own device."""


def check_device(name: str) -> None:
    """Raises OptionError for what is no device's name; whether this machine has it is known with torch."""
    if not re.fullmatch(r"(auto|cpu|cuda|mps|xpu|hpu|npu|mtia|xla)(:[0-9]{1,3})?", name):
        raise OptionError(f"--device {name!r} is not known; write auto, cpu, cuda, or a card as cuda:1")


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


def parse_part(part: str | tuple[int, int]) -> tuple[int, int]:
    """The part (I, N) that `I/N` names."""
    text = part if isinstance(part, str) else f"{part[0]}/{part[1]}"
    match = re.fullmatch(r"\s*([0-9]{1,6})/([0-9]{1,6})\s*", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise OptionError(f"--part {text!r} is not a part; write 1/3, 2/3 or 3/3 for three parts")


def parse_removals(removals: str | int, *, flag: str = "--removals", of: str = "memories per layer") -> int | str:
    text = str(removals).strip()
    if text == "all":
        return text
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    raise OptionError(f"{flag} {text!r} is not a number of {of}, nor all")


def _check_share(sample: float) -> None:
    if not 0 < sample <= 1:
        raise OptionError(f"--sample {sample:g} is no share of the documents; give one above 0, at most 1")


def parse_kinds(kinds: str | Sequence[str]) -> tuple[str, ...]:
    """The kinds of lenses in `ridge,tuned`, or in a sequence."""
    parsed = tuple(kind.strip() for kind in (kinds.split(",") if isinstance(kinds, str) else kinds))
    for kind in parsed:
        if kind not in LENS_KINDS:
            raise OptionError(f"{kind!r} is not a kind of lens; choose one of {', '.join(LENS_KINDS)}")
    return parsed


class LoadOptions(DeclaredOptions):
    """How a model is loaded. A model in memory keeps its own dtype, and a resumed run its device."""

    dtype: str = option("float32", "Number format.", choices=DTYPES)
    device: str = option(
        AUTO,
        "Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.",
        metavar="NAME",
        check=check_device,
    )
    opening: ModelOptions = AS_USUAL


class MiningOptions(DeclaredOptions):
    """Options of a run, except model, text and folder; None: the run decides. Raises OptionError."""

    validation: str | os.PathLike[str] | None = option(
        None, "The text for questions on held-out prefixes.", metavar="CORPUS"
    )
    split: str = option("sentence", "What one text is.", choices=SPLITS, planned="alike")
    triggers: int | None = option(
        None,
        f"Triggers per memory and sign; {TRIGGERS}, with experts {TRIGGERS_OF_EXPERTS}.",
        least=1,
        most=_MOST_KEPT,
        planned="alike",
    )
    per_sentence: str | int = option(1, "Triggers that one sentence may give.", choices=("1", "all"), planned="alike")
    layers: str | Sequence[int] | None = option(
        None, "Only these layers.", metavar="0-3,7", instead="all", check=parse_layers
    )
    sample: float | None = option(
        None,
        "Read a seeded share of the documents only, from all of the text.",
        metavar="F",
        check=_check_share,
        planned="alike",
    )
    max_sentences: int | None = option(None, "Stop after so many sentences.", least=1, planned="alike")
    max_tokens: int | None = option(None, "Stop after so many tokens.", least=1, planned="alike")
    prefixes: int = option(4000, "Held-out prefixes to ask questions on.", least=0)
    removals: str | int | None = option(
        None, "Memories per layer for token removal.", metavar="N|all", check=parse_removals
    )
    own: str | int | None = option(
        None,
        "Memories asked with their token masked, in models that read sentences whole.",
        metavar="N|all",
        instead="all up to 50,000",
        check=partial(parse_removals, flag="--own", of="memories"),
    )
    neighbours: int = option(10, "Most similar values kept of each memory; 0 compares none.", least=0, most=_MOST_KEPT)
    part: str | tuple[int, int] | None = option(
        None, "Only every N-th batch; join with merge.", metavar="I/N", check=parse_part, planned=False
    )
    batch_tokens: int | None = option(None, "Padded tokens per batch.", least=1, instead="from the model's sizes")
    dtype: str = like(LoadOptions, "dtype")
    device: str = like(LoadOptions, "device")
    seed: int = option(0, "For the random samples.", least=0)
    checkpoint_every: float = option(
        60.0, "The most work that a sudden stop may lose.", metavar="SECONDS", least=0, planned=False
    )
    keep_work: bool = option(False, "Keep the working copy of the text.", planned=False)
    text_field: str = option(
        "text",
        "The text's field in JSONL or Parquet; meta.text: within meta; messages: a chat.",
        metavar="NAME",
        planned="alike",
    )
    ids_field: str | None = option(
        None, "Read token ids in this field of JSONL or Parquet, not text.", metavar="NAME", planned="alike"
    )
    source_field: str | None = option(
        None,
        "The field of the source that an encoder-decoder reads the text with.",
        metavar="NAME",
        planned="alike",
    )
    name: str | None = option(None, "The model's name as readers see it.", planned=False)
    text_name: str | None = option(None, "The text's name as readers see it.", metavar="NAME", planned=False)
    skip_bad_rows: int = option(0, "Skip at most so many rows without a text, and list them.", least=0, planned="alike")
    skip_special: bool = option(False, "Special tokens are never triggers.", planned="alike")
    token_activations: bool = option(False, "Keep activations at every token of the best examples.")
    random: bool = option(False, "Draw examples of every memory at random, too.")
    opening: ModelOptions = AS_USUAL
    accept_versions: bool = option(
        False, "Go on with other versions of libraries; the bytes may differ.", planned=False
    )
    force: bool = option(False, "Replace a finished atlas.", planned=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ids_field is not None and self.text_field != MiningOptions.text_field:
            raise OptionError(
                f"--text-field {self.text_field!r} and --ids-field {self.ids_field!r}: a row is read as one of the two;"
                " leave one out"
            )
        if self.source_field is not None and (self.ids_field is not None or is_chat(self.text_field)):
            raise OptionError("--source-field goes with a field of text, not with token ids or messages; leave one out")

    @property
    def cut(self) -> str:
        """How documents are cut into sentences: by `split`; token ids, chats and pairs are not cut."""
        whole = self.ids_field is not None or self.source_field is not None or is_chat(self.text_field)
        return "document" if whole else self.split

    @property
    def share(self) -> tuple[int, int] | None:
        """The part that is mined, (I, N); None for the whole."""
        return None if self.part is None else parse_part(self.part)


class InspectOptions(ModelArgument):
    """Those of `mine` that decide what a text costs."""

    corpus: str | None = option(None, "Estimate the cost of mining this text, without mining it.")
    split: str = like(MiningOptions, "split")
    text_field: str = like(MiningOptions, "text_field")
    ids_field: str | None = like(MiningOptions, "ids_field")
    source_field: str | None = like(MiningOptions, "source_field")
    skip_bad_rows: int = like(MiningOptions, "skip_bad_rows")
    sample: float | None = like(MiningOptions, "sample")
    seed: int = like(MiningOptions, "seed", help="Of the sample, as for mine.")
    max_tokens: int | None = like(MiningOptions, "max_tokens", help="As for mine.")
    loading: LoadOptions


class DemoOptions(DeclaredOptions):
    out: Path = option(Path("mnemoscope-demo"), "The folder to make.", metavar="ATLAS")
    max_tokens: int | None = like(MiningOptions, "max_tokens", help="Stop after so many tokens, for a quicker look.")
    force: bool = like(MiningOptions, "force")


class AtlasArgument(DeclaredOptions):
    atlas: Path = option(help="The folder of the atlas, or hf://datasets/USER/NAME.", argument=True)


class ExtendOptions(AtlasArgument):
    tables: list[str] | None = option(
        None, "Such as roles; if none is named all missing ones but samples and random.", metavar="TABLE", argument=True
    )
    model: str | None = option(None, "The model that was mined.", instead="as mined")
    device: str = like(LoadOptions, "device")
    opening: ModelOptions = AS_USUAL
    text: str | None = option(None, "Where the text lies now, for random.", metavar="CORPUS")
    validation: str | None = option(None, "The same of its validation text.", metavar="CORPUS")
    checkpoint_every: float = like(MiningOptions, "checkpoint_every")
    force: bool = option(False, "Make tables again that were added after mining.")


class LensOptions(AtlasArgument):
    model: str | None = like(ExtendOptions, "model")
    kinds: str = option(
        ",".join(LENS_KINDS), "The lenses to fit.", flag="--kind", metavar="ridge,tuned", check=parse_kinds
    )
    max_tokens: int = like(
        MiningOptions,
        "max_tokens",
        default=LENS_TOKENS,
        help="Fit on so many tokens of the atlas's sentences, at most.",
    )
    device: str = like(LoadOptions, "device")
    opening: ModelOptions = AS_USUAL
    checkpoint_every: float = like(MiningOptions, "checkpoint_every")
    force: bool = option(False, "Fit lenses again that the atlas has.")


class ExportOptions(AtlasArgument):
    to: str = option(
        help="The form: jsonl (a line a memory, the document of show --json) or neuronpedia (SAEDashboard's batches).",
        choices=("jsonl", "neuronpedia"),
    )
    out: Path = option(help="The folder to write.", metavar="FOLDER")
    memories: str | None = option(None, "The memories.", metavar="L3,L5.M0-19|@FILE", instead="all")


def is_chat(text_field: str) -> bool:
    """Whether a field holds the messages of a chat, judged by its name."""
    return text_field.rpartition(".")[2] == "messages"


def choose_layers(layers: str | Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The named layers of a model with `count` layers, all for None."""
    if layers is None:
        return tuple(range(count))
    chosen = parse_layers(layers)
    if chosen[-1] >= count:
        raise OptionError(f"--layers {_spoken(layers)!r}: {chosen[-1]} is not within the model's layers 0-{count - 1}")
    return chosen


def _spoken(layers: str | Sequence[int]) -> str:
    return layers if isinstance(layers, str) else ",".join(map(str, layers))
