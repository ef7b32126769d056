"""What a search gives back: hits, tokens, and the memories that promote a token or fire on it. Values only."""

from dataclasses import dataclass

from mnemoscope.memory import MemoryId

FIELDS = ("triggers", "values", "patterns", "annotations", "bottom")
"""Where one can search. `values` are the 20 top tokens of the value, `bottom` its 20 bottom tokens."""
USUAL_FIELDS = ("triggers", "values", "patterns", "annotations")

Part = tuple[str, bool]
"""A piece of text, and whether it matched."""


@dataclass(frozen=True)
class Hit:
    """One memory that has the text in one field.

    `score` orders the hits of a field, highest first: different prefixes that match (triggers), the probability that
    the value gives to the tokens that match (values), their summed scores under the negated value (bottom), triggers
    explained by the patterns that match (patterns), judgements that match (annotations).
    `count` is how many prefixes, tokens, patterns or judgements match; `rank` is that of the best trigger or token.
    """

    memory: MemoryId
    field: str
    parts: tuple[Part, ...]
    score: float
    count: int
    rank: int | None
    detail: str
    """What was found, in a few words, such as `12 prefixes, best rank 0`."""


@dataclass(frozen=True)
class SearchResult:
    """One page of hits, and how many there are.

    The hits of all fields are interleaved: the best of every field, then the second of every field, and so on.
    """

    hits: tuple[Hit, ...]
    total: int
    totals: dict[str, int]
    """By field that was searched: how many memories match."""
    exact: bool
    """False where the text is so common that only the strongest triggers of every memory were counted."""


@dataclass(frozen=True)
class Token:
    """A token of the vocabulary: `text` as in running text, `shown` with its white space visible (`·Paris`)."""

    id: int
    text: str
    shown: str
    count: int
    """How often it occurs in the distinct mined sentences."""


@dataclass(frozen=True)
class Promotion:
    """A memory whose value has the token among its 20 top (or bottom) tokens."""

    memory: MemoryId
    token: int
    rank: int
    probability: float | None
    """Of the token under the softmax of the value's scores; None among the bottom tokens."""
    score: float
    """Of the token under the value; among the bottom tokens under the negated value."""


@dataclass(frozen=True)
class Firing:
    """A memory whose key fires on a token: how many of its highest triggers end in it, and the best one's rank."""

    memory: MemoryId
    triggers: int
    rank: int
