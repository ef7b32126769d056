"""Validates the values of one judgement, and rows of an exported file (paper, section 3.1).

Whether a row agrees with a database is checked in campaigns/import_export.py.
"""

import json
import re
import unicodedata
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from mnemoscope.errors import AnnotationError

Kind = Literal["shallow", "semantic", "both"]
PATTERN_KINDS: tuple[Kind, ...] = ("shallow", "semantic", "both")
JUDGED_KINDS = (*PATTERN_KINDS, "none")
"""`none`: there is no such pattern, or it was retracted."""
VERDICTS = ("related", "distant", "none")
"""On a composition; `none` retracts one."""
ITEM_KINDS = ("key", "control", "chosen", "sheet_key", "case", "sheet_case")
"""A sampled key, a blind control, a memory that an annotator chose, one that a sheet names; a composition of the last
layer, of the campaign or of a sheet.
"""
WITHOUT_CAMPAIGN = ("chosen", "sheet_key", "sheet_case")
AUTHOR_KINDS = ("person", "model")
AT_LEAST = 3
"""The fewest prefixes of a pattern (paper, section 3.1)."""
MOST_PATTERNS = 25
"""Patterns per author and key."""
LAST = datetime.max.replace(tzinfo=UTC)
FIELDS = (
    "author",
    "author_kind",
    "made_at",
    "event",
    "item_kind",
    "layer",
    "memory",
    "pattern",
    "kind",
    "description",
    "triggers",
    "key",
    "undoes",
    "code",
    "campaign",
    "atlas",
)
"""Of an exported row. event: judgement, verdict or finish. kind: the pattern's class, the verdict, or finished | taken
up. A finish without an item means that all work was handed in. campaign: CAMPAIGN_FIELDS.
"""
CAMPAIGN_FIELDS = {"uid": str, "seed": int, "keys_per_layer": int, "controls": int, "cases": int, "made_at": str}
_EVENTS = {"judgement": JUDGED_KINDS, "verdict": VERDICTS, "finish": ("finished", "taken up")}
_BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the direction of text."""


def current_time() -> str:
    return format_time(datetime.now(UTC))


def format_time(time: datetime) -> str:
    """UTC in a fixed width, so that the order of texts is the order of times."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def one_line(text: str, *, what: str, longest: int) -> str:
    if not isinstance(text, str):
        raise AnnotationError(f"the {what} is {text!r}, not text")
    line = " ".join(text.split())
    if len(line) > longest:
        raise AnnotationError(f"the {what} has {len(line)} characters; at most {longest} fit")
    for char in line:
        # No database stores a lone surrogate; control and direction characters are invisible.
        if unicodedata.category(char) in ("Cc", "Cs") or char in _BIDIRECTIONAL:
            raise AnnotationError(f"the {what} holds {char!r}, which cannot be read; leave it out")
    return line


def check_name(text: str) -> str:
    name = one_line(text, what="name", longest=80)
    if not any(char.isalnum() for char in name):
        raise AnnotationError(f"the name is {name!r}; it needs at least one letter or digit")
    return name


def judgement_key(given: str | None) -> str:
    """The key under which a judgement is stored once; a new one if None."""
    if given is None:
        return uuid.uuid4().hex
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9_-]{8,64}", given):
        raise AnnotationError(f"the key is {given!r}; it needs 8 to 64 letters, digits, - or _, new each time")
    return given


def check_marks(marks: Sequence[int], count: int) -> tuple[int, ...]:
    if not all(type(mark) is int for mark in marks):
        raise AnnotationError(f"the marks are {list(marks)!r}, not numbers of prefixes")
    different = sorted(set(marks))
    if wrong := [mark for mark in different if not 0 <= mark < count]:
        raise AnnotationError(f"prefix {wrong[0]} is marked, but there are only prefixes 0-{count - 1}")
    if len(different) < AT_LEAST:
        raise AnnotationError(f"{len(different)} prefixes are marked; a pattern is in at least {AT_LEAST}")
    return tuple(different)


def check_choice(value: str, allowed: Sequence[str], *, what: str) -> str:
    if value not in allowed:
        raise AnnotationError(f"the {what} is {value!r}; choose one of {', '.join(allowed)}")
    return value


def check_description(text: str) -> str:
    line = one_line(text, what="description", longest=500)
    if not line:
        raise AnnotationError("the pattern has no description; say in a few words what the prefixes share")
    return line


