"""Where a query matches a few texts, by FTS5 itself: a table in memory of the texts to show. Touches no disk."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from mnemoscope.search.text import CLOSE, OPEN, TOKENIZER, Query, markable, parts


def marked(texts: Sequence[str], query: Query) -> list[tuple[tuple[str, bool], ...]]:
    """Every text in pieces, matched or not; a text without a match is one piece."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f'CREATE VIRTUAL TABLE shown USING fts5(text, tokenize="{TOKENIZER}")')
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO shown (rowid, text) VALUES (?, ?)", ((i, markable(text)) for i, text in enumerate(texts))
        )
        found = dict(
            database.execute(
                "SELECT rowid, highlight(shown, 0, ?, ?) FROM shown WHERE shown MATCH ?", (OPEN, CLOSE, query.any)
            ).fetchall()
        )
        return [parts(text, found[i]) if i in found else ((text, False),) for i, text in enumerate(texts)]


def matching(texts: Sequence[str], query: Query) -> list[int]:
    """The numbers of the texts that have all of the query."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"CREATE VIRTUAL TABLE asked USING fts5(text, content='', tokenize=\"{TOKENIZER}\")")
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO asked (rowid, text) VALUES (?, ?)", ((i, markable(text)) for i, text in enumerate(texts))
        )
        rows = database.execute("SELECT rowid FROM asked WHERE asked MATCH ? ORDER BY rowid", (query.every,))
        return [row for (row,) in rows]
