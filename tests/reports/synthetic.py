"""Answers made up for an atlas, in the contract's form: smooth curves over the layers, every name that a question has.

They test how a report shows answers, not how answers are found.
"""

import math
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.analyses import QUESTIONS
from mnemoscope.atlas.side import cover
from mnemoscope.atlas.store import write_json

Rows = list[dict[str, Any]]

PREFIXES = "over documents (bootstrap, 2000 draws, seed 0)"
MEMORIES = "over memories (Wilson)"


def curves(depth: int) -> dict[str, dict[str, Any]]:
    """For every question a function of the layer's place (0 first, 1 last) by name; the totals are at 1/2."""
    shallow = {
        "shallow_only": lambda x: 0.6 - 0.45 * x,
        "semantic_only": lambda x: 0.05 + 0.4 * x,
        "both": lambda x: 0.1,
        "none": lambda x: 0.25 + 0.05 * x,
        "covered": lambda x: 0.75 - 0.05 * x,
        "shallow": lambda x: 0.7 - 0.45 * x,
        "semantic": lambda x: 0.15 + 0.4 * x,
        "keys_with_pattern": lambda x: 0.97,
        "patterns_per_key": lambda x: 3.2 + x,
    }
    base = {"first": (-0.1, 0.05), "last": (-0.8, 0.4), "random": (-0.25, 0.1)}
    removals: dict[str, Any] = {}
    for removed, (start, slope) in base.items():
        for statistic, shift in (("median", 0.0), ("q25", -0.1), ("q75", 0.1)):
            for kind in ("", "_shallow", "_semantic", "_both", "_none"):
                twist = 0.05 * ("", "_shallow", "_semantic", "_both", "_none").index(kind)
                removals[f"{removed}_{statistic}{kind}"] = lambda x, a=start, b=slope, c=shift + twist: a + b * x + c
    ranks = {"q00": 0, "q05": 3, "q25": 200, "q50": 900, "q75": 2500, "q95": 6000, "q100": 8191}
    return {
        "key_patterns": shallow,
        "key_removals": removals,
        "value_agreement": {
            "agreement": lambda x: 0.002 + 0.03 * x * x,
            "shuffled_targets": lambda x: 0.001,
            "most_frequent_token": lambda x: 0.004,
            "chance": lambda x: 1 / 8192,
            "log_probability_gain": lambda x: -0.4 + 0.9 * x,
            "without_target": lambda x: 0.02,
        },
        "value_rank": {
            **{name: (lambda x, r=rank: math.floor(r * (1 - 0.5 * x))) for name, rank in ranks.items()},
            "within_10": lambda x: 0.05 + 0.1 * x,
            "within_100": lambda x: 0.15 + 0.2 * x,
        },
        "value_confidence": {
            "max_probability": lambda x: 0.0003 * (1 + 3 * x),
            "max_probability_best": lambda x: 0.001 * (1 + 100 * x),
            "value_norm": lambda x: 1 + x,
        },
        "layer_activity": {
            "active": lambda x: 0.35 - 0.6 * x + 0.5 * x * x,
            "effective": lambda x: 150 - 80 * x,
            "effective_share": lambda x: 0.15 - 0.08 * x,
            "dominated": lambda x: 0.01 + 0.02 * x,
        },
        "layer_composition": {
            "zero_agreement": lambda x: 0.9 - 0.15 * x,
            "zero_agreement_major": lambda x: 0.95 - 0.15 * x,
            "zero_agreement_output": lambda x: 0.85 - 0.15 * x,
            "agreeing_stop_word": lambda x: 0.6,
            "agreeing_stop_word_top": lambda x: 0.62,
            "agreeing_short": lambda x: 0.43,
        },
        "refinement_match": {"match": lambda x: 0.1 + 0.6 * x * x},
        "refinement_confidence": {
            "probability": lambda x: 0.05 + 0.5 * x * x,
            "probability_matching": lambda x: 0.4 + 0.3 * x,
            "probability_q25": lambda x: 0.01 + 0.3 * x * x,
            "probability_q50": lambda x: 0.04 + 0.45 * x * x,
            "probability_q75": lambda x: 0.08 + 0.7 * x * x,
        },
        "refinement_events": {
            "residual": lambda x: 0.7,
            "agreement": lambda x: 0.05 + 0.05 * x,
            "composition": lambda x: 0.2 - 0.05 * x,
            "ffn": lambda x: 0.05,
            "changed": lambda x: 0.25 - 0.05 * x,
            "composition_of_changed": lambda x: 0.8 - 0.05 * x,
            "composition_from_top10": lambda x: 0.7,
            "composition_demoted": lambda x: 0.2,
        },
    }


