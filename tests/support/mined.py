"""A text mined into the folder that it is written to, as most tests have it. Not a test itself."""

from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.mining import mine


def mined_text(model: Any, folder: Path, text: str, *, other: str | None = None, **options: Any) -> Atlas:
    """The atlas `folder/atlas` of `folder/text.txt`, a line a sentence; `other` is the validation text."""
    (folder / "text.txt").write_text(text)
    if other is not None:
        (folder / "other.txt").write_text(other)
        options["validation"] = folder / "other.txt"
    return mine(model, folder / "text.txt", out=folder / "atlas", **{"split": "line", **options})
