"""Reads the tables that questions need; the error for a missing one names the command that makes it.

`Predictions` has bootstrap intervals over the documents of validation prefixes (paper, section 5, Figures 7-11).
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.errors import AtlasDamaged, AtlasUnfinished
from mnemoscope.foundation.intervals import DRAWS, NOTHING, Estimate, Resamples, ends, share, widen
from mnemoscope.questions.answer_builder import HELD, AnswerBuilder, least_layer
from mnemoscope.questions.question import LITERAL, Number, Question

DOCUMENTS = f"over documents (bootstrap, {DRAWS} draws, seed {{seed}})"
STREAMS_WHY = (
    "The paper reads a stream as softmax(r E^T); a model with a norm before its head reads it through that norm, head"
    " bias and soft-cap, and so does ours: its last layer's output is then the model's own prediction"
)
NO_PREFIX = "the validation text gave no {case} to ask about; mine more text, or name one with --validation"
NUMBER_OF_DOCUMENTS = Number("documents", "count", "documents that the {cases} are from")

_DISABLING_OPTION = {"removals": "removals", "prefixes": "prefixes", "predictions": "prefixes"}
"""Tables that a plan may disable, and the plan's option for it."""


def question_of_predictions(name: str, *, numbers: tuple[Number, ...], **declared: Any) -> Question:
    """A question about predictions at held-out prefixes, whose documents are resampled and counted."""
    return Question(
        name,
        numbers=(*numbers, NUMBER_OF_DOCUMENTS),
        nothing=NO_PREFIX,
        interval=DOCUMENTS,
        may_lack=("predictions",),
        **declared,
    )


def require_table(atlas: Atlas, name: str, *, layer: int | None = None) -> pl.DataFrame:
    """Raises AtlasUnfinished without the table, AtlasDamaged for a damaged one."""
    refuse_part(atlas)
    if is_switched_off(atlas, name):
        raise AtlasUnfinished(
            f"{atlas.path} has an empty table {name} (--{_DISABLING_OPTION[name]} 0); make it with"
            f" {rebuild_command(atlas.path, name, atlas.manifest)}"
        )
    return atlas.table(name, layer=layer)


def is_switched_off(atlas: Atlas, name: str) -> bool:
    return atlas.manifest.plan.get(_DISABLING_OPTION.get(name, "")) in (0, "0")


def refuse_part(atlas: Atlas) -> None:
    if part := atlas.manifest.part:
        raise AtlasUnfinished(f"{atlas.path} is {part}; join all parts with `mnemoscope merge`, then ask")


def read_layers(atlas: Atlas, name: str) -> pl.DataFrame:
    """A table of all mined layers with a column `layer`."""
    return pl.concat(
        require_table(atlas, name, layer=layer).with_columns(layer=pl.lit(layer, pl.Int16)) for layer in atlas.layers
    )


def by_layer(atlas: Atlas, rows: pl.DataFrame) -> Iterator[tuple[int | None, pl.DataFrame]]:
    """The rows of each mined layer, then all rows under None."""
    yield from ((layer, rows.filter(pl.col("layer") == layer)) for layer in atlas.layers)
    yield None, rows


def plan_seed(atlas: Atlas) -> int:
    return int(atlas.manifest.plan["seed"])


def model_layers(atlas: Atlas) -> int:
    return len(atlas.manifest.model.sizes.memories)


def projection(atlas: Atlas, *names: str) -> dict[str, str]:
    """Of values, votes or streams (definitions.md section 2)."""
    return {name: atlas.manifest.projections[name] for name in names}


_BY_FORMULA = ("top", "target", "target_rank", "max_probability")


def values(atlas: Atlas) -> pl.DataFrame:
    """One row per memory of the mined layers. Columns: layer, memory, top (token), target, target_rank (null without
    target), agrees (top is the target), max_probability, working_probability (null where unknown), value_norm,
    log_probability (mean over the tokens that its triggers speak of); what `literal_values` takes; and of a model that
    reads sentences whole `held`: whether its best trigger's coefficient stays above half where that token is masked,
    null where that was not asked.
    """
    names = ("memory", "target", "target_rank", "max_probability", "working_probability", "value_norm", "layer")
    rows = read_layers(atlas, "values").select(
        *names,
        *(LITERAL + name for name in _BY_FORMULA),
        top=pl.col("top_tokens").list.first(),
        log_probability="trigger_log_probability",
    )
    if not atlas.reading.causal:
        rows = rows.join(
            pl.concat(_held_where_masked(atlas, layer) for layer in atlas.layers), on=["layer", "memory"], how="left"
        )
    return rows.sort("layer", "memory").with_columns(agrees=pl.col("top") == pl.col("target"))


def _held_where_masked(atlas: Atlas, layer: int) -> pl.DataFrame:
    rows = atlas.table("triggers", layer=layer, columns=["memory", "coefficient", "own_coefficient"])
    held = pl.col("own_coefficient") > pl.col("coefficient") / 2
    return rows.drop_nulls().select(pl.lit(layer, pl.Int16).alias("layer"), "memory", held.alias("held"))


