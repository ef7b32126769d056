"""Many prompts at once: the memories that push in most of them, and what switching those off does to prompts on which
they were not found (definitions.md section 9, attribute).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.ablations import DRAWS, Ablations, Grid, Places, draw_controls, powers
from mnemoscope.attribution.attribute import SINGLES, Attributor
from mnemoscope.attribution.attribution import Curve, CurvePoint, spread, with_labels
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.attribution.direct_effects import check_head
from mnemoscope.errors import PromptError
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.intervals import DRAWS as RESAMPLES
from mnemoscope.foundation.intervals import LEVELS, Floats
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.records import plain
from mnemoscope.tracing.rendering import Column, table
from mnemoscope.tracing.scoring.scores import check_wide_numbers, require_model_of

_TOGETHER = 256
"""The most memories that are switched off together."""


@dataclass(frozen=True, repr=False)
class PromptsAttribution(Result):
    """The memories that push most over `prompts` prompts: `memories` has memory, attribution (its sum over a prompt's
    positions, averaged over prompts) with a bootstrap interval, and `share`, of prompts where it is in the list.
    `curve` has the medians over the second of the `halves`, of memories found on the first. `refused` are the prompts
    that could not be asked about, with reasons.
    """

    model: str
    prompts: int
    refused: tuple[tuple[str, str], ...]
    memories: pl.DataFrame
    curve: Curve
    halves: tuple[int, int]
    made_by: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The document of contract.md."""
        return {
            "model": self.model,
            "prompts": self.prompts,
            "refused": [{"prompt": prompt, "reason": reason} for prompt, reason in self.refused],
            "memories": self.memories.to_dicts(),
            "curve": plain(self.curve),
            "halves": list(self.halves),
            "made_by": self.made_by,
        }

    def __repr__(self) -> str:
        return f"<PromptsAttribution of {self.prompts} prompts; print it to read it>"

    def __str__(self) -> str:
        columns: list[Column] = [("memory", "left", 16), ("attribution", "right", 11), ("95 % interval", "left", 18),
                                 ("in lists", "right", 8), ("about", "left", 60)]  # fmt: skip
        rows = [
            [row["memory"], f"{row['attribution']:+.3f}", f"{row['low']:+.3f} to {row['high']:+.3f}",
             f"{row['share']:.0%}", row["label"] or ""]
            for row in self.memories.head(20).to_dicts()
        ]  # fmt: skip
        lines = [f"{self.model}: {self.prompts} prompts, {len(self.refused)} refused"]
        lines += [f"  {show_token(prompt)}: {reason}" for prompt, reason in self.refused]
        off: list[Column] = [("switched off together", "right", 21), ("F", "right", 8), ("with controls", "left", 40)]
        points = [
            [f"{one.k:,}", f"{one.without:+.2f}", "{1:+.2f} ({0:+.2f} to {2:+.2f})".format(*one.controls)]
            for one in self.curve
        ]
        found, held = self.halves
        said = f"Median F of {held} prompts without the memories found on the other {found}:"
        return "\n".join([*lines, "", *table(columns, rows), "", said, *table(off, points)])


