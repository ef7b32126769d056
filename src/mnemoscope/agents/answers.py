"""The form of an answer to an agent: compact JSON of at most so many bytes, in which text from an atlas, a model or a
prompt is marked, so that nobody takes it for what this package says.
"""

import json
import unicodedata
from typing import Any

from mnemoscope.foundation.formatting import json_safe

USUAL, LEAST, MOST = 4_096, 1_024, 65_536
"""Bytes of an answer."""
_OURS = {"atlas", "first", "second", "memory", "memories", "name", "field", "change", "event", "part"}
"""Keys of texts that this package makes itself, or whose form it checks. All others are marked."""
_UNTOLD = {
    *("made_by", "sentence", "id", "next_token", "prefix_group", "fold", "edges", "histogram", "lens", "target_rank"),
    *("contribution", "agrees", "heads", "kept", "frame", "active", "effective", "top_share", "major", "longer"),
    *("top_tokens", "bottom_tokens", "bottom_scores", "literal_top", "literal_max_probability", "literal_target"),
    *("literal_target_rank", "other_layer", "other_memory", "sampled", "std", "trigger_text", "own", "model", "prompt"),
    *("tokens", "edges"),
}
"""Keys that an agent has no use for."""


def encode(document: dict[str, Any], most: int) -> str:
    """The document in at most `most` bytes: its lists are cut alike, and `left_out` counts what they lost; a long text
    keeps its end, where a trigger's token stands. Numbers have four digits.
    """
    for rows in (500, 200, 100, 50, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0):
        left: dict[str, int] = {}
        told = _form(json_safe(document), most // 16, rows, left, "")
        text = json.dumps(told | {"left_out": left}, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) <= most:
            break
    return text


def escape(text: str) -> str:
    """The text with what is no sign and no space (controls, overrides of direction) as Python writes it."""
    shown = (one.isprintable() or unicodedata.category(one) == "Zs" for one in text)
    return "".join(one if as_it_is else ascii(one)[1:-1] for one, as_it_is in zip(text, shown, strict=True))


def _form(value: Any, most: int, rows: int, left: dict[str, int], key: str) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, str):
        text = escape(value)
        return text if len(text) <= most else f"…{text[1 - most :]}"
    if isinstance(value, list):
        rows_here = rows if value and isinstance(value[0], dict) else max(rows, 3)  # a range of three numbers is one
        left |= {key: left.get(key, 0) + len(value) - rows_here} if len(value) > rows_here else {}
        return [_form(one, most, rows, left, key) for one in value[:rows_here]]
    if not isinstance(value, dict):
        return value
    made = {name: _form(one, most, rows, left, name) for name, one in value.items() if name not in _UNTOLD}
    texts = {name: made.pop(name) for name in list(made) if name not in _OURS and _is_text(made[name])}
    return made | ({"untrusted_text": texts} if texts else {})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and any(map(_is_text, value)))
