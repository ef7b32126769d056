"""Reads the final judgements (paper, section 3.1) and verdicts (section 5.2) from an atlas's annotations.sqlite.

An author's latest row on a pattern of a memory is final if the author has finished that memory. A file written by hand
needs only the columns in docs/patterns.md. If `annotations_version` has a column `atlas`, it must be the sha256 of the
atlas's manifest. If `judgements` has a column `item`, only judgements of authors count whose latest row in `finishes`
says that they finished the item.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.annotate.judgements.rules import JUDGED_KINDS, VERDICTS
from mnemoscope.atlas.manifest import MANIFEST
from mnemoscope.errors import AnnotationError, AtlasBusy, AtlasDamaged
from mnemoscope.foundation.files import file_hash
from mnemoscope.foundation.formatting import pluralise
from mnemoscope.foundation.intervals import Estimate, share

ANNOTATIONS = "annotations.sqlite"
VERSION = 1
WAIT_SECONDS = 5.0

COLUMNS: dict[str, Any] = {
    "author": pl.String,
    "made_at": pl.Datetime("us", "UTC"),
    "layer": pl.Int16,
    "memory": pl.Int32,
    "control": pl.Boolean,
    "pattern": pl.Int16,
    "kind": pl.String,
    "description": pl.String,
    "triggers": pl.List(pl.Int16),
    "sampled": pl.Boolean,
    "model": pl.Boolean,
}
"""Of a final judgement. `sampled` is false for a memory that its author chose on its page."""
_NAMES = ", ".join(f"judgements.{name}" for name in COLUMNS if name not in ("sampled", "model"))
_PLAIN = f"SELECT judgements.id, {_NAMES}, 1, 0, 1 FROM judgements"
_MODEL = "coalesce((SELECT role = 'model' FROM annotators WHERE name = {}.author), 0)"
_FINISHED = """
SELECT coalesce((
  SELECT finishes.finished FROM finishes
  WHERE finishes.item = judgements.item AND finishes.author = judgements.author
  ORDER BY finishes.made_at DESC, finishes.id DESC LIMIT 1
), 0)
"""
WITH_ITEMS = f"""
SELECT judgements.id, {_NAMES}, items.kind <> 'chosen', {_MODEL.format("judgements")},
items.kind = 'chosen' OR ({_FINISHED}) = 1
FROM judgements JOIN items ON items.id = judgements.item
"""
"""The rows of `final_judgements` from a database with items."""
BY_ID = "ORDER BY judgements.id"
_VERDICTS = """
SELECT items.memory, verdicts.author, verdicts.verdict, {}
FROM verdicts JOIN items ON items.id = verdicts.item ORDER BY verdicts.made_at, verdicts.id
"""
ALL_VERDICTS = _VERDICTS.format(_MODEL.format("verdicts"))
_PLAIN_VERDICTS = _VERDICTS.format("0")


def read_judgements(atlas: Path) -> pl.DataFrame | None:
    """The final judgements in an atlas's folder, or None without annotations.sqlite.

    Columns: author, made_at (UTC), layer, memory, control (a key of random prefixes, whose `memory` is its own number),
    pattern (the author's numbering), kind (shallow, semantic, both or none), description, triggers (ranks), sampled,
    model (whether the author is one).
    """
    path = Path(atlas) / ANNOTATIONS
    rows = query(
        path, lambda one: one.execute(f"{WITH_ITEMS if 'item' in columns_of(one, 'judgements') else _PLAIN} {BY_ID}")
    )
    return None if rows is None else final_judgements(rows, path)


def columns_of(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


def final_judgements(rows: Iterable[Sequence[Any]], name: object) -> pl.DataFrame:
    """The latest finished judgement of each author on each pattern. Rows are id, COLUMNS, and whether the author has
    finished the item. `name` is the database's, for AtlasDamaged.
    """
    checked = [_check_judgement(name, row[:-1]) for row in rows if row[-1]]
    judgements = pl.DataFrame(checked, schema={"id": pl.Int64, **COLUMNS}, orient="row")
    key = ["layer", "memory", "control", "sampled", "author", "pattern"]
    return judgements.sort(*key, "made_at", "id").unique(key, keep="last", maintain_order=True).drop("id")


def read_verdicts(atlas: Path) -> pl.DataFrame | None:
    """Columns: case, author, verdict, model. None without annotations.sqlite."""
    path = Path(atlas) / ANNOTATIONS

    def ask(database: sqlite3.Connection) -> Iterable[tuple[Any, ...]]:
        if not columns_of(database, "verdicts") or not columns_of(database, "items"):
            return ()
        return database.execute(ALL_VERDICTS if columns_of(database, "annotators") else _PLAIN_VERDICTS)

    rows = query(path, ask)
    if rows is None:
        return None
    for case, author, verdict, _ in rows:
        if type(case) is not int or not isinstance(author, str) or verdict not in VERDICTS:
            raise AtlasDamaged(f"{path}: {author!r} calls composition {case!r} {verdict!r}; restore it from a copy")
    return final_verdicts(rows)


def final_verdicts(rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    """The latest verdict of each author on each composition, unless retracted. Rows are (case, author, verdict,
    whether the author is a model) in order of time.
    """
    last = {(case, author): (verdict, bool(model)) for case, author, verdict, model in rows}
    final = [(*place, *said) for place, said in sorted(last.items()) if said[0] != "none"]
    schema = {"case": pl.Int64, "author": pl.String, "verdict": pl.String, "model": pl.Boolean}
    return pl.DataFrame(final, schema=schema, orient="row")


def judged_apart(rows: pl.DataFrame | None) -> dict[bool, pl.DataFrame]:
    """Judgements of people (False) and of models (True), where there are any."""
    return {} if rows is None else {bool(one["model"][0]): one for one in rows.sort("model").partition_by("model")}


def name_judges(rows: pl.DataFrame) -> str:
    """Who made these judgements, all of people or all of models: `by 3 people`, `by the model NAME`."""
    names = rows["author"].unique().sort().to_list()
    if rows["model"].all():
        return f"by the model {' and '.join(names)}"
    return f"by {pluralise(len(names), 'person', 'people')}"


def majority_calls(verdicts: pl.DataFrame) -> dict[str, Estimate]:
    """The shares of compositions by majority verdict: related, distant, or split (a tie)."""
    calls: Counter[str] = Counter()
    for _, rows in verdicts.group_by("case", maintain_order=True):
        related, distant = ((rows["verdict"] == verdict).sum() for verdict in ("related", "distant"))
        calls["split" if related == distant else "related" if related > distant else "distant"] += 1
    return {name: share(calls[name], calls.total()) for name in ("related", "distant", "split")}


def query(path: Path, ask: Callable[[sqlite3.Connection], Iterable[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | None:
    """The result of `ask` on the database at `path`; None without a file."""
    if not path.exists():
        return None
    if not path.is_file():
        raise AtlasDamaged(f"{path} is not a file but a folder or a device; move it away")
    try:
        # SQLite writes beside a database even to read it, unless it is immutable; without a log, the file is complete.
        immutable = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
        address = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
        with closing(sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if not {"annotations_version", "judgements"} <= tables:
                raise AtlasDamaged(f"{path} is not a database of annotations; move it away, or restore it from a copy")
            versions = [version for (version,) in database.execute("SELECT version FROM annotations_version")]
            shown = " and ".join(map(str, versions)) or "none"
            if versions != [VERSION]:
                raise AtlasDamaged(f"{path} has version {shown}, expected {VERSION}; restore it from a copy")
            _check_atlas(database, path)
            return list(ask(database))
    except (sqlite3.Error, UnicodeError) as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise AtlasBusy(f"{path} is being written by another process; try again") from error
        raise AtlasDamaged(f"{path} cannot be read ({error}); restore it from a copy") from error


def _check_atlas(database: sqlite3.Connection, path: Path) -> None:
    if "atlas" not in columns_of(database, "annotations_version"):
        return
    ((owner,),) = database.execute("SELECT atlas FROM annotations_version")
    here = file_hash(path.parent / MANIFEST)
    if owner != here:
        raise AnnotationError(
            f"{path} holds judgements of another atlas (manifest {str(owner)[:12]}, this one is {here[:12]});"
            " move it away, or put it back beside its own atlas"
        )


def _check_judgement(path: object, row: Sequence[Any]) -> tuple[Any, ...]:
    id, author, made_at, layer, memory, control, pattern, kind, description, triggers, *flags = row
    try:
        if not isinstance(author, str) or not isinstance(description, str):
            raise ValueError(f"author or description is not text: {author!r}, {description!r}")
        for name, value in (("layer", layer), ("memory", memory), ("pattern", pattern)):
            if not isinstance(value, int) or not 0 <= value < (2**31 if name == "memory" else 2**15):
                raise ValueError(f"{name} is {value!r}, not a number in its range")
        if control not in (0, 1):
            raise ValueError(f"control is {control!r}, neither 0 nor 1")
        if kind not in JUDGED_KINDS:
            raise ValueError(f"kind is {kind!r}, not one of {', '.join(JUDGED_KINDS)}")
        time = datetime.fromisoformat(made_at)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        ranks = json.loads(triggers)
        if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank < 2**15 for rank in ranks):
            raise ValueError(f"triggers is {triggers!r}, not a list of ranks")
    except (ValueError, TypeError, OverflowError) as error:
        raise AtlasDamaged(f"{path}: judgement {id}: {error}; restore it from a copy") from error
    return id, author, time, layer, memory, bool(control), pattern, kind, description, ranks, *map(bool, flags)
