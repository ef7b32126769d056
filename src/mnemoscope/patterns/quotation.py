"""Text of a prefix in quotation marks, as descriptions of patterns and labels give it."""

_MAX_CHARACTERS = 60


def quote(text: str) -> str:
    """The last 60 characters in quotation marks; invisible characters are escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(shown) > _MAX_CHARACTERS:
        shown = "…" + shown[-_MAX_CHARACTERS:]
    return f"'{shown}'" if '"' in shown else f'"{shown}"'
