"""Prepares text for the index, and parses queries.

FTS5's unicode61 finds words: runs of letters, vowel signs and digits of any script, without case. Accents, and the
points of Hebrew and Arabic, are dropped before, in texts and queries alike. Every character of a script without spaces
is a word with its marks, and so is every symbol such as an emoji. A query consists of required words, one of several
(`red OR blue`), phrases in quotes, and prefixes of words (`par*`); a word stands for its plural, or singular, too.
Everything else is plain text, never an FTS5 expression or SQL.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Any

from mnemoscope.atlas.vocabulary import is_without_spaces
from mnemoscope.errors import SearchError

Part = tuple[str, bool]
"""A piece of text, and whether it matched."""

TOKENIZER = "unicode61 remove_diacritics 0 categories 'L* M* N* Co'"
CUT = "\u200b"
"""Separates characters that are words; invisible, and no letter to FTS5."""
OPEN, CLOSE = "\x02", "\x03"
MOST_CHARACTERS, MOST_TERMS, MOST_BEGINNINGS, LEAST_BEGINNING = 1_000, 64, 4, 2

_BEYOND_ASCII = re.compile("[\0-\x7f]?[^\0-\x7f]+")
"""The character before may carry a mark."""
_OPTIONAL = re.compile(
    "[\u0300-\u077f\u0800-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufb1e\ufe00-\ufe2f\U000e0100-\U000e01ef]"
)
"""Where marks may be left out in writing: accents, points of Hebrew, Arabic and Syriac. Elsewhere they are letters."""
_SPACE = dict.fromkeys(map(ord, (OPEN, CLOSE, CUT, "\0")), " ")
_OPERATORS = {"OR": "either of the words beside it", "AND": "both words, as without it"}
_IRREGULAR = {"man": "men", "woman": "women", "child": "children", "person": "people", "foot": "feet"}
_IRREGULAR |= {"tooth": "teeth", "mouse": "mice", "life": "lives", "wife": "wives", "half": "halves", "leaf": "leaves"}
_IRREGULAR |= {plural: singular for singular, plural in _IRREGULAR.items()}
_OUR = {"our": "or", "or": "our"}
"""British and American spelling: colour, color."""
_TERM = re.compile(r'"([^"]*)(?:"|$)(\*?)|([^\s"]+)')


def prepare(text: str) -> str:
    """The text for FTS5: composed (NFC), without optional marks, and with CUTs around characters that are words."""
    return text if text.isascii() else _BEYOND_ASCII.sub(lambda match: _fold(match.group()), text.translate(_SPACE))


@lru_cache(1 << 14)
def _fold(run: str) -> str:
    return "".join(map(_fold_cluster, _clusters(run)))


@lru_cache(1 << 14)
def _fold_cluster(cluster: str) -> str:
    kind = unicodedata.category(cluster[0])
    if kind == "So":
        # To unicode61 a symbol of 2012 is never a word, a private-use character always.
        return f"{CUT}{chr(0xF0000 + (ord(cluster[0]) & 0xFFFF))}{CUT}"
    kept = [character for character in unicodedata.normalize("NFD", cluster) if not _is_optional(character)]
    plain = unicodedata.normalize("NFC", "".join(kept))
    return f"{CUT}{plain}{CUT}" if kind[0] in "LM" and is_without_spaces(cluster[0]) else plain


def _is_optional(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind == "Cf" or (kind[0] == "M" and _OPTIONAL.match(character) is not None)


def _clusters(text: str) -> list[str]:
    """Each character with its marks, joiners and, of Korean, vowels and final consonants."""
    clusters: list[str] = []
    for character in text:
        kind = unicodedata.category(character)
        if clusters and (kind[0] == "M" or kind == "Cf" or "\u1160" <= character <= "\u11ff"):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


def fold_token(text: str) -> str:
    """A token without outer space, case, and what of it is composed or not."""
    return unicodedata.normalize("NFC", text.strip().casefold())


def _split(text: str, marked: str) -> tuple[Part, ...]:
    """`marked` is FTS5's highlighting of the prepared text."""
    starts: Sequence[int] = range(len(text) + 1)  # in `text`, of each character of the prepared one
    ends: Sequence[int] = range(1, len(text) + 1)
    if not text.isascii():
        clusters = _clusters(text.translate(_SPACE))
        bounds = list(accumulate(map(len, clusters), initial=0))
        sizes = [len(_fold_cluster(cluster)) for cluster in clusters]
        starts, ends = (list(chain.from_iterable(map(repeat, each, sizes))) for each in (bounds, bounds[1:]))
    pieces: list[Part] = []
    at = shown = 0
    for index, stretch in enumerate(re.split(f"[{OPEN}{CLOSE}]", marked)):
        at += len(stretch)
        is_match = index % 2 == 1
        end = ends[at - 1] if is_match else starts[at] if at < len(starts) else len(text)
        if end > shown:
            pieces.append((text[shown:end], is_match))
            shown = end
    return tuple(pieces)


