"""The value pass: the vocabulary scores of each value, and whether it predicts what follows its triggers (paper,
section 4). Makes `values`.

Every value is projected under the `gain` projection (definitions.md section 2), in blocks of scores that are dropped
once read: at its own length, which matters under an adaptive softmax only, and at the typical activation of each sign,
divided by what the norms divide by (scales.py). How far its first score stands out is compared with random directions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.errors import NotFinite
from mnemoscope.mining.passes.vectors.projector import Columns, Projector, Share, join_columns
from mnemoscope.mining.text.batches import Ints
from mnemoscope.models import LanguageModel
from mnemoscope.runs.workers.worker import Worker
from mnemoscope.tracing import max_probability, norms_of, rank_tokens, read_scores

SIGNS = (1, -1)

TOKENS_KEPT = 20
"""Top and bottom tokens kept of each value."""
AT_WORK = (("working_logit", "working_probability"), ("working_logit_negative", "working_probability_negative"))
"""The columns of values at typical activations, by sign; null without a scale."""
_LITERAL_TOKENS = ("literal_top", "literal_target_rank")
_DIRECTIONS, _CLEAR = 1_000, 0.99
"""Random directions, and the share of them whose first score is not clear."""
TIE = 1e-5
"""Coefficients that differ by less than this times max(1, |c|) are tied (definitions.md section 3)."""

Scale = float | Sequence[float]
"""What norms divide a layer's values by: one number, or one for each of its branches."""


@dataclass(frozen=True)
class Targets:
    """The `target [memory]` (-1: none), the one that the paper's formula takes, and all tokens that triggers' states
    speak of with their memory.
    """

    target: Ints
    literal: Ints
    memory: Ints
    spoken_of: Ints


def target_rows(triggers: pl.DataFrame, spoken_of: str) -> pl.DataFrame:
    """The trigger of every memory that gives its target: the best that has a token in the column `spoken_of`, of tied
    ones the first in the text (definitions.md section 3).
    """
    followed = triggers.filter(pl.col("sign") == 1, pl.col(spoken_of).is_not_null())
    coefficient = pl.col("coefficient").cast(pl.Float64)
    best = coefficient.max().over("memory")
    tied = followed.filter(best - coefficient < TIE * pl.max_horizontal(1.0, best.abs()))
    return tied.sort("sentence", maintain_order=True).unique("memory", keep="first", maintain_order=True)


def targets(triggers: pl.DataFrame, memories: int, spoken_of: str = "next_token") -> Targets:
    """The targets of one layer's memories, and the tokens in the column `spoken_of` of its positive triggers
    (definitions.md sections 3 and 4b): ours is that of the best trigger that has one, the paper's that of the first
    trigger.
    """
    followed = triggers.filter(pl.col("sign") == 1, pl.col(spoken_of).is_not_null())
    firsts = target_rows(triggers, spoken_of)
    target, literal = np.full((2, memories), -1, np.int64)
    target[firsts["memory"].to_numpy()] = firsts[spoken_of].to_numpy()
    literal_firsts = followed.filter(pl.col("rank") == 0)
    literal[literal_firsts["memory"].to_numpy()] = literal_firsts[spoken_of].to_numpy()
    tokens = (followed[name].cast(pl.Int64).to_numpy(writable=True) for name in ("memory", spoken_of))
    return Targets(target, literal, *tokens)