def check_pattern(pattern: int) -> int:
    if type(pattern) is not int or not 0 <= pattern < MOST_PATTERNS:
        raise AnnotationError(f"pattern {pattern!r} is impossible; patterns are numbered 0-{MOST_PATTERNS - 1}")
    return pattern


def check_row(row: dict[str, Any], atlas: str) -> dict[str, Any]:
    if set(row) != set(FIELDS):
        wrong = ", ".join(sorted(set(row) ^ set(FIELDS))[:3])
        raise AnnotationError(f"the fields are not those of an export ({wrong} missing or unknown)")
    if row["atlas"] != atlas:
        raise AnnotationError(
            f"it is about another atlas (manifest {str(row['atlas'])[:12]}, this one is {atlas[:12]})"
        )
    check_choice(row["event"], tuple(_EVENTS), what="event")
    check_choice(row["kind"], _EVENTS[row["event"]], what="kind")
    check_choice(row["author_kind"], AUTHOR_KINDS, what="author_kind")
    stored = row | {"author": check_name(row["author"]), "made_at": _check_time(row["made_at"])}
    for name in ("key", "undoes"):
        if (name, row[name]) != ("undoes", None) and not re.fullmatch(r"[A-Za-z0-9_.-]{8,80}", str(row[name])):
            raise AnnotationError(f"{name} is {row[name]!r}, not the key of a judgement")
    _check_item(row)
    _check_campaign(row)
    if row["event"] != "judgement":
        if any(row[name] is not None for name in ("pattern", "description", "triggers", "undoes")):
            raise AnnotationError(f"a {row['event']} has no pattern, description, triggers or undoes")
        return stored
    check_pattern(row["pattern"])
    ranks = row["triggers"]
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks) or ranks != sorted(set(ranks)):
        raise AnnotationError(f"triggers is {ranks!r}, not a list of ranks in order")
    description = row["description"] or ""
    stored["description"] = description if row["kind"] == "none" and not description else check_description(description)
    if row["kind"] == "none" and (ranks or description):
        raise AnnotationError("a pattern of kind none has no triggers and no description")
    if row["kind"] != "none" and len(ranks) < AT_LEAST:
        raise AnnotationError(f"triggers is {ranks!r}; a pattern is in at least {AT_LEAST}")
    stored["triggers"] = json.dumps(ranks)
    return stored


def _check_item(row: dict[str, Any]) -> None:
    if row["item_kind"] is None and row["event"] == "finish":
        if any(row[name] is not None for name in ("layer", "memory", "code")):
            raise AnnotationError("a layer, memory or code is given without item_kind; give both or neither")
        return
    kinds = {"verdict": ITEM_KINDS[4:], "judgement": ITEM_KINDS[:4]}.get(row["event"], ITEM_KINDS)
    check_choice(row["item_kind"], kinds, what="item_kind")
    for name in ("layer", "memory"):
        if type(row[name]) is not int or not 0 <= row[name] < 2**31:
            raise AnnotationError(f"{name} is {row[name]!r}, not a number")
    if not re.fullmatch(r"[0-9a-f]{20}", str(row["code"])):
        raise AnnotationError(f"code is {row['code']!r}, not the code of an item")


def _check_campaign(row: dict[str, Any]) -> None:
    facts = row["campaign"]
    if facts is None and row["item_kind"] in (*WITHOUT_CAMPAIGN, None):
        return
    fitting = isinstance(facts, dict) and set(facts) == set(CAMPAIGN_FIELDS)
    if not fitting or not all(type(facts[name]) is kind for name, kind in CAMPAIGN_FIELDS.items()):
        raise AnnotationError(f"campaign is {facts!r}, not {', '.join(CAMPAIGN_FIELDS)}")
    if not re.fullmatch(r"[0-9a-f]{32}", facts["uid"]):
        raise AnnotationError(f"the campaign's uid is {facts['uid']!r}, not 32 hexadecimal digits")
    _check_time(facts["made_at"])


def _check_time(text: Any) -> str:
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise AnnotationError(f"made_at is {text!r}, not a time") from None
    if time.tzinfo is None:
        raise AnnotationError(f"made_at is {text!r}; it needs its offset from UTC, such as +00:00")
    if not 1 < time.year < LAST.year:
        # The author's next row on the item must be later, and the time must be valid in UTC.
        raise AnnotationError(f"made_at is {text!r}; its year must be from 2 to {LAST.year - 1}")
    return format_time(time)
