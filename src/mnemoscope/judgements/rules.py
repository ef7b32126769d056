"""What one judgement may hold: names, descriptions, classes, marks, keys and times, each checked by itself.

Nothing here reads an atlas or a database. Paper, section 3.1.
"""

import re
import unicodedata
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from mnemoscope.errors import AnnotationError

Kind = Literal["shallow", "semantic", "both"]
PATTERN_KINDS: tuple[Kind, ...] = ("shallow", "semantic", "both")
KINDS = (*PATTERN_KINDS, "none")
"""What a judgement can call a pattern; `none` says that there is no such pattern, or no longer."""
VERDICTS = ("related", "distant", "none")
"""What a composition can be called; `none` takes a verdict back."""
ITEM_KINDS = ("key", "control", "chosen", "case")
"""What can be judged: a drawn key, a blind control, a memory that somebody chose, a composition of the last layer."""
AT_LEAST = 3
"""Prefixes that a pattern must be in (paper, section 3.1)."""
LONGEST_DESCRIPTION = 500
LONGEST_NAME = 80
MOST_PATTERNS = 25
"""Patterns that one author can find in one key."""
LAST = datetime.max.replace(tzinfo=UTC)
"""The last time that can be stored."""
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that turn the direction of the line that they stand in."""


def current_time() -> str:
    """The time as it is stored: UTC, always as long, so that later times sort after earlier ones as text."""
    return format_time(datetime.now(UTC))


def format_time(time: datetime) -> str:
    """A time as it is stored."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def one_line(text: str, *, what: str, longest: int) -> str:
    """The text with single spaces; raises AnnotationError for one that is too long, or holds what is no text."""
    if not isinstance(text, str):
        raise AnnotationError(f"the {what} is {text!r}, not text")
    found = " ".join(text.split())
    if len(found) > longest:
        raise AnnotationError(f"the {what} has {len(found)} characters; at most {longest} fit")
    for char in found:
        # Neither database holds half a character, and no reader sees a control code or a reversed line.
        if unicodedata.category(char) in ("Cc", "Cs") or char in _TURNING:
            raise AnnotationError(f"the {what} holds {char!r}, which cannot be read; leave it out")
    return found


def check_name(text: str) -> str:
    """A name as it is stored; raises AnnotationError."""
    found = one_line(text, what="name", longest=LONGEST_NAME)
    if not any(char.isalnum() for char in found):
        raise AnnotationError(f"the name is {found!r}; it needs at least one letter or digit")
    return found


def judgement_key(given: str | None) -> str:
    """The key under which a judgement is stored once, however often it is sent; a new one where none is given."""
    if given is None:
        return uuid.uuid4().hex
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9_-]{8,64}", given):
        raise AnnotationError(f"the key is {given!r}; it needs 8 to 64 letters, digits, - or _, others every time")
    return given


def check_marks(marks: Sequence[int], count: int) -> tuple[int, ...]:
    """The marks in order, each once; raises AnnotationError for too few, or for a prefix that is not there."""
    if not all(type(mark) is int for mark in marks):
        raise AnnotationError(f"the marks are {list(marks)!r}, not numbers of prefixes")
    found = sorted(set(marks))
    if found and not (found[0] >= 0 and found[-1] < count):
        wrong = found[0] if found[0] < 0 else found[-1]
        raise AnnotationError(f"prefix {wrong} is marked, but there are only prefixes 0-{count - 1}")
    if len(found) < AT_LEAST:
        raise AnnotationError(f"{len(found)} prefixes are marked; a pattern is in at least {AT_LEAST}")
    return tuple(found)


def check_kind(kind: str) -> str:
    """A class of pattern; raises AnnotationError."""
    if kind not in PATTERN_KINDS:
        raise AnnotationError(f"the class is {kind!r}; choose one of {', '.join(PATTERN_KINDS)}")
    return kind


def check_description(text: str) -> str:
    """A description in one line; raises AnnotationError for an empty one."""
    found = one_line(text, what="description", longest=LONGEST_DESCRIPTION)
    if not found:
        raise AnnotationError("the pattern has no description; say in a few words what the prefixes share")
    return found


def check_pattern(pattern: int) -> int:
    """The number of a pattern; raises AnnotationError."""
    if type(pattern) is not int or not 0 <= pattern < MOST_PATTERNS:
        raise AnnotationError(f"pattern {pattern!r} cannot be; patterns are numbered 0-{MOST_PATTERNS - 1}")
    return pattern
