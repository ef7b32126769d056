"""What the paper states in words about the numbers of a figure: thin grey lines and bands, at the same relative depth.

Only numbers of its text are drawn (definitions.md section 5); a height that could only be read off its figures is not.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.chart import Data, Drawing, chart, layer_axis

PAPER_LAYERS = 16
DOTS = [2, 2]
PAPER = "paper"  # in the name of the data of what is stated


@dataclass(frozen=True)
class Stated:
    """`heights` are a line or the ends of a band in the paper's layers `first` to `last`, counted from 1. Without
    heights, an upright line at that part of the paper's depth, `at`. `says` stands in the legend.
    """

    says: str
    heights: tuple[float, ...] = ()
    first: int = 1
    last: int = PAPER_LAYERS
    at: float = 0.0

    def rows(self, answer: Answer) -> list[Data]:
        """A row per mined layer in which it is drawn. The paper's layer 11 begins where upper layers do."""
        label = f"the paper: {self.says}"
        if not self.heights:
            layer = int(self.at * answer.depth)
            return [{"layer": layer, "stated": label}] if layer in answer.layers else []
        ends = {"from": min(self.heights), "to": max(self.heights)}
        return [
            {"layer": layer, "stated": label, **ends}
            for layer in answer.layers
            if self.first <= PAPER_LAYERS * layer // answer.depth + 1 <= self.last
        ]


def stated_rows(stated: Sequence[Stated], answer: Answer, name: str) -> dict[str, list[Data]]:
    """The data of what can be drawn, by name."""
    return {f"{name}_{PAPER}_{place}": rows for place, one in enumerate(stated) if (rows := one.rows(answer))}


def is_stated(part: Any) -> bool:
    """Whether a part of a specification is one of the marks."""
    return isinstance(part, dict) and f"_{PAPER}_" in str(part.get("data", ""))


def stated_marks(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    answer: Answer,
    stated: Sequence[Stated],
    vertical: Callable[[str], alt.Y],
    padding: float = 0.0,
) -> list[Drawing]:
    """The marks of `stated_rows`, with a legend of their own below the panel."""
    first_rows = {name: drawn[0] for name, drawn in rows.items()}
    labels = [row["stated"] for row in first_rows.values()]
    legend: Data = {"orient": "bottom", "title": None, "columns": 1, "labelLimit": 0, "offset": 4}
    dotted = json.dumps([row["stated"] for row in first_rows.values() if "from" not in row])
    dash = {"expr": f"indexof({dotted}, datum.value) < 0 ? [] : {DOTS}"}
    legend |= {"symbolType": "stroke", "symbolStrokeColor": "currentColor", "symbolStrokeWidth": 1, "symbolDash": dash}
    scale = {"type": "ordinal", "domain": labels, "range": [0.6] * len(labels)}
    ink = alt.Opacity("stated:N", scale=scale, legend=legend, sort=labels)
    marks = []
    for name, row in first_rows.items():
        one, place = stated[int(name.rpartition("_")[2])], chart(name)
        if not one.heights:
            at = layer_axis(padding=padding, band=one.at * answer.depth - row["layer"])
            marks.append(place.mark_rule(strokeDash=DOTS, color="currentColor").encode(x=at, opacity=ink))
            continue
        across = {"x": layer_axis(padding=padding, band=0), "x2": alt.X2("layer", bandPosition=1)}
        if len(one.heights) > 1:
            area = place.mark_rect(color="currentColor", opacity=0.07).encode(**across)
            marks.append(area.encode(y=vertical("from"), y2=alt.Y2("to:Q")))
        for end in ("from", "to")[: len(one.heights)]:
            marks.append(place.mark_rule(color="currentColor").encode(y=vertical(end), opacity=ink, **across))
    return marks
