"""`mnemoscope report`: all answers of an atlas on one offline page, with the paper's."""

from pathlib import Path

from mnemoscope.cli import arguments as arg
from mnemoscope.cli.progress import reporting
from mnemoscope.cli.runner import emit
from mnemoscope.errors import AtlasExists, OptionError
from mnemoscope.foundation.options.declared import option
from mnemoscope.foundation.options.mining_options import AtlasArgument


class ReportOptions(AtlasArgument):
    out: Path | None = option(None, "The folder to write.", metavar="DIR", instead="ATLAS/report")
    browse: bool = option(False, "Write browsing pages instead, as plain files (default: ATLAS/browse).")
    memories: str | None = option(
        None,
        "With --browse: the memories with a page; N: so many of each layer.",
        metavar="L3,L5.M0-19|@FILE|N",
        instead="the striking",
    )


def report(options: ReportOptions, *, json: bool) -> None:
    """Write all answers of an atlas as one offline page.

    It has a figure for every question of the paper, and what the paper says beside it. The page (index.html) needs no
    network; each figure is beside it as SVG, PNG and PDF. Answers that the atlas lacks are made first, as by
    `mnemoscope analyze`. For a question without an answer the page gives the reason and the remedy.

    With --browse the pages of `mnemoscope serve` are written instead: overview, layers, questions and some memories, to
    open from a disk or any web host.

    Example: mnemoscope report atlas
    """
    atlas, out, memories = options.atlas, options.out, options.memories
    if memories is not None and not options.browse:
        raise OptionError("--memories needs --browse; a report chooses its own examples")
    if out is not None and out.exists() and not out.is_dir():
        raise AtlasExists(f"{out} is not a folder; choose another")
    arg.check_atlases(atlas)
    if options.browse:
        _browse(atlas, out, memories, json=json)
        return
    from mnemoscope.show.export import write_report

    with reporting() as progress:
        done = write_report(atlas, out, progress=progress)
    page = done.directory / "index.html"
    if json:
        made = {"files": list(done.files), "answered_now": list(done.made), "unanswered": done.unanswered}
        emit({"atlas": str(atlas), "report": str(done.directory), "page": str(page), **made})
        return
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, with {len(done.files) - 1} files of figures beside it")
    if done.made:
        print(f"answered for it: {', '.join(done.made)}")
    for question, reason in done.unanswered.items():
        print(f"not answered: {question}: {reason}")


def _browse(atlas: Path, out: Path | None, memories: str | None, *, json: bool) -> None:
    from mnemoscope.web.static_export import write_pages

    with reporting() as progress:
        done = write_pages(atlas, out, memories=memories, progress=progress)
    page = done.directory / "index.html"
    if json:
        place = {"directory": str(done.directory), "page": str(page), "pages": done.pages}
        emit({"atlas": str(atlas), **place, "memories": done.memories, "bytes": done.bytes})
        return
    print(f"{page}: {done.pages:,} pages, {done.memories:,} of them memories, {done.bytes / 1e6:.1f} MB")
