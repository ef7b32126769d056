"""What a field finds: hits in their order, and how many."""

from dataclasses import dataclass

from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.search.text import Part


@dataclass(frozen=True)
class Hit:
    """A sentence with triggers that match (fields words and triggers), or a memory that matches in another field.

    `firing` memories have a matching trigger in the sentence; `memories` are the first 100 of them, first the one that
    its place in the answer is due to, `memory`. `count` is the number of its matching prefixes (distinct ones), tokens,
    patterns or judgements, `rank` that of the best trigger or token. `score` orders the hits of a field: the number of
    matching prefixes (in words, one with k > 1 tokens of the word to come counts 1 / k), the summed probability of the
    matching tokens (values), their summed scores under the negated value (bottom), how far the memory is about it
    (patterns; docs/search.md), the number of matching judgements (annotations).
    """

    memory: MemoryId
    field: str
    parts: tuple[Part, ...]
    score: float
    count: int
    rank: int | None
    detail: str
    """A short description of the match, such as `12 prefixes, best rank 0`."""
    memories: tuple[MemoryId, ...]
    sentence: int | None = None
    firing: int = 1


@dataclass(frozen=True)
class Matches:
    """A page of hits, the number of all, the memories by field, and whether all triggers were counted."""

    page: list[Hit]
    total: int
    memories: dict[str, int]
    exact: bool = True
