"""Search by looking at every row of the tables: slow, and without a line of the search room. Not a test itself."""

import math
import re
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

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

    def in_triggers(self, terms: list[str]) -> list[tuple[str, int, int]]:
        """Memory, number of different prefixes that hold all terms, best rank; in the order of the answer."""
        found: dict[tuple[int, int], list[int]] = {}
        for layer, table in self.triggers.items():
            for row in table:
                if row["sign"] == 1 and row["prefix_group"] == row["rank"]:
                    words = self.prefix(row)
                    if all(holds(words, term) for term in terms):
                        found.setdefault((layer, row["memory"]), []).append(row["rank"])
        best = sorted(found, key=lambda place: (-len(found[place]), min(found[place]), place))
        return [(f"L{layer}.M{memory}", len(found[layer, memory]), min(found[layer, memory])) for layer, memory in best]

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
