"""Figures as SVG for pages: each drawn once, one at a time, and kept with the edition of the atlas.

Drawing takes tenths of a second, and the drawing library a second to come; both are waited for by nobody twice.
"""

import threading
from typing import TYPE_CHECKING

from mnemoscope.pages.edition import Edition
from mnemoscope.pages.questions import answers_of

if TYPE_CHECKING:
    from mnemoscope.figures.layer_picture import Frame

LIBRARY = threading.Lock()
"""Held by whoever draws with the figures' library."""


def question_drawing(edition: Edition, question: str) -> str:
    """The question's figure as an `svg` element; empty where it has no answer."""

    def draw() -> str:
        from mnemoscope.figures.page_svg import page_svg
        from mnemoscope.figures.panels import specification
        from mnemoscope.figures.sections import draw_figure

        answers = answers_of(edition)
        if answers[question].missing:
            return ""
        with LIBRARY:
            figure = draw_figure(question, answers)
            spec = specification(answers[question], figure, about="")
            return page_svg(spec, name=question, label=f"{answers[question].question.paper.figure}: {figure.reading}")

    return edition.tables.get(("drawing", question), draw)


def layers_frame(edition: Edition) -> "Frame":
    """The axes that the pictures of all layers share."""

    def make() -> "Frame":
        from mnemoscope.figures.layer_picture import frame

        return frame(edition.atlas, patterns=has_patterns(edition))

    return edition.tables.get("layers frame", make)


def has_patterns(edition: Edition) -> bool:
    """Whether the atlas has patterns, so that kinds of memories can be told."""
    return edition.atlas.has("patterns")
