"""JSON that agrees with nothing: what an entry of a manifest or a tokenizer may be replaced by. Not a test itself."""

import json
from collections.abc import Iterator
from typing import Any

Place = tuple[str | int, ...]

ABSENT = object()
ODD: list[Any] = [
    *(ABSENT, None, True, False, -1, 0, 1, 2, 2**24, 2**24 + 1, 10**12, 2**63, 10**400, -0.5, 0.5, 1e308),
    *(float("nan"), float("inf"), "", "0", "text", "\ud800", "../x", "\0", [], [0], [-1], [10**12], [[0]], [None]),
    *({}, {"": None}, {"index": 1}, {"index": 0, "of": 0}, {"index": 3, "of": 2}, {"sentences": 1}, {"a": {"b": []}}),
]


def entries(value: Any, at: Place = (), *, few: Place | None = None) -> Iterator[Place]:
    """The way to every entry, outer ones first; of those in `few` three are enough."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (key, part) in enumerate(inside):
        if at != few or number < 3:
            yield (*at, key)
            yield from entries(part, (*at, key), few=few)


def changed(whole: dict[str, Any], at: Place, new: Any) -> dict[str, Any]:
    """The whole with another entry at this place, or with none."""
    copy: dict[str, Any] = json.loads(json.dumps(whole))
    holder: Any = copy
    for step in at[:-1]:
        holder = holder[step]
    if new is ABSENT:
        del holder[at[-1]]
    else:
        holder[at[-1]] = new
    return copy
