"""Path and query of a request as routing reads them: from the request line, and from nothing else.

`request.url` is made with the Host header, which whoever asks writes as they like; old versions of Starlette let such a
header give another path. What may be seen is therefore never decided by `request.url`.
"""

from urllib.parse import quote

from starlette.requests import Request


def path_of(request: Request) -> str:
    """The path, percent signs decoded, by which the request is routed."""
    return str(request.scope["path"])


def query_of(request: Request) -> str:
    """The query as it was sent, without the question mark; empty for none."""
    return bytes(request.scope.get("query_string", b"")).decode("latin-1")


def link_to(path: str, query: str = "") -> str:
    """Path and query as a link on this server; never one to another, which two slashes at the start would be."""
    return f"/{quote(path.lstrip('/'))}" + (f"?{query}" if query else "")
