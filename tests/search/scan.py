"""Search by looking at every row of the tables: slow, and without a line of the search room. Not a test itself."""

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from mnemoscope.search import Hit

CONTEXT = 24


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def folded(text: str) -> list[str]:
    """The words of a text without case and accents."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", plain.lower())


def holds(words: list[str], term: str) -> bool:
    """Whether the words hold a term: a word, a phrase in quotes, or a beginning with a star."""
    star, asked = term.endswith("*"), folded(term)
    for at in range(len(words) - len(asked) + 1):
        seen = words[at : at + len(asked)]
        if seen == asked or (star and seen[:-1] == asked[:-1] and seen[-1].startswith(asked[-1])):
            return True
    return False


@dataclass(frozen=True)
class Trigger:
    """`weight`: how much it counts."""

    layer: int
    memory: int
    rank: int
    sentence: int
    position: int
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"L{self.layer}.M{self.memory}"


Seen = tuple[str, int, int | None, frozenset[str]]
"""The memory that a hit is due to, the number of its different prefixes, its best rank, all of the sentence."""


def by_memory(triggers: list[Trigger]) -> list[list[Trigger]]:
    """The triggers of every memory, the best first; in the order of the answer."""
    own: dict[tuple[int, int], list[Trigger]] = {}
    for trigger in sorted(triggers, key=lambda trigger: trigger.rank):
        own.setdefault((trigger.layer, trigger.memory), []).append(trigger)

    def key(place: tuple[int, int]) -> tuple[Any, ...]:
        return -round(sum(trigger.weight for trigger in own[place]), 6), own[place][0].rank, place

    return [own[place] for place in sorted(own, key=key)]


def by_sentence(triggers: list[Trigger]) -> list[Seen]:
    """A sentence is shown once: for the best of the memories whose best trigger is in it."""
    shown: dict[int, list[Trigger]] = {}
    for own in by_memory(triggers):
        shown.setdefault(own[0].sentence, own)
    return [
        (own[0].name, len(own), own[0].rank, frozenset(one.name for one in triggers if one.sentence == sentence))
        for sentence, own in shown.items()
    ]


def seen(hits: "Iterable[Hit]") -> list[Seen]:
    """An answer of the index in the same form. The first of a sentence's memories is the one that it is due to."""
    for hit in hits:
        assert (hit.memories[0], len(set(hit.memories))) == (hit.memory, len(hit.memories))
    return [(str(hit.memory), hit.count, hit.rank, frozenset(map(str, hit.memories))) for hit in hits]


class Scan:
    def __init__(self, atlas: Path, layers: int) -> None:
        vocabulary = rows(atlas / "vocabulary.parquet")
        self.raw = [row["bytes"] for row in vocabulary]
        self.texts = [row["text"] for row in vocabulary]
        self.sentences = {row["sentence"]: row for part in (atlas / "sentences").iterdir() for row in rows(part)}
        self.triggers = {layer: rows(atlas / f"triggers/layer-{layer:03d}.parquet") for layer in range(layers)}
        self.values = {layer: rows(atlas / f"values/layer-{layer:03d}.parquet") for layer in range(layers)}

    def prefix(self, row: dict[str, Any]) -> list[str]:
        """The words of the trigger's last tokens, whole words only."""
        begin = max(0, row["position"] - CONTEXT + 1)
        tokens = self.sentences[row["sentence"]]["tokens"][begin : row["position"] + 1]
        text = b"".join(self.raw[token] for token in tokens).decode()
        return folded(text[text.index(" ") :] if begin else text)

    def word(self, row: dict[str, Any]) -> tuple[list[str], int]:
        """The words that the trigger token is a part of, and how many of their tokens stand behind it."""
        tokens = [self.raw[token].decode() for token in self.sentences[row["sentence"]]["tokens"]]
        begin, end = (len("".join(tokens[: row["position"] + more])) for more in (0, 1))
        spans = [m.span() for m in re.finditer(r"[^\W_]+", "".join(tokens)) if m.start() < end and m.end() > begin]
        reached = [
            i for i in range(row["position"] + 1, len(tokens)) if spans and len("".join(tokens[:i])) < spans[-1][1]
        ]
        return [folded("".join(tokens)[a:b])[0] for a, b in spans], len(reached)

    def triggers_with(self, terms: list[str], field: str) -> list[Trigger]:
        """Different prefixes that hold all terms; in the field `words`, one of them in the word at the trigger."""
        found = []
        for layer, table in self.triggers.items():
            for row in table:
                if row["sign"] == 1 and row["prefix_group"] == row["rank"]:
                    texts = [self.prefix(row)]
                    weight = 1.0
                    if field == "words":
                        word, left = self.word(row)
                        weight = 1 / max(1, left)
                        texts.append(word)
                        if not any(holds(word, term) for term in terms):
                            continue
                    if all(any(holds(words, term) for words in texts) for term in terms):
                        found.append(
                            Trigger(layer, row["memory"], row["rank"], row["sentence"], row["position"], weight)
                        )
        return found

    def in_values(self, terms: list[str], side: str) -> dict[str, float]:
        """Memories with every term in some token of the side, and the sum of what the tokens that match weigh."""
        found = {}
        for layer, table in self.values.items():
            for row in table:
                words = [folded(self.texts[token]) for token in row[f"{side}_tokens"]]
                if all(any(holds(some, term) for some in words) for term in terms):
                    scores = row[f"{side}_scores"]
                    weights = [row["max_probability"] * math.exp(s - scores[0]) for s in scores]
                    weights = scores if side == "bottom" else weights
                    hit = [any(holds(some, term) for term in terms) for some in words]
                    found[f"L{layer}.M{row['memory']}"] = sum(w for w, yes in zip(weights, hit, strict=True) if yes)
        return found

    def saying(self, token: int, side: str) -> dict[str, int]:
        """Memories with the token in the side's list, and where."""
        return {
            f"L{layer}.M{row['memory']}": row[f"{side}_tokens"].index(token)
            for layer, table in self.values.items()
            for row in table
            if token in row[f"{side}_tokens"]
        }

    def firing(self, token: int) -> dict[str, int]:
        """Memories and how many of their positive triggers end in the token."""
        found: dict[str, int] = {}
        for layer, table in self.triggers.items():
            for row in table:
                if row["sign"] == 1 and row["token"] == token:
                    name = f"L{layer}.M{row['memory']}"
                    found[name] = found.get(name, 0) + 1
        return found
