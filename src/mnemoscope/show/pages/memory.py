"""A memory's page: all data of the atlas about it, people's judgements, and the most similar memories."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import polars as pl
from pydantic import Field

from mnemoscope.atlas.features import STRONG, features_of
from mnemoscope.atlas.memory_document import ENDS, MemoryDocument
from mnemoscope.atlas.read import BEST_TRIGGERS
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import AtlasDamaged, MemoryIdError, OptionError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Data, Edition
from mnemoscope.show.pages.model.trace import CHANGES, PROMPT, TOKENS, Change, Chat, Mask, Source, TraceAddress
from mnemoscope.show.pages.page import Address, Page, PageKind, PageNotFound
from mnemoscope.show.pages.triggers import group_triggers, random_groups, random_view, triggers_view

NEIGHBOURS = 10
READ = 8
ACTIVITY = (
    *("prefixes", "positive", "mean", "min", "max", "sampled", "std", *STRONG),
    *("all_prefixes", "share", "bins"),
)
IMPORTANCE = ("prefixes", "direct", "attribution", "direct_among_20", "attribution_among_20")
PATTERN = ("pattern", "kind", "description", "triggers", "lift", "log10_p", "different")


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
    mask: Mask = None
    source: Source = None


class TrialAddress(Address, frozen=True):
    text: Annotated[str | None, Field(max_length=PROMPT, description="The text to try the memory on")] = None
    source: Source = None


PLAIN = MemoryAddress()


def memory_page(edition: Edition, name: MemoryName, address: MemoryAddress = PLAIN) -> Page:
    """One memory: triggers, value, activity, patterns, neighbours."""
    if not name.startswith("L"):
        raise PageNotFound(f"There is no page {f'/{name}'!r}.")
    wanted, pattern, changes = MemoryId.parse(name), address.pattern, address.changes
    people = edition.published(wanted)
    carried = TraceAddress(**address.model_dump(exclude={"pattern"}))
    document = edition.document(wanted)
    numbers = [one["pattern"] for one in document.patterns or ()]
    if pattern is not None and pattern not in numbers:
        has = f"{len(numbers)}, counted from 0" if numbers else "none"
        raise OptionError(f"pattern {pattern} is not one of {wanted}, which has {has}")
    triggers, value, importance = triggers_view(document), document.row("value"), document.row("importance")
    says = None if value is None else value["top_tokens"][0]
    activity, best = document.activity, document.best
    known = edition.in_and_out(wanted.layer).filter(pl.col("memory") == edition.atlas.number(wanted))
    known = known.drop("memory").drop_nulls("cosine")
    data: Data = {
        "memory": str(wanted),
        "layer": wanted.layer,
        "previous": _beside(edition, wanted, -1),
        "next": _beside(edition, wanted, 1),
        "triggers": triggers,
        "random": (drawn := random_view(edition.atlas, wanted)),
        "labels": {"positive": edition.label(wanted), "negative": edition.label(wanted, -1)},
        "value": value and _value(document, value),
        "readings": _readings(document, "readings", tokens="top_tokens", rank="target_rank"),
        "key_readings": _readings(document, "key_readings", tokens="key_top_tokens", rank="trigger_rank"),
        "follows": value and _follows(edition, value, triggers),
        "follows_negative": value and _count_followed(triggers, -1, value["bottom_tokens"][0]),
        "activity": {name: activity[name] for name in ACTIVITY},
        "importance": importance and {name: importance[name] for name in IMPORTANCE},
        "input_output": (in_and_out := next(iter(known.to_dicts()), None)),
        "patterns": document.patterns and [{name: one[name] for name in PATTERN} for one in document.patterns],
        "best": {"triggers": len(best), "different": len({one["fold"] for one in best})},
        "pattern": pattern,
        "neighbours": {"value": _by_value(edition, wanted), "triggers": _by_triggers(edition, wanted, triggers)},
        "reference": reference(edition, wanted),
        "people": people,
        "set": changes,
    }

    def extra() -> Data:
        carry = carried.query()
        rows = {"values": value, "activity": document.row("activity"), "importance": importance, "roles": in_and_out}
        return {
            "positive": group_triggers(triggers, 1, says=says, reading=edition.atlas.reading),
            "negative": group_triggers(triggers, -1, says=None, reading=edition.atlas.reading),
            "drawn": drawn
            and [
                one | {kind: random_groups(one[kind], edition.atlas.reading) for kind in ("random", "middling")}
                for one in drawn
            ],
            "coloured_examples": any(one["tokens"] for one in triggers),
            "bars": bars(data["activity"]),
            "numbers": {
                table: TABLES[table].numbers(row, edition.atlas.reading.words) for table, row in rows.items() if row
            },
            "carry": f"&{carry}" if carry else "",
            "figure1": _figure1(document),
            "add": carried.with_change(f"{wanted}=0"),
        }

    return Page("memory.html", str(wanted), data, extra)


def _figure1(document: MemoryDocument) -> str:
    """The trace's picture of the memory's layer at its best trigger; empty without one that the page can take."""
    for best in document.triggers[:1]:
        pair = ["source", "source_tokens"] if document.atlas.reading.source is not None else []
        (row,) = document.atlas.sentences([best["sentence"]], columns=["sentence", "text", *pair]).to_dicts()
        text, source = row["text"], row.get("source", "")
        longest = max(len(best["tokens"]), len(row.get("source_tokens", ())))
        if longest <= TOKENS and 0 < len(text) <= PROMPT and len(source) <= PROMPT:
            place = {"layer": document.memory.id.layer, "position": best["position"]}
            address = TraceAddress(prompt=text, source=source, **place)
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


def _value(document: MemoryDocument, value: Data) -> Data:
    """Top and bottom tokens; the bottom tokens' probabilities are those under -v."""
    vocabulary, shown = document.atlas.vocabulary, Data()
    for end in ENDS:
        shown[end] = [
            vocabulary.token(token) | {"score": score, "probability": probability}
            for token, score, probability in document.value_tokens(end)
        ]
    names = ("max_probability", "entropy", "value_norm", "key_norm", "up_norm", "working_logit", "working_probability")
    shown["features"] = [
        {
            "sign": one.sign,
            "token": vocabulary.token(value[f"{one.end}_tokens"][0]),
            "promotes": one.promotes,
            "z": one.distance,
            "clear_z": one.clear,
        }
        for one in features_of(value)
    ]
    return shown | {name: value[name] for name in names}


