"""The words of pages, reports and printed lines that depend on how a model reads a text: what a causal model reads is a
prefix, and it speaks of the token behind; a masked model reads the sentence, and speaks of the token itself.

A template takes them as `words.NAME`, a declared text as `{NAME}` (`in_words`), code as `words["NAME"]`. One that
stands outside of this file is found by tests/test_words.py.
"""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

Words = Mapping[str, str]

KEYS_ONLY = "this encoder has no head for tokens: its keys are read, and nothing is asked of its values"
CONTINUES_NOTHING = (
    "a model that reads sentences whole continues no text: generation, audits and `memorised` are not asked of it"
)

_PHRASES = {
    # What a trigger is, what is counted in the mined text, and what is asked of held-out text.
    "prefix": ("prefix", "sentence"),
    "prefixes": ("prefixes", "sentences"),
    "Prefix": ("Prefix", "Sentence"),
    "places": ("prefixes", "positions"),
    "case": ("prefix", "masked sentence"),
    "cases": ("prefixes", "masked sentences"),
    "validation_case": ("validation prefix", "masked validation sentence"),
    "validation_cases": ("validation prefixes", "masked validation sentences"),
    "Every_case": ("Every prefix", "Every masked sentence"),
    "a_case": ("a prefix", "a masked sentence"),
    # The token spoken of.
    "next": ("next", "token itself"),
    "next_token": ("next token", "token itself"),
    "target": ("next token", "token"),
    "asked_token": ("next token", "masked token"),
    "next_tokens": ("next tokens", "own tokens"),
    "its_target": ("trigger's next token", "trigger's token"),
    "promoted": ("next tokens", "tokens"),
    "last_token": ("last token", "token"),
    "last_tokens": ("last tokens", "tokens"),
    "last_word": ("last word", "word"),
    "last_words": ("last words", "words"),
    "last_one": ("last one of", "one at"),
    "marked_token": ("last token", "marked token"),
    "after": ("after", "at"),
    "before_it": ("before", "around"),
    "last_trigger": ("last trigger token", "trigger token"),
    # Clauses.
    "trigger_texts": ("beginnings of sentences", "sentences, each with a position,"),
    "text_read": ("the text so far", "the sentence at a token"),
    "does_it_follow": ("Does its top token follow its triggers?", "Is its top token the one at its triggers?"),
    "what_follows": ("what follows", "what stands at"),
    "what_is_there": ("what follows", "what stands there"),
    "what_follows_this": ("what follows this prefix", "what this mask hides"),
    "another_target": ("another prefix's next token of the text", "what another mask hides"),
    "target_taken": ("the best trigger that was followed", "the token at the best trigger"),
    "that_follows": ("that follows", "at"),
    "follows": ("follows", "is the one at"),
    "that_are_followed_by": ("that are followed by", "whose token is"),
    "are_followed_by": ("are followed by", "are at"),
    "followed_by_it": ("followed by it", "with that token"),
    "end_in": ("end in", "are at"),
    "after_best": ("After its best trigger came", "At its best trigger stands"),
    "what_came": ("what came next in the text", "the token that is masked"),
    "fires_after": ("fires after", "fires in"),
    "fires_most_after": ("fires most after", "fires most in"),
    # Sentences of legends.
    "followed_share": (
        "“Followed by it”: share of the 25 best triggers that are followed by the value\u2019s top token.",
        "“With that token”: share of the 25 best triggers whose token is the value\u2019s top token.",
    ),
    "marked_where": (
        "The marked token is the last of the prefix, where the memory fires",
        "The marked token is the one at which the memory fires; the model reads the whole sentence",
    ),
    "marked_there": (
        "The marked token is the prefix's last; what came next follows",
        "The marked token is the one at which it fires; the model reads the whole sentence, also what is grey",
    ),
    "marked_hit": (
        ", framed where it is the value\u2019s first token",
        ", and a tick says that the marked token is the value\u2019s first",
    ),
    "you_see": (
        "You see prefixes: the beginnings of sentences, each up to its <mark>marked</mark> last token. Judge what the"
        " <em>prefixes</em> have in common, not what might come next.",
        "You see sentences, each with a <mark>marked</mark> token. Judge what the <em>sentences</em> have in common"
        " there.",
    ),
    "ticked": ("followed by the value\u2019s first token", "it is the value\u2019s first token"),
    "ticked_where": (
        "What came next is ticked where it is the value\u2019s top token.",
        "A tick says that it is the value\u2019s top token.",
    ),
}
"""By name: the phrase of a model whose states predict the next token, and of one whose states predict the same one."""

NEXT: Words = MappingProxyType({name: phrases[0] for name, phrases in _PHRASES.items()})
SAME: Words = MappingProxyType({name: phrases[1] for name, phrases in _PHRASES.items()})
UNMASKED: Words = MappingProxyType({name: phrase.replace("masked ", "") for name, phrase in SAME.items()})
"""Those of an encoder that hides no token."""


def in_words(declared: Any, words: Words) -> Any:
    """A declared text, or each one of a tuple or dataclass, with its `{NAME}`s in these words; other braces stay."""
    if isinstance(declared, str):
        return re.sub(r"\{([A-Za-z_]+)\}", lambda match: words.get(match[1], match[0]), declared)
    if isinstance(declared, tuple):
        return tuple(in_words(one, words) for one in declared)
    if not is_dataclass(declared):
        return declared
    spoken = copy(declared)  # not `replace`: what a question makes of its numbers is made
    for field in fields(declared):
        object.__setattr__(spoken, field.name, in_words(getattr(declared, field.name), words))
    return spoken
