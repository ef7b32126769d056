"""One exported row: its fields, and what each may hold.

Checks a row by itself; whether it fits a database is up to campaigns/import_export.py.
"""

import json
import re
from datetime import datetime
from typing import Any

from mnemoscope.errors import AnnotationError
from mnemoscope.judgements import rules
from mnemoscope.judgements.rules import ITEM_KINDS

FIELDS = (
    "author", "made_at", "event", "item_kind", "layer", "memory", "pattern", "kind", "description", "triggers", "key",
    "undoes", "code", "campaign", "atlas",
)  # fmt: skip
"""event: judgement, verdict or finish. kind: the pattern's class, the verdict, or finished | taken up. A finish without
an item says that all work was handed in. campaign: what it takes to draw the same campaign again."""

CAMPAIGN_FIELDS = {"uid": str, "seed": int, "keys_per_layer": int, "controls": int, "cases": int, "made_at": str}
_KINDS = {"judgement": rules.KINDS, "verdict": rules.VERDICTS, "finish": ("finished", "taken up")}


def check_row(row: dict[str, Any], atlas: str) -> dict[str, Any]:
    """The row as the database stores it; raises AnnotationError for fields that are missing, unknown or cannot be."""
    if set(row) != set(FIELDS):
        wrong = ", ".join(sorted(set(row) ^ set(FIELDS))[:3])
        raise AnnotationError(f"the fields are not those of an export ({wrong} missing or unknown)")
    if row["atlas"] != atlas:
        raise AnnotationError(
            f"it is about another atlas (manifest {str(row['atlas'])[:12]}, this one is {atlas[:12]})"
        )
    found = dict(row)
    kinds = _KINDS.get(str(row["event"]))
    if kinds is None:
        raise AnnotationError(f"event is {row['event']!r}, none of {', '.join(_KINDS)}")
    if row["kind"] not in kinds:
        raise AnnotationError(f"kind is {row['kind']!r}, none of {', '.join(kinds)}")
    found["author"] = rules.check_name(row["author"])
    found["made_at"] = _time(row["made_at"])
    for name, empty in (("key", False), ("undoes", True)):
        if not (empty and row[name] is None) and not re.fullmatch(r"[A-Za-z0-9_.-]{8,80}", str(row[name])):
            raise AnnotationError(f"{name} is {row[name]!r}, no key of a judgement")
    _check_item(row)
    _check_campaign(row)
    if row["event"] != "judgement":
        if any(row[name] is not None for name in ("pattern", "description", "triggers", "undoes")):
            raise AnnotationError(f"a {row['event']} has no pattern, description, triggers or undoes")
        return found
    rules.check_pattern(row["pattern"])
    ranks = row["triggers"]
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks) or ranks != sorted(set(ranks)):
        raise AnnotationError(f"triggers is {ranks!r}, not a list of ranks in order")
    said = row["description"] or ""
    found["description"] = said if row["kind"] == "none" and not said else rules.check_description(said)
    if row["kind"] == "none" and (ranks or said):
        raise AnnotationError("a pattern of kind none has no triggers and no description")
    if row["kind"] != "none" and len(ranks) < rules.AT_LEAST:
        raise AnnotationError(f"triggers is {ranks!r}; a pattern is in at least {rules.AT_LEAST}")
    found["triggers"] = json.dumps(ranks)
    return found


def _check_item(row: dict[str, Any]) -> None:
    kind = row["item_kind"]
    if kind is None and row["event"] == "finish":
        if any(row[name] is not None for name in ("layer", "memory", "code")):
            raise AnnotationError("a layer, memory or code without item_kind says nothing")
        return
    fitting = {"verdict": ("case",), "judgement": ITEM_KINDS[:3]}.get(row["event"], ITEM_KINDS)
    if kind not in fitting:
        raise AnnotationError(f"item_kind is {kind!r}, none of {', '.join(fitting)}")
    for name in ("layer", "memory"):
        if type(row[name]) is not int or not 0 <= row[name] < 2**31:
            raise AnnotationError(f"{name} is {row[name]!r}, not a number")
    if not re.fullmatch(r"[0-9a-f]{20}", str(row["code"])):
        raise AnnotationError(f"code is {row['code']!r}, not the code of an item")


def _check_campaign(row: dict[str, Any]) -> None:
    facts = row["campaign"]
    if facts is None and row["item_kind"] in ("chosen", None):
        return
    fitting = isinstance(facts, dict) and set(facts) == set(CAMPAIGN_FIELDS)
    if not fitting or not all(type(facts[name]) is kind for name, kind in CAMPAIGN_FIELDS.items()):
        raise AnnotationError(f"campaign is {facts!r}, not {', '.join(CAMPAIGN_FIELDS)}")
    if not re.fullmatch(r"[0-9a-f]{32}", facts["uid"]):
        raise AnnotationError(f"the campaign's uid is {facts['uid']!r}, not 32 hexadecimal digits")
    _time(facts["made_at"])


def _time(text: Any) -> str:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise AnnotationError(f"made_at is {text!r}, not a time") from None
    if found.tzinfo is None:
        raise AnnotationError(f"made_at is {text!r}; it needs its distance from UTC, such as +00:00")
    if not 1 < found.year < rules.LAST.year:
        # The author's next word on the item must come after this one, and what is read as UTC must be a time.
        raise AnnotationError(f"made_at is {text!r}, a time at which nobody can have judged")
    return rules.format_time(found)
