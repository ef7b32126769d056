"""The answer of `attribute`: frames, JSON, text for a terminal, HTML for a notebook, and a chart. Computes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.formatting import html_row, html_table, show_token
from mnemoscope.foundation.intervals import Floats
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.origin import Result
from mnemoscope.tracing.records import Record, Token, plain
from mnemoscope.tracing.rendering import WIDTH, Column, fit, table

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CurvePoint(Record):
    """F without the first `k` memories together; `controls` are lowest, median and highest F without as many controls,
    of which `controls_missing` could not be drawn.
    """

    k: int
    without: float
    controls: tuple[float, float, float]
    controls_missing: int


@dataclass(frozen=True, slots=True)
class Kept(Record):
    """F with a share of the memories outside the frame: those with the largest |attribution|, and random ones."""

    share: float
    only: float
    random: float


@dataclass(frozen=True, repr=False)
class Attribution(Result):
    """Which memories made a prompt prefer `target` to `against` (None: to the mean of all tokens), by `difference` = F.

    `layers` has the direct effects of attention, memories and other parts of each layer; with `embedding` and `biases`
    they add up to F but for `residual_error`, which is at most `limit`. `memories` lists memory, position, coefficient,
    direct, attribution, ablation, and with an atlas label, promotes and trigger. `heads` has layer, head and direct.
    `spearman_list` and `spearman_random` are of attribution with ablation. `frame` is the sum of `|attribution|`
    before the prompt's own positions.
    """

    model: str
    prompt: str
    position: int
    target: Token
    against: Token | None
    shared: int
    longer: tuple[str, ...]
    difference: float
    difference_after_cap: float
    embedding: float
    layers: pl.DataFrame
    biases: float
    residual_error: float
    limit: float
    memories: pl.DataFrame
    heads: pl.DataFrame
    spearman_list: float | None
    spearman_random: float | None
    curve: tuple[CurvePoint, ...]
    kept: tuple[Kept, ...]
    frame: float | None
    made_by: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The document of contract.md."""
        layers = {name: self.layers[name].to_list() for name in ("attention", "memories", "other")}
        return {
            "model": self.model,
            "prompt": self.prompt,
            "position": self.position,
            "target": self.target.id,
            "against": None if self.against is None else self.against.id,
            "target_text": self.target.text,
            "against_text": None if self.against is None else self.against.text,
            "shared": self.shared,
            "longer": list(self.longer),
            "difference": self.difference,
            "difference_after_cap": self.difference_after_cap,
            "direct": {"embedding": self.embedding, **layers, "biases": self.biases, "head": 0.0},
            "residual_error": self.residual_error,
            "limit": self.limit,
            "memories": self.memories.to_dicts(),
            "spearman": {"list": self.spearman_list, "random": self.spearman_random},
            "curve": plain(self.curve),
            "kept": plain(self.kept),
            "frame": self.frame,
            "heads": self.heads.to_dicts(),
            "made_by": self.made_by,
        }

    def parts(self) -> pl.DataFrame:
        """`part`, `layer` (null for embedding and biases) and `direct`: what adds up to F, in stream order."""
        rows: list[tuple[str, int | None, float]] = [("embedding", None, self.embedding)]
        for row in self.layers.to_dicts():
            rows += [(part, row["layer"], row[part]) for part in ("attention", "memories", "other") if row[part]]
        rows.append(("biases", None, self.biases))
        return pl.DataFrame(rows, schema={"part": pl.String, "layer": pl.Int64, "direct": pl.Float64}, orient="row")

    def chart(self) -> Any:
        """The waterfall as an altair.Chart: what every part adds to F, from the embedding on."""
        import altair as alt

        rows = self.parts().with_row_index("place")
        ends = rows["direct"].cum_sum()
        rows = rows.with_columns(
            (ends - rows["direct"]).alias("from"), ends.alias("to"),
            pl.concat_str(pl.col("part"), pl.lit(" "), pl.col("layer").cast(pl.String).fill_null("")).alias("name"),
        )  # fmt: skip
        return (
            alt.Chart(rows, title=self.title())
            .mark_bar()
            .encode(
                x=alt.X("from:Q", title="logit difference"), x2="to",
                y=alt.Y("name:N", sort=alt.SortField("place"), title=None),
                color=alt.Color("part:N", title=None), tooltip=["name:N", "direct:Q"],
            )
        )  # fmt: skip

    def title(self) -> str:
        """What was asked, in words."""
        return f"{show_token(self.target.text)} over {self._other()} after {fit(show_token(self.prompt), 60)}"

    def _other(self) -> str:
        return "the mean token" if self.against is None else show_token(self.against.text)

    def __repr__(self) -> str:
        return f"<Attribution of {self.title()}: {self.difference:+.2f}; print it to read it>"

    def __str__(self) -> str:
        return "\n".join(self.lines(_SHOWN))

    def lines(self, count: int) -> list[str]:
        """The answer as text of at most 118 columns, with so many memories."""
        sums = {name: float(self.layers[name].sum()) for name in ("attention", "memories", "other")}
        written = ", ".join(f"{name} {value:+.2f}" for name, value in sums.items() if abs(value) >= 0.005)
        lines = [
            fit(f"{self.model}: {self.title()}", WIDTH),
            f"F = {self.difference:+.3f} logits = embedding {self.embedding:+.2f}, {written}, biases {self.biases:+.2f}"
            f" (they add up to {self.residual_error:+.1e} of F; at most {self.limit:.1e})",
        ]
        if self.shared:
            lines.append(f"Both answers begin alike: {self.shared} of their tokens were added to the prompt.")
        lines += [f"Only the first token that parts of {show_token(text)} is asked about." for text in self.longer]
        if self.memories.is_empty():
            return [*lines, "", "No memory outside the frame has an attribution."]
        lines += ["", *self._memory_lines(count), ""]
        lines += [
            f"Attribution and ablation rank alike by {_number(self.spearman_list)} over the list, by "
            f"{_number(self.spearman_random)} over random memories (Spearman).",
            f"Before the prompt's own tokens: |attribution| {self.frame or 0.0:.2f} in all, not listed.",
            "",
        ]
        columns: list[Column] = [
            ("switched off together", "right", 21),
            ("F", "right", 8),
            ("F without controls", "left", 40),
        ]
        rows = [
            [f"{one.k:,}", f"{one.without:+.2f}", "{1:+.2f} ({0:+.2f} to {2:+.2f})".format(*one.controls)]
            for one in self.curve
        ]
        kept = ", ".join(f"{one.share:.0%}: {one.only:+.2f} ({one.random:+.2f} of random ones)" for one in self.kept)
        return [*lines, *table(columns, rows), "", *([fit(f"F with only a share kept: {kept}", WIDTH)] if kept else [])]

    def _memory_lines(self, count: int) -> list[str]:
        known = "promotes" in self.memories.columns
        columns: list[Column] = [
            ("memory", "left", 16), ("at", "left", 18), ("coefficient", "right", 11), ("direct", "right", 7),
            ("attribution", "right", 11), ("ablation", "right", 8), ("about", "left", 60),
        ]  # fmt: skip
        rows = [
            [
                row["memory"], f"{row['position']} {show_token(row['token'])}", f"{row['coefficient']:+.2f}",
                f"{row['direct']:+.3f}", f"{row['attribution']:+.3f}", _number(row["ablation"]),
                (row["label"] or " ".join(map(show_token, row["promotes"]))) if known else "",
            ]
            for row in self.memories.head(count).to_dicts()
        ]  # fmt: skip
        return table(columns if known else columns[:-1], rows if known else [row[:-1] for row in rows])

    def _repr_html_(self) -> str:
        head, adds = (escape(line) for line in self.lines(0)[:2])
        return f"<p>{head}<br>{adds}</p>{memories_html(self.memories)}"


