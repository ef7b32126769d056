"""Pages as HTML and JSON for a request, and the files that pages load: read once, looked up by name, never by path.

What a request asks for is read from its request line, and from nothing else: `request.url` is made with the Host
header, which whoever asks writes as they like; old versions of Starlette let such a header give another path. What may
be seen is therefore never decided by `request.url`.
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
from mnemoscope.show.pages.page import Frame
from mnemoscope.web.site import Site

ASSETS = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "annotate.js": "text/javascript",
    "annotate_keys.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def asset_bytes(name: str) -> bytes:
    """The bytes of one of ASSETS."""
    return files("mnemoscope.web").joinpath("static", name).read_bytes()


@cache
def asset_address(name: str) -> str:
    """Where a page finds the file; another content has another address, so browsers may keep it for ever."""
    return f"/static/{hashlib.sha256(asset_bytes(name)).hexdigest()[:12]}/{name}"


def path_of(request: Request) -> str:
    """The path, percent signs decoded, by which the request is routed."""
    return str(request.scope["path"])


def query_of(request: Request) -> str:
    """The query as it was sent, without the question mark; empty for none."""
    return bytes(request.scope.get("query_string", b"")).decode("latin-1")


def link_to(path: str, query: str = "") -> str:
    """Path and query as a link on this server; never one to another, which two slashes at the start would be."""
    return f"/{quote(path.lstrip('/'))}" + (f"?{query}" if query else "")


def html(site: Site, request: Request, template: str, values: dict[str, Any]) -> str:
    """The page: the template's blocks inside the frame of this site."""
    differs = None if site.model is None else site.model.differs
    frame = Frame(site.edition(), site.settings.atlas, path_of(request), asset_address, differs=differs)
    return frame.render(template, values)


def json_response(value: object, *, status: int = 200) -> Response:
    """A JSON document; numbers that are not finite are null."""
    text = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)
    # Lone surrogates of a damaged text cannot be UTF-8.
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, media_type="application/json", headers={"Cache-Control": "no-store"})


def wants_json(request: Request) -> bool:
    """Whether the answer is to be JSON: an address that ends so, or a program that asks for it."""
    accept = request.headers.get("accept", "")
    return path_of(request).endswith(".json") or ("application/json" in accept and "text/html" not in accept)
