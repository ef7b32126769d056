"""The result of a comparison: frames, JSON, chart, and its place in an atlas, where page and report show it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import Changed, Layers, Pair, read_pairs, record_hashes, write_beside
from mnemoscope.atlas.manifest import COMPARISONS
from mnemoscope.foundation.files import read_object, write_json
from mnemoscope.foundation.formatting import format_value, json_safe
from mnemoscope.foundation.origin import Result

_SHOWN = (
    *("layer", "memories", "jaccard", "control_jaccard", "rate_change", "born", "died", "repurposed"),
    *("value_cosine", "key_cosine", "excess", "universal"),
)
"""The columns of a layer's row that tables show."""
_COUNTS = ("layer", "memories", "born", "died", "repurposed")


@dataclass(frozen=True, repr=False)
class AtlasComparison(Result):
    """The neighbouring `pairs` of the atlases compared, in the order given: each has `first` and `second` (names of
    folders), `layers`, `changed`, a `note` on what else the plans differ in, and, with `samples` in both, `matches`.
    The frames `layers` and `changed` hold the rows of all pairs; of more than one with `first` and `second`.
    """

    pairs: Sequence[Pair]
    layers: Layers
    changed: Changed
    made_by: Mapping[str, Any]
    atlas: str | os.PathLike[str]

    def to_dict(self) -> dict[str, Any]:
        pairs = [
            {name: part.to_dicts() if isinstance(part, pl.DataFrame) else part for name, part in pair.items()}
            for pair in self.pairs
        ]
        return {**json_safe({"pairs": pairs} if pairs[1:] else pairs[0]), "made_by": dict(self.made_by)}

    def chart(self) -> Any:
        """Jaccard by layer beside the permuted control, with a panel for each pair."""
        return draw(self.to_dict())

    def __repr__(self) -> str:
        names = [self.pairs[0]["first"], *(pair["second"] for pair in self.pairs)]
        return f"<AtlasComparison of {', '.join(names)}: {self.changed.height} features changed>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.layers._repr_html_()}"

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the document into the first atlas, as `comparisons/NAMES.json`, where the page and the report show it;
        or to `path`, which `open_result` reads again. Raises AtlasBusy, StoreFailed.
        """
        if path is not None:
            return super().save(path)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(pair["second"] for pair in self.pairs))[:80]
        place = f"{COMPARISONS}/{name}.json"
        atlas = open_atlas(self.atlas)
        with write_beside(atlas):
            write_json(atlas.local(place), self.to_dict())
            record_hashes(atlas, COMPARISONS, [place])
        return atlas.local(place)


def saved_comparisons(atlas: Atlas) -> list[dict[str, Any]]:
    """The documents that `save` put into the atlas and nobody changed since."""
    listed = atlas.made_later(COMPARISONS)
    whole = [atlas.local(path) for path in listed if atlas.read_listed(path, listed) is not None]
    for path in whole:
        read_pairs(path)
    return [read_object(path) for path in whole]


def layer_table(layers: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and texts of a table of layers, without columns that hold no number."""
    shown = [name for name in _SHOWN if any(row.get(name) is not None for row in layers)]
    return [name.replace("_", " ") for name in shown], [
        [format_value(row.get(name), "count" if name in _COUNTS else "number") for name in shown] for row in layers
    ]


def draw(document: Mapping[str, Any]) -> Any:
    """The chart of a document of `to_dict`; a facet of charts for more than one pair."""
    import altair as alt

    titles, rows = [], []
    for pair in document.get("pairs", [document]):
        titles.append(f"{pair['first']} to {pair['second']}")
        for name, series in {"jaccard": "same memory", "control_jaccard": "permuted"}.items():
            rows += [
                {"pair": titles[-1], "layer": row["layer"], "triggers of": series, "value": row[name]}
                for row in pair["layers"]
                if row.get(name) is not None
            ]
    chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("layer:O", title="layer (counted from 0)", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
            y=alt.Y("value:Q", title="Jaccard of triggers", scale=alt.Scale(domain=[0, 1])),
            color="triggers of:N",
            strokeDash="triggers of:N",
            tooltip=["layer:O", "triggers of:N", "value:Q"],
        )
        .properties(width=220, height=150)
    )
    return chart if len(titles) == 1 else chart.facet(alt.Facet("pair:N", title=None, sort=titles), columns=3)
