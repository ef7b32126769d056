"""Templates and JSON: data in, text out. The engine escapes every text; filters spell numbers."""

import json
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from mnemoscope.formatting import json_safe, show_text, show_token
from mnemoscope.pages import number_format as spelling
from mnemoscope.web.assets import address
from mnemoscope.web.request_line import path_of
from mnemoscope.web.site import Site


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The engine, with autoescape and undefined names refused."""
    found = Environment(
        loader=PackageLoader("mnemoscope.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "token": show_token,
        "running": show_text,
        "percent": spelling.percent,
        "number": spelling.number,
        "count": spelling.count,
        "part": lambda text: quote(str(text), safe=""),
    }
    found.globals["asset"] = address
    return found


def html(site: Site, request: Request, template: str, values: dict[str, Any]) -> str:
    """The page: the template's blocks inside the frame (page.html), with `site` and `path`."""
    frame = {
        "site": site,
        "path": path_of(request),
        "twin": "",
        "title": "",
        "bare": False,
    }
    return environment().get_template(template).render(frame | values)


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document; numbers that are not finite are null."""
    text = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False)
    # Lone surrogates of a damaged text cannot be UTF-8.
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, media_type="application/json", headers=headers or {"Cache-Control": "no-store"})


def wants_json(request: Request) -> bool:
    """Whether the answer is to be JSON: an address that ends so, or a program that asks for it."""
    accept = request.headers.get("accept", "")
    return path_of(request).endswith(".json") or ("application/json" in accept and "text/html" not in accept)
