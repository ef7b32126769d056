"""Works around `python -OO`, which has no docstrings, without which transformers cannot define any model."""

import sys
from typing import Any

from transformers import utils

WITH_DOCSTRINGS = sys.flags.optimize < 2


def _as_it_is(documented: Any = None, **_: Any) -> Any:
    """Replaces the decorator that assembles docstrings, with options or without."""
    return _as_it_is if documented is None else documented


if not WITH_DOCSTRINGS:
    utils.auto_docstring = _as_it_is  # type: ignore[attr-defined, assignment]
