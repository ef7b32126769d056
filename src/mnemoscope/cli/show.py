"""`mnemoscope show`: one memory in the terminal."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mnemoscope.cli.frame import Debug, Json, at_least, emit


def show(
    atlas: Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)],
    memory: Annotated[str, typer.Argument(metavar="MEMORY", help="Such as L10.M222.", show_default=False)],
    limit: Annotated[int, typer.Option(metavar="N", help="Prefixes to show of each sign (--json gives all).")] = 20,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one memory in the terminal.

    Its triggers, its value over the vocabulary, its activity, and the memories with the most similar values.
    The trigger token of a prefix stands in «marks»; a space inside a token shows as · and a line break as ⏎.
    A prefix that occurs several times is shown once, with its count.

    Example: mnemoscope show atlas L10.M222
    """
    at_least("--limit", limit, 1)
    from mnemoscope.atlas import open_atlas

    opened = open_atlas(atlas)
    seen = opened[memory]
    tables: dict[str, Any] = {"triggers": seen.triggers(sign=None), "activity": seen.activity()}
    if opened.manifest.part is None:
        tables["value"] = seen.value()
        tables["neighbours"] = seen.neighbours()
        if opened.has("patterns"):
            tables["patterns"] = seen.patterns()
    if json:
        single = ("value", "activity")
        rows = {name: table.to_dicts()[0] if name in single else table.to_dicts() for name, table in tables.items()}
        emit({"memory": str(seen.id), "atlas": str(atlas), "part": opened.manifest.get("part"), **rows})
        return
    from mnemoscope.cli.picture import draw

    draw(opened, seen.id, tables, limit=limit)
