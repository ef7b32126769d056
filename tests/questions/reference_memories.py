"""The questions about keys and values answered with loops over rows; shares no code with the package.

From definitions.md section 4. Every function returns `{(layer or None, name): (value, count)}`, for the names that the
definitions and the paper's claims ask for. The questions about layers are in `reference_layers.py`; no intervals here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Key = tuple[int | None, str]
Found = dict[Key, tuple[float | None, int]]


@dataclass
class Tables:
    """The rows of an atlas; what is by layer is a mapping from the mined layers."""

    triggers: dict[int, list[Row]]
    values: dict[int, list[Row]]
    patterns: list[Row]
    removals: list[Row]
    prefixes: list[Row]
    predictions: list[Row]
    next_counts: list[int]
    texts: list[str]
    stop_words: frozenset[str]
    model_layers: int
    excluded: dict[str, int]
    """Triggers that no token is removed from, by name."""

    @property
    def layers(self) -> list[int]:
        return sorted(self.triggers)

    def upper(self, layer: int) -> bool:
        return layer >= math.ceil(10 * self.model_layers / 16)

    def of(self, layer: int | None, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if layer is None or row["layer"] == layer]


def share(hits: Sequence[bool]) -> tuple[float | None, int]:
    return (sum(hits) / len(hits) if hits else None, len(hits))


def mean(numbers: Sequence[float]) -> tuple[float | None, int]:
    return (math.fsum(numbers) / len(numbers) if numbers else None, len(numbers))


def between(numbers: Sequence[float], level: float) -> tuple[float | None, int]:
    """The quantile that lies linearly between two of the sorted numbers."""
    if not numbers:
        return None, 0
    ordered = sorted(numbers)
    place = level * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low]), len(ordered)


def one_of(numbers: Sequence[float], level: float) -> tuple[float | None, int]:
    """The least number with at least this share of all at or below it."""
    for number in sorted(numbers):
        if sum(other <= number for other in numbers) >= level * len(numbers) - 1e-9:
            return number, len(numbers)
    return None, 0


def prefix_kinds(tables: Tables, layer: int, memory: int) -> dict[int, str]:
    """Of each different prefix among the top 25 triggers (named by its first rank): which patterns explain it."""
    kinds: dict[int, set[str]] = {}
    for trigger in tables.triggers[layer]:
        if trigger["memory"] == memory and trigger["sign"] == 1 and trigger["rank"] < 25:
            found = kinds.setdefault(trigger["prefix_group"], set())
            for pattern in tables.patterns:
                mine = (pattern["layer"], pattern["memory"]) == (layer, memory)
                if mine and trigger["rank"] in pattern["triggers"]:
                    found.add(pattern["kind"])
    names = {(): "none", ("shallow",): "shallow_only", ("semantic",): "semantic_only", ("semantic", "shallow"): "both"}
    return {group: names[tuple(sorted(found))] for group, found in kinds.items()}


def key_patterns(tables: Tables) -> Found:
    out: Found = {}
    leads: dict[int, float] = {}
    everything: list[str] = []
    all_patterns: list[int] = []
    for layer in [*tables.layers, None]:
        if layer is not None:
            memories = sorted({t["memory"] for t in tables.triggers[layer] if t["sign"] == 1})
            kinds = [kind for memory in memories for kind in prefix_kinds(tables, layer, memory).values()]
            here = tables.of(layer, tables.patterns)
            patterns = [sum(pattern["memory"] == memory for pattern in here) for memory in memories]
            everything += kinds
            all_patterns += patterns
        else:
            kinds, patterns = everything, all_patterns
        for name in ("shallow_only", "semantic_only", "both", "none"):
            out[layer, name] = share([kind == name for kind in kinds])
        out[layer, "covered"] = share([kind != "none" for kind in kinds])
        out[layer, "shallow"] = share([kind in ("shallow_only", "both") for kind in kinds])
        out[layer, "semantic"] = share([kind in ("semantic_only", "both") for kind in kinds])
        out[layer, "keys_with_pattern"] = share([count > 0 for count in patterns])
        out[layer, "patterns_per_key"] = mean(patterns)
        if layer is not None and kinds:
            leads[layer] = (out[layer, "shallow"][0] or 0) - (out[layer, "semantic"][0] or 0)
    out[None, "shallow_leads_lower"] = share([lead > 0 for layer, lead in leads.items() if not tables.upper(layer)])
    out[None, "semantic_leads_upper"] = share([lead < 0 for layer, lead in leads.items() if tables.upper(layer)])
    return out


def key_removals(tables: Tables) -> Found:
    changes: list[tuple[int, str, str, float]] = []
    known: dict[tuple[int, int], dict[int, str]] = {}
    for row in tables.removals:
        place = row["layer"], row["memory"]
        if place not in known:
            known[place] = prefix_kinds(tables, *place)
        kind = known[place].get(row["trigger_rank"], "beyond the top 25").removesuffix("_only")
        change = (row["removed_coefficient"] - row["coefficient"]) / row["coefficient"]
        changes.append((row["layer"], row["removed"], kind, change))
    out: Found = {}
    for layer in [*tables.layers, None]:
        for removed in ("first", "last", "random"):
            here = [c for c in changes if layer in (None, c[0]) and c[1] == removed]
            for statistic, level in (("median", 0.5), ("q25", 0.25), ("q75", 0.75)):
                out[layer, f"{removed}_{statistic}"] = between([c[3] for c in here], level)
                for kind in ("shallow", "semantic", "both", "none"):
                    own = [c[3] for c in here if c[2] == kind]
                    out[layer, f"{removed}_{statistic}_{kind}"] = between(own, level)
    for name, count in tables.excluded.items():
        out[None, f"excluded_{name}"] = float(count), count
    return out


def value_agreement(tables: Tables) -> Found:
    out: Found = {}
    frequent = tables.next_counts.index(max(tables.next_counts))
    total = sum(tables.next_counts)

    def asked(rows: list[tuple[int, Row]], layer: int | None) -> None:
        with_target = [row for _, row in rows if row["target"] is not None]
        count = len(with_target)
        out[layer, "agreement"] = share([row["top_tokens"][0] == row["target"] for row in with_target])
        tops, targets = ([row["top_tokens"][0] for row in with_target], [row["target"] for row in with_target])
        dealt = sum(tops.count(t) / count * targets.count(t) / count for t in set(tops)) if count else None
        out[layer, "shuffled_targets"] = dealt, count
        out[layer, "most_frequent_token"] = share([row["target"] == frequent for row in with_target])
        out[layer, "chance"] = 1 / len(tables.texts), count
        out[layer, "without_target"] = share([row["target"] is None for _, row in rows])
        gains = []
        for own, row in rows:
            if row["trigger_log_probability"] is not None:
                following = [
                    t["next_token"]
                    for t in tables.triggers[own]
                    if t["memory"] == row["memory"] and t["sign"] == 1 and t["next_token"] is not None
                ]
                unigram = [math.log(tables.next_counts[token] / total) for token in following]
                gains.append(row["trigger_log_probability"] - sum(unigram) / len(unigram))
        out[layer, "log_probability_gain"] = mean(gains)

    everything = [(layer, row) for layer in tables.layers for row in tables.values[layer]]
    for layer in [*tables.layers, None]:
        asked([(own, row) for own, row in everything if layer in (None, own)], layer)
    for name, wanted in (("agreement_lower", False), ("agreement_upper", True)):
        rows = [row for own, row in everything if tables.upper(own) == wanted and row["target"] is not None]
        out[None, name] = share([row["top_tokens"][0] == row["target"] for row in rows])
    defined = [out[layer, "agreement"] for layer in tables.layers if out[layer, "agreement"][0] is not None]
    out[None, "agreement_best_layer"] = max(defined, key=lambda found: found[0] or 0) if defined else (None, 0)
    return out


def value_rank(tables: Tables) -> Found:
    out: Found = {}
    for layer in [*tables.layers, None]:
        rows = [row for own in tables.layers if layer in (None, own) for row in tables.values[own]]
        ranks = [row["target_rank"] for row in rows if row["target"] is not None]
        for per_cent in (0, 5, 25, 50, 75, 95, 100):
            out[layer, f"q{per_cent:02d}"] = one_of(ranks, per_cent / 100)
        out[layer, "within_10"] = share([rank < 10 for rank in ranks])
        out[layer, "within_100"] = share([rank < 100 for rank in ranks])
    return out


def value_confidence(tables: Tables) -> Found:
    out: Found = {}
    for layer, rows in tables.values.items():
        out[layer, "max_probability"] = mean([row["max_probability"] for row in rows])
        out[layer, "max_probability_best"] = max(row["max_probability"] for row in rows), len(rows)
        out[layer, "value_norm"] = mean([row["value_norm"] for row in rows])
    out |= _by_confidence(tables, "max_probability", "")
    places = [(row["max_probability"], layer, row) for layer in tables.layers for row in tables.values[layer]]
    best = sorted(places, key=lambda place: (-place[0], place[1], place[2]["memory"]))[:100]
    out[None, "top100_value_norm"] = mean([row["value_norm"] for _, _, row in best])
    out[None, "all_value_norm"] = mean([row["value_norm"] for _, _, row in places])
    if all(row["working_probability"] is None for _, _, row in places):
        return out
    for layer in [*tables.layers, None]:
        own = [row["working_probability"] for _, at, row in places if layer in (None, at)]
        known = [p for p in own if p is not None]
        out[layer, "working_confident"] = share([p is not None and p >= 0.1 for p in own])
        if layer is not None:
            out[layer, "working_probability"] = mean(known)
            out[layer, "working_probability_best"] = (max(known), len(known)) if known else (None, 0)
    return out | _by_confidence(tables, "working_probability", "working_")


def _by_confidence(tables: Tables, column: str, prefix: str) -> Found:
    """Deciles and the hundred most confident values by a column, of those that have a number there."""
    out: Found = {}
    places = [
        (row[column], layer, row) for layer in tables.layers for row in tables.values[layer] if row[column] is not None
    ]
    rising = sorted(places, key=lambda place: (place[0], place[1], place[2]["memory"]))
    rising = [place for place in rising if place[2]["target"] is not None]
    for decile in range(10):
        part = [p[2] for i, p in enumerate(rising) if decile * len(rising) <= 10 * i < (decile + 1) * len(rising)]
        out[None, f"{prefix}decile_{decile}"] = share([row["top_tokens"][0] == row["target"] for row in part])
    best = sorted(places, key=lambda place: (-place[0], place[1], place[2]["memory"]))[:100]
    out[None, f"{prefix}top100_upper_layers"] = share([tables.upper(layer) for _, layer, _ in best])
    shares = []
    for _, layer, row in best:
        mine = [t for t in tables.triggers[layer] if t["memory"] == row["memory"] and t["sign"] == 1 and t["rank"] < 50]
        shares.append([t["next_token"] == row["top_tokens"][0] for t in mine])
    out[None, f"{prefix}top100_with_trigger"] = share([any(hits) for hits in shares])
    out[None, f"{prefix}top100_trigger_share"] = mean([sum(hits) / len(hits) for hits in shares if hits])
    targets = [row for _, _, row in best if row["target"] is not None]
    out[None, f"{prefix}top100_agreement"] = share([row["top_tokens"][0] == row["target"] for row in targets])
    return out
