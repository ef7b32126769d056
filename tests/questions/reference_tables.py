"""An atlas's rows as the reference questions take them: as they were mined, or computed anew by the slow model.

`patterns` are drawn at random here: the questions are to be right about any patterns, and what finds them has tests of
its own.
"""

import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import median

import polars as pl
from torch import Tensor

from mining.reference_passes import Text, check_predictions, check_removals, probability, ranks, tie, tops
from mining.slow_model import Slow
from mnemoscope.atlas import open_atlas
from mnemoscope.atlas.store import write_table
from mnemoscope.patterns.word_lists import STOP_WORDS
from questions.reference_memories import Row, Tables


def write_random_patterns(path: Path, *, seed: int = 0) -> None:
    """Writes `patterns` for about two memories in three: 1 to 3 each, of random triggers and kinds."""
    atlas, chance = open_atlas(path), random.Random(seed)
    columns: dict[str, list[object]] = {name: [] for name in ("layer", "memory", "pattern", "kind", "triggers")}
    for layer in atlas.layers:
        rows = atlas.table("triggers", layer=layer).filter((pl.col("sign") == 1) & (pl.col("rank") < 25))
        for memory in rows["memory"].unique().sort().to_list():
            mine = rows.filter(pl.col("memory") == memory)["rank"].to_list()
            for pattern in range(chance.choice([0, 1, 2, 3]) if len(mine) >= 3 else 0):
                found = sorted(chance.sample(mine, chance.randint(3, len(mine))))
                kind = chance.choice(["shallow", "shallow", "semantic"])
                for name, value in zip(columns, (layer, memory, pattern, kind, found), strict=True):
                    columns[name].append(value)
    count = len(columns["layer"])
    columns |= {"description": ["drawn"] * count, "lift": [2.0] * count, "log10_p": [-5.0] * count}
    write_table(path / "patterns.parquet", columns, name="patterns", provenance=atlas.manifest.provenance)


def mined_tables(path: Path) -> Tables:
    """The rows as they are in the atlas."""
    atlas = open_atlas(path)
    manifest = atlas.manifest

    def by_layer(name: str) -> dict[int, list[Row]]:
        return {layer: atlas.table(name, layer=layer).rows(named=True) for layer in atlas.layers}

    excluded = dict(manifest["questions"]["removals_excluded"])
    if manifest["model"]["beginning"]["token"] is not None:
        assert excluded.pop("length_two") == 0
    return Tables(
        triggers=by_layer("triggers"),
        values=by_layer("values"),
        patterns=atlas.table("patterns").rows(named=True),
        removals=atlas.table("removals").rows(named=True),
        prefixes=atlas.table("prefixes").rows(named=True),
        predictions=atlas.table("predictions").rows(named=True),
        next_counts=atlas.table("tokens")["next_count"].to_list(),
        texts=atlas.table("vocabulary")["text"].to_list(),
        stop_words=STOP_WORDS,
        model_layers=int(manifest["model"]["sizes"]["layers"]),
        excluded=excluded,
    )


