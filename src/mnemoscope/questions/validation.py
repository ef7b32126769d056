"""The predictions on validation prefixes, one row per prefix and layer, and shares, means and quantiles over them.

Every share or mean comes with a bootstrap over the documents that the prefixes are from. Shared by the questions of the
paper's section 5 (Figures 7-11); asks none itself.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasDamaged
from mnemoscope.intervals import DRAWS, NOTHING, Estimate, Resamples, ends
from mnemoscope.questions.answers import Answer
from mnemoscope.questions.question import Number
from mnemoscope.questions.sources import needed, seed

DOCUMENTS = f"over documents (bootstrap, {DRAWS} draws, seed {{seed}})"
"""What the intervals of a question about prefixes say of themselves, once the seed is filled in."""
NO_PREFIX = "the validation text gave no prefix to ask about; mine more text, or name one with --validation"
"""What a question about prefixes says where it finds nothing."""
NUMBER_OF_DOCUMENTS = Number("documents", "count", "documents that the prefixes are from")

Columns = NDArray[Any]
ByLayer = dict[int | None, Estimate]
"""An estimate for every layer, and one over all layers under None."""


@dataclass(frozen=True)
class Column:
    """A share or mean (None where it is not defined), how many cases it is of, and its value in every resample."""

    value: float | None
    count: int
    draws: NDArray[np.float64]


def contrast(*terms: tuple[float, Column]) -> Estimate:
    """The weighted sum of columns, such as a difference, each resample of the documents being one of all of them.

    It has the count of the first column. Sums are rounded to 1e-12, so that equal columns differ by exactly 0.
    """
    values = [column.value for _, column in terms]
    if any(value is None for value in values):
        return NOTHING
    value = sum(weight * found for (weight, _), found in zip(terms, values, strict=True) if found is not None)
    draws = np.sum([weight * column.draws for weight, column in terms], axis=0).round(12)
    low, high = ends(draws)
    return Estimate(round(value, 12), terms[0][1].count, low, high)


class Predictions:
    """The rows of `predictions` with those of `prefixes` beside them; `rows["residual_top"]` is an array."""

    def __init__(self, atlas: Atlas) -> None:
        """Raises AtlasUnfinished where one of the tables is missing or was switched off, AtlasDamaged."""
        self.layers = atlas.layers
        predictions, self.prefixes = needed(atlas, "predictions"), needed(atlas, "prefixes").sort("prefix")
        rows = predictions.join(self.prefixes, on="prefix").sort("layer", "prefix")
        if rows.height != predictions.height or not set(rows["layer"].unique()) <= set(self.layers):
            raise AtlasDamaged(f"{atlas.path}: predictions names prefixes or layers that the atlas does not have")
        self._columns = {name: rows[name].to_numpy() for name in rows.columns}
        documents, self._codes = np.unique(self["document"], return_inverse=True)
        self.place: NDArray[np.int64] = np.searchsorted(np.array(self.layers), self["layer"])
        """Of every row, the place of its layer among `layers`."""
        self._resamples = Resamples(len(documents), seed(atlas))

    def __getitem__(self, name: str) -> Columns:
        return self._columns[name]

    def share(self, hits: ArrayLike, among: ArrayLike | None = None) -> ByLayer:
        """Per layer and over all: the mean of `hits` (True or False, or any number) over the rows that are `among`."""
        return self._ratios(np.asarray(hits, np.float64), among)

    def once(self) -> NDArray[np.bool_]:
        """Marks one row of every prefix."""
        first = np.zeros(len(self.place), bool)
        first[np.unique(self["prefix"], return_index=True)[1]] = True
        return first

    def documents(self) -> Estimate:
        """How many documents the prefixes are from: what the intervals resample."""
        count = self._resamples.clusters
        return Estimate(float(count), count) if count else NOTHING

    def columns(self, hits: ArrayLike, among: ArrayLike | None = None) -> dict[int | None, Column]:
        """What `share` estimates, with its resamples, for a `contrast`; fewer than two documents have none."""
        above, below = self._parts(np.asarray(hits, np.float64), among)
        drawn = self._resamples.ratio_draws(above, below).T if self._resamples.clusters > 1 else above.T[:, :0]
        found = {}
        for key, top, count, draws in zip([*self.layers, None], above.sum(0), below.sum(0), drawn, strict=True):
            found[key] = Column(float(top / count) if count else None, int(count), draws)
        return found

    def _parts(self, values: Columns, among: ArrayLike | None) -> tuple[Columns, Columns]:
        """By document and layer, the sums and the numbers of cases of a share."""
        cases = np.ones(len(values), bool) if among is None else np.asarray(among, bool)
        return self._sums(np.where(cases, values, 0.0)), self._sums(cases.astype(np.float64))

    def _ratios(self, values: NDArray[np.float64], among: ArrayLike | None) -> ByLayer:
        above, below = self._parts(values, among)
        bounds = self._resamples.ratios(above, below)
        found: ByLayer = {}
        keys: list[int | None] = [*self.layers, None]
        for key, top, count, (low, high) in zip(keys, above.sum(0), below.sum(0), bounds, strict=True):
            found[key] = Estimate(float(top / count), int(count), low, high) if count else NOTHING
        return found

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums `[document, layer]` of one number per row, and a last column over all layers."""
        shape = self._resamples.clusters, len(self.layers)
        place = self._codes * shape[1] + self.place
        sums = np.bincount(place, weights=values, minlength=shape[0] * shape[1]).reshape(shape)
        return np.concatenate([sums, sums.sum(1, keepdims=True)], axis=1)

    def quantiles(self, name: str, levels: tuple[float, ...]) -> dict[int, list[Estimate]]:
        """Per layer, the quantiles of a column (linear between values)."""
        here = [self.place == place for place in range(len(self.layers))]
        values = [self[name][rows].astype(np.float64) for rows in here]
        bounds = self._resamples.quantiles(
            [(found, self._codes[rows]) for found, rows in zip(values, here, strict=True)], levels
        )
        answer: dict[int, list[Estimate]] = {}
        for layer, found, intervals in zip(self.layers, values, bounds, strict=True):
            pairs = zip(levels, intervals, strict=True)
            answer[layer] = [quantile(found, level, low, high) for level, (low, high) in pairs]
        return answer


def quantile(values: NDArray[np.float64], level: float, low: float | None, high: float | None) -> Estimate:
    """The quantile of values (linear between two of them) with the bounds that a bootstrap found.

    The bootstrap's ends are values themselves, so they are made to enclose what lies between two.
    """
    if len(values) == 0:
        return NOTHING
    value = float(np.quantile(values, level))
    if low is None or high is None:
        return Estimate(value, len(values))
    return Estimate(value, len(values), min(low, value), max(high, value))


def add_all(answer: Answer, name: str, found: ByLayer, *, total: bool = True) -> None:
    """Adds an estimate of every layer, and (if wanted) the one over all layers, under one name."""
    for layer, estimate in found.items():
        if layer is not None or total:
            answer.add(layer, name, estimate)


def least(found: ByLayer) -> tuple[int | None, Estimate]:
    """The layer whose estimate is the smallest, the lower layer of equal ones; (None, NOTHING) if none is defined."""
    defined = [(e.value, layer) for layer, e in found.items() if layer is not None and e.value is not None]
    if not defined:
        return None, NOTHING
    layer = min(defined)[1]
    return layer, found[layer]