def _readings(document: MemoryDocument, table: str, *, tokens: str, rank: str) -> list[Data]:
    vocabulary = document.atlas.vocabulary
    return [
        {"lens": row["lens"], rank: row[rank], "top": [vocabulary.token(token) for token in row[tokens][:READ]]}
        for row in document.rows(table) or ()
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
    """How many of the best triggers of a sign speak of the token `says`."""
    best = [one for one in triggers if one["sign"] == sign and one["rank"] < BEST_TRIGGERS]
    followed = sum(one["next"] is not None and one["next"]["token"] == says for one in best)
    return {"followed": followed, "best": len(best)}


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
    if atlas.manifest.keys_only:
        return []
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
    shared = [one for one in edition.sharing([*prefixes.values()], NEIGHBOURS + 1) if one[0] != wanted]
    return [
        memory_token(edition, other) | {"shared": count, "of": len(prefixes)} for other, count in shared[:NEIGHBOURS]
    ]


def memory_token(edition: Edition, memory: MemoryId) -> Data:
    """`top` is its value's first token, given only if it `promotes` it; None of an encoder alone."""
    tops = edition.tokens_of(memory)["top_tokens"]
    return {
        "memory": str(memory),
        "top": tops and edition.atlas.vocabulary.token(tops[0]),
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
