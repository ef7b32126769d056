"""The result of a comparison: frames, JSON, chart, and its place in an atlas, where page and report show it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import record_hashes, recorded_hashes, write_beside
from mnemoscope.atlas.manifest import COMPARISONS
from mnemoscope.errors import OptionError
from mnemoscope.foundation.files import file_hash, read_object, write_json
from mnemoscope.foundation.formatting import Form, format_value, json_safe

HEADINGS = {
    "layer": "layer", "memories": "memories", "jaccard": "Jaccard", "control_jaccard": "control",
    "rate_change": "rate change", "born": "born", "died": "died", "repurposed": "repurposed",
    "value_cosine": "value cosine", "key_cosine": "key cosine", "excess": "excess", "universal": "universal",
}  # fmt: skip
"""The columns of a layer's row that tables show."""
_COUNTS = ("layer", "memories", "born", "died", "repurposed")
_SERIES = {"jaccard": "same memory", "control_jaccard": "permuted"}


@dataclass(frozen=True, repr=False)
class Comparison:
    """The neighbouring `pairs` of the atlases compared, in the order given; each has `first` and `second` (names of
    folders), the frames `layers` and `changed`, a `note` on what else the plans differ in, and, with `samples` in both,
    the frame `matches`.
    """

    pairs: Sequence[Mapping[str, Any]]
    made_by: Mapping[str, Any]
    atlas: Atlas

    @property
    def layers(self) -> pl.DataFrame:
        return self._frame("layers")

    @property
    def changed(self) -> pl.DataFrame:
        return self._frame("changed")

    def _frame(self, name: Literal["layers", "changed"]) -> pl.DataFrame:
        """The rows of all pairs, of more than one with `first` and `second`."""
        names = ("first", "second") if self.pairs[1:] else ()
        frames: list[pl.DataFrame] = [
            pair[name].with_columns(pl.lit(pair[key]).alias(key) for key in names) for pair in self.pairs
        ]
        return pl.concat(frames, how="diagonal_relaxed")

    def to_dict(self) -> dict[str, Any]:
        pairs = [
            {name: part.to_dicts() if isinstance(part, pl.DataFrame) else part for name, part in pair.items()}
            for pair in self.pairs
        ]
        document: dict[str, Any] = pairs[0] if len(pairs) == 1 else {"pairs": pairs}
        return {**json_safe(document), "made_by": dict(self.made_by)}

    def chart(self) -> Any:
        """Jaccard by layer beside the permuted control, with a panel for each pair."""
        return draw(self.to_dict())

    def __repr__(self) -> str:
        names = [self.pairs[0]["first"], *(pair["second"] for pair in self.pairs)]
        return f"<Comparison of {', '.join(names)}: {self.changed.height} features changed>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.layers._repr_html_()}"

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the JSON to `path`; by default into the first atlas, as `comparisons/NAMES.json`, where the page and
        the report show it. Raises AtlasBusy, StoreFailed, OptionError where the names of the others are no file's name.
        """
        name = "-".join(pair["second"] for pair in self.pairs)
        place = Path(path) if path is not None else self.atlas.path / COMPARISONS / f"{name}.json"
        if path is not None:
            write_json(place, self.to_dict())
            return place
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", name):
            raise OptionError(f"{name!r} is no name for a file in the atlas; rename the folder, or save to a path")
        with write_beside(self.atlas):
            write_json(place, self.to_dict())
            record_hashes(self.atlas, COMPARISONS, [f"{COMPARISONS}/{name}.json"])
        return place


def saved_comparisons(atlas: Atlas) -> list[dict[str, Any]]:
    """The documents that `save` put into the atlas and nobody changed since."""
    listed = {atlas.path / path: entry for path, entry in recorded_hashes(atlas, COMPARISONS).items()}
    return [read_object(path) for path, own in listed.items() if path.is_file() and file_hash(path) == own["sha256"]]


def layer_table(layers: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and texts of a table of layers, without columns that hold no number."""
    shown = [name for name in HEADINGS if any(row.get(name) is not None for row in layers)]
    forms: dict[str, Form] = {name: "count" if name in _COUNTS else "number" for name in shown}
    texts = [[format_value(row.get(name), form) for name, form in forms.items()] for row in layers]
    return [HEADINGS[name] for name in shown], texts


def draw(document: Mapping[str, Any]) -> Any:
    """The chart of a document of `to_dict`; a facet of charts for more than one pair."""
    import altair as alt

    pairs = document.get("pairs", [document])
    titles = [f"{pair['first']} to {pair['second']}" for pair in pairs]
    rows = [
        {"pair": title, "layer": row["layer"], "series": series, "value": row[name]}
        for title, pair in zip(titles, pairs, strict=True)
        for row in pair["layers"]
        for name, series in _SERIES.items()
        if row.get(name) is not None
    ]
    styles: dict[str, Any] = {"title": None, "sort": list(_SERIES.values())}
    chart = alt.Chart(alt.InlineData(values=rows)).mark_line(point=True).encode(
        x=alt.X("layer:O", title="layer (counted from 0)", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
        y=alt.Y("value:Q", title="Jaccard of triggers", scale=alt.Scale(domain=[0, 1])),
        color=alt.Color("series:N", **styles), strokeDash=alt.StrokeDash("series:N", **styles),
        tooltip=["layer:O", "series:N", alt.Tooltip("value:Q", format=".3f")],
    ).properties(width=220, height=150)  # fmt: skip
    return chart if len(pairs) == 1 else chart.facet(alt.Facet("pair:N", title=None, sort=titles), columns=3)
