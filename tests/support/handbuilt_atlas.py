"""A small atlas written through the store by hand, every number of which can be read off this page.

Four sentences over 24 tokens, two layers of four memories: L0.M0 has triggers of both signs and a prefix group,
L0.M1 one trigger at a sentence's end, L0.M3 never fires. Not a test itself.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import SCHEMA_VERSION, TABLES, Provenance
from mnemoscope.atlas.store import write_sentences, write_table
from mnemoscope.foundation.files import write_json
from mnemoscope.foundation.options.mining_options import RULES

PROVENANCE = Provenance(model="a" * 64, corpus="b" * 64, plan="c" * 64)
WORDS = [
    "<|end|>",
    "The",
    " capital",
    " of",
    " France",
    " is",
    " Paris",
    ".",
    " Rome",
    "\n",
    "é",
    " [b]x[/b]",
    " Italy",
]
WORDS += [f" w{index}" for index in range(len(WORDS), 24)]
SENTENCES = [
    [1, 2, 3, 4, 5, 6, 7],  # The capital of France is Paris.
    [1, 2, 3, 12, 5, 8, 7],  # The capital of Italy is Rome.
    [1, 9, 10, 11],  # The\né [b]x[/b]
    [6],  #  Paris
]
EMPTY_HISTOGRAM = [0] * 36


def words(tokens: list[int]) -> str:
    """The sentence that the tokens spell."""
    return "".join(WORDS[token] for token in tokens)


def trigger_rows() -> dict[int, list[tuple[Any, ...]]]:
    """Per layer: (memory, sign, rank, coefficient, sentence, position, prefix_group)."""
    return {
        0: [
            (0, 1, 0, 3.0, 0, 4, 0),  # The capital of France is -> Paris
            (0, 1, 1, 2.0, 0, 0, 1),  # The -> capital
            (0, 1, 2, 2.0, 1, 0, 1),  # The -> capital: the same prefix as rank 1
            (0, 1, 3, 1.5, 2, 2, 3),  # The \n é -> [b]x[/b]
            (0, -1, 0, -0.5, 1, 3, 0),  # The capital of Italy -> is
            (1, 1, 0, 1.0, 3, 0, 0),  # Paris, a sentence's end
            (2, 1, 0, 0.25, 1, 6, 0),  # the whole second sentence
        ],
        1: [(0, 1, 0, 4.0, 1, 4, 0)],
    }


def write_tables(directory: Path, *, provenance: Provenance = PROVENANCE, part: bool = False) -> None:
    """Every mined table, unsealed; in a part only what the pass over the text makes."""

    def write(name: str, columns: dict[str, Any], number: int | None = None) -> None:
        write_table(directory / TABLES[name].path(number), columns, name=name, provenance=provenance)

    write("vocabulary", {"token": range(24), "text": WORDS, "bytes": [word.encode() for word in WORDS]})
    counts = np.bincount(np.concatenate(SENTENCES), minlength=24)
    nexts = np.bincount(np.concatenate([s[1:] for s in SENTENCES]).astype(int), minlength=24)
    firsts = np.bincount([s[0] for s in SENTENCES], minlength=24)
    write("tokens", {"token": range(24), "count": counts, "next_count": nexts, "first_count": firsts})
    write_sentences(directory, [sentence_columns(SENTENCES)], provenance=provenance)
    write("background", {"sentence": [0, 3], "position": [2, 0], "token": [3, 6], "next_token": [4, None]})
    for layer, rows in trigger_rows().items():
        write("triggers", trigger_columns(rows), layer)
        write("activity", activity_columns(), layer)
        if not part:
            write("values", value_columns(), layer)
            write("neighbours", neighbour_columns(layer), layer)


def sentence_columns(sentences: list[list[int]]) -> dict[str, Any]:
    """The columns of the sentences table."""
    count = len(sentences)
    return {
        "sentence": range(count),
        "document": [index // 2 for index in range(count)],
        "text": [words(tokens).strip() for tokens in sentences],
        "tokens": sentences,
        "multiplicity": [1] * count,
        "held_out": [False] * count,
    }


def trigger_columns(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """The columns of one layer's triggers; the tokens follow from sentence and position."""
    names = ("memory", "sign", "rank", "coefficient", "sentence", "position", "prefix_group")
    columns: dict[str, Any] = {name: [row[index] for row in rows] for index, name in enumerate(names)}
    places = list(zip(columns["sentence"], columns["position"], strict=True))
    columns["token"] = [SENTENCES[s][j] for s, j in places]
    columns["next_token"] = [SENTENCES[s][j + 1] if j + 1 < len(SENTENCES[s]) else None for s, j in places]
    return columns


def activity_columns(memories: int = 4) -> dict[str, Any]:
    """Nineteen prefixes; memory 0 fires eight times, memory 3 and all after it never."""
    more = memories - 4
    fired = [8, 1, 1, *[0] * (1 + more)]
    histograms = np.array([EMPTY_HISTOGRAM] * memories, dtype=np.int64)
    histograms[:, 18] = [11, 18, 18, *[19] * (1 + more)]  # 0 <= x < 2^-10
    histograms[:, 28] = fired  # 0.5 <= x < 1
    return {
        "memory": range(memories),
        "prefixes": [19] * memories,
        "positive": fired,
        "mean": [0.25, 0.05, 0.01, *[0.0] * (1 + more)],
        "min": [-0.5, *[0.0] * (3 + more)],
        "max": [3.0, 1.0, 0.25, *[0.0] * (1 + more)],
        "sampled": [19] * memories,
        "std": [0.5, 0.1, 0.05, *[0.0] * (1 + more)],
        "histogram": histograms,
    }


