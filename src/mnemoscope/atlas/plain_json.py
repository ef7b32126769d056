"""Checks of the numbers and texts in a manifest, and the wording of a faulty entry."""

import json
import math
from typing import Any

_DEEPEST = 32


def unwritable(manifest: dict[str, Any]) -> str | None:
    """The fault of values that no manifest of ours holds: not finite, too long, not UTF-8, too deep; else None."""
    waiting: list[tuple[str, Any, int]] = [("", manifest, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > _DEEPEST:
            return f"the manifest is nested more than {_DEEPEST} deep"
        if isinstance(value, dict):
            waiting += [(path, key, depth) for key in value]
            waiting += [(f"{path}.{key}".lstrip("."), part, depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            waiting += [(path, part, depth + 1) for part in value]
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"the manifest holds text under {short(path)} that is not UTF-8"
        elif isinstance(value, float) and not math.isfinite(value):
            return wrong(path, value, "a finite number")
        elif type(value) is int and abs(value) >= 2**63:
            return wrong(path, value, "a number of 64 bits")
    return None


def wrong(path: str, value: Any, expected: str) -> str:
    return f"the manifest's {short(path)} is {short(json.dumps(value, ensure_ascii=False))}, not {expected}"


def short(text: str) -> str:
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= 60 else f"{line[:57]}..."
