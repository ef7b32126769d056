"""What a field finds: matches in their order, and how many."""

from dataclasses import dataclass

from mnemoscope.search.text import Part


@dataclass(frozen=True)
class Match:
    """As `Hit`, with numbers of memories over all layers."""

    memories: list[int]
    field: str
    parts: tuple[Part, ...]
    score: float
    count: int
    rank: int | None
    detail: str
    sentence: int | None = None
    firing: int = 1


@dataclass(frozen=True)
class Matches:
    """A page of matches, the number of all, the memories by field, and whether all triggers were counted."""

    page: list[Match]
    total: int
    memories: dict[str, int]
    exact: bool = True


def count_of(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
