"""Routing in a mixture of experts: the share of tokens per expert, what each fires on, and how alike its memories are.

Reads the tables of an atlas (definitions.md section 7.1): `routing` counts every mined prefix. What an expert fires on,
and the overlap of its memories, come from their best positive triggers.
"""

from dataclasses import dataclass

import altair as alt
import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, mean
from mnemoscope.foundation.memory_names import Numbering
from mnemoscope.show.figures.chart import STYLE, Data

LEAST = 5
"""Fewest triggers that end in a token shown."""
PAIRS = 2_000
"""Pairs of memories compared, of one expert and of two."""


@dataclass(frozen=True)
class LayerRouting:
    """One layer: its experts as rows, and overlaps. `evenness` is the entropy of the routed experts' shares of tokens
    over that of equal shares. `same` and `different` are the mean overlap (Jaccard) of the last tokens of two memories'
    triggers, of one routed expert and of two.
    """

    layer: int
    experts: list[Data]
    evenness: float | None
    same: Estimate
    different: Estimate


def routing(atlas: Atlas) -> list[LayerRouting]:
    """The routing of every mined layer with experts."""
    table = atlas.table("routing")
    return [_layer(atlas, layer, table.filter(pl.col("layer") == layer)) for layer in table["layer"].unique().sort()]


def _layer(atlas: Atlas, layer: int, rows: pl.DataFrame) -> LayerRouting:
    numbering = atlas.numbering(layer)
    routed = numbering.routed or 0
    triggers = atlas.best_triggers(layer, columns=["memory", "token"])
    total = int(atlas.table("activity", layer=layer, columns=["all_prefixes"])["all_prefixes"][0])
    fires_on = _fires_on(numbering, triggers)
    experts = [
        {
            "expert": row["expert"],
            "name": numbering.name_in(layer, row["expert"], 0).expert_text.removeprefix("."),
            "tokens": row["tokens"],
            "share": row["tokens"] / total if total else None,
            "weight": row["weight_sum"] / row["tokens"] if row["tokens"] else None,
            "first_share": row["first_choice"] / total if total and row["expert"] < routed else None,
            "fires_on": fires_on.get(row["expert"], []),
        }
        for row in rows.to_dicts()
    ]
    tokens = rows.filter(pl.col("expert") < routed)["tokens"].to_numpy().astype(float)
    same, different = _overlaps(numbering, triggers, seed=int(atlas.manifest.plan["seed"]), layer=layer)
    evenness = None
    if len(tokens) > 1 and tokens.sum():
        p = tokens[tokens > 0] / tokens.sum()
        evenness = float(-(p * np.log(p)).sum() / np.log(len(tokens)))
    return LayerRouting(layer, experts, evenness, same, different)


def _fires_on(numbering: Numbering, triggers: pl.DataFrame) -> dict[int, list[int]]:
    """For each expert, the tokens in which its triggers end more often than the layer's, by how much more."""
    triggers = triggers.with_columns(expert=pl.Series(numbering.experts(triggers["memory"].to_numpy())))
    counts = triggers.group_by("expert", "token").len()
    of_layer = counts.group_by("token").agg(layer=pl.col("len").sum())
    of_expert = counts.group_by("expert").agg(all=pl.col("len").sum())
    lifts = (
        counts.filter(pl.col("len") >= LEAST)
        .join(of_layer, on="token")
        .join(of_expert, on="expert")
        .with_columns(lift=pl.col("len") / pl.col("all") / (pl.col("layer") / max(1, triggers.height)))
        .filter(pl.col("lift") > 1)
        .sort(["expert", "lift", "len", "token"], descending=[False, True, True, False])
    )
    grouped = lifts.group_by("expert", maintain_order=True).agg(pl.col("token").head(6))
    return dict(grouped.iter_rows())


def _overlaps(numbering: Numbering, triggers: pl.DataFrame, *, seed: int, layer: int) -> tuple[Estimate, Estimate]:
    """The overlap of random pairs of firing memories of one routed expert, and of two (seeded)."""
    grouped = triggers.group_by("memory", maintain_order=True).agg("token")
    sets: dict[int, set[int]] = {memory: set(tokens) for memory, tokens in grouped.iter_rows()}
    numbers = np.array(sorted(sets), np.int64)
    experts = numbering.experts(numbers) if len(numbers) else numbers
    routed = experts < (numbering.routed or 0)
    numbers, experts = numbers[routed], experts[routed]

    if len(numbers) < 2:
        return mean([]), mean([])
    drawn = np.random.default_rng((seed, 6, layer)).integers(len(numbers), size=(20 * PAIRS, 2))
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    alike = experts[drawn[:, 0]] == experts[drawn[:, 1]]

    def overlap(rows: np.ndarray) -> Estimate:
        pairs = numbers[drawn[rows][:PAIRS]].tolist()
        return mean([len(sets[a] & sets[b]) / len(sets[a] | sets[b]) for a, b in pairs])

    return overlap(alike), overlap(~alike)


def routing_chart(layers: list[LayerRouting], *, about: str | None = None) -> Data:
    """Shares of tokens by layer and expert, over an even share, as Vega-Lite; `about`: with title and legend."""
    legend = None
    if about is not None:
        legend = alt.Legend(
            title="x even",
            titleFontWeight="normal",
            titleColor="currentColor",
            labelColor="currentColor",
            values=[0.25, 0.5, 1, 2, 4],
        )
    rows: list[Data] = []
    for layer in layers:
        routed = [row for row in layer.experts if row["first_share"] is not None]
        even = sum(row["tokens"] for row in routed) / max(1, len(routed))
        rows += [
            {
                "layer": layer.layer,
                "expert": row["name"],
                "order": row["expert"],
                "share": row["share"],
                "against": max(2.0**-10, row["tokens"] / even),
            }
            for row in routed
            if even
        ]
    names = list(dict.fromkeys(row["expert"] for row in sorted(rows, key=lambda row: row["order"])))
    drawn = (
        alt.Chart(alt.NamedData(name="routing"))
        .mark_rect()
        .encode(
            x=alt.X("expert:N", sort=names, title="expert", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("layer:O", title="layer", sort="descending"),
            color=alt.Color(
                "against:Q",
                legend=legend,
                scale=alt.Scale(type="log", base=2, scheme="blueorange", domain=[0.25, 1, 4], clamp=True),
            ),
        )
        .properties(width=max(120, min(900, 26 * len(names))), height=max(60, 22 * len(layers)), name="routing")
    )
    if about is not None:
        drawn = drawn.properties(title=alt.TitleParams("Tokens of every routed expert", subtitle=about))
    return {**drawn.to_dict(), "config": STYLE, "datasets": {"routing": rows}}
