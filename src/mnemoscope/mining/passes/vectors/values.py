"""The value pass: the vocabulary scores of each value, and whether it predicts what follows its triggers (paper,
section 4). Makes `values`.

Every value is projected under the `gain` projection (definitions.md section 2), in blocks of scores that are dropped
once read: at its own length, which matters under an adaptive softmax only, and at work, divided by what the norms
divide by (scales.py).
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
from mnemoscope.mining.mining_run import MiningRun, read_note
from mnemoscope.mining.passes.vectors.projector import Projector, Share, join_columns
from mnemoscope.models import LanguageModel
from mnemoscope.tracing import distribution, norms_of, read_scores, top

TOKENS_KEPT = 20
"""Top and bottom tokens kept of each value."""
AT_WORK = ("working_logit", "working_probability")
"""The columns of values at work, null without a scale."""
TIE = 1e-5
"""Coefficients that differ by less than this times max(1, |c|) are tied (definitions.md section 3)."""

Ints = NDArray[np.int64]
Scale = float | Sequence[float]
"""What norms divide a layer's values by: one number, or one for each of its branches."""


@dataclass(frozen=True)
class Targets:
    """The `target [memory]` (-1: none), and all next tokens of triggers with their memory."""

    target: Ints
    memory: Ints
    next_token: Ints


def targets(triggers: pl.DataFrame, memories: int) -> Targets:
    """The targets of one layer's memories, and the next tokens of its positive triggers (definitions.md section 3)."""
    followed = triggers.filter(pl.col("sign") == 1, pl.col("next_token").is_not_null())
    coefficient = pl.col("coefficient").cast(pl.Float64)
    best = coefficient.max().over("memory")
    tied = followed.filter(best - coefficient < TIE * pl.max_horizontal(1.0, best.abs()))
    firsts = tied.sort("sentence", maintain_order=True).unique("memory", keep="first", maintain_order=True)
    target = np.full(memories, -1, np.int64)
    target[firsts["memory"].to_numpy()] = firsts["next_token"].to_numpy()
    following = (followed[name].cast(pl.Int64).to_numpy(writable=True) for name in ("memory", "next_token"))
    return Targets(target, *following)


class ValuePass:
    """Projects the values of one model; the projector serves all layers."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @cached_property
    def projector(self) -> Projector:
        return Projector.of(self.model)

    def columns(self, layer: int, wanted: Targets, factor: NDArray[np.float64] | None = None) -> dict[str, Any]:
        """The columns of `values` for one layer; raises NotFinite. `factor [memory]` multiplies values at work, NaN if
        the memory never fires (`work_factors`). A linear head multiplies scores as it multiplies vectors, so one
        product serves both.
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
        times = None if factor is None else torch.from_numpy(np.nan_to_num(factor)).to(folded)[:, None]
        read = partial(_read_scores, wanted, times if projector.linear else None)
        columns |= join_columns(projector.read_all(folded, read, opposite=True))
        if times is not None and not projector.linear:
            columns |= join_columns(projector.read_all(folded * times, _read_working))
        if not np.isfinite(columns["entropy"]).all():
            memory = int(np.flatnonzero(~np.isfinite(columns["entropy"]))[0])
            named = model.numbering(layer).name(layer, memory)
            raise NotFinite(f"the value of {named} has scores that are not finite; check the model's weights")
        for name, found in (("target", wanted.target), ("target_rank", columns["target_rank"])):
            columns[name] = pa.array(found.astype(np.int32), mask=wanted.target < 0)
        means = columns["trigger_log_probability"].astype(np.float32)
        columns["trigger_log_probability"] = pa.array(means, mask=~np.isfinite(means))
        if factor is None:
            return columns | dict.fromkeys(AT_WORK, unknown)
        at_work = np.stack([columns[name] for name in AT_WORK])
        if wrong := np.flatnonzero(~np.isnan(factor) & ~np.isfinite(at_work).all(0)).tolist():
            named = model.numbering(layer).name(layer, wrong[0])
            raise NotFinite(f"the value of {named} at work is not finite; check the model's weights")
        return columns | {name: np.ma.array(columns[name], mask=np.isnan(factor)) for name in AT_WORK}


