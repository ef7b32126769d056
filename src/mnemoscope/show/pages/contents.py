"""The one list of pages, in the order of the contents; a new page adds its module here."""

from mnemoscope.show.pages import annotate, audit, layers, memory, overview, questions, routing, search, trace
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import MODEL, PageKind

_MODULES = (overview, memory, layers, routing, search, questions, annotate, trace, audit)
PAGES: tuple[PageKind, ...] = tuple(page for module in _MODULES for page in module.PAGES)


def contents(edition: Edition, *, model: bool = False) -> tuple[PageKind, ...]:
    def is_there(page: PageKind) -> bool:
        return not page.needs or (model if page.needs == MODEL else edition.atlas.has(page.needs))

    return tuple(page for page in PAGES if page.label and is_there(page))
