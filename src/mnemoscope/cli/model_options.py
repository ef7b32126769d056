"""The arguments of every verb that loads a model: which one, in what numbers, where, and from whom."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.dtypes import DTYPES

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub id (gpt2), a local folder, builtin:pydocs, fairseq:PATH.pt, or handmade:NAME.",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option(metavar="|".join(DTYPES), help="Number format.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Such as cpu, cuda or cuda:1.")]
Revision = Annotated[str | None, typer.Option(metavar="NAME", help="The hub model's revision.")]
Dictionary = Annotated[
    Path | None, typer.Option("--dict", metavar="FILE", help="A fairseq model's dict.txt, if it lies elsewhere.")
]
AcceptVersions = Annotated[
    bool,
    typer.Option("--accept-versions", help="Go on with other versions of libraries; no promise of equal bytes."),
]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
