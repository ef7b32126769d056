"""The data of a causal check's page: its table in words, with intervals as marks on a common scale."""

import math
from typing import Any

from mnemoscope.atlas.vocabulary import Vocabulary

MEASURES = {
    "own_tokens_probability": "its own tokens' probability, added up",
    "own_tokens_log_probability": "its own tokens' log probability, mean",
    "top_token_probability": "its top token's probability",
    "top_token_log_probability": "its top token's log probability",
    "next_token_probability": "probability of what came next in the text",
    "next_token_log_probability": "log probability of what came next in the text",
}
OF = {"memory": "this memory off", "controls": "another one off", "difference": "difference"}


def causal_view(data: dict[str, Any], words: Vocabulary) -> dict[str, Any]:
    """Values for the template beside the check's data."""
    groups = []
    for logs in (False, True):
        rows = [row for row in data["rows"] if ("log" in row["measure"]) == logs]
        ends = [abs(row[end]) for row in rows for end in ("mean", "low", "high") if row[end] is not None]
        widest = max(ends, default=0.0)
        groups.append(
            {
                "title": "Log probabilities (nats)" if logs else "Probabilities (hundredths)",
                "rows": [_row(row, widest, hundredths=not logs) for row in rows],
            }
        )
    key = ("next_token_log_probability", "difference")
    own = next(row for row in data["rows"] if (row["measure"], row["of"]) == key)
    return {
        "own": [{"token": token["id"], "shown": words.visible_text(token["id"])} for token in data["own_tokens"]],
        "groups": groups,
        "clear": _clear(own),
        "other": -data["sign"],
    }


def _row(row: dict[str, Any], widest: float, *, hundredths: bool) -> dict[str, Any]:
    def at(value: float | None) -> float | None:
        return None if value is None else round(50 + (48 * value / widest if widest else 0.0), 2)

    unit = 100 if hundredths else 1
    return {
        "measure": MEASURES.get(row["measure"], row["measure"].replace("_", " ")),
        "first": row["of"] == "memory",
        "of": OF.get(row["of"], row["of"]),
        "kind": row["of"],
        "count": row["count"],
        **{name: _with_sign(row[name], unit) for name in ("mean", "low", "high")},
        **{f"{name}_at": at(row[name]) for name in ("mean", "low", "high")},
    }


def _with_sign(value: float | None, unit: int) -> str | None:
    if value is None or not math.isfinite(value):
        return None
    size = abs(value * unit)
    text = f"{size:.3f}" if size >= 0.0005 else f"{size:.0e}" if size else "0"
    return ("\N{MINUS SIGN}" if value < 0 else "+" if value > 0 else "") + text


def _clear(row: dict[str, Any]) -> str:
    """The effect of the memory on the next token: down, up, unclear, or few (too few triggers)."""
    if row["low"] is None:
        return "few"
    if row["low"] <= 0 <= row["high"]:
        return "unclear"
    return "down" if row["high"] < 0 else "up"
