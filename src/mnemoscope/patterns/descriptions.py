"""A pattern in a short plain sentence that a person can read.

A surface feature is read off the prefixes that show it; a word or topic is its words. Nothing here decides what counts.
"""

from collections.abc import Sequence

from mnemoscope.patterns.prefixes import Prefixes
from mnemoscope.patterns.surface import BRACKETS, CLASSES_OF_MARKS, Family, Spelling, split_key
from mnemoscope.patterns.words import Lexicon

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
_LONGEST = 60
"""Characters of text that a description quotes."""
_MOST_WORDS = 6
"""Words of a topic that a description lists."""


def describe(key: int, prefixes: Prefixes, *, showing: Sequence[int], lexicon: Lexicon) -> str:
    """The surface feature `key`, as these prefixes of the batch show it."""
    family, kind, value = split_key(key)
    first, end = int(prefixes.first[showing[0]]), int(prefixes.end[showing[0]])
    if family == Family.NGRAM:
        return f"ends {'with' if kind else 'in'} {_span(prefixes, end - kind, kind + 1, lexicon.spelling)}"
    if family == Family.DISTANCE:
        where = f"{_NUMBERS[kind + 1]} tokens" if kind else "just"
        return f"{_span(prefixes, end - kind - 1, 1, lexicon.spelling)} {where} before the last token"
    if family == Family.BEGINNING:
        return f"begins with {_span(prefixes, first, kind + 1, lexicon.spelling)}"
    if family == Family.INSIDE:
        inside = [f"{left} {right}" for left, right in BRACKETS] + ["quotation marks"]
        return f"inside {inside[kind]}"
    if family == Family.LENGTH:
        return "only the first token" if value == 1 else f"at most the first {_NUMBERS[value]} tokens"
    if family == Family.CONTINUES:
        return "the last token goes on with a word"
    if family == Family.WORD:
        return f"ends in {_last_word(prefixes, showing, lexicon.spelling)}"
    text = lexicon.words[value]
    if family == Family.ENDING:
        return f"last word ends in -{text}"
    if family == Family.START:
        return f"last word begins with {text}-"
    if family == Family.CLASS:
        return f"last {'token' if text in CLASSES_OF_MARKS else 'word'} is {text}"
    return f"{text} just before the last word"


def describe_words(words: Sequence[str]) -> str:
    """A word, or a topic by its most telling words, which come first."""
    if len(words) == 1:
        return f"mentions {quote(words[0])}"
    more = ", ..." if len(words) > _MOST_WORDS else ""
    return f"about: {', '.join(words[:_MOST_WORDS])}{more}"


def _last_word(prefixes: Prefixes, showing: Sequence[int], spelling: Spelling) -> str:
    """The last word of these prefixes, which may differ in case."""
    forms = {
        spelling.vocabulary.text(prefixes.runs.tokens[prefixes.runs.start[end] : end + 1].tolist()).strip()
        for end in prefixes.end[list(showing)].tolist()
    }
    return quote(forms.pop()) if len(forms) == 1 else f"{quote(min(forms).lower())} in any case"


def _span(prefixes: Prefixes, begin: int, size: int, spelling: Spelling) -> str:
    """Tokens of a sentence in quotation marks; dots stand for the part of a word that came before."""
    tokens = prefixes.runs.tokens[begin : begin + size].tolist()
    text = spelling.vocabulary.text(tokens)
    if "\ufffd" in text:  # a part of a character
        text = "".join(spelling.vocabulary.texts[token] for token in tokens)
    if not text:
        return " ".join(f"token {token}" for token in tokens)
    if not text.strip():
        return quote(text)
    dots = "…" if prefixes.runs.start[begin] < begin else ""
    return quote(dots + text.strip(" "))


def quote(text: str) -> str:
    """Text in quotation marks, at most 60 characters of its end, with what cannot be seen written out."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(shown) > _LONGEST:
        shown = "…" + shown[-_LONGEST:]
    return f"'{shown}'" if '"' in shown else f'"{shown}"'
