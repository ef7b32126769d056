"""Annotating (paper, section 3): people say what the prefixes that trigger a key have in common.

The host's pages are in annotate_host.py, the annotator's in annotate_items.py; who is who, in annotator_session.py; the
store, and what everybody may read of it, in judgements.py.
"""

from fastapi import APIRouter

from mnemoscope.web import annotate_host, annotate_items
from mnemoscope.web.annotator_session import AnnotatorSession


def router(session: AnnotatorSession) -> APIRouter:
    """The routes of annotating; a database that was named is opened at once.

    Raises AnnotationError where that cannot be reached, or is of another version or atlas.
    """
    if session.site.settings.annotations is not None:
        session.site.judgements.store()
    routes = APIRouter()
    routes.include_router(annotate_host.router(session))
    routes.include_router(annotate_items.router(session))
    return routes
