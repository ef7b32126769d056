"""The report's page: the overview's cards, every question's section, and striking memories with their triggers."""

from collections.abc import Sequence

import polars as pl

from mnemoscope.show.figures.examples import judged_sentence
from mnemoscope.show.figures.methods import methods
from mnemoscope.show.figures.routing import LayerRouting
from mnemoscope.show.figures.sections import compare_with_paper, csv_link, describe_upper_layers
from mnemoscope.show.figures.summary import cards, describe_mining, warnings
from mnemoscope.show.pages.changes import comparison_views
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.examples import composition_cases, read_memories
from mnemoscope.show.pages.page import Page
from mnemoscope.show.pages.questions import answers_of, question_view
from mnemoscope.show.pages.routing import routing_views


def report_page(edition: Edition, compositions: pl.DataFrame | None, routing: Sequence[LayerRouting] = ()) -> Page:
    """The page; `compositions` are the listed cases of the last layer, None without a list."""
    atlas, answers = edition.atlas, answers_of(edition)
    data = {
        "model": atlas.manifest.model.spec,
        "text": atlas.manifest.corpus.spec,
        "warnings": warnings(atlas),
        "cards": cards(describe_mining(atlas), answers),
        "comparison": compare_with_paper(answers),
        "upper": describe_upper_layers(next(iter(answers.values()))),
        "sections": [
            question_view(edition, question) | {"csv": csv_link(answer.table)} for question, answer in answers.items()
        ],
        "examples": read_memories(edition),
        "cases": [] if compositions is None or compositions.is_empty() else composition_cases(edition, compositions),
        "judged": judged_sentence(answers["refinement_events"]),
        "methods": methods(atlas, answers),
        "routing": routing_views(edition, routing),
        "comparisons": comparison_views(atlas),
    }
    return Page("report.html", f"Memories of {data['model']}", data)