Curve = tuple[CurvePoint, ...]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def memories_html(memories: pl.DataFrame) -> str:
    """The first memories of a list as an HTML table."""
    shown = [name for name in memories.columns if name not in ("trigger", "promotes")]
    first = memories.head(_SHOWN).to_dicts()
    rows = [html_row(row[shown[0]], [_cell(row[name]) for name in shown[1:]]) for row in first]
    return html_table([html_row(shown[0], shown[1:], tag="th"), *rows])


def _cell(value: Any) -> str:
    return f"{value:+.4f}" if isinstance(value, float) else "" if value is None else str(value)


def spread(values: Floats) -> tuple[float, float, float]:
    """Lowest, median and highest."""
    return float(values.min()), float(np.median(values)), float(values.max())


def about_memories(memories: pl.DataFrame, atlas: Atlas | None, tokens: Sequence[str]) -> pl.DataFrame:
    """The list with the `token` at each position, and, from an atlas, what is known of each memory and the sign of its
    coefficient: `label`, `promotes` (five tokens) and `trigger` (the best one's text).
    """
    memories = memories.with_columns(
        pl.Series("token", [tokens[position] for position in memories["position"]], dtype=pl.String)
    )
    if atlas is None:
        return memories.with_columns(pl.lit(None, pl.String).alias("label"))
    labels: dict[tuple[int, int, int], str] = {}
    if atlas.has("labels"):
        table = atlas.table("labels", columns=["layer", "memory", "sign", "label"])
        labels = {(layer, memory, sign): label for layer, memory, sign, label in table.iter_rows()}
    found: dict[tuple[str, int], tuple[str | None, list[str], str | None]] = {}
    signs = [1 if coefficient > 0 else -1 for coefficient in memories["coefficient"]]
    for name, sign in zip(memories["memory"], signs, strict=True):
        if (name, sign) not in found:
            found[name, sign] = _about(atlas, labels, MemoryId.parse(name), sign)
    about = [found[each] for each in zip(memories["memory"], signs, strict=True)]
    return memories.with_columns(
        pl.Series("label", [one[0] for one in about], dtype=pl.String),
        pl.Series("promotes", [one[1] for one in about], dtype=pl.List(pl.String)),
        pl.Series("trigger", [one[2] for one in about], dtype=pl.String),
    )


def with_labels(memories: pl.DataFrame, atlas: Atlas) -> pl.DataFrame:
    """The list with the `label` of each memory's positive feature; null in an atlas without labels."""
    labels: dict[str, str] = {}
    if atlas.has("labels"):
        each = atlas.table("labels").filter(pl.col("sign") == 1).select("layer", "memory", "label").rows()
        labels = {str(atlas.name(layer, memory)): label for layer, memory, label in each}
    found = [labels.get(name) for name in memories["memory"]]
    return memories.with_columns(pl.Series("label", found, dtype=pl.String))


def _about(
    atlas: Atlas, labels: Mapping[tuple[int, int, int], str], memory: MemoryId, sign: int
) -> tuple[str | None, list[str], str | None]:
    if memory.layer not in atlas.layers:
        return None, [], None
    known = atlas[memory]
    side = "top" if sign > 0 else "bottom"
    promotes = known.value()[f"{side}_texts"][0].to_list()[:5]
    best = known.triggers(sign=sign).head(1)
    label = labels.get((memory.layer, atlas.number(memory), sign))
    return label, promotes, best["text"][0] if best.height else None
