"""Write the columns of every table into FORMAT.md, as `atlas/schema.py` declares them.

    python docs/columns.py          # --check changes nothing, and fails if the page is old

Under the heading of a table, the first table of the page that begins with `| column | type |` is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from mnemoscope.atlas import schema
from mnemoscope.atlas.columns import Column

PAGE = Path(schema.__file__).parent / "FORMAT.md"
_HEAD = "| column | type | |\n|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def rows(columns: Iterable[Column]) -> str:
    """Neighbours that are told alike share a row."""
    lines = []
    for (kind, about), alike in groupby(columns, key=lambda column: (column.type, column.about)):
        lines.append(f"| {', '.join(column.name for column in alike)} | {kind} | {about}{' ' * bool(about)}|\n")
    return _HEAD + "".join(lines)


def renew(page: str) -> str:
    """The page with today's columns."""
    for name, kind in schema.TABLES.items():
        heading = page.index(f"### {name}\n")
        found = _TABLE.search(page, heading)
        if found is None or "\n### " in page[heading + 4 : found.start()]:
            raise SystemExit(f"FORMAT.md has no table of columns under {name}")
        page = page[: found.start()] + rows((*kind.of_all, *kind.of_some)) + page[found.end() :]
    return page


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    if (new := renew(old)) != old and "--check" in sys.argv:
        raise SystemExit(f"{PAGE.name} is old; python docs/columns.py renews it")
    PAGE.write_text(new, encoding="utf-8")
