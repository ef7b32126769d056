"""A report's page read without a browser: its text, its sections, its charts. Not a test itself."""

import json
import re
from html.parser import HTMLParser
from typing import Any

from mnemoscope.questions import QUESTIONS
from mnemoscope.questions.answers import LoadedAnswers
from mnemoscope.show.export.writing import render_page


class Reader(HTMLParser):
    """What a reader reads: no scripts, no style."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []
        self._silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent = tag in ("script", "style")
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def words(markup: str) -> str:
    """The text of the markup, its white space, no-break spaces too, made single."""
    reader = Reader()
    reader.feed(re.sub(r"<noscript>.*?</noscript>", "", markup, flags=re.DOTALL))
    return " ".join(" ".join(reader.parts).split())


def section(page: str, name: str) -> str:
    """The markup of one section."""
    found = re.search(rf'<section id="{name}".*?</section>', page, flags=re.DOTALL)
    assert found, name
    return found.group()


def page_without_figures(found: LoadedAnswers) -> str:
    """The page as it lies in the atlas, but for its figures, which take long to draw."""
    return render_page(found, specifications={}, drawings=dict.fromkeys(QUESTIONS, ""), vega="", inside=True)


def charts(page: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    loaded: dict[str, dict[str, Any]] = json.loads(found.group(1))
    return loaded
