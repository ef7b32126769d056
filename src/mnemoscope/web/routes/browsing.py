"""The routes of the pages made from the atlas alone: those of show/pages/contents.py."""

from mnemoscope.show.pages.contents import PAGES
from mnemoscope.web.page_routes import both, new_router

router, last_router = new_router(), new_router()
"""The second one's addresses match any name at the top level, and so must be added last."""

for _kind in PAGES:
    if _kind.make is not None:
        _router = last_router if _kind.path.startswith("/{") else router
        both(_router, _kind.path, name=_kind.name, kind=_kind)(_kind.make)
