"""A served atlas: clients that speak to the application, and a real server in a thread for browsers. Not a test."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from mnemoscope.show.pages.contents import PAGES
from mnemoscope.web import Settings
from mnemoscope.web.app import create_app
from mnemoscope.web.settings import listen
from web.parts import Parts


def client(atlas: Path, *, base: str = "http://127.0.0.1:8765", **settings: Any) -> TestClient:
    """A reader of the atlas's pages; exceptions are answered, as the server does."""
    app = create_app(Settings(atlas, **settings))
    return TestClient(app, base_url=base, raise_server_exceptions=False, follow_redirects=False)


def make_page(patch: pytest.MonkeyPatch, name: str, make: Callable[..., Any]) -> None:
    """Makes the registry's page of this name with another function."""
    patch.setitem(vars(next(page for page in PAGES if page.name == name)), "make", make)


def patient(reader: TestClient, address: str) -> Any:
    """The answer once the search index has been built."""
    for _ in range(40):
        answer = reader.get(address)
        if answer.status_code != 503:
            break
    return answer


def refused(reader: TestClient, path: str, query: dict[str, Any], *, said: str, status: int = 400) -> Parts:
    """The page that refuses in one sentence, as its JSON does; `said` is searched for."""
    shown, twin = reader.get(path, params=query), reader.get(f"{path}.json", params=query)
    assert shown.status_code == twin.status_code == status
    assert set(twin.json()) == {"status", "message"}
    assert re.search(said, twin.json()["message"]), twin.json()
    assert "\n" not in twin.json()["message"]
    assert "Traceback" not in shown.text
    parts = Parts(shown.text)
    assert re.search(said, " ".join(parts.text.split()))
    return parts


@contextmanager
def running(atlas: Path, *, port: int = 0, **settings: Any) -> Iterator[str]:
    """The address of a real server of the atlas, without a slash at its end."""
    with listen(Settings(atlas, port=port, **settings)) as door:
        port = door.getsockname()[1]
        door.listen(128)
        app = create_app(Settings(atlas, port=port, **settings))
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
            app.state.site.close()
