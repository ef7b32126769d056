"""The answer of `diff`: what every part's change is, and what setting memories back does. Computes nothing."""

from dataclasses import dataclass
from html import escape
from typing import Any

import polars as pl

from mnemoscope.attribution.attribution import memories_html
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.origin import Result
from mnemoscope.tracing.records import Record, Token, plain
from mnemoscope.tracing.rendering import WIDTH, Column, fit, table


@dataclass(frozen=True, slots=True)
class Patched(Record):
    """F of the second run with `k` memories set back to the first's: a number, "all" of the position, "everywhere".
    `recovered` is the share of the change that this undoes (None where the change is under 0.001), `top_token` what the
    second run then says; `controls` are lowest, median and highest F with as many controls set back.
    """

    k: int | str
    difference: float
    recovered: float | None
    top_token: Token
    controls: tuple[float, float, float] | None = None
    controls_missing: int | None = None


@dataclass(frozen=True, repr=False)
class RunDifference(Result):
    """What made two runs answer differently: `said` are what each says where they part (None: they never do), and
    `first` and `second` are F = z_a - z_b in each, a being the second's.

    `parts` has part, layer and change, with `norm_scale` among them; they add up to second less first but for
    `residual_error`, at most `limit`. `memories` has memory, position, coefficient_first, coefficient_second,
    direct_first, direct_second, change, and effect between prompts of equal length. `turns_at` is the smallest number
    of memories that makes b the second's answer.
    """

    names: tuple[str, str]
    prompts: tuple[str, str]
    said: tuple[Token, Token] | None
    generated: int
    first: float = 0.0
    second: float = 0.0
    parts: pl.DataFrame | None = None
    residual_error: float = 0.0
    limit: float = 0.0
    memories: pl.DataFrame | None = None
    patched: tuple[Patched, ...] = ()
    turns_at: int | None = None
    notes: tuple[str, ...] = ()
    made_by: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The document of contract.md."""
        one = self.prompts[0] == self.prompts[1]
        tokens = None if self.said is None else dict(zip(("first", "second"), plain(self.said), strict=True))
        return {
            **({"prompt": self.prompts[0]} if one else
               {"prompts": dict(zip(("first", "second"), self.prompts, strict=True))}),
            "models": dict(zip(("first", "second"), self.names, strict=True)),
            "tokens": tokens,
            "difference": {"first": self.first, "second": self.second},
            "parts": [] if self.parts is None else self.parts.to_dicts(),
            "residual_error": self.residual_error,
            "limit": self.limit,
            "memories": [] if self.memories is None else self.memories.to_dicts(),
            "patched": plain(self.patched),
            "turns_at": self.turns_at,
            "notes": list(self.notes),
            "made_by": self.made_by,
        }  # fmt: skip

    def chart(self) -> Any:
        """What every part changes, as an altair.Chart."""
        import altair as alt

        rows = self.parts if self.parts is not None else pl.DataFrame(schema={"part": pl.String, "change": pl.Float64})
        return (
            alt.Chart(rows, title=f"{self.names[1]} less {self.names[0]}").mark_bar()
            .encode(x=alt.X("change:Q", title="change of the logit difference"), y=alt.Y("layer:O", sort="descending"),
                    color="part:N", tooltip=["part:N", "layer:O", "change:Q"])
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<RunDifference of {self.names[0]} and {self.names[1]}; print it to read it>"

    def _repr_html_(self) -> str:
        if self.memories is None:
            return f"<p>{escape(' '.join(self.notes))}</p>"
        return f"<p>{escape(self._head())}</p>{memories_html(self.memories)}"

    def _head(self) -> str:
        assert self.said is not None
        one, other = (show_token(token.text) for token in self.said)
        same = self.names[0] == self.names[1]
        who = ("first", "second") if same else (f"first ({self.names[0]})", f"second ({self.names[1]})")
        return (
            f"{who[0]} says {one}, {who[1]} says {other}: logit of {other} less that of {one} {self.first:+.2f}, then"
            f" {self.second:+.2f}"
        )

    def __str__(self) -> str:
        if self.said is None or self.parts is None or self.memories is None:
            return "\n".join(self.notes)
        sums = self.parts.group_by("part", maintain_order=True).agg(pl.col("change").sum())
        written = ", ".join(f"{part} {change:+.2f}" for part, change in sums.rows() if abs(change) >= 0.005)
        lines = [
            fit(self._head(), WIDTH),
            fit(f"change {self.second - self.first:+.3f} = {written or 'nothing'}", WIDTH),
            f"(the parts add up to {self.residual_error:+.1e} of it; at most {self.limit:.1e})",
            *self.notes,
        ]
        if self.memories.is_empty():
            return "\n".join([*lines, "", "No memory's contribution changed."])
        ranked = "effect" if "effect" in self.memories.columns else "change"
        known = "promotes" in self.memories.columns
        columns: list[Column] = [("memory", "left", 16), ("at", "right", 4), ("coefficient", "left", 22),
                                 (ranked, "right", 8), ("about", "left", 60)]  # fmt: skip
        rows = [
            [
                row["memory"], str(row["position"]),
                f"{row['coefficient_first']:+.2f} to {row['coefficient_second']:+.2f}", f"{row[ranked]:+.3f}",
                (row["label"] or " ".join(map(show_token, row["promotes"]))) if known else "",
            ]
            for row in self.memories.head(20).to_dicts()
        ]  # fmt: skip
        back: list[Column] = [("set back", "right", 10), ("F", "right", 7), ("recovered", "right", 9),
                              ("the second then says", "left", 22), ("F with controls", "left", 40)]  # fmt: skip
        steps = [
            [str(one.k), f"{one.difference:+.2f}", "-" if one.recovered is None else f"{one.recovered:.0%}",
             show_token(one.top_token.text),
             "" if one.controls is None else "{1:+.2f} ({0:+.2f} to {2:+.2f})".format(*one.controls)]
            for one in self.patched
        ]  # fmt: skip
        turned = "None of these numbers" if self.turns_at is None else f"{self.turns_at} memories set back"
        said = f"{turned} make{'s' * (self.turns_at is None)} the second say what the first says."
        return "\n".join([*lines, "", *table(columns, rows), "", *table(back, steps), "", said])
