"""Text from anywhere made fit for people: white space that matters is seen, and no control code gets through."""

import unicodedata

_NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}


def in_token(text: str) -> str:
    """A token's text with every space as a middle dot; an empty text as two quotes."""
    return "".join("·" if char == " " else _shown(char) for char in text) or "''"


def in_running_text(text: str) -> str:
    """Running text with its line breaks and tabs visible, and of its spaces those at the start or doubled."""
    shown = []
    for index, char in enumerate(text):
        doubled = char == " " and (index == 0 or text[index - 1] in " \n\t")
        shown.append("·" if doubled else " " if char == " " else _shown(char))
    return "".join(shown)


def without_controls(text: str) -> str:
    """Output as it is laid out, spaces and line feeds untouched; whatever would act on a terminal is seen instead."""
    return "".join(char if char in " \n\u00a0" or char.isprintable() else _shown(char) for char in text)


def before_token(prefix: str, token: str) -> str:
    """The prefix without its last token, both as text.

    A token that is part of a character has no text of its own at the prefix's end, only a replacement mark.
    """
    return prefix.removesuffix(token) if prefix.endswith(token) else prefix.rstrip("\ufffd")


def _shown(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if ord(char) < 32:
        return chr(0x2400 + ord(char))
    # Control, format (also right-to-left overrides), surrogate, unassigned and separators other than the space.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"):
        return f"\\u{ord(char):04x}"
    return char