TOTALS: dict[str, dict[str, float]] = {
    "key_patterns": {"shallow_leads_lower": 1.0, "semantic_leads_upper": 0.67},
    "key_removals": {"excluded_length_one": 37},
    "value_agreement": {"agreement_lower": 0.004, "agreement_upper": 0.02, "agreement_best_layer": 1},
    "value_confidence": {
        "top100_upper_layers": 90,
        "top100_with_trigger": 52,
        "top100_trigger_share": 0.3,
        "top100_agreement": 0.25,
        "top100_value_norm": 2.5,
        "all_value_norm": 1.2,
    },
    "layer_activity": {"active_least_layer": 1, "correlation_semantic": -0.4, "correlation_shallow": 0.5},
    "layer_composition": {"zero_agreement_least_layer": 0.75, "all_stop_word": 0.3, "all_short": 0.25},
    "refinement_match": {"match_lower_third": 0.3, "match_last": 0.7},
}
_UNBOUNDED = ("count", "layer", "excluded", "top100", "norm", "correlation")


def row(layer: int | None, name: str, value: float | None, count: int = 1000, **own: Any) -> dict[str, Any]:
    """One row, with an interval around what is a share."""
    bare = value is None or any(word in name for word in _UNBOUNDED) or name.startswith("q")
    spread = 0.0 if value is None else 0.02 * abs(value) + 0.001
    return {
        "layer": layer,
        "name": name,
        "value": value,
        "count": count,
        "low": None if bare or value is None else (value - spread if value < 0 else max(0.0, value - spread)),
        "high": None if bare or value is None else value + spread,
        **own,
    }


def rows_of(question: str, layers: list[int]) -> Rows:
    """All rows of a question's answer."""
    found: Rows = []
    for name, curve in curves(len(layers))[question].items():
        found += [row(layer, name, float(curve(index / max(1, len(layers) - 1)))) for index, layer in enumerate(layers)]
        found.append(row(None, name, float(curve(0.5)), 1000 * len(layers)))
    if question == "value_confidence":
        for decile in range(10):
            own = {
                "decile": decile,
                "lowest": 0.0002 * (decile + 1),
                "highest": 0.0002 * (decile + 2),
                "value_norm": 1.0,
            }
            found.append(row(None, f"decile_{decile}", 0.002 * (decile + 1), 800, **own))
    named = {one["name"] for one in found if one["layer"] is None}
    found += [
        row(None, name, value, 100 if name.startswith("top100") else 1000)
        for name, value in TOTALS.get(question, {}).items()
        if name not in named
    ]
    return found


NO_CASES = pl.DataFrame(
    schema={
        **dict.fromkeys(("prefix", "layer", "residual_top", "ffn_top", "output_top", "next_token"), pl.Int32),
        **dict.fromkeys(("residual_text", "ffn_text", "output_text", "next_text", "prefix_text"), pl.String),
    }
)


def write_answers(
    directory: Path, layers: list[int], *, without: tuple[str, ...] = (), cases: pl.DataFrame = NO_CASES
) -> None:
    """Writes the answers of every question but `without` into the atlas, as the analyses write them."""
    paths = []
    for question in QUESTIONS:
        if question in without:
            continue
        rows = rows_of(question, layers)
        own = sorted({key for one in rows for key in one} - {"layer", "name", "value", "count", "low", "high"})
        types = {"layer": pl.Int16, "name": pl.String, "value": pl.Float64, "count": pl.Int64}
        types |= {"low": pl.Float64, "high": pl.Float64} | dict.fromkeys(own, pl.Float64)
        frame = pl.DataFrame([{name: one.get(name) for name in types} for one in rows], schema=types)
        stem = f"analyses/{question}"
        sink = directory / f"{stem}.parquet"
        sink.parent.mkdir(exist_ok=True)
        frame.write_parquet(sink)
        keys = ("name", "value", "count", "low", "high")
        document = {
            "question": question,
            "projections": {"values": "gain"},
            "interval": MEMORIES if question.startswith(("key", "value")) else PREFIXES,
            "layers": [
                {"layer": one["layer"], **{key: one[key] for key in keys}} for one in rows if one["layer"] is not None
            ],
            "totals": [{key: one[key] for key in keys} for one in rows if one["layer"] is None],
        }
        write_json(directory / f"{stem}.json", document)
        paths += [f"{stem}.parquet", f"{stem}.json"]
        if question == "refinement_events":
            cases.write_parquet(directory / f"{stem}.cases.parquet")
            paths.append(f"{stem}.cases.parquet")
    cover(directory, "analyses", paths)
