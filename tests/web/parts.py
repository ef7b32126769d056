"""The parts of a page, as a test reads them. Not a test itself."""

from html.parser import HTMLParser


class Parts(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def links(self, word: str = "") -> list[str]:
        return [href for tag, at in self.found if tag == "a" and (href := at.get("href") or "") and word in href]
