"""A page of the server made fit to stand alone: links relative or gone, forms and scripts left out, a note at its head.

Everything else passes through as it was written.
"""

from collections.abc import Callable
from html import escape
from html.parser import HTMLParser

Place = Callable[[str], str | None]
"""Where a link leads from this page; None where it leads nowhere."""

DEAD = "This page is not among those that were written"
_EMPTY = frozenset({"input", "link", "meta", "img", "br", "hr"})


class Rewriter(HTMLParser):
    """Rewrites one page; elements marked `data-served` are left out, as are forms, scripts and data for programs."""

    def __init__(self, place: Place, *, note: str) -> None:
        super().__init__(convert_charrefs=False)
        self._place, self._note = place, note
        self._out: list[str] = []
        self._dropped: list[str] = []

    def rewritten(self, page: str) -> str:
        """The page that stands alone."""
        self.feed(page)
        self.close()
        return "".join(self._out)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self._start(tag, attrs, "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self._start(tag, attrs, "/")

    def _start(self, tag: str, attrs: list[tuple[str, str | None]], end: str) -> None:
        given = dict(attrs)
        if self._dropped:
            if not end and tag not in _EMPTY:
                self._dropped.append(tag)
            return
        if tag in ("script", "form", "dialog") or "data-served" in given:
            if not end and tag not in _EMPTY:
                self._dropped.append(tag)
            return
        if tag == "link" and given.get("rel") == "alternate":
            return
        name = next((name for name in ("href", "src") if given.get(name) is not None), None)
        if tag == "main":
            self._out.append(f'<p class="warning" role="note">{escape(self._note)}</p>\n')
        if name is None:
            self._out.append(self.get_starttag_text() or "")
            return
        place = self._place(str(given[name]))
        if place is None:
            kept = {key: value for key, value in attrs if key not in (name, "data-key", "aria-current")}
            kept["title"] = DEAD
        else:
            kept = {key: place if key == name else value for key, value in attrs}
        spelled = "".join(f" {key}" if value is None else f' {key}="{escape(value)}"' for key, value in kept.items())
        self._out.append(f"<{tag}{spelled}{end}>")

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if self._dropped:
            if tag in self._dropped:
                while self._dropped.pop() != tag:
                    pass
            return
        self._out.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        """Text."""
        self._text(data)

    def handle_entityref(self, name: str) -> None:
        """A character by name, passed on as it was written."""
        self._text(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """A character by number, passed on as it was written."""
        self._text(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        """The kind of document."""
        self._text(f"<!{decl}>")

    def _text(self, text: str) -> None:
        if not self._dropped:
            self._out.append(text)
