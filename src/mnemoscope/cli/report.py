"""`mnemoscope report`: all answers of an atlas on one offline page, beside the paper's."""

from pathlib import Path
from typing import Annotated

import typer

from mnemoscope.cli.frame import Debug, Json, emit
from mnemoscope.cli.progress import reporting


def report(
    atlas: Annotated[Path, typer.Argument(metavar="ATLAS", help="The folder of the atlas.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder to write.", show_default="ATLAS/report")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write one offline page with a figure for every question of the paper, and what the paper says beside it.

    The page (index.html) needs no network; each figure lies beside it as SVG, PNG and PDF. Answers that the atlas
    lacks are made first, as by `mnemoscope analyze`; what it cannot answer the page says, and what would mend it.

    Example: mnemoscope report atlas
    """
    from mnemoscope.reports import write_report

    with reporting() as progress:
        done = write_report(atlas, out, progress=progress)
    page = done.directory / "index.html"
    if json:
        emit(
            {
                "atlas": str(atlas),
                "report": str(done.directory),
                "page": str(page),
                "files": list(done.files),
                "answered_now": list(done.made),
                "unanswered": done.unanswered,
            }
        )
        return
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, with {len(done.files) - 1} files of figures beside it")
    if done.made:
        print(f"answered for it: {', '.join(done.made)}")
    for question, reason in done.unanswered.items():
        print(f"not answered: {question}: {reason}")
