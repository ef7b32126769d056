"""The one list of pages, in the order of the contents; a new page adds its module here."""

from mnemoscope.atlas.manifest import COMPARISONS
from mnemoscope.show.pages import annotate, changes, layers, memory, overview, questions, routing, search
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.model import audit, diff, trace
from mnemoscope.show.pages.page import MODEL, SECOND, PageKind

_MODULES = (overview, memory, layers, routing, search, questions, changes, annotate, trace, diff, audit)
PAGES: tuple[PageKind, ...] = tuple(page for module in _MODULES for page in module.PAGES)


def contents(edition: Edition, *, models: int = 0) -> tuple[PageKind, ...]:
    def is_there(page: PageKind) -> bool:
        if page.causal and not (edition.atlas.reading.causal and edition.atlas.reading.source is None):
            return False
        if page.needs == COMPARISONS:
            return bool(edition.atlas.made_later(COMPARISONS))
        if page.needs in (MODEL, SECOND):
            return page.needs in (MODEL, SECOND)[:models]
        return not page.needs or edition.atlas.has(page.needs)

    return tuple(page for page in PAGES if page.label and is_there(page))
