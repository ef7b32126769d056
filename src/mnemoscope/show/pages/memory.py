"""A memory's page: all data of the atlas about it, people's judgements, and the most similar memories."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import polars as pl
from pydantic import Field

from mnemoscope.atlas.features import STRONG, features_of, strongly_active
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, MemoryId
from mnemoscope.foundation.near_duplicates import count_different
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.model.trace import CHANGES, PROMPT, TOKENS, Change, Chat, TraceAddress
from mnemoscope.show.pages.page import Address, Page, PageKind, PageNotFound
from mnemoscope.show.pages.triggers import fold_groups, group_triggers, random_groups, random_view, triggers_view

NEIGHBOURS = 10
READ = 8
IMPORTANCE = ("prefixes", "direct", "attribution", "direct_among_20", "attribution_among_20")
PATTERN = ("pattern", "kind", "description", "triggers", "lift", "log10_p")


MemoryName = Annotated[str, Field(max_length=100, description="A memory, such as L10.M222")]


class MemoryAddress(Address, frozen=True):
    """The pattern whose triggers are marked; and a trace's prompt and changes, which the links carry along."""

    pattern: Annotated[int | None, Field(ge=0, le=32_767, description="The pattern whose triggers are marked")] = None
    changes: Annotated[
        list[Change],
        Field(validation_alias="set", max_length=CHANGES),
        Field(description="Interventions to carry along, such as L10.M222=0"),
    ] = []  # noqa: RUF012
    prompt: Annotated[str | None, Field(max_length=PROMPT, description="A traced prompt to carry along")] = None
    at: Annotated[str, Field(max_length=10, description="Where those interventions hold, to carry along")] = "all"
    chat: Chat = False


class TrialAddress(Address, frozen=True):
    text: Annotated[str | None, Field(max_length=PROMPT, description="The text to try the memory on")] = None


PLAIN = MemoryAddress()


def memory_page(edition: Edition, name: MemoryName, address: MemoryAddress = PLAIN) -> Page:
    """One memory: triggers, value, activity, patterns, neighbours."""
    if not name.startswith("L"):
        raise PageNotFound(f"There is no page {f'/{name}'!r}.")
    wanted, pattern, changes = MemoryId.parse(name), address.pattern, address.changes
    people = edition.published(wanted)
    carried = TraceAddress(prompt=address.prompt, chat=address.chat, changes=changes, at=address.at)
    patterns = edition.patterns(edition.atlas[wanted].id)
    numbers = [one["pattern"] for one in patterns or []]
    if pattern is not None and pattern not in numbers:
        has = f"{len(numbers)}, counted from 0" if numbers else "none"
        raise OptionError(f"pattern {pattern} is not one of {wanted}, which has {has}")
    triggers = triggers_view(edition, wanted, patterns=patterns or [])
    best = _best(triggers)
    value, activity = edition.row("values", wanted), edition.row("activity", wanted)
    importance, lenses = _importance(edition, wanted), edition.atlas[wanted].through_lenses()
    known = edition.in_and_out(wanted.layer).filter(pl.col("memory") == edition.atlas.number(wanted))
    known = known.drop("memory").drop_nulls("cosine")
    data: Data = {
        "memory": str(wanted),
        "layer": wanted.layer,
        "previous": _beside(edition, wanted, -1),
        "next": _beside(edition, wanted, 1),
        "triggers": triggers,
        "random": (drawn := random_view(edition, wanted)),
        "labels": {"positive": edition.label(wanted), "negative": edition.label(wanted, -1)},
        "value": _value(edition, value),
        "readings": _readings(edition, lenses.get("readings"), tokens="top_tokens", rank="target_rank"),
        "key_readings": _readings(edition, lenses.get("key_readings"), tokens="key_top_tokens", rank="trigger_rank"),
        "follows": _follows(edition, value, triggers),
        "follows_negative": _count_followed(triggers, -1, value["bottom_tokens"][0]),
        "activity": _activity(activity),
        "importance": importance,
        "input_output": (in_and_out := next(iter(known.to_dicts()), None)),
        "patterns": patterns
        and [
            {name: one[name] for name in PATTERN} | {"different": count_different(one["triggers"], best)}
            for one in patterns
        ],
        "best": {"triggers": len(best), "different": len({one["fold"] for one in best})},
        "pattern": pattern,
        "neighbours": {"value": _by_value(edition, wanted), "triggers": _by_triggers(edition, wanted, triggers)},
        "reference": reference(edition, wanted),
        "people": people,
        "set": changes,
    }

    def extra() -> Data:
        carry = carried.query()
        rows = {"values": value, "activity": activity, "importance": importance, "roles": in_and_out}
        return {
            "positive": fold_groups(group_triggers(triggers, 1, says=value["top_tokens"][0])),
            "negative": fold_groups(group_triggers(triggers, -1, says=None)),
            "drawn": drawn
            and [one | {kind: random_groups(one[kind]) for kind in ("random", "middling")} for one in drawn],
            "coloured_examples": any(one["tokens"] for one in triggers),
            "bars": bars(data["activity"]),
            "numbers": {table: TABLES[table].numbers(row) for table, row in rows.items() if row},
            "carry": f"&{carry}" if carry else "",
            "figure1": _figure1(edition, wanted, triggers),
            "add": carried.with_change(f"{wanted}=0"),
        }

    return Page("memory.html", str(wanted), data, extra)