def slow_values(slow: Slow, layer: int, triggers: list[Row], mined: list[Row], *, scale: float) -> list[Row]:
    """The columns of `values` that questions ask for, one value at a time; raises AssertionError where mined differ.

    `scale` is what the norms between these values and the head divide by.

    As in `reference_passes`: where rounding allows several tokens or ranks, the mined one is taken.
    """
    rows = []
    for memory, found in enumerate(mined):
        what = f"L{layer}.M{memory}"
        vector = slow.values(layer)[memory]
        scores = slow.value_scores(layer, vector)
        highest = float(scores.max())
        normaliser = highest + math.log(sum(math.exp(score - highest) for score in scores.tolist()))
        allowed = tops(scores)
        assert found["top_tokens"][0] in allowed, what
        row: Row = {
            "memory": memory,
            "top_tokens": [found["top_tokens"][0] if len(allowed) > 1 else allowed.pop()],
            "max_probability": math.exp(highest - normaliser),
            "value_norm": math.sqrt(sum(x * x for x in vector.tolist())),
            "target": None,
            "target_rank": None,
            "trigger_log_probability": None,
            "working_probability": None,
        }
        if fired := [t["coefficient"] for t in triggers if t["memory"] == memory and t["sign"] == 1]:
            at_work = slow.value_scores(layer, vector * (median(fired) / scale))
            row["working_probability"] = probability(at_work, int(at_work.argmax()))
        mine = [t for t in triggers if t["memory"] == memory and t["sign"] == 1 and t["next_token"] is not None]
        if mine:
            best = max(t["coefficient"] for t in mine)
            tied = [t for t in mine if best - t["coefficient"] < tie(best)]
            row["target"] = min(tied, key=lambda t: (t["sentence"], t["rank"]))["next_token"]
            own = ranks(scores, row["target"])
            assert found["target_rank"] in own, what
            row["target_rank"] = found["target_rank"] if len(own) > 1 else own[0]
            log_p = [float(scores[t["next_token"]]) - normaliser for t in mine]
            row["trigger_log_probability"] = sum(log_p) / len(log_p)
        row |= slow_literal(slow.bare(vector), [t for t in triggers if (t["memory"], t["sign"]) == (memory, 1)], found)
        for name, value in row.items():
            if isinstance(value, float):
                assert abs(found[name] - value) <= tie(value), f"{what}: {name} is {found[name]}, reference {value}"
            elif name != "top_tokens":
                assert found[name] == value, f"{what}: {name} is {found[name]}, reference {value}"
        rows.append(row)
    return rows


def slow_literal(scores: Tensor, triggers: list[Row], found: Row) -> Row:
    """The columns of one value by the paper's own formula (definitions.md 4b)."""
    allowed, first = tops(scores), [t["next_token"] for t in triggers if t["rank"] == 0]
    row: Row = {"literal_top": found["literal_top"] if found["literal_top"] in allowed else min(allowed)}
    row["literal_max_probability"] = probability(scores, int(scores.argmax()))
    row["literal_target"] = first[0] if first else None
    row["literal_target_rank"] = None
    if row["literal_target"] is not None:
        among = ranks(scores, row["literal_target"])
        row["literal_target_rank"] = found["literal_target_rank"] if found["literal_target_rank"] in among else among[0]
    return row


def literal_tables(tables: Tables) -> Tables:
    """The columns by the paper's own formulas under the names of ours, so that the same loops answer."""

    def renamed(row: Row, **others: str) -> Row:
        names = {name.removeprefix("literal_"): name for name in row if name.startswith("literal_")}
        return row | {name: row[one] for name, one in names.items()} | {name: row[one] for name, one in others.items()}

    values = {
        layer: [renamed(row) | {"top_tokens": [row["literal_top"]], "working_probability": None} for row in rows]
        for layer, rows in tables.values.items()
    }
    predictions = [renamed(row, votes_ffn="literal_votes") for row in tables.predictions]
    return replace(tables, values=values, predictions=predictions)


def slow_tables(
    path: Path, slow: Slow, *, text: Text, tokens: dict[int, list[int]], asked: int, removals: int | str, seed: int
) -> Tables:
    """The rows of the slow model; of the mined tables only triggers, counts of tokens, and what was drawn are kept."""
    tables = mined_tables(path)
    tables.prefixes, tables.predictions = check_predictions(path, slow, text, asked=asked, layers=tables.layers)
    tables.removals, _ = check_removals(path, slow, tokens, seed=seed, removals=removals, layers=tables.layers)
    for layer in tables.layers:
        asked_at = [text.tokens[row["sentence"]][: row["position"] + 1] for row in tables.prefixes]
        scale = median(slow.scale(layer, prefix) for prefix in asked_at)
        tables.values[layer] = slow_values(slow, layer, tables.triggers[layer], tables.values[layer], scale=scale)
    return tables
