"""The kinds of database that hold annotations. Imports no database library, so that another kind is refused at once."""

import re

from mnemoscope.errors import AnnotationError


def check_kind(address: str) -> None:
    """Raises AnnotationError if the scheme of an address, such as `mysql://HOST`, is of another kind; a path passes."""
    kind = re.match(r"([^+:/]+)[^:/]*://", address)
    if kind and kind[1] not in ("sqlite", "postgresql", "postgres"):
        raise AnnotationError(f"annotations cannot be kept in {kind[1]}; give a path, or postgresql://USER@HOST/NAME")
