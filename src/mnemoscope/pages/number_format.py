"""Numbers as pages show them: the report's way, with a dash where there is none. JSON holds the numbers themselves."""

from mnemoscope.formatting import DASH, format_value


def percent(share: float | None) -> str:
    """A share between 0 and 1 in percent."""
    return format_value(share, "share")


def number(value: float | None) -> str:
    """A number with three figures."""
    return format_value(value, "number")


def count(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return DASH if value is None else f"{value:,}"
