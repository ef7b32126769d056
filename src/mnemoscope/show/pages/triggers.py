"""A memory's triggers as text: the text before the trigger token, the token, the next one, and the rest."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.formatting import show_text
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Edition

BEFORE, AFTER = 160, 100
"""Characters shown of a long sentence on either side of the trigger token."""
CUT = "\N{HORIZONTAL ELLIPSIS}"


def triggers_view(
    edition: Edition, wanted: MemoryId, *, patterns: Sequence[dict[str, Any]], foretold: int | None = None
) -> list[dict[str, Any]]:
    """Every trigger of both signs, positive ones first, each by rank, with the numbers of the `patterns` that explain
    it. With `foretold`, only the best positive one that this token follows, or the first.
    """
    atlas = edition.atlas
    table = atlas.rows_where("triggers", wanted.layer, column="memory", ids=[atlas.number(wanted)])
    rows = table.sort(-pl.col("sign").cast(pl.Int32), "rank").to_dicts()
    if foretold is not None:
        followed = (row for row in rows if row["sign"] == 1 and row["next_token"] == foretold)
        rows = sorted(followed, key=lambda row: (row["prefix_group"], row["rank"]))[:1] or rows[:1]
    explained = _pattern_numbers(rows, patterns)
    if not rows:
        return []
    sentences = edition.tokens_of([row["sentence"] for row in rows])
    vocabulary = edition.atlas.vocabulary
    views = []
    for row in rows:
        tokens, position = sentences[row["sentence"]], row["position"]
        if position >= len(tokens):
            raise AtlasDamaged(f"{atlas.path}: {wanted} names position {position} of sentence {row['sentence']}")
        following = row["next_token"]
        numbers = explained.get(row["prefix_group"], []) if row["sign"] == 1 else []
        views.append(
            {name: row[name] for name in ("sign", "rank", "coefficient", "sentence", "position", "prefix_group")}
            | {
                "before": vocabulary.text(tokens[:position]).rstrip("\ufffd"),
                "token": vocabulary.token(row["token"]),
                "next": None if following is None else vocabulary.token(following),
                "after": vocabulary.text(tokens[position + 2 :]).lstrip("\ufffd"),
                "patterns": numbers,
            }
        )
    return views


def _pattern_numbers(rows: Sequence[dict[str, Any]], patterns: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Prefix group -> the numbers of the patterns that contain any of its ranks."""
    groups = {row["rank"]: row["prefix_group"] for row in rows if row["sign"] == 1}
    numbers: dict[int, list[int]] = {}
    for pattern in patterns:
        for group in dict.fromkeys(groups[rank] for rank in pattern["triggers"] if rank in groups):
            numbers.setdefault(group, []).append(pattern["pattern"])
    return numbers


def group_triggers(triggers: Sequence[dict[str, Any]], sign: int, *, says: int | None) -> list[dict[str, Any]]:
    """The triggers of one sign, equal prefixes once: of these the first that is followed by the token `says`."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for trigger in triggers:
        if trigger["sign"] == sign:
            groups.setdefault(trigger["prefix_group"], []).append(trigger)
    return [_group(members, says) for members in groups.values()]


def _group(members: list[dict[str, Any]], says: int | None) -> dict[str, Any]:
    def is_predicted(one: dict[str, Any]) -> bool:
        return one["next"] is not None and one["next"]["token"] == says

    first = members[0]
    chosen = next((one for one in members if is_predicted(one)), first)
    before, after = show_text(chosen["before"]), show_text(f"x{chosen['after']}")[1:]
    short, rest = shorten_start(before), _shorten_end(after)
    return {
        **chosen,
        "rank": first["rank"],
        "coefficient": first["coefficient"],
        "ranks": [one["rank"] for one in members],
        "times": len(members),
        "foretold": is_predicted(chosen),
        "before": before,
        "after": after,
        "short_before": short,
        "short_after": rest,
        "cut": (short, rest) != (before, after),
    }


def shorten_start(text: str) -> str:
    if len(text) <= BEFORE:
        return text
    first, space, rest = text[-BEFORE:].partition(" ")
    return CUT + (rest if space and len(first) < 20 else text[-BEFORE:])


def _shorten_end(text: str) -> str:
    if len(text) <= AFTER:
        return text
    rest, space, last = text[:AFTER].rpartition(" ")
    return (rest if space and len(last) < 20 else text[:AFTER]) + CUT