@dataclass(frozen=True)
class Query:
    every: str
    """FTS5 expression of quoted strings: all words and phrases, or of alternatives one."""
    any: str
    """The same for at least one of them."""
    several: bool
    notes: tuple[str, ...] = ()
    """What was read as an operator, or might have been meant as one."""


def parse_query(text: str) -> Query:
    if len(text) > MOST_CHARACTERS:
        raise SearchError(f"the search text has {len(text):,} characters; at most {MOST_CHARACTERS:,} can be searched")
    groups: list[dict[str, None]] = []  # FTS5 expressions of a word, its other forms, and what OR joins to it
    number = beginnings = 0
    # SQLite rejects lone surrogates (undecodable bytes of a command line).
    terms = _TERM.findall(text.encode("utf-8", "replace").decode().translate(_SPACE))
    joined, notes = "", dict[str, None]()
    for at, (phrase, star, word) in enumerate(terms):
        if word in _OPERATORS and groups and at + 1 < len(terms):
            joined = word
            continue
        if word.lower() == "or" or word in ("AND", "NOT", "NEAR"):
            notes[f"{word} is read as a word; only OR and AND in capitals between two words are operators"] = None
        beginning = bool(star) or (len(word) > 1 and word.endswith("*"))
        term = prepare((phrase or word).rstrip("*") if beginning else phrase or word)
        letters = sum(unicodedata.category(character)[0] in "LMN" or character >= "\U000f0000" for character in term)
        if not letters:
            continue
        if beginning and term.isascii() and letters < LEAST_BEGINNING:
            raise SearchError(
                f"{term + '*'!r} begins too many words; give at least {LEAST_BEGINNING} letters before the *"
            )
        number += 1
        beginnings += beginning
        if joined:
            notes[f"{joined} is read as an operator: {_OPERATORS[joined]}; in quotes it is a word"] = None
        if joined != "OR":
            groups.append({})
        forms = [term] if phrase or beginning else _forms(term)
        groups[-1] |= {'"' + form.replace('"', '""') + '"' + (" *" if beginning else ""): None for form in forms}
        joined = ""
    if not groups:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise SearchError(
            f"{shown!r} holds no letter, digit or symbol to search for;"
            " punctuation and white space are found as tokens (--promotes, --fires-on)"
        )
    if number > MOST_TERMS:
        raise SearchError(f"the search text has {number} words; at most {MOST_TERMS} can be searched")
    if beginnings > MOST_BEGINNINGS:
        raise SearchError(f"the search text has {beginnings} beginnings of words (*); at most {MOST_BEGINNINGS}")
    either = list(dict.fromkeys(" OR ".join(group) for group in groups))
    every = " AND ".join(f"({one})" for one in either)
    return Query(every, " OR ".join(either), several=len(either) > 1, notes=tuple(notes))


def _forms(word: str) -> list[str]:
    """The word, and as an English noun its singulars and its plural, in British and American spelling."""
    if not re.fullmatch("[A-Za-z]{3,}", word):
        return [word]
    low = word.lower()
    singulars = [one for one in (low[:-1], low[:-2], low[:-3] + "y") if len(one) > 2 and _plural(one) == low]
    numbers = [low, *singulars, _plural(low), *filter(None, [_IRREGULAR.get(low)])]
    spelled = [re.sub("(?<=[a-z]{3})(ou?r)(?=s?$)", lambda end: _OUR[end[1]], each) for each in numbers]
    return list(dict.fromkeys([*numbers, *spelled]))


def _plural(noun: str) -> str:
    """By the rule for most nouns; of one in i or u itself, or `this` would be a plural."""
    if re.search("(?:[^aeiou]y)$", noun):
        return noun[:-1] + "ies"
    return noun + ("" if noun[-1] in "iu" else "es" if re.search("(?:[sxz]|[cs]h)$", noun) else "s")


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
