"""What people said of memories, for their pages and for searches: outside a campaign, and of a campaign that is over.

While somebody who was invited has not handed in, nothing of the campaign is told, for such pages are open to all.
"""

import json
from dataclasses import dataclass

import polars as pl
from sqlalchemy import Connection, func, select, text

from mnemoscope.campaigns.store import Store
from mnemoscope.judgements.reading import WITH_ITEMS, final_judgements
from mnemoscope.judgements.tables import annotators, finishes, items, judgements
from mnemoscope.memory import MemoryId


@dataclass(frozen=True)
class PublishedJudgement:
    """A pattern that somebody sees in a memory's best triggers, which are named by rank."""

    author: str
    kind: str
    description: str
    triggers: tuple[int, ...]
    campaign: bool
    """Whether it was judged blind in the campaign, not chosen by its author."""


def published_for(store: Store, memory: MemoryId) -> tuple[PublishedJudgement, ...]:
    """The patterns of the memory that count now, by author; raises AnnotationError."""
    with store.database.reading() as connection:
        kinds = ("chosen", "key") if is_over(connection) else ("chosen",)
        here = (items.c.kind.in_(kinds), items.c.layer == memory.layer, items.c.memory == memory.memory)
        numbers = {row.id: row.kind for row in connection.execute(select(items.c.id, items.c.kind).where(*here))}
        if not numbers:
            return ()
        done: dict[tuple[int, str], bool] = {}
        asked = select(finishes.c.item, finishes.c.author, finishes.c.finished).where(finishes.c.item.in_(numbers))
        for row in connection.execute(asked.order_by(finishes.c.made_at, finishes.c.id)):
            done[row.item, row.author] = bool(row.finished)
        told = select(judgements).where(judgements.c.item.in_(numbers))
        latest = {
            (row["author"], row["item"], row["pattern"]): row
            for row in connection.execute(told.order_by(judgements.c.made_at, judgements.c.id)).mappings()
        }
    return tuple(
        PublishedJudgement(
            author, row["kind"], row["description"], tuple(json.loads(row["triggers"])), campaign=numbers[item] == "key"
        )
        for (author, item, _), row in sorted(latest.items())
        if row["kind"] != "none" and (numbers[item] == "chosen" or done.get((item, author), False))
    )


def published(store: Store) -> pl.DataFrame:
    """The judgements that count and may be told; columns of judgements/reading.py. Raises AnnotationError."""
    with store.database.reading() as connection:
        rows = [tuple(row) for row in connection.execute(text(WITH_ITEMS))]
        told = is_over(connection)
    found = final_judgements(rows, store.database.name)
    return found if told else found.filter(~pl.col("sampled"))


def is_over(connection: Connection) -> bool:
    """Whether everybody whose invitation is still good has handed in, so that nobody's judgement can be swayed."""
    handed_in = select(finishes.c.author).where(finishes.c.item.is_(None))
    waiting = select(func.count()).select_from(annotators).where(
        annotators.c.role == "annotator", annotators.c.token_hash.is_not(None), annotators.c.name.not_in(handed_in)
    )  # fmt: skip
    return not connection.execute(waiting).scalar()
