"""The one list of pages, in the order of the contents; a new page adds its module here."""

from mnemoscope.atlas.derived_manifest import recorded_hashes
from mnemoscope.atlas.manifest import COMPARISONS
from mnemoscope.show.pages import annotate, audit, changes, layers, memory, overview, questions, routing, search, trace
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import MODEL, PageKind

_MODULES = (overview, memory, layers, routing, search, questions, changes, annotate, trace, audit)
PAGES: tuple[PageKind, ...] = tuple(page for module in _MODULES for page in module.PAGES)


def contents(edition: Edition, *, model: bool = False) -> tuple[PageKind, ...]:
    def is_there(page: PageKind) -> bool:
        if page.needs == COMPARISONS:
            return bool(recorded_hashes(edition.atlas, COMPARISONS))
        return not page.needs or (model if page.needs == MODEL else edition.atlas.has(page.needs))

    return tuple(page for page in PAGES if page.label and is_there(page))
