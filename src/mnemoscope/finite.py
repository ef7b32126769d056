"""Values as JSON can hold them: the verbs' documents and the pages' twins say null where a number is not finite."""

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same value with None for NaN and infinities, text for keys, and lists for tuples, at every depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value
