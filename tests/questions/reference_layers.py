"""The questions about layers (Figures 7-11) answered with loops over rows, and the list of all ten.

As `reference_memories.py`, whose tables and shares it takes. Only the list of stop words is taken as given.
"""

import math
from collections.abc import Callable

from questions.reference_memories import (
    Found,
    Row,
    Tables,
    between,
    key_patterns,
    key_removals,
    mean,
    share,
    value_agreement,
    value_confidence,
    value_rank,
)


def layer_activity(tables: Tables) -> Found:
    out: Found = {}
    for layer in [*tables.layers, None]:
        rows = tables.of(layer, tables.predictions)
        sizes = [len(tables.values[row["layer"]]) for row in rows]
        out[layer, "active"] = mean([row["active"] / size for row, size in zip(rows, sizes, strict=True)])
        out[layer, "effective"] = mean([row["effective"] for row in rows])
        out[layer, "effective_share"] = mean([row["effective"] / size for row, size in zip(rows, sizes, strict=True)])
        out[layer, "dominated"] = share([row["top_share"] > 0.5 for row in rows])
    actives = [(out[layer, "active"], layer) for layer in tables.layers if out[layer, "active"][0] is not None]
    fewest = min(actives, key=lambda found: (found[0][0], found[1])) if actives else ((None, 0), None)
    out[None, "active_least_layer"] = fewest[0]
    patterns = key_patterns(tables)
    for kind in ("semantic", "shallow"):
        pairs = [(out[layer, "active"][0], patterns[layer, kind][0]) for layer in tables.layers]
        both = [(a, b) for a, b in pairs if a is not None and b is not None]
        out[None, f"correlation_{kind}"] = _pearson(both), len(both)
    return out


def _pearson(pairs: list[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    a, b = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    above = sum((x - a) * (y - b) for x, y in pairs)
    below = math.sqrt(sum((x - a) ** 2 for x, _ in pairs) * sum((y - b) ** 2 for _, y in pairs))
    return above / below if below > 1e-12 else None


def by_prefix(tables: Tables) -> list[Row]:
    """The rows of predictions with those of their prefixes."""
    return [{**row, **tables.prefixes[row["prefix"]]} for row in tables.predictions]


def layer_composition(tables: Tables) -> Found:
    out: Found = {}
    everything = by_prefix(tables)

    def stop(token: int) -> bool:
        return tables.texts[token].strip().lower() in tables.stop_words

    for layer in [*tables.layers, None]:
        rows = tables.of(layer, everything)
        agreeing = [row for row in rows if row["votes_ffn"] > 0]
        out[layer, "zero_agreement"] = share([row["votes_ffn"] == 0 for row in rows])
        out[layer, "zero_agreement_major"] = share([row["votes_ffn_major"] == 0 for row in rows])
        out[layer, "zero_agreement_output"] = share([row["votes_output"] == 0 for row in rows])
        out[layer, "agreeing_stop_word"] = share([stop(row["next_token"]) for row in agreeing])
        out[layer, "agreeing_stop_word_top"] = share([stop(row["ffn_vote_top"]) for row in agreeing])
        out[layer, "agreeing_short"] = share([row["position"] + 1 < 5 for row in agreeing])
    shares = [(out[layer, "zero_agreement"], layer) for layer in tables.layers]
    defined = [found for found in shares if found[0][0] is not None]
    least = min(defined, key=lambda found: (found[0][0], found[1]))[0] if defined else (None, 0)
    out[None, "zero_agreement_least_layer"] = least
    out[None, "all_stop_word"] = share([stop(row["next_token"]) for row in tables.prefixes])
    out[None, "all_short"] = share([row["position"] + 1 < 5 for row in tables.prefixes])
    return out


def refinement_match(tables: Tables) -> Found:
    out: Found = {}
    for layer in tables.layers:
        rows = tables.of(layer, by_prefix(tables))
        out[layer, "match"] = share([row["residual_top"] == row["final_top"] for row in rows])
    last, third = tables.model_layers - 1, math.ceil(tables.model_layers / 3) - 1
    out[None, "match_lower_third"] = out.get((third, "match"), (None, 0))
    out[None, "match_last"] = out.get((last, "match"), (None, 0))
    return out


def refinement_confidence(tables: Tables) -> Found:
    out: Found = {}
    for layer in tables.layers:
        rows = tables.of(layer, by_prefix(tables))
        out[layer, "probability"] = mean([row["residual_final_probability"] for row in rows])
        matching = [row for row in rows if row["residual_top"] == row["final_top"]]
        out[layer, "probability_matching"] = mean([row["residual_final_probability"] for row in matching])
        for per_cent in (25, 50, 75):
            found = between([row["residual_final_probability"] for row in rows], per_cent / 100)
            out[layer, f"probability_q{per_cent}"] = found
    return out


def refinement_events(tables: Tables) -> Found:
    out: Found = {}
    for layer in [*tables.layers, None]:
        rows = tables.of(layer, tables.predictions)
        events = [_event(row["residual_top"], row["ffn_top"], row["output_top"]) for row in rows]
        for name in ("residual", "agreement", "composition", "ffn"):
            out[layer, name] = share([event == name for event in events])
        out[layer, "changed"] = share([event in ("composition", "ffn") for event in events])
        changed = [event for event in events if event in ("composition", "ffn")]
        out[layer, "composition_of_changed"] = share([event == "composition" for event in changed])
        cases = [row for row, event in zip(rows, events, strict=True) if event == "composition"]
        out[layer, "composition_from_top10"] = share([row["output_top_residual_rank"] < 10 for row in cases])
        half = len(tables.texts) / 2
        out[layer, "composition_demoted"] = share([row["residual_top_ffn_rank"] >= half for row in cases])
    return out


def _event(r: int, u: int, o: int) -> str:
    if o == r:
        return "agreement" if u == r else "residual"
    return "ffn" if o == u else "composition"


QUESTIONS: dict[str, Callable[[Tables], Found]] = {
    function.__name__: function
    for function in (
        *(key_patterns, key_removals, value_agreement, value_rank, value_confidence),
        *(layer_activity, layer_composition, refinement_match, refinement_confidence, refinement_events),
    )
}
