"""The server as a process: an address, the application behind it, until Ctrl-C."""

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from mnemoscope.errors import ServeError
from mnemoscope.formatting import show_text
from mnemoscope.web.settings import Settings

_log = logging.getLogger("mnemoscope.web")


def serve(settings: Settings, *, ready: Callable[[Settings], None]) -> None:
    """Serves until Ctrl-C; calls `ready` with the final address and token once connections are taken.

    Raises ServeError for an address that cannot be used, and what `create_app` raises; KeyboardInterrupt at the end.
    """
    import uvicorn

    from mnemoscope.web.app import create_app
    from mnemoscope.web.asking import warming

    settings = with_token(settings)
    with listening(settings) as door:
        settings = replace(settings, port=door.getsockname()[1])
        app = create_app(settings)
        # From here on the system takes connections; they wait for the loop below.
        door.listen(128)
        ready(settings)
        threading.Thread(target=_begin, args=(app.state.site.tasks,), name="tasks", daemon=True).start()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False, use_colors=False
        )
        with closing(app.state.site), warming(app, app.state.site, settings):
            uvicorn.Server(config).run(sockets=[door])


def _begin(tasks: Sequence[Callable[[], object]]) -> None:
    """Makes what the first reader would have to wait for; what goes wrong, that reader will see."""
    for task in tasks:
        try:
            task()
        except Exception as problem:
            _log.warning("%s", show_text(str(problem)))


def with_token(settings: Settings) -> Settings:
    """The settings with a new access token where others than this machine can reach the server."""
    if settings.local or settings.token is not None:
        return settings
    return replace(settings, token=secrets.token_urlsafe(24))


def listening(settings: Settings) -> socket.socket:
    """A socket bound to the address; raises ServeError."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as problem:
        raise ServeError(f"host {settings.host!r} is not an address of this machine; leave --host out") from problem
    door = socket.socket(family, kind)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind(place)
        # Binding alone does not find another server on every system; listening does.
        door.listen(1)
    except OSError as problem:
        door.close()
        raise ServeError(_cannot(settings, problem)) from problem
    return door


def _cannot(settings: Settings, problem: OSError) -> str:
    import errno

    where = f"port {settings.port} of {settings.host}"
    if problem.errno == errno.EADDRINUSE:
        return f"{where} is in use; choose another with --port, or --port 0 for any that is free"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"host {settings.host!r} is not an address of this machine; leave --host out"
    return f"{where} cannot be used ({problem.strerror}); choose another with --port"
