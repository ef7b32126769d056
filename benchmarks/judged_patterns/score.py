"""How many of the judged patterns the finder finds, and how many it finds where there are none.

    python benchmarks/judged_patterns/score.py ATLAS JUDGED.jsonl

The atlas is the one that was judged (runs/real-models.sh; its triggers do not depend on the questions' options). The
finder runs on the judged memories. A judged pattern counts as found where a pattern of its kind has at least half of
its triggers. What the finder has beyond these is no false alarm: the judges named at most six patterns.

Controls: 300 made-up memories in each of six layers, each of whose triggers is one of another memory of the layer, of
the same rank. Whatever is found there is false.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.patterns import PatternFinder

TOGETHER, LAYERS = 300, 6
"""So many memories of a layer are looked at, since the finder compares with the layer; and layers of the controls."""


class ChosenTriggers:
    """An atlas whose layers have the triggers of `chosen`, by layer."""

    def __init__(self, atlas: Atlas, chosen: dict[int, pl.DataFrame]) -> None:
        self._atlas, self._chosen = atlas, chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._atlas, name)

    def best_triggers(self, layer: int) -> pl.DataFrame:
        return self._chosen[layer]


def shuffled(triggers: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
    """Made-up memories: within each rank, the rows are dealt to other memories."""
    dealt = [
        rows.with_columns(memory=rows["memory"].gather(rng.permutation(rows.height)))
        for rows in triggers.partition_by("rank")
    ]
    return some(pl.concat(dealt).sort("memory", "rank"), ())


def some(triggers: pl.DataFrame, memories: Sequence[int]) -> pl.DataFrame:
    """The triggers of these memories and of the first others."""
    others = triggers["memory"].unique(maintain_order=True).head(TOGETHER).to_list()
    return triggers.filter(pl.col("memory").is_in([*memories, *others]))


def find(finder: PatternFinder, chosen: dict[int, pl.DataFrame]) -> dict[tuple[int, int], list[tuple[str, set[int]]]]:
    """The kind and triggers of the patterns of each memory of `chosen`."""
    finder.atlas = ChosenTriggers(finder.atlas, chosen)  # type: ignore[assignment]
    found: dict[tuple[int, int], list[tuple[str, set[int]]]] = {}
    for layer in chosen:
        for one in finder.of_layer(layer):
            found.setdefault((layer, one.memory), []).append((one.kind, set(one.triggers)))
    return found


def main() -> None:
    """Prints one line for each kind and part."""
    atlas = open_atlas(sys.argv[1])
    judged = [json.loads(line) for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()]
    ids = {item["item"]: atlas[item["memory"]].id for item in judged if "memory" in item}
    wanted = {
        layer: [one.memory for one in ids.values() if one.layer == layer]
        for layer in sorted({one.layer for one in ids.values()})
    }
    chosen = {layer: some(atlas.best_triggers(layer), own) for layer, own in wanted.items()}
    patterns = find(PatternFinder(atlas), chosen)
    for use in ("work", "held_out"):
        own = [item for item in judged if item["use"] == use]
        for kind in ("shallow", "semantic"):
            found = every = 0
            for item in own:
                one = ids[item["item"]]
                sets = [triggers for name, triggers in patterns.get((one.layer, one.memory), []) if name == kind]
                for asked in (set(judged["ranks"]) for judged in item["patterns"] if judged["kind"] == kind):
                    every += 1
                    found += any(2 * len(asked & triggers) >= len(asked) for triggers in sets)
            print(f"{use}: {kind}: {found} of {every} judged patterns of {len(own)} keys")
    rng = np.random.default_rng(0)
    layers = [atlas.layers[round(k)] for k in np.linspace(0, len(atlas.layers) - 1, LAYERS)]
    controls = find(PatternFinder(atlas), {layer: shuffled(atlas.best_triggers(layer), rng) for layer in layers})
    for kind in ("shallow", "semantic"):
        false = sum(name == kind for own in controls.values() for name, _ in own)
        print(f"controls: {kind}: {false / (TOGETHER * len(layers)):.4f} patterns a made-up memory")


if __name__ == "__main__":
    main()