def value_columns() -> dict[str, Any]:
    """Memory 0 promotes Paris first (probability 0.5) and its target is Paris; memory 3 has no target."""
    order = [[6, 8, 4, *[t for t in range(23, -1, -1) if t not in (6, 8, 4)][:17]]] * 4
    lowest = [list(range(20))] * 4
    scores = np.tile(np.linspace(2.0, 0.1, 20, dtype=np.float32), (4, 1))
    columns = {"memory": range(4), "key_norm": [1.0, 1.0, 1.0, 0.5], "up_norm": [None] * 4, "clear_z": [4.0] * 4}
    columns |= {"top_tokens": order, "top_scores": scores, "bottom_tokens": lowest, "bottom_scores": -scores}
    columns |= {"value_norm": [2.0, 1.0, 1.0, 0.5], "max_probability": [0.5, 0.25, 0.25, 0.125]}
    columns |= {"entropy": [1.0, 2.0, 2.0, 3.0], "working_logit": [3.0, 2.0, 1.0, None]}
    columns |= {"working_probability": [0.25, 0.125, 0.0625, None]}
    columns |= {"top_z": [5.0, 3.0, 4.0, None], "bottom_z": [2.0, 4.5, 3.0, None]}
    first = {"target": 6, "target_rank": 0, "trigger_log_probability": -1.5}
    first |= {"literal_target": 6, "literal_target_rank": 0}
    columns |= {"literal_top": [6] * 4, "literal_max_probability": columns["max_probability"]}
    first |= {"working_logit_negative": 1.0, "working_probability_negative": 0.125}
    return columns | {name: [value, None, None, None] for name, value in first.items()}


def neighbour_columns(layer: int) -> dict[str, Any]:
    """Every memory's nearest values are the same memory of the other layer, then the next memory of its own."""
    memories = [memory for memory in range(4) for _ in range(2)]
    others = [other % 4 for memory in range(4) for other in (memory, memory + 1)]
    columns = {"memory": memories, "rank": [0, 1] * 4, "other_layer": [1 - layer, layer] * 4}
    return columns | {"other_memory": others, "cosine": [0.9, 0.5] * 4}


SIZES = {"layers": 2, "hidden": 8, "memories": [4, 4], "vocabulary": 24, "context": 16}
COUNTS = {"documents": 2, "sentences": 4, "duplicates": 0, "mined_sentences": 4, "mined_tokens": 19}
QUESTIONS = {"prefixes": 0, "prefixes_asked": 0, "removals_per_layer": 0}
MODEL = {"spec": "handbuilt", "hub": None, "revision": None, "fingerprint": PROVENANCE.model, "family": "tiny"}
MODEL |= {"block": "pre-norm", "activation": "relu", "gated": False, "head": "linear", "proof": {}}
MANIFEST: dict[str, Any] = {
    "model": {
        **MODEL,
        "beginning": {"token": 0, "kind": "bos"},
        "reading": {"before": [0], "after": [], "first": 0, "predicts": "next", "mask": None},
        "sizes": {**SIZES, "parameters": 640, "ffn_parameters": 128},
    },
    "corpus": {
        **{"spec": "four sentences", "fingerprint": PROVENANCE.corpus, "held_out_share": 0.0},
        "counts": {**COUNTS, "held_out_sentences": 0},
        "overlap": {"sentences": 0, "of": 0, "share": 0.0},
    },
    **{"plan": {"rules": RULES, "seed": 0, "triggers": 50}, "plan_hash": PROVENANCE.plan, "layers": [0, 1]},
    "projections": {"values": "gain", "votes": "gain", "streams": "lens"},
    **{"out_of_memory_batches": [], "schema": SCHEMA_VERSION, "package": "0.1", "files": {}},
    "questions": {**QUESTIONS, "removals_excluded": {"length_one": 0, "length_two": 0}},
}


def manifest(**changes: Any) -> dict[str, Any]:
    """What the miner would say about this atlas, before it is sealed; `changes` of an object are of its entries."""
    return _merged(MANIFEST, changes)


def _merged(whole: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        name: _merged(whole[name], change) if isinstance(whole.get(name), dict) and isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return {**whole, **inner}


def seal_as_is(directory: Path, document: Any) -> None:
    """Seals any JSON that Python can write as the manifest, as a stranger would."""
    data = json.dumps(document).encode()
    (directory / "manifest.json").write_bytes(data)
    (directory / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest() + "\n")


def build_atlas(directory: Path, *, part: tuple[int, int] | None = None, **changes: Any) -> Path:
    """A sealed atlas (or part I of N) in `directory`."""
    write_tables(directory, part=part is not None)
    if part is not None:
        changes["part"] = {"index": part[0], "of": part[1]}
        (directory / "state").mkdir()
        (directory / "state" / "accumulators.npz").write_bytes(b"arrays")
    write_json(directory / "run.json", {"host": "nowhere", "seconds": 1.5})
    seal(directory, manifest(**changes))
    return directory
