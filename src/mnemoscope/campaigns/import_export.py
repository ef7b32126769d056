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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, select

from mnemoscope.atlas.store import replacing
from mnemoscope.campaigns import annotators, sampling, saving
from mnemoscope.campaigns.store import Store
from mnemoscope.errors import AnnotationError, MemoryIdError
from mnemoscope.judgements import tables
from mnemoscope.judgements.rows import CAMPAIGN_FIELDS, FIELDS, check_row
from mnemoscope.judgements.tables import GROWING, campaigns, items, version
from mnemoscope.memory import MemoryId

Row = dict[str, Any]
FORMS = ("csv", "jsonl")
_FORMULA = re.compile(r"'*[=+\-@]")
"""How a cell begins that a spreadsheet would take for a formula, or that has been kept from it before."""
_TABLES = dict(zip(("judgement", "verdict", "finish"), GROWING, strict=True))


class Refused(Exception):
    """A line of a file that cannot be taken."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclass
class Known:
    """What a database holds that rows are about."""

    atlas: str
    campaign: dict[str, Any] | None
    items: dict[tuple[str, int, int], saving.Item] = field(default_factory=dict)
    numbered: dict[int, saving.Item] = field(default_factory=dict)
    authors: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, connection: Connection) -> "Known":
        """What the database behind the connection holds."""
        row = connection.execute(select(*(campaigns.c[name] for name in CAMPAIGN_FIELDS))).mappings().first()
        found = cls(connection.execute(select(version.c.atlas)).scalar_one(), None if row is None else dict(row))
        for item in connection.execute(select(items)).mappings():
            found._note(dict(item))
        found.authors = set(connection.execute(select(tables.annotators.c.name)).scalars())
        return found

    def add(self, connection: Connection, code: str) -> None:
        """Takes note of an item that was just stored."""
        self._note(saving.read_item(connection, code))

    def _note(self, item: saving.Item) -> None:
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
    if form not in FORMS:
        raise AnnotationError(f"the form is {form!r}; choose one of {', '.join(FORMS)}")
    found = rows(store)
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    written = io.StringIO(newline="")
    table = csv.writer(written, lineterminator="\n")
    table.writerow(FIELDS)
    table.writerows([_cell(row[name]) for name in FIELDS] for row in found)
    return written.getvalue()


def rows(store: Store) -> list[Row]:
    """Every row of every table that only grows, by time, with what it is about; the fields of judgements/rows.py."""
    found = []
    with store.database.reading() as connection:
        known = Known.read(connection)
        for table in GROWING:
            for row in connection.execute(select(table)).mappings():
                found.append(_export_row(table.name, dict(row), known))
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
    except Refused as refused:
        raise AnnotationError(f"{where} line {refused.line}: {refused}; nothing was imported") from refused
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{where} is not UTF-8 text ({error.reason}); nothing was imported") from error
    except OSError as error:
        raise AnnotationError(f"{where} cannot be read ({error.strerror}); give a file that was exported") from error


def _add(store: Store, connection: Connection, lines: Iterable[tuple[int, Row]]) -> int:
    added = 0
    known = Known.read(connection)
    facts: dict[str, Any] | None = None
    for line, raw in lines:
        with _at(line):
            row = check_row(raw, store.database.atlas)
            if row["campaign"] is not None and row["campaign"] != facts:
                facts = row["campaign"]
                _same_campaign(store, connection, facts)
                known = Known.read(connection)
            item = _item(store, connection, row, known)
            if row["author"] not in known.authors:
                annotators.add(connection, row["author"])
                known.authors.add(row["author"])
            added += _insert(connection, row, item)
    return added


def _same_campaign(store: Store, connection: Connection, facts: dict[str, Any]) -> None:
    """Starts the campaign of the file where there is none; raises AnnotationError where there is another."""
    here = connection.execute(select(campaigns)).mappings().first()
    if here is None:
        sizes = {name: facts[name] for name in ("keys_per_layer", "controls", "cases", "seed")}
        _, drawn = sampling.sample(store.atlas, **sizes)
        sampling.store_campaign(connection, drawn, facts)
    elif any(here[name] != value for name, value in facts.items()):
        raise AnnotationError("it belongs to another campaign than the one in the database")


def _item(store: Store, connection: Connection, row: Row, known: Known) -> saving.Item | None:
    if row["item_kind"] is None:
        return None
    place = (row["item_kind"], row["layer"], row["memory"])
    if place not in known.items and row["item_kind"] == "chosen":
        memory = store.atlas[MemoryId(row["layer"], row["memory"])].id
        drawn = sampling.Item("chosen", memory.layer, memory.memory, None).as_row(row["code"])
        connection.execute(items.insert().values(drawn | {"code": row["code"]}))
        known.add(connection, row["code"])
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


def _insert(connection: Connection, row: Row, item: saving.Item | None) -> int:
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
    old = saving.find_row(connection, table, author=row["author"], key=row["key"])
    if old is None:
        connection.execute(table.insert().values(values))
        return 1
    differing = [name for name, value in values.items() if old[name] != value]
    if differing:
        raise AnnotationError(
            f"{row['author']}'s row {row['key']} is there with another {differing[0]}, and nothing is overwritten"
        )
    return 0


def _export_row(table: str, row: Row, known: Known) -> Row:
    item = known.numbered.get(row["item"])
    found: Row = dict.fromkeys(FIELDS)
    found |= {name: row[name] for name in ("author", "made_at", "key")}
    found |= {"atlas": known.atlas, "campaign": known.campaign}
    if item is not None:
        found |= {name: item[name] for name in ("layer", "memory", "code")} | {"item_kind": item["kind"]}
    if table == "judgements":
        found |= {name: row[name] for name in ("pattern", "kind", "description", "undoes")}
        found |= {"event": "judgement", "triggers": json.loads(row["triggers"])}
    elif table == "verdicts":
        found |= {"event": "verdict", "kind": row["verdict"]}
    else:
        found |= {"event": "finish", "kind": "finished" if row["finished"] else "taken up"}
    return found


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
        raise Refused(str(error), line) from error


def _read(file: TextIO, form: str) -> Iterator[tuple[int, Row]]:
    """Number and fields of every line; raises Refused for a line that has no such form."""
    if form == "jsonl":
        for line, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise Refused(f"is not JSON ({error})", line) from error
            if not isinstance(row, dict):
                raise Refused("is not a JSON object", line)
            yield line, row
        return
    table = csv.reader(file, strict=True)
    try:
        header = next(table, None)
        if header != list(FIELDS):
            raise Refused(f"the columns are not {', '.join(FIELDS)}", 1)
        for cells in table:
            if len(cells) != len(FIELDS):
                raise Refused(f"has {len(cells)} columns, not {len(FIELDS)}", table.line_num)
            yield (
                table.line_num,
                {name: _value(name, cell, table.line_num) for name, cell in zip(FIELDS, cells, strict=True)},
            )
    except csv.Error as error:
        raise Refused(f"is not CSV ({error})", table.line_num) from error


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
        raise Refused(f"{name} is {cell[:40]!r}, not a number or JSON", line) from error
