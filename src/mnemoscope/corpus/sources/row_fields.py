"""Fields of a row of JSON lines, Parquet or a hub data set: a text, or a list of token ids in place of one.

The text of a list of ids is the ids in decimal, joined by spaces, so that reading, hashing and storing of texts apply
to ids. Ids that a mask marks as padding are left out. The text of a chat (a list of messages) is rendered by the
model's template. `RowField` says which field of a row is read, and as what; every error names the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from mnemoscope.corpus.sources.streams import LONGEST, too_long
from mnemoscope.errors import CorpusUnreadable, PromptError

LONGEST_IDS = LONGEST // 2
"""Most ids of a row: each takes a digit and a space."""
MASK = "attention_mask"
"""The field beside token ids that is 0 at padding."""
LISTED = 1_000
_MOST = 1 << 31
"""Bound of ids without a model: no head has so many rows."""

PAIR = "\x1d"
"""Stands between a source and the text that is read with it, which are one text here: identity is that of the pair."""

Render = Callable[[list[Any]], str]


@final
class BadRow(CorpusUnreadable):
    """A row that holds no text; a reader may continue after it."""


@dataclass(slots=True)
class BadRows:
    most: int = 0
    places: list[str] = field(default_factory=list)

    def pass_over(self, place: str, wrong: BadRow) -> None:
        """Counts a bad row."""
        if len(self.places) >= self.most:
            passed = f" (after {self.most:,} skipped bad rows)" if self.most else ""
            raise CorpusUnreadable(f"{wrong}{passed}") from None
        self.places.append(place)

    def document(self) -> dict[str, Any]:
        """How many there are, and the places of the first, by the names of their files, as plain JSON values."""
        rows = [place.rpartition("/")[2] for place in self.places[:LISTED]]
        return {"count": len(self.places), "rows": rows}


@dataclass(frozen=True)
class RowField:
    """The field of a row that holds its text, its token ids (`ids`), or messages (`chat`), which `render` makes a text.
    A name with dots is a field within fields, unless a field has that very name. With a `source` field the text is a
    pair, `PAIR` between the two.
    """

    name: str
    ids: bool = False
    vocabulary: int | None = None
    chat: bool = False
    render: Render | None = None
    bad: BadRows = field(default_factory=BadRows)
    source: "RowField | None" = None
    flag: str = "--text-field"

    @property
    def option(self) -> str:
        return "--ids-field" if self.ids else self.flag

    @property
    def mask(self) -> str:
        return "".join(self.name.rpartition(".")[:2]) + MASK

    def text_of(self, row: object, place: str) -> str | None:
        """The text of a row; None for a skipped one. `place` names it in errors."""
        try:
            text = self._text_of(row, place)
            return text if self.source is None or not text else self.source.pair_with(text, row, place)
        except BadRow as wrong:
            self.bad.pass_over(place, wrong)
            return None

    def pair_with(self, text: str, row: object, place: str) -> str:
        """A row's text behind this field, its source."""
        source = self._text_of(row, place)
        if not source or source.isspace():
            raise BadRow(f"{place}: field {self.name!r} is empty; a pair needs a source")
        if PAIR in source + text:
            raise BadRow(f"{place} holds the character U+001D, which separates source and text here; leave it out")
        return f"{source}{PAIR}{text}"

    def _text_of(self, row: object, place: str) -> str:
        if not isinstance(row, dict):
            raise BadRow(f"{place} is not a JSON object but {type(row).__name__}")
        values = _look_up(row, self.name)
        if values is None:
            fields = ", ".join(map(repr, list(row)[:8])) or "no field at all"
            raise BadRow(f"{place} has no field {self.name!r} (it has {fields}); name it with {self.option}")
        [value] = values
        if value is None:
            return ""
        if self.chat:
            return self._checked_text(self._chat(value, place), place)
        if not self.ids:
            return self._checked_text(value, place)
        text = self._text_of_ids(value, place)
        [mask] = _look_up(row, self.mask) or [None]
        return text if mask is None else self._without_padding(text, mask, place)

    def _chat(self, messages: Any, place: str) -> str:
        where = f"{place}: field {self.name!r}"
        if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
            raise BadRow(f"{where} is not a list of messages, each with a role and its content")
        if self.render is None:
            raise BadRow(f"{where} holds messages, which need a model's chat template")
        try:
            return self.render(messages)
        except PromptError as error:
            raise BadRow(f"{where}: {error}") from None

    def _checked_text(self, text: Any, place: str) -> str:
        if not isinstance(text, str):
            listed = isinstance(text, list) and all(isinstance(one, int) for one in text[:8])
            advice = "; token ids are read with --ids-field" if listed else ""
            raise BadRow(f"{place}: field {self.name!r} holds {type(text).__name__}, not text{advice}")
        if len(text) > LONGEST:
            raise BadRow(str(too_long(place)))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BadRow(f"{place}: field {self.name!r} holds half a surrogate pair, which is not text") from None
        return text

    def _text_of_ids(self, ids: Any, place: str) -> str:
        where = f"{place}: field {self.name!r}"
        if not isinstance(ids, list):
            raise BadRow(f"{where} holds {type(ids).__name__}, not a list of token ids")
        if len(ids) > LONGEST_IDS:
            raise BadRow(str(too_long(place)))
        most = _MOST if self.vocabulary is None else self.vocabulary
        # Python counts a truth value as an integer.
        if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < most):
            return " ".join(map(str, ids))
        at, one = next((at, one) for at, one in enumerate(ids) if type(one) is not int or not 0 <= one < most)
        if type(one) is not int:
            raise BadRow(f"{where} holds {str(one)[:40]!r} at place {at}, not a token id")
        shown = str(one) if abs(one) < 1 << 63 else "a number of more than 18 digits"
        if one < 0:
            raise BadRow(f"{where} holds {shown} at place {at}; token ids are 0 or more")
        raise BadRow(
            f"{where} holds token id {shown} at place {at}, beyond the {most:,} rows of the model's head; give ids"
            " that were made for this model"
        )

    def _without_padding(self, text: str, mask: Any, place: str) -> str:
        """The ids that the mask keeps, which must be contiguous."""
        ids, where = text.split(), f"{place}: field {self.mask!r}"
        if not isinstance(mask, list) or len(mask) != len(ids) or any(one not in (0, 1) for one in mask):
            raise BadRow(f"{where} is not a mask of {len(ids):,} zeros and ones, one for each id of {self.name!r}")
        if 1 not in mask:
            return ""
        first, kept = mask.index(1), sum(map(int, mask))
        if 0 in mask[first : first + kept]:
            raise BadRow(
                f"{where} has a 0 at place {mask.index(0, first)} between ones; padding stands at the ends of a row,"
                " so leave out the mask or what it hides"
            )
        return " ".join(ids[first : first + kept])


def _look_up(row: Mapping[str, Any], name: str) -> list[Any] | None:
    if name in row:
        return [row[name]]
    for place in (place for place, letter in enumerate(name) if letter == "."):
        inner = row.get(name[:place], "")
        if inner is None:
            return [None]
        if isinstance(inner, dict) and (values := _look_up(inner, name[place + 1 :])) is not None:
            return values
    return None
