"""Numbers as pages show them. JSON holds the numbers themselves."""

import math

_NONE = "\N{EN DASH}"


def percent(share: float | None) -> str:
    """A share between 0 and 1 in percent, with as many digits as tell it from 0 and 1."""
    if share is None or not math.isfinite(share):
        return _NONE
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f} %"
    if 1 <= value < 99:
        return f"{value:.1f} %"
    return f"{value:.2g} %" if value < 1 else f"{value:.2f} %"


def number(value: float | None) -> str:
    """A number with three digits."""
    if value is None or not math.isfinite(value):
        return _NONE
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.2e}"


def count(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return _NONE if value is None else f"{value:,}"