def work_factors(model: LanguageModel, layer: int, triggers: pl.DataFrame, scale: Scale) -> NDArray[np.float64]:
    """What each value of a layer is multiplied by at work (definitions.md section 2): `[memory]`. The median
    coefficient of its memory's positive `triggers`, divided by `scale`, which has one number, or one per branch; NaN
    without positive triggers.
    """
    medians = triggers.filter(pl.col("sign") == 1).group_by("memory").agg(pl.col("coefficient").cast(float).median())
    factor = np.full(model.sizes.memories[layer], np.nan)
    factor[medians["memory"].to_numpy()] = medians["coefficient"].to_numpy() * model.multiplier(layer)
    factor /= np.atleast_1d(scale)[model.branch_of(layer).numpy()]
    return factor


def write_layer_values(run: MiningRun, layer: int) -> None:
    """Writes `values` of one layer if it is missing; needs triggers and scales. Without prefixes no scale is known, and
    the columns of values at work are null. Raises NotFinite, StoreFailed.
    """
    if run.is_made("values", layer):
        return
    values = run.keep(ValuePass, lambda: ValuePass(run.model))
    triggers = run.read("triggers", ("memory", "sign", "coefficient", "sentence", "next_token"), layer)
    scale = read_note(run.context.work, "scales", run.plan)["value_scales"][run.plan.layers.index(layer)]
    factor = None if scale is None else work_factors(run.model, layer, triggers, scale)
    run.write("values", values.columns(layer, targets(triggers, run.model.sizes.memories[layer]), factor), layer)


def _read_working(share: Share) -> dict[str, NDArray[Any]]:
    """Of each row of scores the maximum minus the mean, and the largest probability."""
    with torch.inference_mode():
        above = share.scores.amax(1) - share.scores.mean(1)
        found = above, distribution(share.scores).max_probability
    return {name: tensor.cpu().numpy() for name, tensor in zip(AT_WORK, found, strict=True)}


def _read_scores(wanted: Targets, times: Tensor | None, share: Share) -> dict[str, NDArray[Any]]:
    """The columns of some memories; with `times [memory, 1]` also those at work, which overwrites the scores."""
    scores, opposite, memories = share.scores, share.opposite, share.vectors
    with torch.inference_mode():
        count = len(scores)
        target = torch.from_numpy(wanted.target[memories]).to(scores.device)
        worst = TOKENS_KEPT if opposite is None else 0
        ranking, shape = read_scores(scores, best=TOKENS_KEPT, worst=worst, of=[target.clamp(min=0)])
        tokens, best = ranking.best
        low_tokens, low = ranking.worst if opposite is None else top(opposite, TOKENS_KEPT)
        low = -low if opposite is None else low
        first, last = np.searchsorted(wanted.memory, (memories.start, memories.stop))
        memory = wanted.memory[first:last] - memories.start
        places = torch.from_numpy(memory).to(scores.device)
        following = torch.from_numpy(wanted.next_token[first:last]).to(scores.device)
        log_p = scores[places, following].double() - shape.log_normaliser[places].double()
    # Added up in the order of the rows: a GPU would add in the order of arrival, and the last bits would be chance.
    sums = torch.from_numpy(np.bincount(memory, weights=log_p.cpu().numpy(), minlength=count))
    mean = sums / torch.from_numpy(np.bincount(memory, minlength=count))  # 0 / 0: no next tokens, stays empty
    names = {
        "top_tokens": tokens.int(), "top_scores": best, "bottom_tokens": low_tokens.int(), "bottom_scores": low,
        "max_probability": shape.max_probability, "entropy": shape.entropy.clamp(min=0),
        "target_rank": ranking.ranks[0], "trigger_log_probability": mean,
    }  # fmt: skip
    columns = {name: tensor.cpu().numpy() for name, tensor in names.items()}
    if times is not None:
        scores.mul_(times[memories].to(scores.device))
        columns |= _read_working(share)
    return columns
