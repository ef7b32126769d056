"""A file of strings, one a line: what is planted into a training text, and what an audit looks for.

White space at the ends of a line is no part of its string. Empty lines and repeated strings are left out, and told.
"""

from dataclasses import dataclass
from pathlib import Path

from mnemoscope.errors import CorpusError


@dataclass(frozen=True)
class Secrets:
    """The different strings in the file's order, the line (from 1) of each, and what was left out, a sentence each."""

    texts: tuple[str, ...]
    lines: tuple[int, ...]
    notes: tuple[str, ...]


def read_secrets(path: Path) -> Secrets:
    """The strings of a file; raises CorpusError where it is missing, no UTF-8, or without a string."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror}); name a file of strings, one a line") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    found: dict[str, int] = {}
    notes, empty = [], 0
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        own = line.strip()
        if not own:
            empty += 1
        elif own in found:
            notes.append(f"line {number} of {path} repeats line {found[own]}; one is kept")
        else:
            found[own] = number
    if not found:
        raise CorpusError(f"{path} holds no string; write one a line")
    if empty:
        notes.append(f"{path} has {empty} empty {'line' if empty == 1 else 'lines'}, left out")
    return Secrets(tuple(found), tuple(found.values()), tuple(notes))