def _figure1(edition: Edition, wanted: MemoryId, triggers: Sequence[Data]) -> str:
    """The trace's picture of the memory's layer at its best trigger; empty without one that the page can take."""
    for best in triggers[:1]:
        sentence = edition.atlas.sentences([best["sentence"]]).row(0, named=True)
        text, short = sentence["text"], len(sentence["tokens"]) <= TOKENS and not sentence.get("source")
        if short and 0 < len(text) <= PROMPT:
            address = TraceAddress(prompt=text, layer=wanted.layer, position=best["position"])
            return f"{address.address()}#figure1"
    return ""


def reference(edition: Edition, wanted: MemoryId) -> Data:
    """A permanent reference to this memory: the hashes of the weights and of the atlas."""
    model = edition.atlas.manifest.model
    revision = f", revision {model.revision}" if model.revision else ""
    line = (
        f"Memory {wanted} of {model.spec}{revision} (model sha256 {model.fingerprint}), as mined from"
        f" {edition.atlas.manifest.corpus.spec} (atlas sha256 {edition.atlas.manifest_hash})."
    )
    return {
        "text": line,
        "memory": str(wanted),
        "model": model.spec,
        "revision": model.revision,
        "fingerprint": model.fingerprint,
        "atlas": edition.atlas.manifest_hash,
    }


def _beside(edition: Edition, wanted: MemoryId, step: int) -> str | None:
    atlas, layers = edition.atlas, edition.atlas.layers
    memory = atlas.number(wanted) + step
    if 0 <= memory < atlas.memories(wanted.layer):
        return str(atlas.name(wanted.layer, memory))
    at = layers.index(wanted.layer) + step
    if not 0 <= at < len(layers):
        return None
    return str(atlas.name(layers[at], 0 if step > 0 else atlas.memories(layers[at]) - 1))


def _value(edition: Edition, value: Data) -> Data:
    """Top and bottom tokens; the bottom tokens' probabilities are those under -v."""
    vocabulary = edition.atlas.vocabulary
    best, most = value["top_scores"][0], value["max_probability"]
    linear = edition.atlas.manifest.model.head == "linear"

    def tokens_at(end: str, sign: int) -> list[Data]:
        return [
            vocabulary.token(token)
            | {"score": score, "probability": most * math.exp(sign * score - best) if sign == 1 or linear else None}
            for token, score in zip(value[f"{end}_tokens"], value[f"{end}_scores"], strict=True)
        ]

    names = ("max_probability", "entropy", "value_norm", "key_norm", "up_norm", "working_logit", "working_probability")
    features = [
        {
            "sign": one.sign,
            "token": vocabulary.token(value[f"{one.end}_tokens"][0]),
            "promotes": one.promotes,
            "z": one.distance,
            "clear_z": one.clear,
        }
        for one in features_of(value)
    ]
    shown = {"top": tokens_at("top", 1), "bottom": tokens_at("bottom", -1), "features": features}
    return shown | {name: value[name] for name in names}


def _readings(edition: Edition, rows: pl.DataFrame | None, *, tokens: str, rank: str) -> list[Data]:
    vocabulary = edition.atlas.vocabulary
    return [
        {"lens": row["lens"], rank: row[rank], "top": [vocabulary.token(token) for token in row[tokens][:READ]]}
        for row in ([] if rows is None else rows.to_dicts())
    ]


def _follows(edition: Edition, value: Data, triggers: list[Data]) -> Data:
    target = value["target"]
    return {
        "target": None if target is None else edition.atlas.vocabulary.token(target),
        "target_rank": value["target_rank"],
        "trigger_log_probability": value["trigger_log_probability"],
        **_count_followed(triggers, 1, value["top_tokens"][0]),
        "vocabulary": len(edition.atlas.vocabulary.texts),
    }


def _count_followed(triggers: list[Data], sign: int, says: int) -> dict[str, int]:
    """How many of the best triggers of a sign are followed by the token `says`."""
    best = _best(triggers, sign)
    followed = sum(one["next"] is not None and one["next"]["token"] == says for one in best)
    return {"followed": followed, "best": len(best)}


