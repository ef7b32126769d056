"""What a row of JSON lines, of Parquet or of a hub data set holds: a text, or a list of token ids in place of one.

The text of a list of ids is these in decimal, joined by spaces; so all that reads, hashes and keeps texts keeps them
too. `RowField` says which field of a row is read, and as what; every complaint names the row.
"""

from dataclasses import dataclass, replace
from typing import Any

from mnemoscope.corpus.streams import LONGEST, too_long
from mnemoscope.errors import CorpusUnreadable

LONGEST_IDS = LONGEST // 2
"""Ids that a row has at most: each takes a digit and a space."""
_MOST = 1 << 31
"""Where no model is asked: no head has so many rows."""


@dataclass(frozen=True)
class RowField:
    """The field of a row that holds its text, or (`ids`) its token ids, of which none may reach `vocabulary`."""

    name: str
    ids: bool = False
    vocabulary: int | None = None
    """Rows of the model's head; None where there is no model to ask."""

    @property
    def option(self) -> str:
        """The option of the command line that names it."""
        return "--ids-field" if self.ids else "--text-field"

    def within(self, vocabulary: int | None) -> "RowField":
        """The same field, read for a head of so many rows."""
        return replace(self, vocabulary=vocabulary)

    def text_of(self, row: object, place: str) -> str:
        """The text of a row; `place` names it in errors.

        Raises CorpusUnreadable for no object, no such field, what is neither a text nor (for ids) a list of them, or
        more than `LONGEST` characters.
        """
        if not isinstance(row, dict):
            raise CorpusUnreadable(f"{place} is no JSON object but {type(row).__name__}")
        if self.name not in row:
            fields = ", ".join(map(repr, list(row)[:8])) or "no field at all"
            raise CorpusUnreadable(f"{place} has no field {self.name!r} (it has {fields}); name it with {self.option}")
        value = row[self.name]
        if value is None:
            return ""
        return self.text_of_ids(value, place) if self.ids else self._checked_text(value, place)

    def _checked_text(self, text: Any, place: str) -> str:
        if not isinstance(text, str):
            listed = isinstance(text, list) and all(isinstance(one, int) for one in text[:8])
            advice = "; token ids are read with --ids-field" if listed else ""
            raise CorpusUnreadable(f"{place}: field {self.name!r} holds {type(text).__name__}, not text{advice}")
        if len(text) > LONGEST:
            raise too_long(place)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise CorpusUnreadable(f"{place}: field {self.name!r} holds half a surrogate pair, no text") from None
        return text

    def text_of_ids(self, ids: Any, place: str) -> str:
        """The text of a list of ids, with the checks of `text_of`; raises CorpusUnreadable."""
        where = f"{place}: field {self.name!r}"
        if not isinstance(ids, list):
            raise CorpusUnreadable(f"{where} holds {type(ids).__name__}, not a list of token ids")
        if len(ids) > LONGEST_IDS:
            raise too_long(place)
        # A truth value is an integer to Python, and no token id.
        if kinds := set(map(type, ids)) - {int}:
            place_of = next(number for number, one in enumerate(ids) if type(one) in kinds)
            raise CorpusUnreadable(f"{where} holds {str(ids[place_of])[:40]!r} at place {place_of}, no token id")
        if ids and min(ids) < 0:
            wrong = next(number for number, one in enumerate(ids) if one < 0)
            raise CorpusUnreadable(f"{where} holds {_decimal(ids[wrong])} at place {wrong}; token ids are 0 or more")
        most = _MOST if self.vocabulary is None else self.vocabulary
        if ids and max(ids) >= most:
            wrong = next(number for number, one in enumerate(ids) if one >= most)
            raise CorpusUnreadable(
                f"{where} holds token id {_decimal(ids[wrong])} at place {wrong}, beyond the {most:,} rows of the"
                " model's head; give ids that were made for this model"
            )
        return " ".join(map(str, ids))


def _decimal(number: int) -> str:
    """A number in decimal; one of very many digits is only said to be that."""
    return str(number) if abs(number) < 1 << 63 else "a number of more than 18 digits"
