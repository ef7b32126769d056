"""`mnemoscope merge`: the parts of one plan become one atlas."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli.frame import Debug, Json
from mnemoscope.cli.model_options import AcceptVersions
from mnemoscope.cli.progress import reporting


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder of the new atlas.", show_default=False)],
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Every part of one plan.", show_default=False)],
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The plan's model, if it has moved.")] = None,
    dictionary: Annotated[
        Path | None, typer.Option("--dict", metavar="FILE", help="A fairseq plan's dict.txt, if it lies elsewhere.")
    ] = None,
    accept_versions: AcceptVersions = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished atlas, or one begun otherwise.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Join the parts of one plan into one atlas.

    Parts are made by `mine --part I/N`. Every table is byte-identical to that of a single run.
    Parts of different plans, and a missing or repeated part, are refused by name. Ctrl-C saves; run it again to go on.

    Example: mnemoscope merge atlas part-1 part-2 part-3
    """
    from mnemoscope import mining
    from mnemoscope.cli.summary import summarise

    with reporting() as progress:
        made = mining.merge(
            out, parts, model=model, dict=dictionary, accept_versions=accept_versions, force=force, progress=progress
        )
    summarise(Path(made), json=json)