def _best(triggers: list[Data], sign: int = 1) -> list[Data]:
    return [one for one in triggers if one["sign"] == sign and one["rank"] < BEST_TRIGGERS]


def extreme(edition: Edition, memory: MemoryId) -> float:
    """The size of the memory's largest coefficient in the mined text, of either sign."""
    activity = edition.row("activity", memory)
    return max(abs(float(activity["max"])), abs(float(activity["min"])))


def _activity(activity: Data) -> Data:
    edges = [None, *HISTOGRAM_EDGES, None]
    bins = [
        {"low": low, "high": high, "count": count}
        for low, high, count in zip(edges, edges[1:], activity["histogram"], strict=False)
    ]
    names = ("prefixes", "positive", "mean", "min", "max", "sampled", "std")
    share = activity["positive"] / activity["prefixes"] if activity["prefixes"] else None
    every = activity.get("all_prefixes", activity["prefixes"])
    strong = strongly_active(pl.DataFrame([activity], schema_overrides={"min": pl.Float64, "max": pl.Float64})).row(0)
    numbers = {name: activity[name] for name in names} | dict(zip(STRONG, strong, strict=True))
    return {**numbers, "all_prefixes": every, "share": share, "bins": bins}


def _importance(edition: Edition, wanted: MemoryId) -> Data | None:
    """The memory's row of the table; None without the table, or without validation prefixes."""
    if not edition.atlas.has("importance", layer=wanted.layer) or edition.table("importance", wanted.layer).is_empty():
        return None
    row = edition.row("importance", wanted)
    return {name: row[name] for name in IMPORTANCE}


def bars(activity: Data) -> list[Data]:
    """The histogram's bins from the first non-empty one to the last, with heights from 0 to 100 (logarithmic)."""
    bins = activity["bins"]
    filled = [index for index, one in enumerate(bins) if one["count"]]
    if not filled:
        return []
    most = math.log1p(max(one["count"] for one in bins))
    return [
        {**one, "height": round(100 * math.log1p(one["count"]) / most, 1)} for one in bins[filled[0] : filled[-1] + 1]
    ]


def _by_value(edition: Edition, wanted: MemoryId) -> list[Data]:
    atlas = edition.atlas
    rows = atlas.rows_where("neighbours", wanted.layer, column="memory", ids=[atlas.number(wanted)])
    try:
        return [
            memory_token(edition, atlas.name(row["other_layer"], row["other_memory"])) | {"cosine": row["cosine"]}
            for row in rows.sort("rank").to_dicts()
        ]
    except MemoryIdError as error:
        raise AtlasDamaged(f"{atlas.path}: the table of neighbours names a missing memory ({error})") from error


def _by_triggers(edition: Edition, wanted: MemoryId, triggers: Sequence[Data]) -> list[Data]:
    """The memories that share the most distinct positive prefixes, with their top tokens."""
    prefixes: dict[int, tuple[int, int]] = {}
    for trigger in triggers:
        if trigger["sign"] == 1:
            prefixes.setdefault(trigger["prefix_group"], (trigger["sentence"], trigger["position"]))
    shared = edition.sharing(list(prefixes.values()))
    shared.pop(wanted, None)
    best = sorted(shared, key=lambda other: (-shared[other], other))[:NEIGHBOURS]
    return [memory_token(edition, other) | {"shared": shared[other], "of": len(prefixes)} for other in best]


def memory_token(edition: Edition, memory: MemoryId) -> Data:
    """`top` is its value's first token, given only if it `promotes` it."""
    return {
        "memory": str(memory),
        "top": edition.atlas.vocabulary.token(edition.tokens_of(memory)["top_tokens"][0]),
        "promotes": bool(edition.promoted_tokens(memory)),
        "label": edition.label(memory),
    }


def _published_judgements(edition: Edition, name: str, **_: object) -> object:
    """The published judgements of the memory, which may change while the rest of its page stays."""
    try:
        return edition.published(edition.atlas[MemoryId.parse(name)].id) or None
    except MemoryIdError:
        return None


def _memory_instances(edition: Edition, memories: Sequence[MemoryId] | None) -> Iterator[tuple[str, dict[str, str]]]:
    """The chosen memories; in advance the first, which reads the tables of all."""
    for memory in [edition.atlas.name(edition.atlas.layers[0], 0)] if memories is None else memories:
        yield f"/{memory}", {"name": str(memory)}


PAGES = (
    PageKind(
        "memory",
        "/{name}",
        memory_page,
        exported=True,
        instances=_memory_instances,
        mark=_published_judgements,
    ),
)
