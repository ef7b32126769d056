"""Asking the application for its own pages, without a socket: to write them as files, or to have them early."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message

from mnemoscope.memory import MemoryId
from mnemoscope.questions import QUESTIONS
from mnemoscope.web.settings import Settings
from mnemoscope.web.site import Site


async def asked(app: ASGIApp, address: str, *, token: str | None = None) -> tuple[int, bytes]:
    """Status and body of the application's answer to a path with its query."""
    parts = urlsplit(address)
    status, body = 0, b""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    headers = [(b"host", b"127.0.0.1"), (b"accept", b"text/html")]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": headers,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 0),
    }
    await app(scope, receive, send)
    return status, body


@contextmanager
def warming(app: ASGIApp, site: Site, settings: Settings) -> Iterator[None]:
    """Inside the block a thread asks for the pages that take longest the first time: overview, a memory, layers,
    figures.

    Drawing the first figure takes a second or two, which so no reader waits for unless they come at once.
    """
    stopped = threading.Event()

    async def ask() -> None:
        first = f"/{MemoryId(site.atlas.layers[0], 0)}"
        addresses = ["/", first, "/layers", *(f"/layers/{layer}" for layer in site.atlas.layers), "/questions"]
        for address in [*addresses, *(f"/questions/{question}" for question in QUESTIONS)]:
            if stopped.is_set():
                return
            await asked(app, address, token=settings.token)

    thread = threading.Thread(target=lambda: asyncio.run(ask()), name="warming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=5)
