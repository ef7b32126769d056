"""The batches of SAEDashboard 0.8, from which Neuronpedia's own converter makes what Neuronpedia imports.

A layer has two sets: `neurons`, each memory where its coefficient is positive, and `neg-neurons`, each with the minus
feature, of the negated coefficient and value, since Neuronpedia shows positive activations only. What no table holds
(values, correlations, the histogram of logits) is left out or empty. docs/export.md has the fields.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.memory_document import ENDS, MemoryDocument, Row, documents_of
from mnemoscope.foundation.formatting import json_line
from mnemoscope.foundation.memory_names import HISTOGRAM_EDGES, ZERO_BIN
from mnemoscope.neuron_names import NEURONPEDIA

SETS = {1: "neurons", -1: "neg-neurons"}
BATCH, EXAMPLES = 128, 10
"""Memories of a file, as SAEDashboard has them; examples of a feature, as `token_activations` has them."""
_TABLES = ("triggers", "activity", "value", "token_activations")
_UNKNOWN: dict[str, Any] = {
    **{f"neuron_alignment_{name}": [] for name in ("indices", "values", "l1")},
    **{f"correlated_{of}_{name}": [] for of in ("neurons", "features") for name in ("indices", "l1", "pearson")},
    **{name: [] for name in ("logits_hist_data_bar_heights", "logits_hist_data_bar_values", "decoder_weights_dist")},
    "n_tokens_in_prompt": 0,
}
"""What no table tells; their converter wants each key."""


def batches(atlas: Atlas, layer: int, numbers: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """The files of some memories of a layer, by their paths: a batch a set. Raises AtlasUnfinished for a part."""
    atlas.paths("values", layer)
    mined, text, adapter = atlas.manifest.model, atlas.manifest.corpus, atlas.manifest.plan.get("adapter")
    model = (mined.spec if adapter else mined.hub or mined.spec).rpartition("/")[2].lower()
    common = {**_UNKNOWN, "n_prompts_total": text.counts["mined_sentences"], "dataset": text.spec}
    for number, first in enumerate(range(0, len(numbers), BATCH)):
        some = numbers[first : first + BATCH]
        documents = list(zip(some, documents_of(atlas, layer, some, _TABLES), strict=True))
        for sign, name in SETS.items():
            features = [
                {"feature_index": index, **feature_of(document, sign), **common}
                for index, document in documents
                if sign == 1 or any(row["sign"] == sign for row in document.rows("triggers") or ())
            ]
            if features:
                about = {"model_id": NEURONPEDIA.get(model, model), "layer": layer, "sae_set": name}
                batch = {**about, "sae_id_suffix": None, "features": features}
                yield f"{name}/layer-{layer:03}/batch-{number}.json", json_line(batch)


def feature_of(document: MemoryDocument, sign: int) -> Row:
    """The fields of a memory's feature of a sign that the atlas knows."""
    value, activity = document.row("value"), document.activity
    assert value is not None
    promoted, opposed = ENDS[::sign]
    # Each end has the scores of its own direction; only a linear head's are, negated, those of the other.
    known = len(value[f"{opposed}_scores"]) if document.atlas.manifest.model.head != "adaptive softmax" else 0
    histogram, peak = activity["histogram"][::sign], activity["max"] if sign == 1 else -activity["min"]
    fires = activity["share"] if sign == 1 else sum(activity["histogram"][:ZERO_BIN]) / max(activity["sampled"], 1)
    # The bin of the least coefficients counts zeros, too; the open one ends with the largest coefficient.
    bins = zip(pairwise([*HISTOGRAM_EDGES[ZERO_BIN:], peak]), histogram[ZERO_BIN + 1 :], strict=True)
    bars = [((low + high) / 2, count) for (low, high), count in bins if low < high]
    return {
        "pos_str": value[f"{promoted}_texts"],
        "pos_values": [_short(score) for score in value[f"{promoted}_scores"]],
        "neg_str": value[f"{opposed}_texts"][:known],
        "neg_values": [_short(-score) for score in value[f"{opposed}_scores"][:known]],
        "frac_nonzero": fires or 0.0,
        "freq_hist_data_bar_values": [_short(middle) for middle, _ in bars],
        "freq_hist_data_bar_heights": [count for _, count in bars],
        "activations": list(_examples(document, sign)),
    }


def _examples(document: MemoryDocument, sign: int) -> Iterator[Row]:
    """The best triggers with different prefixes: their sentences with a coefficient a token or, in an atlas without
    `token_activations`, their last tokens alone.
    """
    triggers = [row for row in document.rows("triggers") or () if row["sign"] == sign]
    first = [row for row in triggers if row["rank"] == row["prefix_group"]][:EXAMPLES]
    read = {row["rank"]: row for row in document.rows("token_activations") or () if row["sign"] == sign}
    for row in first:
        whole = read.get(row["rank"], {"texts": [row["trigger_text"]], "coefficients": [row["coefficient"]]})
        yield {
            "bin_min": -1,
            "bin_max": _short(sign * triggers[0]["coefficient"]),
            "bin_contains": -1,
            "tokens": whole["texts"],
            "values": [_short(sign * one) for one in whole["coefficients"]],
            "qualifying_token_index": row["position"] if row["rank"] in read else 0,
        }


def _short(number: float) -> float:
    return float(f"{number:.5g}")