class ValuePass:
    """Projects the values of one model; the projector serves all layers. `seed` is that of the random directions."""

    def __init__(self, model: LanguageModel, *, seed: int = 0) -> None:
        self.model, self._seed = model, seed
        self._clear: tuple[Tensor, float] | None = None

    @cached_property
    def projector(self) -> Projector:
        return Projector.of(self.model)

    def columns(self, layer: int, wanted: Targets, factors: NDArray[np.float64] | None = None) -> dict[str, Any]:
        """The columns of `values` for one layer. `factors [sign, memory]` make typical activations, NaN if the memory
        has no trigger of that sign (`work_factors`). A linear head multiplies scores as it multiplies vectors, so one
        product serves all.
        """
        model, projector = self.model, self.projector
        values, folded, up = model.values(layer), model.folded_values(layer), model.up_keys(layer)
        memories = len(values)
        unknown = pa.nulls(memories, pa.float32())
        columns: dict[str, Any] = {
            "memory": np.arange(memories, dtype=np.int32),
            "key_norm": norms_of(model.keys(layer)).cpu().numpy(),
            "up_norm": unknown if up is None else norms_of(up).cpu().numpy(),
            "value_norm": norms_of(values).cpu().numpy(),
        }
        by_sign = () if factors is None else zip(AT_WORK, factors, strict=True)
        with_triggers = [(names, factor) for names, factor in by_sign if not np.isnan(factor).all()]
        times = [(names, torch.from_numpy(np.nan_to_num(numbers, nan=1.0))) for names, numbers in with_triggers]
        read = partial(_read_scores, wanted, times if projector.linear else ())
        read_literal = partial(_read_literal, wanted.literal)
        if model.anatomy.transform is not None:  # no score is a product of the value with the head's matrix
            columns |= join_columns(projector.read_all(folded, read, opposite=True))
            columns |= {
                "literal_max_probability": unknown,
                **dict.fromkeys(_LITERAL_TOKENS, pa.nulls(memories, pa.int32())),
            }
        elif torch.equal(bare := model.bare(values), folded):  # without norms on the way one product serves both
            columns |= join_columns(
                projector.read_all(folded, lambda share: read(share) | read_literal(share), opposite=True)
            )
        else:
            columns |= join_columns(projector.read_all(folded, read, opposite=True))
            columns |= join_columns(projector.read_all(bare, read_literal))
        for names, factor in () if projector.linear else times:
            scaled = folded * factor.to(folded)[:, None]
            columns |= join_columns(projector.read_all(scaled, partial(_read_working, names)))
        checked = ("entropy", "key_norm", "value_norm", *(() if up is None else ("up_norm",)))
        if wrong := np.flatnonzero(~np.isfinite([columns[name] for name in checked]).all(0)).tolist():
            named = model.numbering(layer).name(layer, wrong[0])
            raise NotFinite(f"{named} has a key, a value or scores that are not finite; check the model's weights")
        for prefix, target in (("", wanted.target), ("literal_", wanted.literal)):
            for name, column in (("target", target), ("target_rank", columns[f"{prefix}target_rank"])):
                if isinstance(column, np.ndarray):
                    columns[prefix + name] = pa.array(column.astype(np.int32), mask=target < 0)
        for name in ("trigger_log_probability", "top_z", "bottom_z"):
            column = columns[name].astype(np.float32)
            columns[name] = pa.array(column, mask=~np.isfinite(column))
        columns["clear_z"] = self.clear_z(layer)
        for names, numbers in with_triggers:
            at_work = np.stack([columns[name] for name in names])
            if wrong := np.flatnonzero(~np.isnan(numbers) & ~np.isfinite(at_work).all(0)).tolist():
                named = model.numbering(layer).name(layer, wrong[0])
                raise NotFinite(f"{named}'s value at its typical activation is not finite; check the model's weights")
            columns |= {name: pa.array(columns[name], mask=np.isnan(numbers)) for name in names}
        return {name: unknown for names in AT_WORK for name in names} | columns

    def clear_z(self, layer: int) -> NDArray[np.float32]:
        """How far the first score of a value must stand out to be clear, `[memory]`: 99 % of random directions under
        the same fold and head stand out less. Most models fold all layers alike, so the last answer is kept.
        """
        model = self.model
        drawn = np.random.default_rng((self._seed, 17)).standard_normal((_DIRECTIONS, model.sizes.hidden), np.float32)
        directions = torch.from_numpy(drawn)
        if not self.projector.linear:  # its scores depend on the length
            lengths = torch.linalg.vector_norm(directions, dim=1, keepdim=True)
            directions *= norms_of(model.values(layer)).median().cpu() / lengths
        thresholds = []
        for branch in range(max(1, len(model.layer(layer).ffn.branches))):
            folded = model.fold_as_value(layer, directions, branch=branch)
            if self._clear is None or not torch.equal(self._clear[0], folded):
                above = np.concatenate(self.projector.read_all(folded, _read_distance))
                self._clear = folded, float(np.quantile(above, _CLEAR))
            thresholds.append(self._clear[1])
        clear: NDArray[np.float32] = np.array(thresholds, np.float32)[model.branch_of(layer).numpy()]
        return clear


def work_factors(model: LanguageModel, layer: int, triggers: pl.DataFrame, scale: Scale) -> NDArray[np.float64]:
    """The factors to a layer's typical activations (definitions.md section 2): `[sign, memory]`, of 1 and -1.
    The median coefficient of its memory's triggers of that sign, divided by `scale`, which has one number, or one per
    branch; NaN without such triggers.
    """
    factors = np.full((len(SIGNS), model.sizes.memories[layer]), np.nan)
    for factor, sign in zip(factors, SIGNS, strict=True):
        of_sign = triggers.filter(pl.col("sign") == sign).group_by("memory")
        medians = of_sign.agg(pl.col("coefficient").cast(float).median())
        factor[medians["memory"].to_numpy()] = medians["coefficient"].to_numpy() * model.multiplier(layer)
    factors /= np.atleast_1d(scale)[model.branch_of(layer).numpy()]
    return factors


