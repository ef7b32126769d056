"""The answer of `attribute`: frames, JSON, text for a terminal, HTML for a notebook, and a chart. Computes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import polars as pl

from mnemoscope.attribution.explanation import Explanation, Spread, logits, memory_table, spread_text
from mnemoscope.foundation.formatting import Pale, Table, fit, page_html, show_token
from mnemoscope.tracing.records import Record, Token

PARTS = ("attention", "memories", "other")
FIRST_EDGES = 10
"""Edges that a terminal shows."""
_ENTRIES = (
    *("model", "prompt", "tokens", "own", "position", "target", "against", "target_text", "against_text", "shared"),
    *("mask", "longer", "difference", "difference_after_cap", "target_probability", "against_probability", "direct"),
    *("residual_error", "limit", "memories", "spearman", "curve", "kept", "frame", "heads", "edges", "made_by"),
)
"""The entries of the document, in order."""


@dataclass(frozen=True, slots=True)
class CurvePoint(Record):
    """F without the first `k` memories together; `controls` are lowest, median and highest F without as many controls,
    of which `controls_missing` could not be drawn.
    """

    k: int
    without: float
    controls: Spread
    controls_missing: int


Curve = tuple[CurvePoint, ...]


@dataclass(frozen=True, slots=True)
class Kept(Record):
    """F with a share of the memories outside the frame: those with the largest |attribution|, and random ones."""

    share: float
    only: float
    random: float


@dataclass(frozen=True, repr=False)
class Attribution(Explanation):
    """Which memories made a prompt prefer `target` to `against` (None: to the mean of all tokens), by `difference` = F.

    `layers` has the direct effects of attention, memories and other parts of each layer; with `embedding`, `biases` and
    `head` (what the function inside the head changes; 0 in most models) they add up to F but for `residual_error`,
    which is at most `limit`. `memories` lists memory, position, coefficient, direct, attribution, ablation, and with an
    atlas label, promotes and trigger. `heads` has layer, head and direct: of a layer whose heads cannot be told apart
    one row, with null for both.
    Positions count the `own` tokens of a chat (None: all) from 0; those of its template are below 0, or behind them.
    `tokens` are the texts of all that the model reads; the last is that of `position`, the first may be its beginning.
    Of a model that reads sentences whole `mask` is the number of the masked one, which is that of `position`.
    `edges` has, of two listed memories that were ablated, the change of the target's coefficient by the source (m_j
    less m_j without the source, through all paths), and its share of that coefficient: those first that move F most.
    `spearman_list` and `spearman_random` are of attribution with ablation. `frame` is the sum of `|attribution|`
    outside the prompt's own positions.
    """

    model: str
    prompt: str
    tokens: tuple[str, ...]
    position: int
    target: Token
    against: Token | None
    shared: int
    longer: tuple[str, ...]
    difference: float
    difference_after_cap: float
    target_probability: float
    against_probability: float | None
    embedding: float
    layers: Annotated[pl.DataFrame, "int layer float attention memories other"]
    biases: float
    head: float
    residual_error: float
    limit: float
    memories: Annotated[
        pl.DataFrame,
        "text memory token label? +trigger? texts +promotes int position"
        " float coefficient direct attribution ablation?",
    ]
    heads: Annotated[pl.DataFrame, "int layer head? float direct?"]
    spearman_list: float | None
    spearman_random: float | None
    curve: Curve
    kept: tuple[Kept, ...]
    frame: float | None
    edges: Annotated[pl.DataFrame, "text source target int source_position target_position float change share?"]
    made_by: dict[str, Any]
    own: int | None = None
    mask: int | None = None

    def to_dict(self) -> dict[str, Any]:
        entries, target, against = super().to_dict(), self.target, self.against
        layers = {name: self.layers[name].to_list() for name in PARTS}
        entries |= {
            "target": target.id,
            "against": against and against.id,
            "target_text": target.text,
            "against_text": against and against.text,
            "direct": {"embedding": self.embedding, **layers, "biases": self.biases, "head": self.head},
            "spearman": {"list": self.spearman_list, "random": self.spearman_random},
        }
        return {name: entries[name] for name in _ENTRIES}

    def parts(self) -> pl.DataFrame:
        """`part`, `layer` (null for embedding, biases and head) and `direct`: what adds up to F, in stream order."""
        rows: list[tuple[str, int | None, float]] = [("embedding", None, self.embedding)]
        rows += [(part, row["layer"], row[part]) for row in self.layers.to_dicts() for part in PARTS if row[part]]
        rows += [("biases", None, self.biases), *([("head", None, self.head)] if self.head else [])]
        return pl.DataFrame(rows, schema={"part": pl.String, "layer": pl.Int64, "direct": pl.Float64}, orient="row")

    def chart(self) -> Any:
        """The waterfall as an altair.Chart: what every part adds to F, from the embedding on."""
        import altair as alt

        rows = self.parts().with_row_index("place")
        ends = rows["direct"].cum_sum()
        rows = rows.with_columns(
            (ends - rows["direct"]).alias("from"),
            ends.alias("to"),
            pl.concat_str(pl.col("part"), pl.lit(" "), pl.col("layer").cast(pl.String).fill_null("")).alias("name"),
        )
        return (
            alt.Chart(rows, title=self.title())
            .mark_bar()
            .encode(
                x=alt.X("from:Q", title="logit difference"),
                x2="to",
                y=alt.Y("name:N", sort=alt.SortField("place"), title=None),
                color=alt.Color("part:N", title=None),
                tooltip=["name:N", "direct:Q"],
            )
        )

    def title(self) -> str:
        return self._title_of(fit(show_token(self.prompt), 60))

    def _title_of(self, prompt: str) -> str:
        other = "the mean token" if self.against is None else show_token(self.against.text)
        return f"{show_token(self.target.text)} over {other} {'after' if self.mask is None else 'in'} {prompt}"

    def __repr__(self) -> str:
        return f"<Attribution of {self.title()}: {self.difference:+.2f}; print it to read it>"

    def _repr_html_(self) -> str:
        return page_html("attribution_html", self.to_dict(), f"{self.model}: {self._title_of(show_token(self.prompt))}")

    def blocks(self) -> Sequence[str | Table]:
        sums = {name: float(self.layers[name].sum()) for name in PARTS}
        written = ", ".join(f"{name} {value:+.2f}" for name, value in sums.items() if abs(value) >= 0.005)
        head = [
            f"{self.model}: {self._title_of(show_token(self.prompt))}",
            f"F = {self.difference:+.3f} logits = embedding {self.embedding:+.2f}, {written}, biases {self.biases:+.2f}"
            f"{f', head {self.head:+.2f}' if self.head else ''}"
            f" (they add up to {self.residual_error:+.1e} of F; at most {self.limit:.1e})",
        ]
        if self.shared:
            head.append(f"Both answers begin alike: {self.shared} of their tokens were added to the prompt.")
        head += [f"Only the first token that parts of {show_token(text)} is asked about." for text in self.longer]
        if self.memories.is_empty():
            return [*head, "", "No memory outside the frame has an attribution."]
        columns = {"at": 18, ">activation": 11, ">direct": 7, ">attribution": 11, ">ablation": 8}
        kept = ", ".join(f"{one.share:.0%}: {one.only:+.2f} ({one.random:+.2f} of random ones)" for one in self.kept)
        return [
            *head,
            "",
            memory_table(self.memories, columns, self._cells, about="promotes" in self.memories.columns),
            "",
            f"Attribution and ablation rank alike by {logits(self.spearman_list)} over the list, by "
            f"{logits(self.spearman_random)} over random memories (Spearman).",
            f"{'Before' if self.mask is None else 'Around'} the prompt's own tokens: |attribution|"
            f" {self.frame or 0.0:.2f} in all, not listed.",
            "",
            *self._edge_blocks(),
            curve_table(self.curve, "F without controls"),
            "",
            *([f"F with only a share kept: {kept}"] if kept else []),
        ]

    def _edge_blocks(self) -> Sequence[str | Table]:
        """The first edges."""
        if self.edges.is_empty():
            return []
        shown = []
        for row in self.edges.head(FIRST_EDGES).to_dicts():
            ends = [f"{row[end]} at {row[f'{end}_position']}" for end in ("source", "target")]
            shown.append([*ends, f"{row['change']:+.3f}", "-" if row["share"] is None else f"{row['share']:.0%}"])
        columns = ("memory", "feeds", ">change", ">share")
        first = f"The first {len(shown)} of {self.edges.height:,} edges, by what they move of F, through all paths:"
        return [first, Table(columns, shown, (24, 24, 11, 6)), ""]

    def _cells(self, row: dict[str, Any]) -> list[str]:
        at, effects = f"{row['position']} {show_token(row['token'])}", ("direct", "attribution", "ablation")
        at = Pale(at) if is_template(row["position"], self.own, self.position - self.shared) else at
        return [at, f"{row['coefficient']:+.2f}", *(logits(row[name]) for name in effects)]


def is_template(position: int, own: int | None, last: int) -> bool:
    """Whether a position is a chat's template's; behind the `last` of the prompt are the answers' own tokens."""
    return own is not None and position <= last and not 0 <= position < own


def curve_table(curve: Curve, controls: str) -> Table:
    """The points of a curve, with a heading for the column of controls."""
    rows = [[f"{one.k:,}", f"{one.without:+.2f}", spread_text(one.controls)] for one in curve]
    return Table((">switched off together", ">F", controls), rows, (21, 8, 40))
