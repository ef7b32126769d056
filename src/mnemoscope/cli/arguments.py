"""Arguments shared by several verbs, and checks of their values; a verb's own arguments are in its file."""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mnemoscope.errors import AtlasExists, OptionError
from mnemoscope.foundation.files import check_spelling
from mnemoscope.foundation.options.chat_prompt import Prompt, check_messages
from mnemoscope.foundation.options.mining_options import DTYPES
from mnemoscope.foundation.options.model_options import ModelOptions, check_names
from mnemoscope.foundation.options.prompt_file import read_messages

if TYPE_CHECKING:
    from mnemoscope.atlas.manifest import MinedMemories

AtlasFolder = Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
_DEBUG = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Layers = Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.  [default: all]")]

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub id (gpt2), a local folder, a .gguf file, builtin:pydocs, fairseq:PATH.pt, or handmade:NAME.",
        show_default=False,
    ),
]
PromptOrFile = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="Plain text; after -- if it begins with a dash.", show_default=False),
]
Chat = Annotated[bool, typer.Option("--chat", help="PROMPT is what a user says, in the model's chat template.")]
MessagesFile = Annotated[
    Path | None, typer.Option("--messages", metavar="FILE", help="A chat: a JSON list of {role, content}, or JSONL.")
]
Whole = Annotated[bool, typer.Option("--whole", help="Positions count the whole chat, not only its last message.")]
Listed = Annotated[int, typer.Option(metavar="N", help="Memories listed (20 of them without --json).")]
SaveList = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save the memories as a list, for @FILE wherever memories are named."),
]
ControlSeed = Annotated[int, typer.Option(metavar="N", help="Of the controls.")]


def _of(*choices: str) -> Callable[[typer.CallbackParam, str], str]:
    """A check that the value of an option is one of these."""

    def check(option: typer.CallbackParam, value: str) -> str:
        one_of(choices, **{str(option.name): value})
        return value

    return check


def check_device(value: str) -> str:
    """Raises OptionError for what is no device's name; whether this machine has it is known with torch."""
    if value is not None and not _DEVICES.fullmatch(value):
        raise OptionError(f"--device {value!r} is not known; write auto, cpu, cuda, or a card as cuda:1")
    return value


_DEVICES = re.compile(r"(auto|cpu|cuda|mps|xpu|hpu|npu|mtia|xla)(:[0-9]{1,3})?")
Dtype = Annotated[str, typer.Option(metavar="|".join(DTYPES), help="Number format.", callback=_of(*DTYPES))]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.",
        callback=check_device,
    ),
]
_OPENING: dict[str, Any] = {
    "adapter": Annotated[
        str | None, typer.Option(metavar="ID|FOLDER", help="A PEFT adapter (LoRA and others) to put on the model.")
    ],
    "tokenizer": Annotated[
        str | None,
        typer.Option(
            metavar="ID|FOLDER", help="The tokenizer, if the model has none or needs another; ids: texts are token ids."
        ),
    ],
    "beginning": Annotated[
        str | None,
        typer.Option(
            metavar="none|TOKEN", help="The token before every sentence, if not the model's own; none: nothing."
        ),
    ],
    "dequantize": Annotated[bool, typer.Option("--dequantize", help="Widen quantised weights at load.")],
    "revision": Annotated[str | None, typer.Option(metavar="NAME", help="The hub model's revision.")],
    "dictionary": Annotated[
        Path | None, typer.Option("--dict", metavar="FILE", help="A fairseq model's dict.txt, if it is elsewhere.")
    ],
    "trust_remote_code": Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ],
    "max_memory": Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory for weights: 2GiB, or 0=20GiB,cpu=60GiB; the rest of the model goes to disk."
        ),
    ],
}
"""One option per field of ModelOptions, in the order of --help."""
AcceptVersions = Annotated[
    bool, typer.Option("--accept-versions", help="Go on with other versions of libraries; the bytes may differ.")
]

SPLITS = ("sentence", "line", "document")
Split = Annotated[str, typer.Option(metavar="|".join(SPLITS), help="What one text is.", callback=_of(*SPLITS))]
TextField = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="The text's field in JSONL or Parquet; meta.text: within meta; messages: a chat."
    ),
]
IdsField = Annotated[
    str | None, typer.Option(metavar="NAME", help="Read token ids in this field of JSONL or Parquet, not text.")
]
Sample = Annotated[
    float | None, typer.Option(metavar="F", help="Read a seeded share of the documents only, from all of the text.")
]
SkipBadRows = Annotated[int, typer.Option(metavar="N", help="Skip at most so many rows without a text, and list them.")]
CheckpointEvery = Annotated[float, typer.Option(metavar="SECONDS", help="The most work that a sudden stop may lose.")]