def write_layer_values(worker: Worker, layer: int) -> None:
    """Writes `values` of one layer; needs triggers and scales. Without prefixes no scale is known, and the columns of
    values at typical activations are null.
    """
    values = worker.keep(ValuePass, lambda: ValuePass(worker.model, seed=worker.plan.seed))
    spoken_of = worker.model.reading.spoken_of
    triggers = worker.read("triggers", ("memory", "sign", "rank", "coefficient", "sentence", spoken_of), layer)
    scale = worker.run.read_note("scales")["value_scales"][worker.plan.layers.index(layer)]
    factors = None if scale is None else work_factors(worker.model, layer, triggers, scale)
    wanted = targets(triggers, worker.model.sizes.memories[layer], spoken_of)
    worker.write("values", values.columns(layer, wanted, factors), layer)


def _read_distance(share: Share) -> NDArray[np.float32]:
    """How far the first score of each row is above the mean, in standard deviations of the row."""
    with torch.inference_mode():
        ranking, shape = read_scores(share.scores, best=1)
        distance: NDArray[np.float32] = shape.distance(ranking.best[1][:, 0]).cpu().numpy()
    return distance


def _read_working(names: tuple[str, str], share: Share) -> Columns:
    """The columns at typical activations from the scores of such values."""
    with torch.inference_mode():
        first, mean = share.scores.amax(1), share.scores.mean(1)
    return _at_work(names, share.scores, first, mean, torch.ones_like(mean))


@torch.inference_mode()
def _at_work(names: tuple[str, str], scores: Tensor, first: Tensor, mean: Tensor, factor: Tensor) -> Columns:
    """Of each row of `factor * scores` the maximum, `factor * first`, minus the mean, and the largest probability."""
    logit = (factor * (first - mean)).to(scores.dtype)
    numbers = logit, max_probability(scores, first, factor)
    return {name: tensor.cpu().numpy() for name, tensor in zip(names, numbers, strict=True)}


@torch.inference_mode()
def _read_literal(targets: Ints, share: Share) -> Columns:
    scores, wanted = share.scores, torch.from_numpy(targets[share.vectors]).clamp(min=0)
    ranking = rank_tokens(scores, best=1, of=[wanted.to(scores.device)])
    tokens, best = (each[:, 0] for each in ranking.best)
    return {
        "literal_top": tokens.int().cpu().numpy(),
        "literal_max_probability": max_probability(scores, best, torch.ones_like(best)).cpu().numpy(),
        "literal_target_rank": ranking.ranks[0].cpu().numpy(),
    }


def _read_scores(wanted: Targets, times: Sequence[tuple[tuple[str, str], Tensor]], share: Share) -> Columns:
    """The columns of some memories; with factors `times [memory]` those at typical activations, too."""
    scores, opposite, memories = share.scores, share.opposite, share.vectors
    with torch.inference_mode():
        count = len(scores)
        target = torch.from_numpy(wanted.target[memories]).to(scores.device)
        worst = TOKENS_KEPT if opposite is None else 0
        ranking, shape = read_scores(scores, best=TOKENS_KEPT, worst=worst, of=[target.clamp(min=0)])
        (tokens, best), (low_tokens, low), other = ranking.best, ranking.worst, shape
        if opposite is not None:
            reversed_ranking, other = read_scores(opposite, best=TOKENS_KEPT)
            low_tokens, low = reversed_ranking.best
        top_z, bottom_z = shape.distance(best[:, 0]), other.distance(low[:, 0])
        low = -low if opposite is None else low
        first, last = np.searchsorted(wanted.memory, (memories.start, memories.stop))
        memory = wanted.memory[first:last] - memories.start
        places = torch.from_numpy(memory).to(scores.device)
        following = torch.from_numpy(wanted.spoken_of[first:last]).to(scores.device)
        log_p = scores[places, following].double() - shape.log_normaliser[places].double()
    # Added up in the order of the rows: a GPU would add in the order of arrival, and the last bits would be chance.
    sums = torch.from_numpy(np.bincount(memory, weights=log_p.cpu().numpy(), minlength=count))
    predicted = sums / torch.from_numpy(np.bincount(memory, minlength=count))  # 0 / 0: no next tokens, stays empty
    names = {
        "top_tokens": tokens.int(),
        "top_scores": best,
        "bottom_tokens": low_tokens.int(),
        "bottom_scores": low,
        "max_probability": shape.max_probability,
        "entropy": shape.entropy.clamp(min=0),
        "target_rank": ranking.ranks[0],
        "trigger_log_probability": predicted,
        "top_z": top_z,
        "bottom_z": bottom_z,
    }
    columns = {name: tensor.cpu().numpy() for name, tensor in names.items()}
    for at_work, factors in times:  # of a linear head
        factor = factors[memories].to(scores.device)
        columns |= _at_work(at_work, scores, torch.where(factor < 0, -low[:, 0], best[:, 0]), shape.mean, factor)
    return columns
