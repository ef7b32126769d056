"""A tiny recipe, and a small documentation made up by a seeded generator in the place of this machine's."""

import random
from collections.abc import Iterator

import pytest

from mnemoscope.training import Recipe
from mnemoscope.training import text as training_text

WORDS = [
    *("value", "key", "memory", "layer", "token", "returns", "the", "a", "of", "and", "is", "in", "list", "number"),
    *("file", "text", "object", "function", "if", "not", "for", "call", "argument", "error", "raised", "when"),
    *("name", "string", "module", "class"),
]


def made_up_documents(count: int = 300) -> list[str]:
    """Documents of one to four sentences in which every word foretells the next a little."""
    chance = random.Random(7)
    return [" ".join(sentence(chance) for _ in range(chance.randint(1, 4))) for _ in range(count)]


def sentence(chance: random.Random) -> str:
    """Six to fourteen words; each is followed by one of only three."""
    place = chance.randrange(len(WORDS))
    words = []
    for _ in range(chance.randint(6, 14)):
        words.append(WORDS[place])
        place = (3 * place + chance.randint(1, 3)) % len(WORDS)
    return " ".join(words).capitalize() + "."


@pytest.fixture
def recipe() -> Recipe:
    """A model that is trained in seconds."""
    sizes = {"layers": 2, "hidden": 16, "memories": 24, "heads": 2, "vocabulary": 300, "context": 16}
    return Recipe(**sizes, batch=8, steps=30, warmup=5, learning_rate=1e-2, embedding_rate=1e-2)


@pytest.fixture
def documentation(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `documents()` gives, whatever the part."""
    found = made_up_documents()

    def documents(part: str = "all") -> Iterator[str]:
        return iter(found)

    monkeypatch.setattr(training_text, "documents", documents)
    return found
