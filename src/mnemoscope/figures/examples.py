"""Memories and cases to look at: the most striking memories with their triggers, and the last layer's compositions.

Texts of the corpus and the vocabulary are only made visible here; the page's template escapes them.
"""

from dataclasses import dataclass
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.formatting import before_token, format_interval, percent, pluralise, show_text, show_token
from mnemoscope.questions.question import Answer

FEWEST_PREFIXES = 5
"""Different prefixes that a memory's best triggers must have."""
MEMORIES = 10
TRIGGERS = 8
"""Different prefixes of a memory that are shown."""
PATTERNS = 5
TOKENS = 6
LENGTH = 90
"""Characters of a prefix's end that are shown."""


@dataclass(frozen=True)
class Prefix:
    """The end of a prefix, its last token, what came next (None at a sentence's end), how often it is a trigger."""

    before: str
    token: str
    following: str | None
    predicted_by_value: bool
    times: int


@dataclass(frozen=True)
class Example:
    """One striking memory."""

    name: str
    says: str
    probability: str
    agreement: str
    triggers: tuple[Prefix, ...]
    tokens: tuple[str, ...]
    patterns: tuple[tuple[str, str], ...]

    @property
    def shown(self) -> Prefix:
        """The best trigger that is followed by what the value says; the best at all if none of those shown is."""
        return next((trigger for trigger in self.triggers if trigger.predicted_by_value), self.triggers[0])


@dataclass(frozen=True)
class Case:
    """One composition: the prefix, and what the residual, the layer, its output and the text say comes next."""

    before: str
    token: str
    residual: str
    ffn: str
    output: str
    following: str


def best_examples(atlas: Atlas, count: int = 10) -> pl.DataFrame:
    """The `count` memories that show best what a memory is, the most striking first: its value comes true.

    score = largest probability of the value's distribution x share of its best triggers that the value's top token
    follows; a trigger at the end of its sentence is one that it does not follow. Only memories whose best triggers have
    enough different prefixes, and one memory for each top token.

    Columns: layer, memory, score, max_probability, agreement (share of the best triggers that the top token follows),
    prefixes (different ones among the best triggers), top_token.
    """
    found = pl.concat([_scores(atlas, layer) for layer in atlas.layers])
    ordered = found.sort(["score", "layer", "memory"], descending=[True, False, False])
    return ordered.unique("top_token", keep="first", maintain_order=True).head(count)


def _scores(atlas: Atlas, layer: int) -> pl.DataFrame:
    values = atlas.table("values", layer=layer).select(
        "memory", "max_probability", top_token=pl.col("top_tokens").list.first()
    )
    shares = (
        atlas.best_triggers(layer)
        .join(values, on="memory")
        .group_by("memory")
        .agg(
            prefixes=pl.col("prefix_group").n_unique(),
            agreement=(pl.col("next_token") == pl.col("top_token")).fill_null(False).mean(),
        )
        .filter(pl.col("prefixes") >= FEWEST_PREFIXES)
    )
    return (
        values.join(shares, on="memory")
        .with_columns(
            layer=pl.lit(layer, pl.Int32),
            score=(pl.col("max_probability") * pl.col("agreement")).fill_null(0.0).cast(pl.Float64),
        )
        .filter(pl.col("score") > 0)
        .select("layer", "memory", "score", "max_probability", "agreement", "prefixes", "top_token")
    )


def examples(atlas: Atlas) -> list[Example]:
    """The most striking memories of the atlas, best first; possibly none."""
    patterns = atlas.table("patterns") if atlas.has("patterns") else None
    return [_example(atlas, row, patterns) for row in best_examples(atlas, MEMORIES).to_dicts()]


def _example(atlas: Atlas, row: dict[str, Any], patterns: pl.DataFrame | None) -> Example:
    memory = atlas[f"L{row['layer']}.M{row['memory']}"]
    groups: dict[int, list[dict[str, Any]]] = {}
    for trigger in memory.triggers().to_dicts():
        groups.setdefault(trigger["prefix_group"], []).append(trigger)
    value = memory.value().row(0, named=True)
    found: list[tuple[str, str]] = []
    if patterns is not None:
        own = patterns.filter((pl.col("layer") == row["layer"]) & (pl.col("memory") == row["memory"])).sort("pattern")
        found = [(one["kind"], f"{one['description']} ({len(one['triggers'])} triggers)") for one in own.to_dicts()]
    return Example(
        name=str(memory.id),
        says=show_token(value["top_texts"][0]),
        probability=percent(row["max_probability"]),
        agreement=percent(row["agreement"]),
        triggers=tuple(_prefix(group, row["top_token"]) for group in list(groups.values())[:TRIGGERS]),
        tokens=tuple(show_token(text) for text in value["top_texts"][:TOKENS]),
        patterns=tuple(found[:PATTERNS]),
    )


def _prefix(group: list[dict[str, Any]], says: int) -> Prefix:
    """Equal prefixes shown once, with the first next token that is what the value says, or else the first."""
    first = group[0]
    shown = next((trigger for trigger in group if trigger["next_token"] == says), first)
    following = None if shown["next_text"] is None else show_token(shown["next_text"])
    before, token = ending(first["prefix"], first["trigger_text"])
    return Prefix(before, token, following, shown["next_token"] == says, len(group))


def ending(prefix: str, token: str) -> tuple[str, str]:
    """The end of the prefix before its last token, as much as is shown, and the token; both made visible."""
    before = show_text(before_token(prefix, token))
    return _shorten(before), show_token(token)


def _shorten(text: str) -> str:
    """The end of the text, from the beginning of a word where there is one near."""
    if len(text) <= LENGTH:
        return text
    kept = text[-LENGTH:]
    first, space, rest = kept.partition(" ")
    return "\N{HORIZONTAL ELLIPSIS}" + (rest if space and len(first) < 20 else kept)


def cases(listed: pl.DataFrame | None, atlas: Atlas) -> list[Case]:
    """The compositions of the last layer that the analysis lists; possibly none."""
    if listed is None or listed.is_empty():
        return []
    found = []
    stored = atlas.table("prefixes").select("prefix", "sentence", "position").rows_by_key("prefix", unique=True)
    prefixes = atlas.prefixes([stored[prefix] for prefix in listed["prefix"]])
    for row, prefix in zip(listed.to_dicts(), prefixes, strict=True):
        before, token = ending(row["prefix_text"], atlas.token_text(prefix[-1:])[0] or "")
        said = [show_token(row[f"{name}_text"] or "") for name in ("residual", "ffn", "output", "next")]
        found.append(Case(before, token, *said))
    return found


def judged_sentence(answer: Answer) -> str:
    """What people call the last layer's compositions, by the answer to refinement_events; or that nobody judged any."""
    row = answer.total("composition_distant")
    if row is None:
        return "Nobody has judged these."
    between = format_interval(row.low, row.high, "share")
    cases = pluralise(row.count, "case", "cases")
    return f"Here people have judged {cases}: they call the new token unlike both in {percent(row.value)} {between}."
