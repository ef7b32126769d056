"""The tables of index.sqlite, and what it says about itself.

A memory is one number, counted over all layers of the model. A trigger's number is `rank << 32 | memory`, so that a
search reads the strongest triggers of every memory first. The full-text tables hold no text (contentless): what is
shown is put together from `sentences` and `vocabulary`.
"""

from mnemoscope.search.text import TOKENIZER

VERSION = 1
FOLDER, NAME = "search", "index.sqlite"
CONTEXT = 24
"""Tokens of a prefix that are indexed and shown, counted back from the trigger token."""
RANK_BITS = 32
MEMORY_MASK = (1 << RANK_BITS) - 1
MOST_ROWS = 150_000
"""Triggers that a search counts at most: the strongest of every memory come first."""
TOP, BOTTOM = 0, 1


def token_type(vocabulary: int) -> str:
    """How the tokens of a sentence are stored, as numpy says it: two bytes each where they fit."""
    return "<u2" if vocabulary <= 1 << 16 else "<i4"


def _full_text(name: str, columns: str, *, prefix: str = "") -> str:
    options = f"content='', columnsize=0, tokenize=\"{TOKENIZER}\"" + (f", prefix='{prefix}'" if prefix else "")
    return f"CREATE VIRTUAL TABLE {name} USING fts5({columns}, {options});"


TABLES = f"""
CREATE TABLE about (name TEXT PRIMARY KEY, said TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE layers (layer INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL);
CREATE TABLE vocabulary (
  token INTEGER PRIMARY KEY, text TEXT NOT NULL, shown TEXT NOT NULL, folded TEXT NOT NULL, count INTEGER NOT NULL
);
CREATE TABLE sentences (sentence INTEGER PRIMARY KEY, tokens BLOB NOT NULL);
CREATE TABLE prefixes (trigger INTEGER PRIMARY KEY, sentence INTEGER NOT NULL, position INTEGER NOT NULL);
CREATE TABLE fires (
  token INTEGER, memory INTEGER, triggers INTEGER NOT NULL, rank INTEGER NOT NULL, PRIMARY KEY (token, memory)
) WITHOUT ROWID;
CREATE TABLE says (
  token INTEGER, side INTEGER, memory INTEGER, rank INTEGER NOT NULL, probability REAL, score REAL NOT NULL,
  PRIMARY KEY (token, side, memory)
) WITHOUT ROWID;
CREATE TABLE value_tokens (memory INTEGER PRIMARY KEY, top BLOB NOT NULL, bottom BLOB NOT NULL);
CREATE TABLE patterns (
  pattern INTEGER PRIMARY KEY, memory INTEGER NOT NULL, kind TEXT NOT NULL, description TEXT NOT NULL,
  explained INTEGER NOT NULL
);
{_full_text("trigger_text", "prefix", prefix="2")}
{_full_text("value_text", "top, bottom", prefix="2")}
{_full_text("token_text", "text", prefix="2")}
{_full_text("pattern_text", "description", prefix="2")}
"""

FULL_TEXT = ("trigger_text", "value_text", "token_text", "pattern_text")
PLAIN_TABLES = (
    "about", "layers", "vocabulary", "sentences", "prefixes", "fires", "says", "value_tokens", "patterns"
)  # fmt: skip
