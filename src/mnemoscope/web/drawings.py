"""Figures as SVG for pages: each drawn once, by one reader at a time, and kept as long as the answers are the same.

Drawing takes tenths of a second, and the drawing library a second to come; both are waited for by nobody twice.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mnemoscope.web.site import Site
from mnemoscope.web.views.questions import answers_of

if TYPE_CHECKING:
    from mnemoscope.figures.layer_picture import Frame


class Drawings:
    """The drawings of one site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], Any] = {}

    def question(self, question: str) -> str:
        """The question's figure as an `svg` element; empty where it has no answer."""

        def draw() -> str:
            from mnemoscope.figures.figures import FIGURES, specification
            from mnemoscope.figures.page_svg import page_svg

            answers = answers_of(self._site)
            if answers[question].missing:
                return ""
            figure = FIGURES[question](answers)
            drawn = specification(answers[question], figure, about="")
            return page_svg(drawn, name=question, label=f"{answers[question].paper.figure}: {figure.reading}")

        found: str = self._once(question, draw)
        return found

    def frame(self) -> "Frame":
        """The axes that the pictures of all layers share."""

        def draw() -> "Frame":
            from mnemoscope.figures.layer_picture import frame

            return frame(self._site.atlas, patterns=has_patterns(self._site))

        found: Frame = self._once("layers", draw)
        return found

    def _once(self, name: str, draw: Callable[[], Any]) -> Any:
        key = (self._site.state(), name)
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    drawn = draw()
                    for old in [one for one in self._made if one[0] != key[0]]:
                        del self._made[old]
                    self._made[key] = drawn
        return self._made[key]


def has_patterns(site: Site) -> bool:
    """Whether the atlas has patterns, so that kinds of memories can be told."""
    return (site.atlas.path / "patterns.parquet").is_file()
