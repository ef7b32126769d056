"""A hub of this machine that the process asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub_server import Hub, ask_here, serving


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Empty at first; huggingface_hub keeps what it fetches in `tmp_path/home`."""
    with serving() as hub:
        ask_here(monkeypatch, hub.address, tmp_path / "home")
        yield hub
