"""Exports all judgements, also retracted and unfinished ones, as CSV or JSONL, and imports them into another database.

An import adds missing rows and changes none. The rows of a sheet (sheet.py) are imported, too.
"""

import csv
import io
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from mnemoscope.annotate.campaigns.items import Row, find_item, sample, store_campaign, store_chosen
from mnemoscope.annotate.campaigns.sheet import FORM, Sheet, is_sheet
from mnemoscope.annotate.campaigns.store import Store, add_author, find_row
from mnemoscope.annotate.judgements.rules import CAMPAIGN_FIELDS, FIELDS, WITHOUT_CAMPAIGN, check_choice, check_row
from mnemoscope.annotate.judgements.tables import GROWING, insert
from mnemoscope.errors import AnnotationError, MemoryIdError
from mnemoscope.foundation.files import write_bytes

FORMS = ("csv", "jsonl")
_FORMULA = re.compile(r"'*[=+\-@]")
"""The start of a cell that a spreadsheet would read as a formula, possibly escaped."""
_TABLES = dict(zip(("judgement", "verdict", "finish"), GROWING, strict=True))


def export(store: Store, path: str | Path) -> int:
    """Writes all rows to `path` (.csv or .jsonl); returns their number. Raises AnnotationError, StoreFailed."""
    where = Path(path)
    write_bytes(where, as_text(store, _form(where)).encode())
    return len(rows(store))


def as_text(store: Store, form: str) -> str:
    check_choice(form, FORMS, what="form")
    exported = rows(store)
    if form == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in exported)
    written = io.StringIO(newline="")
    table = csv.writer(written, lineterminator="\n")
    table.writerow(FIELDS)
    table.writerows([_cell(row[name]) for name in FIELDS] for row in exported)
    return written.getvalue()


def rows(store: Store) -> list[Row]:
    """All rows of the append-only tables, joined with their items, by time; fields: `rules.FIELDS`."""
    events = []
    with store.database.reading() as connection:
        common = {"atlas": store.database.atlas, "campaign": _read_campaign(connection)}
        for event, table in _TABLES.items():
            statement = f"""
                SELECT items.layer, items.memory, items.code, items.kind AS item_kind, {table}.*,
                iif(annotators.role = 'model', 'model', 'person') AS author_kind
                FROM {table} LEFT JOIN items ON items.id = {table}.item
                LEFT JOIN annotators ON annotators.name = {table}.author
            """
            for row in map(dict, connection.execute(statement)):
                stored = {name: row[name] for name in FIELDS if name in row}
                if event == "judgement":
                    stored["triggers"] = json.loads(row["triggers"])
                elif event == "verdict":
                    stored["kind"] = row["verdict"]
                else:
                    stored["kind"] = "finished" if row["finished"] else "taken up"
                events.append(dict.fromkeys(FIELDS) | stored | common | {"event": event})
    return sorted(events, key=lambda row: (row["made_at"], row["author"], row["key"]))


def import_judgements(store: Store, path: str | Path, *, cases: Mapping[int, int] | None = None) -> int:
    """Adds the missing rows of an exported file or of a sheet, all or none, and returns their number.

    Starts the file's campaign if there is none. Unknown authors become annotators without an invitation.
    `cases`: as in Sheet. Raises AnnotationError with the line of an invalid row, or of one that contradicts the
    database.
    """
    where = Path(path)
    form = _form(where)
    try:
        with where.open(encoding="utf-8-sig", newline="") as file, store.database.writing() as connection:
            database, sheet, added = _Import(store, connection), Sheet(store, connection, cases), 0
            for line, content in _lines(file, where, form):
                try:
                    row = _parse(content)
                    if is_sheet(row):
                        sheet.add(row)
                    else:
                        added += database.add(check_row(row, store.database.atlas))
                except (AnnotationError, MemoryIdError) as error:
                    raise _bad_line(where, line, error) from error
            return added + sheet.store()
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{where} is not UTF-8 text ({error.reason}); nothing was imported") from error
    except OSError as error:
        raise AnnotationError(f"{where} cannot be read ({error.strerror}); give a file that was exported") from error


def _bad_line(path: Path, line: int, reason: object) -> AnnotationError:
    return AnnotationError(f"{path} line {line}: {reason}; nothing was imported")


