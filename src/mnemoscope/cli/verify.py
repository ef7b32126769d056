"""`mnemoscope verify`: whether an atlas is complete and unchanged."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli.frame import Debug, Json, emit
from mnemoscope.errors import AtlasDamaged


def verify(
    atlas: Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check completeness, hashes and schema of an atlas.

    Reads every byte that the atlas's manifest covers. Exits with 2 and the list of what is wrong.

    Example: mnemoscope verify atlas
    """
    from mnemoscope import atlas as store

    problems = store.verify(atlas)
    files = 0 if problems else len(store.open_atlas(atlas).manifest.hashes)
    if json:
        emit({"atlas": str(atlas), "ok": not problems, "problems": problems, "files": files})
    else:
        for problem in problems:
            print(problem)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise AtlasDamaged(f"{atlas} is damaged ({count}): {problems[0]}")
    if not json:
        print(f"{atlas} is whole: {files} files are what was mined")
