"""The vocabulary of an atlas: each token as text and as bytes, and whether tokens include the spaces between words.

Tokens are rows of the model's head. A token may be part of a character, so text is made of the joined bytes.
"""

import re
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from mnemoscope.atlas.tables import Tables
from mnemoscope.errors import AtlasDamaged, OptionError
from mnemoscope.foundation.formatting import show_token

SCRIPTS_WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)


@cache
def is_without_spaces(character: str) -> bool:
    return re.fullmatch(f"[{SCRIPTS_WITHOUT_SPACES}]", character) is not None


def is_spelled(word: str) -> bool:
    """Whether it is of letters alone, vowel signs and accents of their own among them, which `isalpha` leaves out."""
    return word[:1].isalpha() and (word.isalpha() or all(unicodedata.category(c)[0] in "LM" for c in word))


@dataclass(frozen=True)
class Vocabulary:
    """Text and bytes of every token, by token; `source` is the atlas's folder, as errors name it."""

    texts: list[str]
    raw: list[bytes]
    source: str = "the vocabulary"

    @staticmethod
    def read(tables: Tables) -> "Vocabulary":
        rows = tables.table("vocabulary")
        if rows["token"].to_list() != list(range(rows.height)):
            raise AtlasDamaged(f"{tables.path}/vocabulary.parquet does not list the tokens in order")
        return Vocabulary(rows["text"].to_list(), rows["bytes"].to_list(), str(tables.path))

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens as running text; incomplete characters become replacement marks."""
        return b"".join(self._look_up(self.raw, tokens)).decode("utf-8", "replace")

    def split_text(self, tokens: Sequence[int]) -> list[str]:
        """`text` in one piece for each token; a character of several tokens is in the piece of the last of them."""
        decoder, raw = getincrementaldecoder("utf-8")("replace"), self._look_up(self.raw, tokens)
        return [decoder.decode(part, number == len(raw)) for number, part in enumerate(raw, start=1)]

    def each_text(self, tokens: Sequence[int | None]) -> list[str | None]:
        return self._look_up(self.texts, tokens)

    def visible_text(self, token: int) -> str:
        """The token with visible white space, and as bytes, such as <E2 80>, where it is part of a character."""
        text = self.texts[token]
        if "\ufffd" in text:
            try:
                self.raw[token].decode()
            except UnicodeDecodeError:
                return f"\u27e8{self.raw[token].hex(' ').upper()}\u27e9"
        return show_token(text)

    def token(self, token: int) -> dict[str, Any]:
        return {"token": token, "text": self.texts[token], "shown": self.visible_text(token)}

    def carries_spaces(self, sentences: pl.DataFrame) -> bool:
        """Whether tokens include the spaces between words; if not, they lose half of a text's white space."""
        stored = joined = 0
        for text, tokens in sentences.select("text", "tokens").iter_rows():
            ids = len(tokens) > 1 and text.split()[-len(tokens) :] == list(map(str, tokens))
            stored += 1 if ids else sum(map(str.isspace, text.strip()))
            joined += sum(map(str.isspace, self.text(tokens).strip()))
        return 2 * joined >= stored

    def _look_up(self, column: Sequence[Any], tokens: Sequence[int | None]) -> list[Any]:
        for token in tokens:
            if token is not None and not 0 <= token < len(column):
                raise OptionError(f"token {token} is not in {self.source}, which has tokens 0-{len(column) - 1}")
        return [None if token is None else column[token] for token in tokens]
