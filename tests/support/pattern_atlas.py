"""Atlases whose triggers a test chooses, over sentences of words; and real sentences to choose from. No test itself.

The vocabulary is the words themselves, each with the space before it, so that a token is a word or a punctuation mark.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_sentences, write_table
from mnemoscope.corpus import split_sentences
from mnemoscope.corpus.sources.pydocs import documents
from support.handbuilt_atlas import PROVENANCE, manifest

Place = tuple[int, int]
"""A prefix: sentence and position."""


@cache
def real_sentences() -> tuple[tuple[str, ...], ...]:
    """Different sentences of Python's documentation, as words and punctuation marks, 3 to 60 of them."""
    found: dict[tuple[str, ...], None] = {}
    for document in islice(documents("stdlib"), 2500):  # the language reference, and the first of the library
        for sentence in split_sentences(document, "sentence"):
            words = tuple(re.findall(r"\w+|[^\w\s]", sentence))
            if 3 <= len(words) <= 60:
                found[words] = None
    return tuple(found)


def as_token(word: str) -> str:
    """The word as it stands in running text."""
    return f" {word}" if re.match(r"\w", word) else word


def build(
    directory: Path,
    sentences: Sequence[Sequence[str]],
    *,
    layers: Sequence[Sequence[Sequence[Place]]],
    background: Sequence[Place],
    vocabulary: Sequence[str] | None = None,
    documents: Sequence[int] | None = None,
    similar: Mapping[str, Sequence[str]] | None = None,
    whole: bool = False,
) -> Atlas:
    """A sealed atlas with these triggers: by layer, memory and rank; negative triggers are not made.

    `vocabulary` holds the tokens' texts where they are not simply the words with a space before them; `sentences` then
    are of its members. Each sentence is a document where `documents` does not say; `similar` are the words like a word.
    `whole`: the model reads sentences whole.
    """
    texts = sorted({as_token(word) for words in sentences for word in words}) if vocabulary is None else [*vocabulary]
    number = {text: token for token, text in enumerate(texts)}
    spelled = [[number[as_token(word) if vocabulary is None else word] for word in words] for words in sentences]
    write("vocabulary", directory, {"token": range(len(texts)), "text": texts, "bytes": [t.encode() for t in texts]})
    count = len(spelled)
    rows = {
        "sentence": range(count),
        "document": range(count) if documents is None else documents,
        "text": ["".join(texts[token] for token in tokens).strip() for tokens in spelled],
        "tokens": spelled,
        "multiplicity": [1] * count,
        "held_out": [False] * count,
    }
    write_sentences(directory, [rows], provenance=PROVENANCE)
    if similar is not None:
        rows_of = {word: row for row, word in enumerate(similar)}
        lists = [[rows_of[other] for other in others] for others in similar.values()]
        write("similar_words", directory, {"word": list(similar), "similar": lists})
    write("background", directory, _places(background, spelled))
    for layer, memories in enumerate(layers):
        places = [place for memory in memories for place in memory]
        columns = _places(places, spelled)
        columns["memory"] = [memory for memory, triggers in enumerate(memories) for _ in triggers]
        columns["rank"] = [rank for triggers in memories for rank in range(len(triggers))]
        columns["sign"] = [1] * len(places)
        columns["coefficient"] = np.ones(len(places), dtype=np.float32)
        columns["prefix_group"] = [group for triggers in memories for group in _groups(triggers, spelled)]
        write("triggers", directory, columns, layer)
    sizes = {"layers": len(layers), "memories": [len(memories) for memories in layers], "vocabulary": len(texts)}
    model = {"spec": "none", "fingerprint": PROVENANCE.model, "sizes": sizes}
    reading = {"reading": {"before": [], "after": [], "first": 0, "predicts": "same", "mask": 0}} if whole else {}
    seal(directory, manifest(model=model | reading, layers=[*range(len(layers))]))
    return open_atlas(directory)


def write(name: str, directory: Path, columns: dict[str, object], number: int | None = None) -> None:
    """Writes one table of an atlas."""
    write_table(directory / TABLES[name].path(number), columns, name=name, provenance=PROVENANCE)


def _places(places: Sequence[Place], spelled: list[list[int]]) -> dict[str, object]:
    following = [spelled[s][j + 1] if j + 1 < len(spelled[s]) else None for s, j in places]
    return {
        "sentence": [sentence for sentence, _ in places],
        "position": [position for _, position in places],
        "token": [spelled[sentence][position] for sentence, position in places],
        "next_token": following,
    }


def _groups(triggers: Sequence[Place], spelled: list[list[int]]) -> list[int]:
    prefixes = [tuple(spelled[sentence][: position + 1]) for sentence, position in triggers]
    return [prefixes.index(prefix) for prefix in prefixes]


def random_places(
    sentences: Sequence[Sequence[str]], count: int, *, random: np.random.Generator, distinct: bool = False
) -> list[Place]:
    """Prefixes drawn at random, every position of every sentence alike; `distinct`: each from another sentence."""
    lengths = np.array([len(words) for words in sentences])
    if distinct:
        chosen = random.choice(lengths.size, count, replace=False, p=lengths / lengths.sum())
    else:
        chosen = random.choice(lengths.size, count, p=lengths / lengths.sum())
    return [(int(sentence), int(random.integers(lengths[sentence]))) for sentence in chosen]
