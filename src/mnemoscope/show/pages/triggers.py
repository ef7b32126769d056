"""A memory's triggers as text: the text before the trigger token, the token, the next one, and the rest; and tokens
coloured by the coefficient at each. Of a masked model the token itself stands for the next one, and the rest begins
behind it.
"""

from collections.abc import Sequence
from itertools import accumulate

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.atlas.read import with_texts
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.formatting import show_text, show_texts
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.near_duplicates import group_folds
from mnemoscope.foundation.reading import Reading
from mnemoscope.show.pages.edition import Data

BEFORE, AFTER = 160, 100
"""Characters shown of a long sentence on either side of the trigger token."""
CUT = "\N{HORIZONTAL ELLIPSIS}"
CAUSAL = Reading()
DRAWN = 8
"""Examples shown of each kind: random ones, and middling ones."""
SHADES = 9
"""The deepest shade of a token, for a coefficient as large as the memory's strongest."""


def triggers_view(document: MemoryDocument) -> list[Data]:
    """Every trigger of both signs, positive ones first, each by rank, with the numbers of the patterns that explain it,
    the rank of the first of its near-duplicates (`fold`), and the coefficients of its sentence's tokens where the atlas
    has them (`tokens`).
    """
    atlas, memory, explained = document.atlas, document.memory.id, dict[int, list[int]]()
    groups = {row["rank"]: row["prefix_group"] for row in document.triggers if row["sign"] == 1}
    for pattern in document.patterns or ():
        for group in dict.fromkeys(groups[rank] for rank in pattern["triggers"] if rank in groups):
            explained.setdefault(group, []).append(pattern["pattern"])
    coefficients, views = token_coefficients(atlas, memory), []
    for row in document.triggers:
        activations = coefficients.get((row["sign"], row["rank"]))
        if activations and len(activations) != len(row["tokens"]):
            raise AtlasDamaged(f"{atlas.path}: token_activations of {memory} do not fit sentence {row['sentence']}")
        numbers = explained.get(row["prefix_group"], []) if row["sign"] == 1 else []
        shown = {"prefix_group": row["prefix_group"], "patterns": numbers, "fold": row["fold"], "tokens": None}
        if activations is not None:
            pieces = zip(atlas.vocabulary.split_text(row["tokens"]), activations, strict=True)
            shown["tokens"] = [{"text": text, "coefficient": coefficient} for text, coefficient in pieces]
        views.append(place_view(atlas, row) | shown)
    return views


def place_view(atlas: Atlas, row: Data) -> Data:
    """What a row of `triggers` or `random` says, with the texts around its token, and the token spoken of as `next`;
    of a masked model also the coefficient with the token masked, where it is known.
    """
    tokens, position, vocabulary, reading = row["tokens"], row["position"], atlas.vocabulary, atlas.reading
    following = row[reading.spoken_of]
    own = {} if reading.causal else {"own_coefficient": row.get("own_coefficient")}
    return {name: row[name] for name in ("sign", "rank", "coefficient", "sentence", "position")} | {
        "before": vocabulary.text(tokens[:position]).rstrip("\ufffd"),
        "token": vocabulary.token(row["token"]),
        "next": None if following is None else vocabulary.token(following),
        "after": vocabulary.text(tokens[reading.target(position) + 1 :]).lstrip("\ufffd"),
        **own,
    }


def random_view(atlas: Atlas, memory: MemoryId) -> list[Data] | None:
    """Of each sign that fires some firings drawn at random: the first ones (`random`), those nearest the median
    coefficient of all drawn (`middling`), that `median`, and how many firings were looked at; None without the table.
    """
    if not atlas.has("random", layer=memory.layer):
        return None
    table = atlas.rows_where("random", memory.layer, column="memory", ids=[atlas.number(memory)]).sort("rank")
    views = []
    for sign in (1, -1):
        drawn = table.filter(pl.col("sign") == sign)
        if drawn.is_empty():
            continue
        middle = pl.col("coefficient").median()
        first, middling = drawn.head(DRAWN), drawn.sort((pl.col("coefficient") - middle).abs(), "rank").head(DRAWN)
        rows = with_texts(atlas, pl.concat([first, middling]), sentences="tokens").to_dicts()
        shown = [place_view(atlas, row) for row in rows]
        facts = {"drawn": len(drawn), "kept_firings": drawn["kept_firings"][0], "median": drawn.select(middle).item()}
        views.append({"sign": sign, **facts, "random": shown[: len(first)], "middling": shown[len(first) :]})
    return views


