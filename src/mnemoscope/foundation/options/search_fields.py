"""The names of what a search looks in, which are checked before an atlas is read."""

from collections.abc import Sequence

from mnemoscope.errors import OptionError

SEARCH_FIELDS = ("patterns", "annotations", "words", "triggers", "values", "bottom")
"""In the order of an answer: what describes a memory first. `words` are those at the triggers, `values` the 20 top
tokens of the value, `bottom` its 20 bottom tokens.
"""
USUAL_FIELDS = SEARCH_FIELDS[:-1]


def check_search_fields(fields: Sequence[str]) -> None:
    if unknown := [field for field in fields or ("",) if field not in SEARCH_FIELDS]:
        raise OptionError(f"field {unknown[0]!r} cannot be searched; choose from {', '.join(SEARCH_FIELDS)}")