def with_shared_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Adds --debug, and replaces a parameter `opening` of the verb by the options of a model, from which a ModelOptions
    is made.
    """
    declared = inspect.signature(verb, eval_str=True).parameters

    @wraps(verb)
    def command(**values: Any) -> None:
        del values["debug"]  # runner.py reads it
        for given in values.values():
            check_spelling(*(given if isinstance(given, list | tuple) else [given]))
        if "opening" in declared:
            values["opening"] = ModelOptions(**{name: values.pop(name) for name in _OPENING})
        verb(**values)

    def option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    opening = [option(name, getattr(ModelOptions, name), each) for name, each in _OPENING.items()]
    shown = [each for one in declared.values() for each in (opening if one.name == "opening" else [one])]
    command.__signature__ = inspect.Signature([*shown, option("debug", False, _DEBUG)])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in shown} | {"debug": _DEBUG}
    return command


def chat_or_text(prompt: str | None, *, chat: bool, messages: Path | None, whole: bool = False) -> Prompt | None:
    """PROMPT, or the messages of a chat."""
    if messages is not None:
        if chat or prompt is not None:
            raise OptionError("--messages FILE is the whole chat; leave out " + ("--chat" if chat else "PROMPT"))
        return read_messages(messages)
    if whole and not chat:
        raise OptionError("--whole is for a chat; give --chat or --messages FILE, too")
    return check_messages([{"role": "user", "content": prompt}]) if chat and prompt is not None else prompt


def one_prompt_or_file(prompt: Prompt | None, prompts: Path | None, **alone: object) -> None:
    """Raises OptionError unless one of the two is given, and for options that go with one prompt only."""
    if (prompt is None) == (prompts is None):
        raise OptionError("give one prompt, or --prompts FILE")
    given = next((name for name, value in alone.items() if prompts is not None and value is not None), None)
    if given is not None:
        raise OptionError(f"--{given.replace('_', '-')} is for one prompt; the file of --prompts has its own for each")


def check_folder(out: Path) -> str:
    """What is in the folder (`Occupancy`)."""
    if not out.exists():
        return "free"
    from mnemoscope.atlas.folder import occupancy

    holds = occupancy(out)
    if holds == "foreign":
        raise AtlasExists(f"{out} holds something that is not an atlas; choose another folder")
    return holds


def check_atlases(*atlases: Path | None) -> None:
    """Raises what opening the atlases raises of their folders and manifests, before anything is loaded; None passes."""
    from mnemoscope.atlas.manifest import read_manifest

    for atlas in atlases:
        if atlas is not None:
            read_manifest(atlas)


def memories_of(atlas: Path) -> "MinedMemories":
    """The memories that the atlas has, by its manifest; raises what opening the atlas raises."""
    from mnemoscope.atlas.manifest import MinedMemories, read_manifest

    return MinedMemories(atlas, read_manifest(atlas))


def check_mined(atlas: Path, model: str | None, opening: ModelOptions) -> None:
    """Raises what opening the atlas raises, and ModelNotFound for a model that cannot be there."""
    check_atlases(atlas)
    if model is not None:
        from mnemoscope.atlas.manifest import open_as_mined

        check_names(*open_as_mined(atlas, model, opening))


def check_text(spec: str | None, **options: Any) -> None:
    """Raises what opening a text raises; a data set of the hub is looked for later."""
    from mnemoscope.corpus.sources.opening import BUILT_IN, open_source

    if spec is not None and not spec.startswith("hub:") and spec not in BUILT_IN:
        open_source(spec, **options)


def at_least(least: float, **options: float | None) -> None:
    """Raises OptionError if the number of an option, such as `max_tokens`, is too small; None passes."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise OptionError(f"--{name.replace('_', '-')} {value:g} is impossible; it must be {least:g} or more")


def one_of(choices: tuple[str, ...], **options: str) -> None:
    """Raises OptionError if the value of an option, such as `per_sentence`, is none of its choices."""
    for name, value in options.items():
        if value not in choices:
            raise OptionError(f"--{name.replace('_', '-')} {value!r} is not known; choose one of {', '.join(choices)}")
