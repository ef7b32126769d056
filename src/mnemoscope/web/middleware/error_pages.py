"""Errors as answers with a status and one sentence, as a page or as JSON."""

import sqlite3
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mnemoscope import errors
from mnemoscope.show.pages.page import Page, PageNotFound
from mnemoscope.web.rendering import html, json_response, path_of, wants_json
from mnemoscope.web.site import Site

STATUS: tuple[tuple[type[errors.MnemoscopeError], int], ...] = (
    (errors.MemoryIdError, 404),
    (PageNotFound, 404),
    (errors.AtlasBusy, 503),
    (errors.StoreFailed, 503),
    (errors.AnnotationError, 409),
    (errors.AtlasError, 409),
    (errors.ModelError, 409),
    (errors.MnemoscopeError, 400),
)
ANNOTATOR_ONLY = "mnemoscope.guest"
"""Set in the scope of requests that entered without the access token."""


def status_of(problem: errors.MnemoscopeError) -> int:
    if isinstance(problem, errors.AnnotationError) and isinstance(problem.__cause__, sqlite3.Error):
        # The database failed, perhaps temporarily.
        return 503
    return next(status for kind, status in STATUS if isinstance(problem, kind))


def problem_page(template: str, title: str, problem: errors.MnemoscopeError, extra: dict[str, Any]) -> Page:
    """The page of a form that could not be answered: its template with `problem` as one sentence, and our status."""
    status, sentence = status_of(problem), " ".join(str(problem).split())
    data = {"status": status, "message": sentence}
    return Page(template, title, data, lambda: extra | {"problem": sentence}, status)


def error_page(request: Request, status: int, sentence: str, *, bare: bool = False) -> Response:
    """The answer with this status and one sentence; `bare` hides the site's navigation from readers without access."""
    sentence = " ".join(sentence.split())
    bare = bare or ANNOTATOR_ONLY in request.scope
    if wants_json(request):
        return json_response({"status": status, "message": sentence}, status=status)
    values = {"status": status, "phrase": HTTPStatus(status).phrase, "sentence": sentence, "bare": bare}
    site: Site = request.app.state.site
    # The atlas now in the folder may be the cause, so the latest open one is used.
    with site.reading(site.latest):
        page = html(request, "refusal.html", values)
    return Response(page, status, media_type="text/html", headers={"Cache-Control": "no-store"})


def _refuse_http(request: Request, problem: HTTPException) -> Response:
    sentence = str(problem.detail)
    if problem.status_code == 404 and sentence == "Not Found":
        sentence = f"There is no page {path_of(request)!r}."
    answer = error_page(request, problem.status_code, sentence)
    answer.headers.update(problem.headers or {})
    return answer


def _refuse_invalid(request: Request, problem: RequestValidationError) -> Response:
    first = problem.errors()[0]
    where = [str(step) for step in first["loc"] if step not in ("query", "path", "body")]
    sentence = f"{'.'.join(where) or 'what was sent'}: {first['msg'].rstrip('.')}."
    return error_page(request, 400, sentence[0].upper() + sentence[1:])


HANDLERS: dict[int | type[Exception], Any] = {
    errors.MnemoscopeError: lambda request, problem: error_page(request, status_of(problem), str(problem)),
    HTTPException: _refuse_http,
    RequestValidationError: _refuse_invalid,
}
