"""A report on disk: index.html, figures/QUESTION.{svg,png,pdf}, and manifest.json, which covers them.

Inside an atlas the report is the folder `report`; elsewhere any folder that is empty or holds a report. The same atlas
gives the same bytes. Everything is made before anything is written. Style, scripts, charts and tables are inside the
page: it loads nothing, and its own content policy forbids that.

The renderer goes on numbering clipping paths and gradients from figure to figure, and lists the resources of a PDF in a
random order; both are put in order here. One font and one weight per figure keep the order of a PDF's fonts fixed, too.
"""

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import vl_convert

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import check_replaceable, made_files, record_hashes, write_beside
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import OptionError
from mnemoscope.foundation.files import file_entry, storing, write_bytes, write_json
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import LoadedAnswers, load_answers
from mnemoscope.show.figures.page_svg import grammar, number_parts
from mnemoscope.show.figures.routing import LayerRouting, routing, routing_chart
from mnemoscope.show.figures.sections import drawn_figure
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Frame
from mnemoscope.show.pages.report import report_page

SIDE = "report"
PAGE = "index.html"
ENDINGS = ("svg", "png", "pdf")
ROUTING = "routing"
"""The figure of a model of experts, which answers none of the paper's questions."""
SCALE = 2
"""Pixels of a PNG per unit of the drawing."""

_RESOURCES = re.compile(rb"(?:^ +/\w+ \d+ 0 R\n){2,}", re.MULTILINE)


@dataclass(frozen=True)
class Report:
    """Where the report lies, its files, the answers made for it, and of the questions without one, why."""

    directory: Path
    files: tuple[str, ...]
    made: tuple[str, ...]
    unanswered: dict[str, str]


def write_report(
    atlas: Atlas | str | Path, out: str | Path | None = None, *, progress: Progress = ignore_progress
) -> Report:
    """Writes the report of the atlas into the folder `out` (default: `report` inside the atlas).

    Answers that the atlas lacks, or that people have judged since, are made, and written into it where that is
    possible. Raises AtlasUnfinished for a part or an unfinished atlas, AnnotationError for judgements of another atlas,
    AtlasDamaged, AtlasBusy, AtlasExists for a folder of something else, OptionError, StoreFailed.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    directory = opened.path / SIDE if out is None else Path(out)
    inside = _inside(opened, directory)
    found = load_answers(opened, keep=inside, progress=progress)
    opened = found.atlas
    specifications = {
        question: drawn_figure(opened, found.answers, question)
        for question, answer in found.answers.items()
        if not answer.missing
    }
    routed = routing(opened) if opened.has("routing") else []
    about = f"model {opened.manifest.model.spec}, text {opened.manifest.corpus.spec}"
    figures = specifications | ({ROUTING: routing_chart(routed, about=about)} if routed else {})
    contents: dict[str, bytes] = {}
    for done, (question, chart) in enumerate(figures.items()):
        progress("figures", done, len(figures), "figures")
        contents |= {f"figures/{question}.{ending}": data for ending, data in export_figure(chart).items()}
    progress("figures", len(figures), len(figures), "figures")
    drawings = {name: contents[f"figures/{name}.svg"].decode() for name in figures}
    page = render_page(
        found, specifications=specifications, drawings=drawings, vega=vega_script(), inside=inside, routed=routed
    )
    contents[PAGE] = page.encode()
    _write(opened, directory, contents, inside=inside)
    unanswered = {question: answer.missing for question, answer in found.answers.items() if answer.missing}
    return Report(directory, tuple(sorted(contents)), found.made, unanswered)


def render_page(
    found: LoadedAnswers,
    *,
    specifications: dict[str, Any],
    drawings: dict[str, str],
    vega: str,
    inside: bool,
    routed: Sequence[LayerRouting] = (),
) -> str:
    """The page as HTML, which loads nothing; its links lead to its own sections.

    `inside` says whether it lies in the atlas, so that it can point to the tables there.
    """
    edition = Edition(found.atlas)
    edition.tables.keep("answers", found.answers)
    page = report_page(edition, found.cases, routed)
    values = {
        "style": _part("page.css"),
        "scripts": [_escape_script(script) for script in (vega, _part("page.js"))],
        "charts": embed_json(specifications),
        "drawings": drawings,
        "inside": inside,
    }
    frame = Frame(edition, found.atlas.path, "/", asset=str, place=_place, dead="")
    text = frame.render(page.template, page.values() | values)
    return text.replace(escape(str(found.atlas.path)), "ATLAS")


def _place(link: str) -> str | None:
    """Where a link of another page leads in this one: to a question's section, or nowhere."""
    start, _, question = link.rpartition("/")
    return f"#{question}" if start == "/questions" else None


def _part(name: str) -> str:
    return files("mnemoscope.show.export").joinpath("template", name).read_text(encoding="utf-8")


def _escape_script(script: str) -> str:
    """The script without anything that would end it early or open a comment in HTML."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def embed_json(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it is markup."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def export_figure(specification: dict[str, Any]) -> dict[str, bytes]:
    """The figure by ending: `svg`, `png`, `pdf`."""
    drawn = number_parts(vl_convert.vegalite_to_svg(specification, vl_version=grammar()))
    # Text and axes take the colour around them; a file on its own has white paper.
    fixed = drawn.replace("currentColor", "#1f2328")
    return {
        "svg": fixed.encode(),
        "png": vl_convert.svg_to_png(fixed, scale=SCALE),
        "pdf": _sort_resources(vl_convert.svg_to_pdf(fixed)),
    }


def _sort_resources(pdf: bytes) -> bytes:
    """The document with each run of resource entries sorted, which moves no byte outside the run."""
    return _RESOURCES.sub(lambda run: b"".join(sorted(run.group().splitlines(keepends=True))), pdf)


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that a page can hold; it offers `window.vegaEmbed`."""
    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=grammar())
    return bundle


def _inside(atlas: Atlas, directory: Path) -> bool:
    """Whether the report goes into the atlas; refuses folders that it must not be written into."""
    place, home = directory.resolve(), atlas.path.resolve()
    if place == home / SIDE:
        return True
    if place == home or home in place.parents:
        raise OptionError(f"{directory} lies inside the atlas; leave --out away, or choose a folder outside of it")
    check_replaceable(directory, _is_report, "a report")
    return False


def _is_report(directory: Path) -> bool:
    """Whether the folder's manifest is that of a report; the page alone, or the manifest of a web app, is not."""
    files = made_files(directory / MANIFEST)
    page = files.get(PAGE)
    return isinstance(page, dict) and page.keys() == {"bytes", "sha256"}


def _write(atlas: Atlas, directory: Path, contents: dict[str, bytes], *, inside: bool) -> None:
    with write_beside(atlas) if inside else nullcontext():
        for path, data in sorted(contents.items()):
            write_bytes(directory / path, data)
        for question in (*QUESTIONS, ROUTING):
            for ending in ENDINGS:
                old = f"figures/{question}.{ending}"
                if old not in contents:
                    with storing(directory / old):
                        (directory / old).unlink(missing_ok=True)
        if inside:
            record_hashes(atlas, SIDE, [f"{SIDE}/{path}" for path in contents], anew=True)
            return
        files = {path: file_entry(directory / path) for path in sorted(contents)}
        write_json(directory / MANIFEST, {"atlas": atlas.manifest_hash, "files": files})
