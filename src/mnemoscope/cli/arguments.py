"""The arguments that several verbs have, and the checks of what is given; what a verb has alone stands in its file."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.errors import OptionError
from mnemoscope.mining_options import DTYPES

AtlasFolder = Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Layers = Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.  [default: all]")]

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub id (gpt2), a local folder, builtin:pydocs, fairseq:PATH.pt, or handmade:NAME.",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option(metavar="|".join(DTYPES), help="Number format.")]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Such as cpu, cuda or cuda:1; auto: a graphics card if there is one.")
]
Revision = Annotated[str | None, typer.Option(metavar="NAME", help="The hub model's revision.")]
Dictionary = Annotated[
    Path | None, typer.Option("--dict", metavar="FILE", help="A fairseq model's dict.txt, if it lies elsewhere.")
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
AcceptVersions = Annotated[
    bool, typer.Option("--accept-versions", help="Go on with other versions of libraries; no promise of equal bytes.")
]

Split = Annotated[str, typer.Option(metavar="sentence|line|document", help="What one text is.")]
SPLITS = ("sentence", "line", "document")
TextField = Annotated[str, typer.Option(metavar="NAME", help="The text's field in JSONL or Parquet.")]
CheckpointEvery = Annotated[float, typer.Option(metavar="SECONDS", help="How much work a sudden stop may cost.")]


def at_least(least: float, **options: float | None) -> None:
    """Raises OptionError where the number of an option, such as `max_tokens`, is too small; None passes."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise OptionError(f"--{name.replace('_', '-')} {value:g} is impossible; it must be {least:g} or more")


def one_of(choices: tuple[str, ...], **options: str) -> None:
    """Raises OptionError where the word of an option, such as `per_sentence`, is none of its choices."""
    for name, value in options.items():
        if value not in choices:
            raise OptionError(f"--{name.replace('_', '-')} {value!r} is not known; choose one of {', '.join(choices)}")
