"""Texts that several tests of this room read."""

from pathlib import Path

import pytest

from support.corpus_texts import varied_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text file of 600 documents."""
    path = tmp_path / "text.txt"
    path.write_text(varied_text(600))
    return path