class _Import:
    def __init__(self, store: Store, connection: sqlite3.Connection) -> None:
        self._store = store
        self._connection = connection
        self._campaign = _read_campaign(connection)

    def add(self, row: Row) -> bool:
        facts: Row | None = row["campaign"]
        if facts is not None and self._campaign is None:
            sizes = {name: facts[name] for name in ("keys_per_layer", "controls", "cases", "seed")}
            store_campaign(self._connection, sample(self._store.atlas, **sizes)[1], facts)
            self._campaign = facts
        if facts not in (None, self._campaign):
            raise AnnotationError("it belongs to another campaign than the one in the database")
        item = None if row["item_kind"] is None else self._item(row)
        add_author(self._connection, row["author"], row["author_kind"])
        return self._insert(row, item)

    def _item(self, row: Row) -> Row:
        kind, layer, memory = place = (row["item_kind"], row["layer"], row["memory"])
        item = find_item(self._connection, *place)
        if item is None and kind in WITHOUT_CAMPAIGN:
            atlas = self._store.atlas
            if kind != "sheet_case":
                atlas.number(atlas.name(layer, memory))  # raises for an unknown memory
            store_chosen(self._connection, layer, memory, row["code"], kind=kind)
            item = find_item(self._connection, *place)
        if item is None:
            raise AnnotationError(f"the campaign has no {kind} {memory} in layer {layer}")
        if kind not in WITHOUT_CAMPAIGN and item["code"] != row["code"]:
            raise AnnotationError(f"{kind} {memory} of layer {layer} was shown with other prefixes there")
        if row["event"] == "judgement":
            outside = set(json.loads(row["triggers"])) - set(self._store.shown_ranks(item))
            if outside:
                raise AnnotationError(f"trigger {min(outside)} is not shown in this item")
        return item

    def _insert(self, row: Row, item: Row | None) -> bool:
        table = _TABLES[row["event"]]
        values = {"made_at": row["made_at"], "item": None if item is None else item["id"]}
        if row["event"] == "judgement":
            names = ("layer", "memory", "pattern", "kind", "description", "triggers", "undoes")
            values |= {name: row[name] for name in names} | {"control": int(row["item_kind"] == "control")}
        elif row["event"] == "verdict":
            values["verdict"] = row["kind"]
        else:
            values["finished"] = int(row["kind"] == "finished")
        old = find_row(self._connection, table, author=row["author"], key=row["key"])
        if old is None:
            insert(self._connection, table, {"author": row["author"], "key": row["key"], **values})
            return True
        differing = [name for name, value in values.items() if old[name] != value]
        if differing:
            raise AnnotationError(
                f"{row['author']}'s row {row['key']} is stored with another {differing[0]}, and nothing is overwritten"
            )
        return False


def _read_campaign(connection: sqlite3.Connection) -> Row | None:
    row = connection.execute(f"SELECT {', '.join(CAMPAIGN_FIELDS)} FROM campaigns").fetchone()
    return None if row is None else dict(row)


def _cell(value: Any) -> Any:
    """Prefixes text that a spreadsheet would read as a formula with an apostrophe."""
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) else value
    return json.dumps(value) if isinstance(value, list | dict) else value


def _form(path: Path) -> str:
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMS:
        raise AnnotationError(f"{path} does not end in .csv or .jsonl, so its format is unknown; rename it")
    return form


def _lines(file: TextIO, path: Path, form: str) -> Iterator[tuple[int, str | list[str] | Row]]:
    """The number and content of each line: JSON, cells of an export, or a sheet's row."""
    if form == "jsonl":
        yield from enumerate(file, start=1)
        return
    table = csv.reader(file, strict=True)
    try:
        columns = next(table, [])
        if columns != list(FIELDS) and (not is_sheet(columns) or len(set(columns)) < len(columns)):
            raise _bad_line(path, 1, f"the columns are not {', '.join(FIELDS)}, nor those of a sheet ({FORM})")
        for cells in table:
            if columns == list(FIELDS):
                yield table.line_num, cells
            elif len(cells) != len(columns):
                raise _bad_line(path, table.line_num, f"has {len(cells)} columns, not {len(columns)}")
            else:
                yield table.line_num, dict(zip(columns, map(_plain, cells), strict=True))
    except csv.Error as error:
        raise _bad_line(path, table.line_num, f"is not CSV ({error})") from error


def _parse(content: str | list[str] | Row) -> Row:
    if isinstance(content, dict):
        return content
    if isinstance(content, str):
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise AnnotationError(f"is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise AnnotationError("is not a JSON object")
        return row
    if len(content) != len(FIELDS):
        raise AnnotationError(f"has {len(content)} columns, not {len(FIELDS)}")
    return {name: _value(name, cell) for name, cell in zip(FIELDS, content, strict=True)}


def _plain(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _value(name: str, cell: str) -> Any:
    cell = _plain(cell)
    if cell == "" or name not in ("layer", "memory", "pattern", "triggers", "campaign"):
        return cell or None
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{name} is {cell[:40]!r}, not a number or JSON") from error