@whole_use
def attribute_prompts(
    model: LanguageModel,
    prompts: Sequence[dict[str, str]],
    *,
    top: int = SINGLES,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> PromptsAttribution:
    """`attribute` over many prompts, each a row of `read_prompts`. Prompts that cannot be asked about are counted.

    A prompt's list are its 128 places with the largest `|attribution|`. Raises PromptError if none can be asked about,
    and what `attribute` raises.
    """
    check_head(model)
    check_wide_numbers(model)
    if atlas is not None:
        require_model_of(model, atlas)
    asked: list[Attributor] = []
    refused: list[tuple[str, str]] = []
    sums: list[Floats] = []
    listed = np.zeros(sum(model.sizes.memories))
    with model.lock:
        for number, row in enumerate(prompts, 1):
            try:
                contrast = choose_contrast(model, row["prompt"], target=row.get("for"), against=row.get("against"))
            except PromptError as error:
                refused.append((row["prompt"], str(error)))
                continue
            one = Attributor(model, contrast, seed=seed)
            sums.append(one.by_memory(one.attributions * one.outside))
            listed += one.by_memory(np.isin(np.arange(len(one.outside)), one.largest[:SINGLES])) > 0
            one.forget()
            asked.append(one)
            progress("attributing", number, len(prompts), "prompts")
        if not asked:
            raise PromptError(f"no prompt can be asked about; the first says: {refused[0][1]}")
        each = np.stack(sums)
        order = np.random.default_rng((seed, 4)).permutation(len(asked))
        half = (len(asked) + 1) // 2
        found, held = order[:half], order[half:]
        curve = _held_out_curve(model, [asked[one] for one in held], each[found].mean(0), seed, progress)
    mean = each.mean(0)
    best = np.argsort(-np.abs(mean), kind="stable")[:top]
    best = best[mean[best] != 0]
    draws = np.random.default_rng((seed, 5)).integers(0, len(each), (RESAMPLES, len(each)))
    low, high = np.quantile([each[:, one][draws].mean(1) for one in best], LEVELS, axis=1) if len(best) else ([], [])
    layers, _, memories = (one.tolist() for one in Grid(model.sizes.memories, 1).split(best))
    names = [model.numbering(layer).name(layer, memory) for layer, memory in zip(layers, memories, strict=True)]
    frame = pl.DataFrame({
        "memory": list(map(str, names)), "attribution": mean[best], "low": low, "high": high,
        "share": listed[best] / len(asked), "label": pl.Series([None] * len(best), dtype=pl.String),
    })  # fmt: skip
    if atlas is not None:
        frame = with_labels(frame, atlas)
    origin = made_by(
        model=model.fingerprint, atlas=None if atlas is None else atlas.manifest_hash,
        options={"prompts": len(prompts), "top": top}, seed=seed,
    )  # fmt: skip
    return PromptsAttribution(model.spec, len(asked), tuple(refused), frame, curve, (len(found), len(held)), origin)


def _held_out_curve(
    model: LanguageModel, held: Sequence[Attributor], mean: Floats, seed: int, progress: Progress
) -> Curve:
    """Medians over prompts of F without the first memories of an order, at all positions outside the frame."""
    order = np.argsort(-mean, kind="stable")[:_TOGETHER]
    order = order[mean[order] > 0]
    ks = powers(len(order), _TOGETHER)
    rows, missing = [], np.zeros(len(ks), np.int64)
    for number, one in enumerate(held, 1):
        chosen = [one.everywhere(memory) for memory in order.tolist()]
        edges = np.cumsum([len(places) for places in chosen])
        every: Places = np.concatenate([*chosen, np.zeros(0, np.int64)])
        runs = [every[: edges[k - 1]] for k in ks]
        for draw in range(DRAWS):
            generator = np.random.default_rng((seed, 6, number, draw))
            drawn = draw_controls(one.grid, one.strengths, every, barred=every, generator=generator)
            kept = np.array([-1 if place is None else place for place in drawn], np.int64)
            runs += [kept[: edges[k - 1]][kept[: edges[k - 1]] >= 0] for k in ks]
            missing += [int((kept[: edges[k - 1]] < 0).sum()) for k in ks]
        found = Ablations(model, one.ids, one.difference, one.grid).run(runs)
        rows.append(found.reshape(DRAWS + 1, len(ks)))
        one.forget()
        progress("held-out prompts", number, len(held), "prompts")
    if not rows:
        return ()
    without = np.median([row[0] for row in rows], axis=0)
    controls = np.median([[spread(row[1:, at]) for at in range(len(ks))] for row in rows], axis=0)
    return tuple(
        CurvePoint(k, float(without[at]), tuple(controls[at].tolist()), int(missing[at])) for at, k in enumerate(ks)
    )
