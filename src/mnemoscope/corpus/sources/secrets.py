"""A file of strings, one a line: planted into a training text, or searched for by an audit.

White space at the ends of a line is no part of its string. Empty lines and repeats are left out, with a note.
"""

from dataclasses import dataclass
from pathlib import Path

from mnemoscope.errors import CorpusError


@dataclass(frozen=True)
class Secrets:
    """The distinct strings in the file's order, the line (from 1) of each, and a sentence about each omission."""

    texts: tuple[str, ...]
    lines: tuple[int, ...]
    notes: tuple[str, ...]


def read_secrets(path: Path) -> Secrets:
    """Raises CorpusError where the file is missing, not UTF-8, or without a string."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); name a file of strings, one a line") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    first_lines: dict[str, int] = {}
    notes, empty = [], 0
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        string = line.strip()
        if not string:
            empty += 1
        elif string in first_lines:
            notes.append(f"line {number} of {path} repeats line {first_lines[string]}; one is kept")
        else:
            first_lines[string] = number
    if not first_lines:
        raise CorpusError(f"{path} holds no string; write one a line")
    if empty:
        notes.append(f"{path} has {empty} empty {'line' if empty == 1 else 'lines'}, left out")
    return Secrets(tuple(first_lines), tuple(first_lines.values()), tuple(notes))
