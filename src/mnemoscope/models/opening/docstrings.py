"""`python -OO` has no docstrings, without which transformers refuses to define any model; nobody reads them there."""

import sys
from typing import Any

from transformers import utils

WITH_DOCSTRINGS = sys.flags.optimize < 2


def _as_it_is(documented: Any = None, **_: Any) -> Any:
    """Stands for the decorator that puts docstrings together, with options or without."""
    return _as_it_is if documented is None else documented


if not WITH_DOCSTRINGS:
    utils.auto_docstring = _as_it_is  # type: ignore[attr-defined, assignment]
