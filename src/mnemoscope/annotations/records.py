"""What people and pages hand to each other: annotators, views of what is to be judged, judgements, progress.

Values only, and the rules of a judgement; nothing here reads an atlas or a database.
"""

import re
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mnemoscope.errors import AnnotationError

Kind = Literal["shallow", "semantic", "both"]
PATTERN_KINDS: tuple[Kind, ...] = ("shallow", "semantic", "both")
AT_LEAST = 3
"""Prefixes that a pattern must be in (paper, section 3.1)."""
LONGEST_DESCRIPTION = 500
LONGEST_NAME = 80
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MOST_PATTERNS = 25
"""Patterns that one author can find in one key."""


@dataclass(frozen=True)
class Annotator:
    """Somebody who may judge; a host also sees everything."""

    name: str
    role: str = "annotator"


@dataclass(frozen=True)
class Invitation:
    """A new annotator and the secret of their link; only its hash is stored, so it is shown once."""

    annotator: Annotator
    token: str


@dataclass(frozen=True)
class Campaign:
    """What is to be judged: keys per layer, blind controls in all, compositions of the last layer."""

    seed: int
    keys_per_layer: int
    controls: int
    cases: int
    made_at: str
    keys: int
    """Keys drawn: fewer than keys_per_layer in a layer with fewer memories that ever fire."""


@dataclass(frozen=True)
class Prefix:
    """A prefix to look at: its text before the trigger token, and that token's own text."""

    number: int
    before: str
    token: str


@dataclass(frozen=True)
class Pattern:
    """A pattern that an author has found: `marks` are numbers of the view's prefixes."""

    pattern: int
    kind: str
    description: str
    marks: tuple[int, ...]


@dataclass(frozen=True)
class KeyView:
    """A key, or a control that looks like one: its prefixes and what this annotator has said of them."""

    code: str
    prefixes: tuple[Prefix, ...]
    patterns: tuple[Pattern, ...]
    none: bool
    """Whether the annotator says that there is no pattern."""
    finished: bool
    can_undo: bool
    memory: str | None = None
    """The memory's name, only where the annotator chose it: a campaign's keys are judged blind."""


@dataclass(frozen=True)
class CaseView:
    """A composition of the last layer: the prefix, what the residual and the feed-forward layer say, and the output."""

    code: str
    prefix: str
    residual: str
    ffn: str
    output: str
    verdict: str | None
    """related, distant, or None while there is none."""

    @property
    def finished(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict is not None


@dataclass(frozen=True)
class Place:
    """One item in an annotator's own order; `kind` is key (controls too) or case."""

    code: str
    kind: str
    finished: bool


@dataclass(frozen=True)
class Progress:
    """How far an annotator is; what was handed in can no longer be changed."""

    keys: int
    keys_finished: int
    cases: int
    cases_finished: int
    handed_in: bool

    @property
    def complete(self) -> bool:
        """Whether every item is finished."""
        return self.keys_finished == self.keys and self.cases_finished == self.cases


@dataclass(frozen=True)
class Saved:
    """A judgement that is stored: its key, time and pattern; `again` if it had been stored before."""

    key: str
    made_at: str
    pattern: int | None = None
    again: bool = False


@dataclass(frozen=True)
class Said:
    """What somebody else said of an item, seen after handing in: an author's patterns, or verdict."""

    author: str
    patterns: tuple[Pattern, ...]
    verdict: str | None = None


def one_line(text: str, *, what: str, longest: int) -> str:
    """The text with single spaces; raises AnnotationError for one that is too long, or holds what is no text."""
    if not isinstance(text, str):
        raise AnnotationError(f"the {what} is {text!r}, not text")
    found = " ".join(text.split())
    if len(found) > longest:
        raise AnnotationError(f"the {what} has {len(found)} characters; at most {longest} fit")
    for char in found:
        # Neither database holds half a character, and no reader sees a control code or a reversed line.
        if (
            unicodedata.category(char) in ("Cc", "Cs")
            or char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        ):
            raise AnnotationError(f"the {what} holds {char!r}, which cannot be read; leave it out")
    return found


def name_of_person(text: str) -> str:
    """A name as it is stored; raises AnnotationError."""
    found = one_line(text, what="name", longest=LONGEST_NAME)
    if not any(char.isalnum() for char in found):
        raise AnnotationError(f"the name is {found!r}; it needs at least one letter or digit")
    return found


def key_of(given: str | None) -> str:
    """The key under which a judgement is stored once, however often it is sent; a new one where none is given."""
    if given is None:
        return uuid.uuid4().hex
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9_-]{8,64}", given):
        raise AnnotationError(f"the key is {given!r}; it needs 8 to 64 letters, digits, - or _, others every time")
    return given


def checked_marks(marks: Sequence[int], count: int) -> tuple[int, ...]:
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


def checked_kind(kind: str) -> str:
    """A class of pattern; raises AnnotationError."""
    if kind not in PATTERN_KINDS:
        raise AnnotationError(f"the class is {kind!r}; choose one of {', '.join(PATTERN_KINDS)}")
    return kind


def checked_description(text: str) -> str:
    """A description in one line; raises AnnotationError for an empty one."""
    found = one_line(text, what="description", longest=LONGEST_DESCRIPTION)
    if not found:
        raise AnnotationError("the pattern has no description; say in a few words what the prefixes share")
    return found


def checked_pattern(pattern: int) -> int:
    """The number of a pattern; raises AnnotationError."""
    if type(pattern) is not int or not 0 <= pattern < MOST_PATTERNS:
        raise AnnotationError(f"pattern {pattern!r} cannot be; patterns are numbered 0-{MOST_PATTERNS - 1}")
    return pattern
