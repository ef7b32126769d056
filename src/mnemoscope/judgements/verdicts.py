"""What people call the last layer's compositions: related or distant, and how many of either (paper, section 5.2).

Reads the verdicts in annotations.sqlite; those of a campaign whose database is elsewhere are counted here too.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.errors import AtlasDamaged
from mnemoscope.intervals import Estimate, share
from mnemoscope.judgements.reading import ANNOTATIONS, query
from mnemoscope.judgements.rules import VERDICTS

ALL_VERDICTS = """
SELECT items.memory, verdicts.author, verdicts.verdict
FROM verdicts JOIN items ON items.id = verdicts.item ORDER BY verdicts.made_at, verdicts.id
"""
CALLS = ("related", "distant", "split")
_SCHEMA = {"case": pl.Int64, "author": pl.String, "verdict": pl.String}


def read_verdicts(atlas: Path) -> pl.DataFrame | None:
    """The verdicts that count in the folder of an atlas, as `final_verdicts` gives them; None where nobody could judge.

    Raises AnnotationError for verdicts on another atlas, AtlasDamaged, AtlasTooNew or AtlasBusy.
    """
    path = Path(atlas) / ANNOTATIONS
    rows = query(path, _verdicts)
    if rows is None:
        return None
    for case, author, verdict in rows:
        if type(case) is not int or not isinstance(author, str) or verdict not in VERDICTS:
            raise AtlasDamaged(f"{path}: {author!r} calls composition {case!r} {verdict!r}; restore it from a copy")
    return final_verdicts(rows)


def _verdicts(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    return database.execute(ALL_VERDICTS).fetchall() if {"verdicts", "items"} <= tables else []


def final_verdicts(rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    """The latest verdict of each author on each composition, if not taken back: case (its prefix), author, verdict.

    Rows are (case, author, verdict) in order of time.
    """
    last = {(case, author): verdict for case, author, verdict in rows}
    found = [(case, author, verdict) for (case, author), verdict in sorted(last.items()) if verdict != "none"]
    return pl.DataFrame(found, schema=_SCHEMA, orient="row")


def majority_calls(verdicts: pl.DataFrame) -> dict[str, Estimate]:
    """The shares of compositions that most judges call related, or distant, or as many the one as the other (split)."""
    calls: Counter[str] = Counter()
    for _, rows in verdicts.group_by("case", maintain_order=True):
        related, distant = ((rows["verdict"] == verdict).sum() for verdict in ("related", "distant"))
        calls["split" if related == distant else "related" if related > distant else "distant"] += 1
    return {name: share(calls[name], calls.total()) for name in CALLS}