def random_groups(examples: Sequence[Data], reading: Reading) -> list[Data]:
    """Examples of a `random_view` in the form of triggers' groups, to be drawn like them."""
    return [_group([{**one, "patterns": [], "tokens": None}], None, 0.0, reading) for one in examples]


def group_triggers(triggers: Sequence[Data], sign: int, *, says: int | None, reading: Reading = CAUSAL) -> list[Data]:
    """The triggers of one sign, near-duplicates as `similar` to the best of them, equal prefixes once: of these the
    first that speaks of the token `says`.
    """
    folds = group_folds(triggers, sign)
    peak = max((abs(members[0]["coefficient"]) for fold in folds for members in fold), default=0.0)
    groups = ([_group(members, says, peak, reading) for members in fold] for fold in folds)
    return [{**first, "similar": others} for first, *others in groups]


def _group(members: list[Data], says: int | None, peak: float, reading: Reading) -> Data:
    def is_predicted(one: Data) -> bool:
        return one["next"] is not None and one["next"]["token"] == says

    first = members[0]
    shown = next((one for one in members if is_predicted(one)), first)
    before, after = show_text(shown["before"]), show_text(f"x{shown['after']}")[1:]
    short, rest = shorten_start(before), shorten_end(after)
    return {
        **shown,
        "rank": first["rank"],
        "coefficient": first["coefficient"],
        "ranks": [one["rank"] for one in members],
        "times": len(members),
        "similar": [],
        "foretold": is_predicted(shown),
        "before": before,
        "after": after,
        "short_before": short,
        "short_after": rest,
        "cut": (short, rest) != (before, after),
        "coloured": None if first["tokens"] is None else _colour_trigger(first, shown, peak, reading),
    }


def _colour_trigger(first: Data, shown: Data, peak: float, reading: Reading) -> Data:
    """The coloured tokens of a trigger; what follows another one with the same prefix stays without colours."""
    tokens, at = first["tokens"], first["position"]
    if shown is not first:
        tokens = [*tokens[: at + 1], *({"text": text, "coefficient": None} for text in ("", shown["after"]))]
    tokens = colour_tokens(tokens, peak)
    target = reading.target(at)
    before, after = tokens[:at], tokens[target + 1 :]
    kept = len(before) - _count_within(before[::-1], BEFORE)
    return {
        "tokens": tokens,
        "here": tokens[at],
        "next": tokens[target] if shown["next"] is not None else None,
        "before": before,
        "after": after,
        "short_before": before[kept:],
        "short_after": after[: _count_within(after, AFTER)],
    }


def _count_within(tokens: Sequence[Data], room: int) -> int:
    """How many of the first tokens have so many characters together."""
    return sum(end <= room for end in accumulate(len(one["shown"]) for one in tokens))


def shorten_start(text: str) -> str:
    if len(text) <= BEFORE:
        return text
    first, space, rest = text[-BEFORE:].partition(" ")
    return CUT + (rest if space and len(first) < 20 else text[-BEFORE:])


def shorten_end(text: str) -> str:
    if len(text) <= AFTER:
        return text
    rest, space, last = text[:AFTER].rpartition(" ")
    return (rest if space and len(last) < 20 else text[:AFTER]) + CUT


def token_coefficients(atlas: Atlas, memory: MemoryId) -> dict[tuple[int, int], list[float]]:
    """The coefficients at every token of the best triggers' sentences by sign and rank; none without the table."""
    if not atlas.has("token_activations", layer=memory.layer):
        return {}
    table = atlas.rows_where("token_activations", memory.layer, column="memory", ids=[atlas.number(memory)])
    return {
        (sign, rank): [float(f"{scale * share:.4g}") for share in shares]
        for sign, rank, scale, shares in table.select("sign", "rank", "scale", "coefficients").iter_rows()
    }


def colour_tokens(tokens: Sequence[Data], peak: float) -> list[Data]:
    """The tokens (`text`, `coefficient` or None) with `shown` and the class of their `shade`; `peak` is the size of the
    coefficient that has the deepest one.
    """
    return [
        one | {"shown": text, "shade": _shade_class(one["coefficient"], peak)}
        for one, text in zip(tokens, show_texts([one["text"] for one in tokens]), strict=True)
    ]


def _shade_class(coefficient: float | None, peak: float) -> str:
    shade = round(SHADES * min(1.0, abs(coefficient) / peak)) if coefficient and peak else 0
    return f"h{shade}{' minus' * ((coefficient or 0) < 0)}" if shade else ""
