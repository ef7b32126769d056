"""The server process: binds an address and runs the application until Ctrl-C."""

import asyncio
import logging
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mnemoscope.errors import MnemoscopeError
from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.heap import give_back_freed_memory
from mnemoscope.foundation.progress import EARLY
from mnemoscope.show.pages.contents import PAGES
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import PageKind, environment
from mnemoscope.web.settings import Settings, listen
from mnemoscope.web.site import Site

if TYPE_CHECKING:
    import uvicorn

_log = logging.getLogger("mnemoscope.web")


def serve(settings: Settings, *, ready: Callable[[Settings], None]) -> None:
    """Serves until Ctrl-C; calls `ready` with the final address and token once connections are accepted. Raises
    ServeError for an unusable address, and what `create_app` raises; at the end KeyboardInterrupt, or what the handler
    of SIGTERM or SIGUSR1 raises.
    """
    import uvicorn
    from starlette.concurrency import run_in_threadpool

    from mnemoscope.web.app import create_app

    if settings.model is None:  # a model reuses its large allocations
        give_back_freed_memory()
    settings = with_token(settings)
    with listen(settings) as sock:
        settings = replace(settings, port=sock.getsockname()[1])
        app = create_app(settings)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False, use_colors=False
        )
        # The first reader would wait for these.
        config.load()
        asyncio.run(run_in_threadpool(environment))
        # From here on the system accepts connections, which wait for the loop below.
        sock.listen(128)
        ready(settings)
        state = app.state
        # Of an atlas on the hub it would fetch all that there is.
        warming = nullcontext() if state.site.atlas.foreign else prewarm(state.site, state.index.begin)
        with closing(state.site), warming:
            server = uvicorn.Server(config)
            with _ended_by_sigusr1(server):
                server.run(sockets=[sock])


@contextmanager
def _ended_by_sigusr1(server: "uvicorn.Server") -> Iterator[None]:
    """Inside the block, SIGUSR1 ends the server like SIGTERM; its own handler, whose exception would be taken for a
    request's, runs afterwards.
    """
    handler = None if EARLY is None else signal.getsignal(EARLY)
    if EARLY is None or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        server.should_exit = True

    signal.signal(EARLY, end)
    try:
        yield
    finally:
        signal.signal(EARLY, handler)
    if came:
        signal.raise_signal(EARLY)


_AFTER, _LOOK_AGAIN = 1.0, 0.05
"""Seconds before prewarming starts, and between checks for waiting requests."""


@contextmanager
def prewarm(site: Site, begin_index: Callable[[], object], *, after: float = _AFTER) -> Iterator[None]:
    """Inside the block, a thread builds the index and the slowest pages, and yields to requests. A page's errors appear
    when it is requested.
    """
    stopped = threading.Event()

    def is_stopped() -> bool:
        """Waits until no request is in progress; returns whether to end."""
        while site.busy and not stopped.wait(_LOOK_AGAIN):
            pass
        return stopped.is_set()

    def make() -> None:
        try:
            if stopped.wait(after) or is_stopped():
                return
            begin_index()
            current = site.edition()
        except Exception as problem:
            _log.warning("%s", show_text(str(problem)))
            return
        for make_one in _slow_things(current):
            if is_stopped():
                return
            with suppress(MnemoscopeError):
                make_one()

    thread = threading.Thread(target=make, name="prewarm", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(timeout=5)


def _slow_things(edition: Edition) -> Iterator[Callable[[], object]]:
    """The slowest things to make first: templates, the overview, what many pages share, and the other pages."""
    for name in environment().list_templates():  # compiling one blocks every thread
        yield partial(environment().get_template, name)
    pages = (
        partial(_make_whole, kind, edition, parameters)
        for kind in PAGES
        if kind.exported
        for _, parameters in kind.pages(edition)
    )
    yield next(pages)
    yield partial(edition.sharing, (), 0)  # reads the triggers of all layers
    yield from pages


def _make_whole(kind: PageKind, edition: Edition, parameters: Mapping[str, Any]) -> None:
    kind.make_page(edition, parameters).extra()


def with_token(settings: Settings) -> Settings:
    """The settings with a new access token if other machines can reach the server, also through a proxy."""
    if (settings.local and settings.public_url is None) or settings.token is not None:
        return settings
    return replace(settings, token=secrets.token_urlsafe(24))
