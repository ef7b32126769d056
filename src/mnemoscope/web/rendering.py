"""Renders pages as HTML and JSON for a request, and serves the files that pages load, by name, never by path.

The path is read only from the request line: `request.url` is built from the Host header, which the client controls; in
old versions of Starlette such a header could change the path. So access is never decided by `request.url`.
"""

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from mnemoscope.foundation.formatting import json_safe
from mnemoscope.show.pages.contents import contents
from mnemoscope.show.pages.page import Frame
from mnemoscope.web.site import Site

ASSETS = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "edges.js": "text/javascript",
    "annotate.js": "text/javascript",
    "annotate_keys.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def asset_bytes(name: str) -> bytes:
    return files("mnemoscope.web").joinpath("static", name).read_bytes()


@cache
def asset_address(name: str) -> str:
    """The file's address, which depends on its content, so browsers may cache it for ever."""
    return f"/static/{hashlib.sha256(asset_bytes(name)).hexdigest()[:12]}/{name}"


def path_of(request: Request) -> str:
    return str(request.scope["path"])


def query_of(request: Request) -> str:
    return bytes(request.scope.get("query_string", b"")).decode("latin-1")


def link_to(path: str, query: str = "") -> str:
    """A link on this server; leading slashes are merged, since two would lead to another server."""
    return f"/{quote(path.lstrip('/'))}" + (f"?{query}" if query else "")


def html(request: Request, template: str, values: dict[str, Any]) -> str:
    site: Site = request.app.state.site
    differs = None if site.model is None else site.model.differs
    models = 0 if site.model is None else 1 if site.model.second is None else 2
    listed = contents(site.edition(), models=models)
    frame = Frame(
        site.edition(), site.settings.atlas, path_of(request), asset_address, contents=listed, differs=differs
    )
    return frame.render(template, values)


def json_response(value: object, *, status: int = 200) -> Response:
    text = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)
    # Lone surrogates of a damaged text have no UTF-8 encoding.
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return path_of(request).endswith(".json") or ("application/json" in accept and "text/html" not in accept)
