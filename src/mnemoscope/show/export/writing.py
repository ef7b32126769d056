"""Writes a report: index.html, figures/QUESTION.{svg,png,pdf}, and a manifest.json that covers them.

Inside an atlas the report is the folder `report`; elsewhere any folder that is empty or holds a report. The same atlas
gives the same bytes. All files are made before the first is written (folder.py). Style, scripts, charts and tables are
inside the page: it loads nothing, and its content policy forbids loading.

The renderer numbers clipping paths and gradients across figures, and lists a PDF's resources in random order; both are
normalised here. One font and one weight per figure keep the order of a PDF's fonts fixed, too.
"""

import json
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
from mnemoscope.atlas.derived_manifest import write_beside
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.questions.answers import LoadedAnswers, load_answers
from mnemoscope.show.export.folder import PAGE, MadeFolder
from mnemoscope.show.figures.page_svg import grammar, number_parts, picture_files
from mnemoscope.show.figures.routing import LayerRouting, routing, routing_chart
from mnemoscope.show.figures.sections import drawn_figure
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Frame
from mnemoscope.show.pages.report import report_page

SIDE = "report"
ROUTING = "routing"
"""The figure of a mixture of experts; it belongs to no question."""


@dataclass(frozen=True)
class Report:
    directory: Path
    files: tuple[str, ...]
    made: tuple[str, ...]
    unanswered: dict[str, str]


def write_report(
    atlas: Atlas | str | Path, out: str | Path | None = None, *, progress: bool | Progress = True
) -> Report:
    """Writes the report of the atlas into a folder.

    Missing answers, and those that count older judgements, are computed and, where possible, stored in the atlas.
    Raises AtlasUnfinished for a part or an unfinished atlas, AnnotationError for judgements of another atlas,
    AtlasDamaged, AtlasBusy, AtlasExists for a folder of something else, OptionError, StoreFailed.

    Args:
        atlas: An atlas, or its folder.
        out: The folder to write; None: `report` in the atlas.
        progress: True: a bar in a terminal or notebook; or a function of stage, done, total (or None) and note.
    """
    opened = atlas if isinstance(atlas, Atlas) else open_atlas(atlas)
    folder = MadeFolder(opened.local(SIDE) if out is None else Path(out), opened.path, SIDE)
    folder.check("a report")
    inside = folder.is_inside
    with report_to(progress) as report:
        loaded = load_answers(opened, keep=inside, progress=report)
        opened = loaded.atlas
        specifications = {
            question: drawn_figure(opened, loaded.answers, question)
            for question, answer in loaded.answers.items()
            if not answer.missing
        }
        routed = routing(opened) if opened.has("routing") else []
        about = f"model {opened.manifest.model.spec}, text {opened.manifest.corpus.spec}"
        figures = specifications | ({ROUTING: routing_chart(routed, about=about)} if routed else {})
        contents: dict[str, bytes] = {}
        for done, (question, chart) in enumerate(figures.items()):
            report("figures", done, len(figures), "figures")
            contents |= {f"figures/{question}.{ending}": data for ending, data in export_figure(chart).items()}
        report("figures", len(figures), len(figures), "figures")
    drawings = {name: contents[f"figures/{name}.svg"].decode() for name in figures}
    page = render_page(
        loaded, specifications=specifications, drawings=drawings, vega=vega_script(), inside=inside, routed=routed
    )
    contents[PAGE] = page.encode()
    with write_beside(opened) if inside else nullcontext():
        folder.replace(contents.items(), source=opened.manifest_hash)
    unanswered = {question: answer.missing for question, answer in loaded.answers.items() if answer.missing}
    return Report(folder.directory, tuple(sorted(contents)), loaded.made, unanswered)


def render_page(
    loaded: LoadedAnswers,
    *,
    specifications: dict[str, Any],
    drawings: dict[str, str],
    vega: str,
    inside: bool,
    routed: Sequence[LayerRouting] = (),
) -> str:
    """The page as HTML, which loads nothing. `inside`: it lies in the atlas, and so refers to the tables there."""
    edition = Edition(loaded.atlas)
    edition.tables.keep("answers", loaded.answers)
    page = report_page(edition, loaded.cases, routed)
    charts = json.dumps(specifications, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    values = {
        "style": _part("page.css"),
        # Scripts and charts without sequences that end a script element or open an HTML comment.
        "scripts": [
            script.replace("</script", "<\\/script").replace("<!--", "<\\!--") for script in (vega, _part("page.js"))
        ],
        "charts": charts.translate({ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}),
        "drawings": drawings,
        "inside": inside,
    }
    frame = Frame(edition, loaded.atlas.path, "/", asset=str, place=_place, dead="")
    return frame.render(page.template, page.values() | values).replace(escape(str(loaded.atlas.path)), "ATLAS")


def _place(link: str) -> str | None:
    start, _, question = link.rpartition("/")
    return f"#{question}" if start == "/questions" else None


def _part(name: str) -> str:
    return files("mnemoscope.show.export").joinpath("template", name).read_text(encoding="utf-8")


def export_figure(specification: dict[str, Any]) -> dict[str, bytes]:
    drawn = number_parts(vl_convert.vegalite_to_svg(specification, vl_version=grammar()))
    return picture_files(drawn)


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script for a page; defines `window.vegaEmbed`."""
    bundle: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=grammar())
    return bundle
