"""A random atlas with common and rare words, large enough for ranks to differ."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnemoscope.atlas.features import AT_WORK, FEATURE_COLUMNS
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_sentences, write_table
from support.handbuilt_atlas import PROVENANCE, activity_columns, manifest

LAYERS, MEMORIES, TRIGGERS, SENTENCES, LENGTH = 3, 12, 10, 150, 40
WORDS = [
    *(" the", " of", "it", " Paris", "ary", " paris", "Paris", " Parisian", " café", " Москва", " os", ".path", "."),
    *(" (", " x1", "ing", " Rome", " Roman", " river", " cat", " walk", " NEAR", " AND", "\n", " ,", " über"),
    *(" Straße", " a", " b", " c_d"),
]
WORDS += [f" word{index}" for index in range(40)]
RAW = [word.encode() for word in WORDS]


def write(directory: Path, name: str, columns: dict[str, Any], number: int | None = None) -> None:
    write_table(directory / TABLES[name].path(number), columns, name=name, provenance=PROVENANCE)


def sealed(directory: Path, memories: int, layers: int, vocabulary: int) -> Path:
    sizes = {"layers": layers, "hidden": 8, "memories": [memories] * layers, "vocabulary": vocabulary, "context": 64}
    model = {"spec": "random", "revision": None, "fingerprint": PROVENANCE.model, "sizes": sizes}
    seal(directory, manifest(model=model, layers=list(range(layers))))
    return directory


def value_columns(draw: np.random.Generator, memories: int, vocabulary: int) -> dict[str, Any]:
    tokens = np.array([draw.permutation(vocabulary) for _ in range(memories)])
    scores = -np.sort(-draw.random((memories, 20), dtype=np.float32))
    largest = draw.random(memories, dtype=np.float32) / 20
    none, ones = [None] * memories, np.ones(memories, np.float32)
    formula = [f"literal_{name}" for name in ("top", "max_probability", "target", "target_rank")]
    unknown = ("up_norm", "target", "target_rank", "trigger_log_probability", *AT_WORK, *FEATURE_COLUMNS, *formula)
    return {
        **{"memory": range(memories), "max_probability": largest},
        **{"top_tokens": tokens[:, :20].astype(np.int32), "top_scores": scores},
        **{"bottom_tokens": tokens[:, 20:40].astype(np.int32), "bottom_scores": scores[::-1].copy()},
        **dict.fromkeys(("key_norm", "value_norm", "entropy"), ones),
        **dict.fromkeys(unknown, none),
    }


def build_random_atlas(directory: Path, seed: int = 0, raw: Sequence[bytes] = RAW) -> Path:
    """`raw` are the bytes of the tokens, the commonest first."""
    draw, words = np.random.default_rng(seed), [token.decode("utf-8", "replace") for token in raw]
    likely = 1 / (np.arange(len(words)) + 2.0)
    sentences = draw.choice(len(words), (SENTENCES, LENGTH), p=likely / likely.sum()).astype(np.int32)
    write(directory, "vocabulary", {"token": range(len(words)), "text": words, "bytes": raw})
    counts = np.bincount(sentences.reshape(-1), minlength=len(words))
    counted = dict.fromkeys(("count", "next_count", "first_count"), counts)
    write(directory, "tokens", {"token": range(len(words)), **counted})
    texts = [b"".join(raw[token] for token in row).decode("utf-8", "replace").strip() for row in sentences.tolist()]
    ids = np.arange(SENTENCES) * 3  # ids have gaps
    alike = {"multiplicity": np.ones(SENTENCES, np.int32), "held_out": np.zeros(SENTENCES, bool)}
    rows = {"sentence": ids, "document": ids, "text": texts, "tokens": sentences, **alike}
    write_sentences(directory, [rows], provenance=PROVENANCE)
    write(directory, "background", {"sentence": [0], "position": [0], "token": [0], "next_token": [0]})
    for layer in range(LAYERS):
        listed = [
            (memory, sign, rank)
            for memory in range(MEMORIES - 1)  # the last memory never fires
            for sign in (1, -1)
            for rank in range(1 + (memory * 7 + layer) % TRIGGERS)
        ]
        memory, sign, rank = np.array(listed).T
        place, position = draw.integers(0, SENTENCES, len(listed)), draw.integers(0, LENGTH - 1, len(listed))
        group = np.where(rank % 4 == 3, rank - 1, rank)  # every fourth repeats the prefix before it
        repeats = np.flatnonzero(group != rank)
        place[repeats], position[repeats] = place[repeats - 1], position[repeats - 1]
        columns = {"memory": memory, "sign": sign, "rank": rank, "prefix_group": group, "position": position}
        columns |= {"sentence": ids[place], "coefficient": sign * (20.0 - rank).astype(np.float32)}
        columns |= {"token": sentences[place, position], "next_token": sentences[place, position + 1]}
        write(directory, "triggers", columns, layer)
        four = {name: np.asarray(column) for name, column in activity_columns().items()}
        active = {name: np.resize(column, (MEMORIES, *column.shape[1:])) for name, column in four.items()}
        write(directory, "activity", active | {"memory": range(MEMORIES)}, layer)
        write(directory, "values", value_columns(draw, MEMORIES, len(words)), layer)
        write(directory, "neighbours", {name: [] for name in TABLES["neighbours"].columns.names}, layer)
    return sealed(directory, MEMORIES, LAYERS, len(words))


@pytest.fixture(scope="session")
def random_atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_atlas(tmp_path_factory.mktemp("random"))
