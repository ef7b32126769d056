"""The routes of the pages made from the atlas alone: those of show/pages/contents.py."""

from mnemoscope.show.pages.contents import PAGES
from mnemoscope.web.page_routes import add_page, new_router

router, last_router = new_router(), new_router()
"""The second one's addresses match any name at the top level, and so must be added last."""

for _kind in PAGES:
    if _kind.make is not None:
        add_page(last_router if _kind.path.startswith("/{") else router, _kind)
