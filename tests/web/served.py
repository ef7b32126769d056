"""A served atlas without a process: clients that speak to the application, and what an answer must be. Not a test."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from mnemoscope.web import Settings
from mnemoscope.web.app import create_app


def client(atlas: Path, *, base: str = "http://127.0.0.1:8765", **settings: Any) -> TestClient:
    """A reader of the atlas's pages; exceptions are answered, as the server does."""
    app = create_app(Settings(atlas, **settings))
    return TestClient(app, base_url=base, raise_server_exceptions=False, follow_redirects=False)
