"""Prepares text for the index, and parses queries.

FTS5's unicode61 finds words: runs of letters and digits of any script, without case and accents. Here also every
character of a script without spaces is a word, and every symbol such as an emoji. A query consists of required words,
phrases in quotes, and prefixes of words (`par*`); everything else is plain text, never an FTS5 expression or SQL.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from mnemoscope.atlas.vocabulary import SCRIPTS_WITHOUT_SPACES, is_without_spaces
from mnemoscope.errors import SearchError

Part = tuple[str, bool]
"""A piece of text, and whether it matched."""

TOKENIZER = "unicode61 remove_diacritics 2"
CUT = "\u200b"
"""Separates characters that are words; invisible, and no letter to FTS5."""
OPEN, CLOSE = "\x02", "\x03"
MOST_CHARACTERS, MOST_TERMS, MOST_BEGINNINGS, LEAST_BEGINNING = 1_000, 64, 4, 2

_SINGLE_WORDS = re.compile(f"[{SCRIPTS_WITHOUT_SPACES}]|[\u00a6-\u3fff\ufb00-\ufffd\U00010000-\U0001ffff]")
_SPACE = dict.fromkeys(map(ord, (OPEN, CLOSE, CUT, "\0")), " ")
_TERM = re.compile(r'"([^"]*)(?:"|$)(\*?)|([^\s"]+)')


def prepare(text: str) -> str:
    """The text for FTS5: each character becomes one, with CUTs around those that are words."""
    return text if text.isascii() else _SINGLE_WORDS.sub(lambda found: _piece(found.group()), text.translate(_SPACE))


@cache
def _piece(character: str) -> str:
    """The character, between CUTs if it is a word of its own."""
    kind = unicodedata.category(character)
    if kind == "So":
        # To unicode61 a symbol of 2012 is never a word, a private-use character always.
        return f"{CUT}{chr(0xF0000 + (ord(character) & 0xFFFF))}{CUT}"
    alone = kind[0] == "L" and is_without_spaces(character)
    return f"{CUT}{character}{CUT}" if alone else character


def _split(text: str, marked: str) -> tuple[Part, ...]:
    """`marked` is FTS5's highlighting of the prepared text."""
    pieces: list[Part] = []
    at = 0
    for index, stretch in enumerate(re.split(f"[{OPEN}{CLOSE}]", marked)):
        length = len(stretch) - stretch.count(CUT)
        if length:
            pieces.append((text[at : at + length], index % 2 == 1))
        at += length
    return tuple(pieces)


@dataclass(frozen=True)
class Query:
    every: str
    """FTS5 expression of quoted strings: all words and phrases."""
    any: str
    """The same for at least one of them."""
    several: bool


def parse_query(text: str) -> Query:
    if len(text) > MOST_CHARACTERS:
        raise SearchError(f"the search text has {len(text):,} characters; at most {MOST_CHARACTERS:,} can be searched")
    terms: list[tuple[str, bool]] = []
    beginnings = 0
    # SQLite rejects lone surrogates (undecodable bytes of a command line).
    encodable = text.encode("utf-8", "replace").decode().translate(_SPACE)
    for phrase, star, word in _TERM.findall(encodable):
        beginning = bool(star) or (len(word) > 1 and word.endswith("*"))
        term = prepare((phrase or word).rstrip("*") if beginning else phrase or word)
        letters = sum(unicodedata.category(character)[0] in "LN" or character >= "\U000f0000" for character in term)
        if not letters:
            continue
        if beginning and term.isascii() and letters < LEAST_BEGINNING:
            raise SearchError(
                f"{term + '*'!r} begins too many words; give at least {LEAST_BEGINNING} letters before the *"
            )
        beginnings += beginning
        terms.append((term, beginning))
    terms = list(dict.fromkeys(terms))
    if not terms:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise SearchError(
            f"{shown!r} holds no letter, digit or symbol to search for;"
            " punctuation and white space are found as tokens (--promotes, --fires-on)"
        )
    if len(terms) > MOST_TERMS:
        raise SearchError(f"the search text has {len(terms)} words; at most {MOST_TERMS} can be searched")
    if beginnings > MOST_BEGINNINGS:
        raise SearchError(f"the search text has {beginnings} beginnings of words (*); at most {MOST_BEGINNINGS}")
    quoted = ['"' + term.replace('"', '""') + '"' + (" *" if beginning else "") for term, beginning in terms]
    return Query(every=" AND ".join(quoted), any=" OR ".join(quoted), several=len(terms) > 1)


def highlight(texts: Sequence[str], query: Query) -> list[tuple[Part, ...]]:
    """Each text in pieces; one without a match is one piece."""
    sql = "SELECT rowid, highlight(shown, 0, ?, ?) FROM shown WHERE shown MATCH ?"
    marked = dict(_query_texts(texts, sql, OPEN, CLOSE, query.any))
    return [_split(text, marked[i]) if i in marked else ((text, False),) for i, text in enumerate(texts)]


def find_matches(texts: Sequence[str], query: Query) -> list[int]:
    sql = "SELECT rowid FROM shown WHERE shown MATCH ? ORDER BY rowid"
    return [number for (number,) in _query_texts(texts, sql, query.every)]


def _query_texts(texts: Sequence[str], sql: str, *parameters: str) -> list[Any]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f'CREATE VIRTUAL TABLE shown USING fts5(text, tokenize="{TOKENIZER}")')
        database.execute("BEGIN")
        # Only `prepare` and `highlight` may insert OPEN, CLOSE and CUT.
        prepared = ((i, prepare(text.translate(_SPACE))) for i, text in enumerate(texts))
        database.executemany("INSERT INTO shown (rowid, text) VALUES (?, ?)", prepared)
        return database.execute(sql, parameters).fetchall()