def values_asked(atlas: Atlas, builder: AnswerBuilder, rows: pl.DataFrame) -> list[tuple[AnswerBuilder, pl.DataFrame]]:
    """What takes an answer's numbers, with the rows of `values` that they are over: by the paper's formula, and by
    ours. Of a model that reads sentences whole both are over the memories that are `held`, and a third is over all; the
    numbers of both are added (definitions.md 7.2).
    """
    if atlas.reading.causal:
        return [(builder.literal(), literal_values(rows)), (builder, rows)]
    for layer, here in by_layer(atlas, rows):
        held, targets = here["held"].drop_nulls(), int(here["target"].is_not_null().sum())
        builder.add(layer, HELD[0].name, share(int(held.sum()), len(held)))
        builder.add(layer, HELD[1].name, share(len(held), targets))
    held_rows = rows.filter("held")
    return [(builder.literal(), literal_values(held_rows)), (builder.every(), rows), (builder, held_rows)]


def literal_values(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `values` with top, target, target_rank, max_probability and agrees by the paper's own formula
    (definitions.md 4b); none where a transform stands before the head.
    """
    rows = rows.with_columns(**{name: pl.col(LITERAL + name) for name in _BY_FORMULA}).drop_nulls("top")
    return rows.with_columns(agrees=pl.col("top") == pl.col("target"))


def tokens_spoken_of(atlas: Atlas, layer: int, *, best: int | None = None) -> pl.DataFrame:
    """Columns: memory, token. The token that the state at each positive trigger (of a memory's `best` ones) speaks of:
    the next one, null at the end of a text; of a model that reads sentences whole the trigger's own.
    """
    rows = require_table(atlas, "triggers", layer=layer).filter(pl.col("sign") == 1)
    if best is not None:
        rows = rows.filter(pl.col("rank") < best)
    return rows.select("memory", token=atlas.reading.spoken_of)


def counts_spoken_of(atlas: Atlas) -> NDArray[np.float64]:
    """How often each token of the vocabulary is one that a position of the mined text speaks of."""
    column = "next_count" if atlas.reading.causal else "count"
    return require_table(atlas, "tokens").sort("token")[column].to_numpy().astype(np.float64)


@dataclass(frozen=True)
class ResampledValue(Estimate):
    draws: NDArray[np.float64] = field(kw_only=True)


def contrast(*terms: tuple[float, ResampledValue]) -> Estimate:
    """The weighted sum of estimates, resample by resample; the count is that of the first. Rounded to 1e-12, so that
    equal estimates differ by exactly 0.
    """
    parts = [weight * one.value for weight, one in terms if one.value is not None]
    if len(parts) < len(terms):
        return NOTHING
    draws = np.sum([weight * one.draws for weight, one in terms], axis=0).round(12)
    return Estimate(round(sum(parts), 12), terms[0][1].count, *ends(draws))


class Predictions:
    """The rows of `predictions` joined with `prefixes`; `rows["residual_top"]` is an array. `beside` names another
    table with one row per prefix and layer; its nulls become NaN.
    """

    def __init__(self, atlas: Atlas, *, beside: str | None = None) -> None:
        """Raises AtlasUnfinished without a table, AtlasDamaged."""
        self.layers = atlas.layers
        predictions, prefixes = require_table(atlas, "predictions"), require_table(atlas, "prefixes").sort("prefix")
        rows = predictions.join(prefixes, on="prefix").sort("layer", "prefix")
        if beside is not None:
            rows = rows.join(require_table(atlas, beside), on=["prefix", "layer"], maintain_order="left")
        if rows.height != predictions.height or not set(rows["layer"].unique()) <= set(self.layers):
            raise AtlasDamaged(f"{atlas.path}: predictions names prefixes or layers that the atlas does not have")
        self.columns = {name: rows[name].to_numpy() for name in rows.columns}
        documents, self._codes = np.unique(self["document"], return_inverse=True)
        self.place: NDArray[np.int64] = np.searchsorted(np.array(self.layers), self["layer"])
        """Index in `layers`, per row."""
        memories = np.array([atlas.memories(one) for one in self.layers])[self.place]
        self.memories: NDArray[Any] = self.columns.get("routed_memories", memories)
        """Of the row's layer; in a mixture of experts those that the prefix was routed to (definitions.md 7.1)."""
        self.read = self["position"] + 1
        """The number of tokens that the model was given, without the frame: the prefix, or the sentence."""
        if not atlas.reading.causal:
            asked = np.unique(self["sentence"])
            stored = atlas.sentences(asked.tolist(), columns=["sentence", "tokens"])
            lengths = stored["tokens"].list.len().to_numpy().astype(np.int64)
            self.read = lengths[np.searchsorted(asked, self["sentence"])]
        self._resamples = Resamples(len(documents), plan_seed(atlas))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def literal(self) -> "Predictions | None":
        """The same prefixes by the paper's own formulas (definitions.md 4b): its columns under the names of ours. None
        where a transform stands before the head, so that no token is a product with the stream.
        """
        ours = ("residual_top", "ffn_top", "output_top", "votes_ffn", "residual_final_probability")
        formula = (*(LITERAL + name for name in ours[:3]), "literal_votes", "literal_residual_final_probability")
        if np.isnan(self[formula[0]].astype(np.float64)).any():
            return None
        rows = copy(self)
        rows.columns = self.columns | {name: self[one] for name, one in zip(ours, formula, strict=True)}
        return rows

    def after(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        """Of each row the number of the same prefix in the next mined layer; NaN where there is none."""
        layer = int(self["prefix"].max(initial=-1)) + 1
        keys = self.place * layer + self["prefix"]  # ascending, as the rows are sorted
        index = np.minimum(np.searchsorted(keys, keys + layer), max(0, len(keys) - 1))
        return np.where(keys[index] == keys + layer, numbers[index].astype(np.float64), np.nan)

    def once(self) -> NDArray[np.bool_]:
        """A mask of one row per prefix."""
        return self._first_rows(np.ones(len(self.place), bool))

    def _first_rows(self, cases: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A mask of the first row of each prefix among `cases`."""
        first = np.zeros(len(cases), bool)
        first[np.flatnonzero(cases)[np.unique(self["prefix"][cases], return_index=True)[1]]] = True
        return first

    def documents(self) -> Estimate:
        count = self._resamples.clusters
        return Estimate(float(count), count) if count else NOTHING

    def share(self, hits: ArrayLike, among: ArrayLike | None = None) -> dict[int | None, ResampledValue]:
        """Means of `hits` by layer and over all where `among` holds; no interval for fewer than two documents."""
        cases = np.ones(len(self.place), bool) if among is None else np.asarray(among, bool)
        counted = self._sums(cases.astype(np.float64))
        return self._ratios(self._sums(np.where(cases, np.asarray(hits, np.float64), 0.0)), counted, counted.sum(0))

    def ratio(self, above: ArrayLike, below: ArrayLike, among: ArrayLike) -> dict[int | None, ResampledValue]:
        """The ratio of two sums over the rows where `among` holds, per layer and over all. `below` is the same in all
        rows of a prefix; over all layers it counts once, so the layers' ratios add up to the total. It may be negative;
        a resample in which its sum changes sign is left out.
        """
        cases = np.asarray(among, bool)
        tops, bottoms = (self._sums(np.where(cases, np.asarray(each, np.float64), 0.0)) for each in (above, below))
        first = self._first_rows(cases)
        bottoms[:, -1] = self._sums(np.where(first, np.asarray(below, np.float64), 0.0))[:, -1]
        sign = np.where(bottoms.sum(0) < 0, -1.0, 1.0)
        counts = self._sums(cases.astype(np.float64)).sum(0)
        counts[-1] = first.sum()
        return self._ratios(tops * sign, bottoms * sign, counts)

    def _ratios(
        self, above: NDArray[np.float64], below: NDArray[np.float64], counts: NDArray[np.float64]
    ) -> dict[int | None, ResampledValue]:
        """The ratios of sums `[document, layer]`; the last column is over all layers."""
        draws = self._resamples.ratio_draws(above, below)
        parts = zip([*self.layers, None], above.sum(0), below.sum(0), counts, draws.T, strict=True)
        return {
            key: ResampledValue(
                float(top / bottom) if bottom > 0 else None, int(count), *ends(resampled), draws=resampled
            )
            for key, top, bottom, count, resampled in parts
        }

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        shape = self._resamples.clusters, len(self.layers)
        place = self._codes * shape[1] + self.place
        sums = np.bincount(place, weights=values, minlength=shape[0] * shape[1]).reshape(shape)
        return np.concatenate([sums, sums.sum(1, keepdims=True)], axis=1)

    def quantiles(self, name: str, levels: tuple[float, ...]) -> dict[int, list[Estimate]]:
        here = [self.place == place for place in range(len(self.layers))]
        sets = [(self[name][rows].astype(np.float64), self._codes[rows]) for rows in here]
        return dict(zip(self.layers, self._resamples.quantiles(sets, levels), strict=True))


def may_be_least(estimates: Mapping[int | None, ResampledValue]) -> list[int]:
    """The layers whose estimate is not clearly above the smallest one: by differences resample by resample, corrected
    for the number of other layers.
    """
    least, _ = least_layer(estimates)
    layers = [layer for layer, one in estimates.items() if layer is not None and one.value is not None]
    others = max(1, len(layers) - 1)
    differences = {layer: widen(contrast((1, estimates[layer]), (-1, estimates[least])), others) for layer in layers}
    return [layer for layer, one in differences.items() if layer == least or one.low is None or one.low <= 0]
