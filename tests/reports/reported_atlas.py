"""A small atlas that answers every question, with text that would run if a page let it. Not a test itself.

Two layers of twelve memories, eight prefixes. At layer 0 half of the prefixes match the final token, at layer 1 all do;
memory 0 of a layer says token 6, which follows all six of its triggers.
"""

from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas
from support.handbuilt_answers import RULERS, WORDS, build_answers
from support.handbuilt_atlas import PROVENANCE

MEMORIES, PREFIXES = 12, 8
HOSTILE = {
    3: "<script>window.ran=3</script>",
    6: "</script><script>window.ran=6</script>",
    7: "]]><img src=x onerror='window.ran=7'>",
    9: "{{ 7 * 191 }}<!--",
}
"""Tokens as a corpus may hold them."""
SPEC = "<img src=x onerror=window.ran=1>"
SIZES = {"layers": 2, "hidden": 8, "vocabulary": 20}
MODEL = {
    "spec": SPEC,
    "revision": None,
    "fingerprint": PROVENANCE.model,
    "family": "tiny",
    "sizes": {**SIZES, "memories": [MEMORIES] * 2, "parameters": 1000, "ffn_parameters": 640},
}


def reported(directory: Path, **changes: Any) -> Atlas:
    """A sealed atlas without answers, opened; `changes` go to `build_answers`."""
    memories = range(MEMORIES)
    says = [(6 if memory % 3 == 0 else 8, 6, memory, 0.1 + memory / 20, 1.0 + memory, -1.0) for memory in memories]
    rows = [(0, 6), (0, 6), (0, 6), (0, 6), (0, 6), (0, 6)] + [(memory, 6) for memory in memories if memory]
    removals = [
        (layer, 0, rank, removed, 2.0, 2.0 * left)
        for layer in range(2)
        for rank in range(4)
        for removed, left in (("first", 0.95), ("last", 0.25), ("random", 0.75))
    ]
    predictions = {
        (prefix, layer): {
            **{"ffn_top": 8, "ffn_vote_top": 8, "effective": 2.0, "top_share": 0.25, "votes_ffn": prefix % 2},
            "residual_top": 7 if layer or prefix % 2 else 5,
            "output_top": 7 if layer and prefix % 4 else 9,
            **{"residual_final_probability": 0.25 + layer / 2, "active": 3 + layer},
        }
        for prefix in range(PREFIXES)
        for layer in range(2)
    }
    plan = {"model": "m", "corpus": "c", "seed": 7, "triggers": 50, "torch": "2.13.0", "dtype": "float32"}
    whole: dict[str, Any] = {
        "memories": MEMORIES,
        "triggers": {0: rows, 1: rows},
        "values": {0: says, 1: says},
        "next_counts": {6: 5, 7: 2},
        "removals": removals,
        "roles": {layer: [(memory % 2, 7) for memory in memories] for layer in (0, 1)},
        "width": range(PREFIXES),
        "lenses": RULERS,
        "memorised": [(number % 2 == 1, 32 - number % 4, [number]) for number in range(PREFIXES)],
        "importance": {layer: [(1 + memory, 2, 3, 4) for memory in memories] for layer in (0, 1)},
        "prefixes": [(document, 1, 6, 7) for document in range(PREFIXES)],
        "predictions": predictions,
        "patterns": [(0, 0, "shallow", [0, 1, 2]), (1, 0, "semantic", [1, 2, 3])],
        "words": WORDS | HOSTILE,
        "model": MODEL,
        "plan": plan,
        "projections": {"streams": "lens", "values": "gain", "votes": "gain"},
    }
    return build_answers(directory, **(whole | changes))
