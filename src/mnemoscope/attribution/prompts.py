"""Many prompts at once: the memories that push in most of them, and what switching those off does to prompts on which
they were not found (definitions.md section 9, attribute).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.ablations import DRAWS, Ablations, Grid, draw_sets, powers, rank, spread
from mnemoscope.attribution.attribute import SINGLES, Attributor
from mnemoscope.attribution.attribution import Curve, CurvePoint, curve_table
from mnemoscope.attribution.contrast import choose_contrast
from mnemoscope.attribution.explanation import Explanation, logits, memory_table, origin_of, with_labels
from mnemoscope.errors import PromptError
from mnemoscope.foundation.formatting import Table, show_token
from mnemoscope.foundation.intervals import DRAWS as RESAMPLES
from mnemoscope.foundation.intervals import LEVELS, Floats
from mnemoscope.foundation.options.prompt_file import PromptRow
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.models import LanguageModel
from mnemoscope.models.object_state import whole_use
from mnemoscope.tracing.records import Record
from mnemoscope.tracing.scoring.scores import opens, require_model_of

T = TypeVar("T")
_TOGETHER = 256
"""The most memories that are switched off together."""


@dataclass(frozen=True, slots=True)
class Refused(Record):
    """A prompt of a file that cannot be asked about, and why."""

    prompt: str
    reason: str

    def __str__(self) -> str:
        return f"  {show_token(self.prompt)}: {self.reason}"


def ask_each(
    prompts: Sequence[PromptRow], ask: Callable[[PromptRow], T], progress: Progress, stage: str
) -> tuple[list[T], tuple[Refused, ...]]:
    """What is found of each prompt, and those that are refused. Raises PromptError if all are."""
    answers: list[T] = []
    refused: list[Refused] = []
    for number, row in enumerate(prompts, 1):
        try:
            answers.append(ask(row))
        except PromptError as error:
            prompt = row["prompt"]
            refused.append(Refused(prompt if isinstance(prompt, str) else prompt[-1]["content"], str(error)))
        progress(stage, number, len(prompts), "prompts")
    if not answers:
        raise PromptError(f"no prompt can be asked about; why not the first: {refused[0].reason}")
    return answers, tuple(refused)


@dataclass(frozen=True, repr=False)
class PromptsAttribution(Explanation):
    """The memories that push most over `prompts` prompts: `memories` has memory, attribution (its sum over a prompt's
    positions, averaged over prompts) with a bootstrap interval, and `share`, of prompts where it is in the list.
    `curve` has the medians over the second of the `halves`, of memories found on the first. `refused` are the prompts
    that could not be asked about, with reasons.
    """

    model: str
    prompts: int
    refused: tuple[Refused, ...]
    memories: Annotated[pl.DataFrame, "text memory label? float attribution low high share"]
    curve: Curve
    halves: tuple[int, int]
    made_by: dict[str, Any]

    def title(self) -> str:
        return f"{self.prompts} prompts"

    def blocks(self) -> Sequence[str | Table]:
        columns = {">attribution": 11, "95 % interval": 18, ">in lists": 8}
        first, held = self.halves
        return [
            f"{self.model}: {self.prompts} prompts, {len(self.refused)} refused",
            *map(str, self.refused),
            "",
            memory_table(self.memories, columns, lambda row: [*bounds(row, "attribution"), f"{row['share']:.0%}"]),
            "",
            f"Median F of {held} prompts without the memories found on the other {first}:",
            curve_table(self.curve, "with controls"),
        ]


def bounds(row: dict[str, Any], name: str) -> list[str]:
    """The cells of a number and its interval."""
    return [logits(row[name]), f"{logits(row['low'])} to {logits(row['high'])}"]


@opens
@whole_use
def attribute_prompts(
    model: LanguageModel,
    prompts: Sequence[PromptRow],
    *,
    top: int = 128,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> PromptsAttribution:
    """`attribute` over many prompts, each a row of `read_prompts`. Prompts that cannot be asked about are counted.

    A prompt's list are its 128 places with the largest `|attribution|`. Raises PromptError if none can be asked about,
    and what `attribute` raises.
    """
    if atlas is not None:
        require_model_of(model, atlas)
    sums: list[Floats] = []
    listed = np.zeros(sum(model.sizes.memories))

    def ask(row: PromptRow) -> Attributor:
        given = model.with_source(row.get("source"))
        contrast = choose_contrast(given, row["prompt"], target=row.get("for"), against=row.get("against"))
        one = Attributor(given, contrast, seed=seed)
        sums.append(one.grid.sum_columns(one.attributions * one.grid.outside))
        listed[np.unique(one.grid.across(one.largest[:SINGLES]))] += 1
        one.forget()
        return one

    with model.lock, report_to(progress) as report:
        asked, refused = ask_each(prompts, ask, report, "attributing")
        each = np.stack(sums)
        order = np.random.default_rng((seed, 4)).permutation(len(asked))
        half = (len(asked) + 1) // 2
        first, held = order[:half], order[half:]
        curve = _held_out_curve([asked[one] for one in held], each[first].mean(0), seed, report)
    mean = each.mean(0)
    best = rank(np.flatnonzero(mean), np.abs(mean))[:top]
    draws = np.random.default_rng((seed, 5)).integers(0, len(each), (RESAMPLES, len(each)))
    low, high = np.quantile([each[:, one][draws].mean(1) for one in best], LEVELS, axis=1) if len(best) else ([], [])
    frame = pl.DataFrame(
        {
            "memory": pl.Series(Grid(model.sizes.memories, 1).names(model, best)["memory"], dtype=pl.String),
            "attribution": mean[best],
            "low": low,
            "high": high,
            "share": listed[best] / len(asked),
        }
    )
    return PromptsAttribution(
        model.spec,
        len(asked),
        refused,
        with_labels(frame, atlas),
        curve,
        (len(first), len(held)),
        origin_of(model.fingerprint, atlas, seed, prompts=len(prompts), top=top),
    )


def _held_out_curve(held: Sequence[Attributor], mean: Floats, seed: int, progress: Progress) -> Curve:
    """Medians over prompts of F without the first memories of an order, at all positions outside the frame."""
    order = rank(np.flatnonzero(mean > 0), mean)[:_TOGETHER]
    ks = powers(len(order), _TOGETHER)
    rows, missing = [], np.zeros(len(ks), np.int64)
    for number, one in enumerate(held if ks else (), 1):
        by_memory = [one.everywhere(memory) for memory in order.tolist()]
        every, edges = np.concatenate(by_memory), np.cumsum([len(places) for places in by_memory])
        counts = [int(edges[k - 1]) for k in ks]
        sets, short = draw_sets(one.grid, one.strengths, every, counts, barred=every, seed=(seed, 6, number))
        values = Ablations(one.model, one.ids, one.difference, one.grid).run(
            [*(every[:count] for count in counts), *sets]
        )
        rows.append(values.reshape(DRAWS + 1, len(ks)))
        missing += short
        one.forget()
        progress("held-out prompts", number, len(held), "prompts")
    if not rows:
        return ()
    without = np.median([row[0] for row in rows], axis=0)
    controls = np.median([[spread(row[1:, at]) for at in range(len(ks))] for row in rows], axis=0)
    return tuple(
        CurvePoint(k, float(without[at]), tuple(controls[at].tolist()), int(missing[at])) for at, k in enumerate(ks)
    )
