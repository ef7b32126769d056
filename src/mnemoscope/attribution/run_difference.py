"""The answer of `diff`: what every part's change is, and what setting memories back does. Computes nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import polars as pl

from mnemoscope.atlas.derived_manifest import Weights, describe_changes
from mnemoscope.attribution.explanation import Explanation, Spread, logits, memory_table, spread_text
from mnemoscope.attribution.setting_back import Written
from mnemoscope.foundation.formatting import Table, page_html, show_token
from mnemoscope.tracing.records import Record, Token
from mnemoscope.tracing.rendering import cells_at


@dataclass(frozen=True, slots=True)
class Patched(Record):
    """F of the second run with `k` memories set back to the first's: a number, "all" of the position, "everywhere".
    `recovered` is the share of the change that this undoes (None where the change is under 0.001), `top_token` what the
    second run then predicts; `controls` are lowest, median and highest F with as many controls set back.
    """

    k: int | str
    difference: float
    recovered: float | None
    top_token: Token
    controls: Spread | None = None
    controls_missing: int | None = None


@dataclass(frozen=True, repr=False)
class RunDifference(Explanation):
    """What made two runs answer differently: `prompts` as they were asked, and `continued`, the text that both write
    or that was added before they part; `ids` are all tokens up to there. `said` are what each predicts then (None:
    they never part), and `first` and `second` are F = z_a - z_b in each, a being the second's.

    `parts` has part, layer and change, with `norm_scale` among them; they add up to second less first but for
    `residual_error`, at most `limit`. `memories` has memory, position, coefficient_first, coefficient_second,
    direct_first, direct_second, change, and effect between prompts of equal length; positions count as those of
    Attribution, by the `own` tokens of the second's prompt. `turns_at` is the smallest number of memories that makes b
    the second's answer. `weights` are those of `weight_changes` between two models.
    """

    names: tuple[str, str]
    prompts: tuple[str, str]
    continued: str
    ids: tuple[tuple[int, ...], tuple[int, ...]]
    said: tuple[Token, Token] | None
    first: float = 0.0
    second: float = 0.0
    parts: Annotated[pl.DataFrame, "text part int layer? float change"] = field(
        default_factory=lambda: pl.DataFrame(schema={"part": pl.String, "change": pl.Float64})
    )
    residual_error: float = 0.0
    limit: float = 0.0
    memories: Annotated[
        pl.DataFrame,
        "text memory token label? +trigger? texts +promotes int position float coefficient_first coefficient_second"
        " direct_first direct_second change +effect?",
    ] = field(default_factory=pl.DataFrame)
    patched: tuple[Patched, ...] = ()
    turns_at: int | None = None
    notes: tuple[str, ...] = ()
    made_by: dict[str, Any] | None = None
    own: int | None = None
    weights: Weights = field(default_factory=pl.DataFrame)
    written: tuple[Written, ...] = ()
    """What both models write from where they part, and the second with memories set back."""

    def to_dict(self) -> dict[str, Any]:
        entries = super().to_dict()
        names, prompts, continued, ids, tokens, *values = (
            entries.pop(name) for name in ("names", "prompts", "continued", "ids", "said", "first", "second")
        )
        one = prompts[0] == prompts[1]
        return {
            **({"prompt": prompts[0]} if one else {"prompts": in_each(prompts)}),
            "continued": continued,
            "ids": ids[0] if one else in_each(ids),
            "models": in_each(names),
            "tokens": tokens and in_each(tokens),
            "difference": in_each(values),
            **entries,
        }

    def chart(self) -> Any:
        """What every part changes, as an altair.Chart."""
        import altair as alt

        return (
            alt.Chart(self.parts, title=f"{self.names[1]} less {self.names[0]}")
            .mark_bar()
            .encode(
                x=alt.X("change:Q", title="change of the logit difference"),
                y=alt.Y("layer:O", sort="descending"),
                color="part:N",
                tooltip=["part:N", "layer:O", "change:Q"],
            )
        )

    def title(self) -> str:
        return " and ".join(self.names)

    def blocks(self) -> Sequence[str | Table]:
        if self.said is None:
            return self.notes
        one, other = (show_token(token.text) for token in self.said)
        same = self.names[0] == self.names[1]
        who = ("first", "second") if same else (f"first ({self.names[0]})", f"second ({self.names[1]})")
        sums = self.parts.group_by("part", maintain_order=True).agg(pl.col("change").sum())
        written = ", ".join(f"{part} {change:+.2f}" for part, change in sums.rows() if abs(change) >= 0.005)
        head = [
            f"{who[0]} predicts {one}, {who[1]} {other}: logit of {other} less that of {one} {self.first:+.2f}, then"
            f" {self.second:+.2f}",
            f"change {self.second - self.first:+.3f} = {written or 'nothing'}",
            f"(the parts add up to {self.residual_error:+.1e} of it; at most {self.limit:.1e})",
            *self.notes,
            *describe_changes(self.weights),
        ]
        if self.memories.is_empty():
            return [*head, "", "No memory's contribution changed."]
        turned = "None of these numbers" if self.turns_at is None else f"{self.turns_at} memories set back"
        ending = f"{turned} make{'s' * (self.turns_at is None)} the second predict what the first predicts."
        shares = about_shares(one.recovered for one in self.patched)
        texts = [f"{each} writes {show_token(self.continued + each.text)}" for each in self.written]
        return [*head, "", self._change_table(), "", self._patch_table(), *shares, "", ending, *texts]

    def _repr_html_(self) -> str:
        if self.said is None or self.parts.is_empty() or self.memories.is_empty():
            return super()._repr_html_()
        headline, *_ = self.blocks()
        return page_html("difference_html", self.to_dict(), f"{headline}.") + self._patch_table().html()

    @property
    def sorted_by(self) -> str:
        """The column of `memories` by which they are ordered."""
        return "effect" if "effect" in self.memories.columns else "change"

    def _change_table(self) -> Table:
        own = None if self.continued else self.own
        between = "{coefficient_first:+.2f} to {coefficient_second:+.2f}"
        return memory_table(
            self.memories,
            {">at": 4, "activation": 22, f">{self.sorted_by}": 8},
            lambda row: [cells_at(row["position"], "", own)[0], between.format_map(row), logits(row[self.sorted_by])],
        )

    def _patch_table(self) -> Table:
        rows = [
            [
                str(one.k),
                f"{one.difference:+.2f}",
                share_text(one.recovered),
                show_token(one.top_token.text),
                "" if one.controls is None else spread_text(one.controls),
            ]
            for one in self.patched
        ]
        return Table((">set back", ">F", ">recovered", "then predicted", "F with controls"), rows, (10, 7, 9, 22, 40))


def in_each(pair: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(("first", "second"), pair, strict=True))


def about_shares(shares: Iterable[float | None]) -> list[str]:
    """What shares of more than the whole change, or less than nothing, mean, where there are such."""
    meant = "recovered: the share of the change that is undone; above 100% F passes the first's, below 0% it moves away"
    return [meant] if any(one is not None and not 0 <= one <= 1 for one in shares) else []


def share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
