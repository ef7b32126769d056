"""Judgements out of the database and into another, as CSV or JSONL: every row, in order of time, nothing lost.

A file holds everything that anybody said, taken back or finished. Reading it adds what is missing and changes nothing;
reading it twice is reading it once. What judgements add up to is in results.py.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, select

from mnemoscope.atlas.store import replacing
from mnemoscope.campaigns.items import Row, read_item, sample, store_campaign, store_chosen
from mnemoscope.campaigns.saving import add_annotator, find_row
from mnemoscope.campaigns.store import Store
from mnemoscope.errors import AnnotationError, MemoryIdError
from mnemoscope.judgements.rules import CAMPAIGN_FIELDS, FIELDS, check_choice, check_row
from mnemoscope.judgements.tables import GROWING, annotators, campaigns, items, version
from mnemoscope.memory import MemoryId

FORMS = ("csv", "jsonl")
_FORMULA = re.compile(r"'*[=+\-@]")
"""How a cell begins that a spreadsheet would take for a formula, or that has been kept from it before."""
_TABLES = dict(zip(("judgement", "verdict", "finish"), GROWING, strict=True))


class _BadLine(Exception):
    """A line of a file that cannot be taken."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class _Known:
    """What a database holds that rows are about."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.atlas: str = connection.execute(select(version.c.atlas)).scalar_one()
        row = connection.execute(select(*(campaigns.c[name] for name in CAMPAIGN_FIELDS))).mappings().first()
        self.campaign = None if row is None else dict(row)
        self.items: dict[tuple[str, int, int], Row] = {}
        self.numbered: dict[int, Row] = {}
        for item in connection.execute(select(items)).mappings():
            self.add(dict(item))
        self.authors = set(connection.execute(select(annotators.c.name)).scalars())

    def add(self, item: Row) -> None:
        """Takes note of an item."""
        self.items[item["kind"], item["layer"], item["memory"]] = item
        self.numbered[item["id"]] = item


def export(store: Store, path: str | Path) -> int:
    """Writes every row to `path` (.csv or .jsonl) and returns how many; raises AnnotationError, StoreFailed."""
    where = Path(path)
    form = _form(where)
    text = as_text(store, form)
    with replacing(where) as file:
        file.write(text.encode("utf-8"))
    return len(rows(store))


def as_text(store: Store, form: str) -> str:
    """Every row as CSV (`csv`) or JSON lines (`jsonl`), for a download."""
    check_choice(form, FORMS, what="form")
    found = rows(store)
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    written = io.StringIO(newline="")
    table = csv.writer(written, lineterminator="\n")
    table.writerow(FIELDS)
    table.writerows([_cell(row[name]) for name in FIELDS] for row in found)
    return written.getvalue()


def rows(store: Store) -> list[Row]:
    """Every row of every table that only grows, by time, with what it is about; the fields of judgements/rules.py."""
    with store.database.reading() as connection:
        known = _Known(connection)
        found = [
            _export_row(event, dict(row), known)
            for event, table in _TABLES.items()
            for row in connection.execute(select(table)).mappings()
        ]
    return sorted(found, key=lambda row: (row["made_at"], row["author"], row["key"]))


def import_judgements(store: Store, path: str | Path) -> int:
    """Adds the rows of an exported file that are not there yet, all or none, and returns how many.

    The file's campaign is started where there is none. Authors who are not known become annotators without an
    invitation. Raises AnnotationError, naming the line, for what cannot be, or contradicts what is there.
    """
    where = Path(path)
    form = _form(where)
    try:
        with where.open(encoding="utf-8-sig", newline="") as file, store.database.writing() as connection:
            return _add(store, connection, _read(file, form))
    except _BadLine as refused:
        raise AnnotationError(f"{where} line {refused.line}: {refused}; nothing was imported") from refused
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{where} is not UTF-8 text ({error.reason}); nothing was imported") from error
    except OSError as error:
        raise AnnotationError(f"{where} cannot be read ({error.strerror}); give a file that was exported") from error


def _add(store: Store, connection: Connection, lines: Iterable[tuple[int, Row]]) -> int:
    added = 0
    known = _Known(connection)
    for line, raw in lines:
        with _at(line):
            row = check_row(raw, store.database.atlas)
            facts = row["campaign"]
            if facts is not None and known.campaign is None:
                sizes = {name: facts[name] for name in ("keys_per_layer", "controls", "cases", "seed")}
                store_campaign(connection, sample(store.atlas, **sizes)[1], facts)
                known = _Known(connection)
            if facts not in (None, known.campaign):
                raise AnnotationError("it belongs to another campaign than the one in the database")
            item = _item(store, row, known)
            if row["author"] not in known.authors:
                add_annotator(connection, row["author"])
                known.authors.add(row["author"])
            added += _insert(connection, row, item)
    return added


def _item(store: Store, row: Row, known: _Known) -> Row | None:
    """The item that the row is about; a chosen memory becomes one."""
    if row["item_kind"] is None:
        return None
    place = (row["item_kind"], row["layer"], row["memory"])
    if place not in known.items and row["item_kind"] == "chosen":
        memory = store.atlas[MemoryId(row["layer"], row["memory"])].id
        known.add(read_item(known.connection, store_chosen(known.connection, memory, row["code"])))
    item = known.items.get(place)
    if item is None:
        raise AnnotationError(f"the campaign has no {place[0]} {place[2]} in layer {place[1]}")
    if item["kind"] != "chosen" and item["code"] != row["code"]:
        raise AnnotationError(f"{place[0]} {place[2]} of layer {place[1]} was shown with other prefixes there")
    if row["event"] == "judgement":
        outside = set(json.loads(row["triggers"])) - set(store.shown_ranks(item))
        if outside:
            raise AnnotationError(f"trigger {min(outside)} is none that this item shows")
    return item


def _insert(connection: Connection, row: Row, item: Row | None) -> int:
    table = _TABLES[row["event"]]
    values = {name: row[name] for name in ("author", "made_at", "key")}
    values["item"] = None if item is None else item["id"]
    if row["event"] == "judgement":
        values |= {
            name: row[name] for name in ("layer", "memory", "pattern", "kind", "description", "triggers", "undoes")
        }
        values["control"] = int(row["item_kind"] == "control")
    elif row["event"] == "verdict":
        values["verdict"] = row["kind"]
    else:
        values["finished"] = int(row["kind"] == "finished")
    old = find_row(connection, table, author=row["author"], key=row["key"])
    if old is None:
        connection.execute(table.insert().values(values))
        return 1
    differing = [name for name, value in values.items() if old[name] != value]
    if differing:
        raise AnnotationError(
            f"{row['author']}'s row {row['key']} is there with another {differing[0]}, and nothing is overwritten"
        )
    return 0


def _export_row(event: str, row: Row, known: _Known) -> Row:
    item = known.numbered.get(row["item"])
    found: Row = dict.fromkeys(FIELDS) | {name: row[name] for name in ("author", "made_at", "key")}
    found |= {"event": event, "atlas": known.atlas, "campaign": known.campaign}
    if item is not None:
        found |= {name: item[name] for name in ("layer", "memory", "code")} | {"item_kind": item["kind"]}
    if event == "judgement":
        found |= {name: row[name] for name in ("pattern", "kind", "description", "undoes")}
        return found | {"triggers": json.loads(row["triggers"])}
    if event == "verdict":
        return found | {"kind": row["verdict"]}
    return found | {"kind": "finished" if row["finished"] else "taken up"}


def _cell(value: Any) -> Any:
    """The value as a cell of a table: text that would be a formula there begins with one apostrophe more."""
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) else value
    return json.dumps(value) if isinstance(value, list | dict) else value


def _form(path: Path) -> str:
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMS:
        raise AnnotationError(f"{path} does not end in .csv or .jsonl, so its form is not known; name it so")
    return form


@contextmanager
def _at(line: int) -> Iterator[None]:
    try:
        yield
    except (AnnotationError, MemoryIdError) as error:
        raise _BadLine(str(error), line) from error


def _read(file: TextIO, form: str) -> Iterator[tuple[int, Row]]:
    """Number and fields of every line; raises _BadLine for a line that has no such form."""
    if form == "jsonl":
        for line, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise _BadLine(f"is not JSON ({error})", line) from error
            if not isinstance(row, dict):
                raise _BadLine("is not a JSON object", line)
            yield line, row
        return
    table = csv.reader(file, strict=True)
    try:
        header = next(table, None)
        if header != list(FIELDS):
            raise _BadLine(f"the columns are not {', '.join(FIELDS)}", 1)
        for cells in table:
            if len(cells) != len(FIELDS):
                raise _BadLine(f"has {len(cells)} columns, not {len(FIELDS)}", table.line_num)
            yield (
                table.line_num,
                {name: _value(name, cell, table.line_num) for name, cell in zip(FIELDS, cells, strict=True)},
            )
    except csv.Error as error:
        raise _BadLine(f"is not CSV ({error})", table.line_num) from error


def _value(name: str, cell: str, line: int) -> Any:
    """What a cell says: numbers and JSON where the field has them; an empty cell is nothing, but for a description."""
    if cell.startswith("'") and _FORMULA.match(cell):
        cell = cell[1:]
    if name == "description":
        return cell or None
    if cell == "":
        return None
    if name not in ("layer", "memory", "pattern", "triggers", "campaign"):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"{name} is {cell[:40]!r}, not a number or JSON", line) from error
