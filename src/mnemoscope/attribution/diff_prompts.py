"""`diff` over many prompts: which changes recur, and what setting memories back does (definitions.md section 9)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.derived_manifest import Weights, describe_changes
from mnemoscope.attribution.ablations import powers
from mnemoscope.attribution.diff import MOST, Differ, Parting, second_model
from mnemoscope.attribution.explanation import Explanation, memory_table, origin_of, with_labels
from mnemoscope.attribution.prompts import Refused, ask_each, bounds
from mnemoscope.attribution.run_difference import Patched, RunDifference, about_shares, in_each, share_text
from mnemoscope.attribution.setting_back import Patch
from mnemoscope.foundation.formatting import Table
from mnemoscope.foundation.intervals import DRAWS, LEVELS
from mnemoscope.foundation.options.prompt_file import PromptRow, check_second
from mnemoscope.foundation.progress import Progress, report_to
from mnemoscope.models import LanguageModel
from mnemoscope.models.weight_changes import weight_changes
from mnemoscope.tracing.scoring.scores import opens

_ALL = 1 << 62
"""More memories than any model has."""
_ANSWER = 8
"""Tokens of an answer that other prompts keep."""
_TOGETHER = 4_096
"""Columns whose bootstrap draws are made together."""


class MedianPatched(TypedDict):
    k: int | str
    prompts: int
    difference: float
    recovered: float | None
    control_recovered: float | None


class Repaired(TypedDict):
    """Shares of the held-out prompts where, with `k` memories of the other half set back, the second's answer is gone,
    and where it is the first's; and of other prompts, on which both agree, whose answer changed. Beside them controls.
    """

    k: int
    gone: float | None
    as_first: float | None
    changed: float | None
    control_gone: float | None
    control_changed: float | None


@dataclass(frozen=True, repr=False)
class PromptsDifference(Explanation):
    """Means over the `prompts` that part, with bootstrap intervals over them: `parts` and `memories` (of a memory its
    changes at all positions). `patched` are medians; `turned` is the share of prompts that at most 256 memories turn.
    `held_out` is what memories found on the first of the `halves` do on the second, and to prompts that never part.
    `weights` are those of `weight_changes` between two models.
    """

    names: tuple[str, str]
    prompts: int
    never_parted: int
    refused: tuple[Refused, ...]
    parts: Annotated[pl.DataFrame, "text part int layer? float change low high"]
    memories: Annotated[pl.DataFrame, "text memory +label? float change low high"]
    patched: tuple[MedianPatched, ...]
    turned: float
    held_out: tuple[Repaired, ...]
    halves: tuple[int, int]
    made_by: dict[str, Any]
    weights: Weights = field(default_factory=pl.DataFrame)

    def to_dict(self) -> dict[str, Any]:
        entries = super().to_dict()
        return {"models": in_each(entries.pop("names")), **entries}

    def title(self) -> str:
        return f"{self.prompts} prompts"

    def blocks(self) -> Sequence[str | Table]:
        steps = [
            [
                str(one["k"]),
                f"{one['difference']:+.2f}",
                share_text(one["recovered"]),
                share_text(one["control_recovered"]),
            ]
            for one in self.patched
        ]
        return [
            f"{self.names[0]} and {self.names[1]}: {self.prompts} prompts part, {self.never_parted} never do, "
            f"{len(self.refused)} refused; {self.turned:.0%} turn within 256 memories",
            *map(str, self.refused),
            *describe_changes(self.weights),
            "",
            memory_table(
                self.memories, {">change": 8, "95 % interval": 20}, lambda row: bounds(row, "change"), about=False
            ),
            "",
            "Medians over prompts:",
            Table((">set back", ">F", ">recovered", ">controls"), steps, (10, 8, 9, 8)),
            *about_shares(one[name] for one in self.patched for name in ("recovered", "control_recovered")),
            *(["", *self._held_out_blocks()] if self.held_out else []),
        ]

    def _held_out_blocks(self) -> Sequence[str | Table]:
        names = ("gone", "as_first", "changed", "control_gone", "control_changed")
        headings = ("answer gone", "as the first", "others changed", "controls: gone", "others changed")
        listed: Sequence[Mapping[str, Any]] = self.held_out
        rows = [[str(one["k"]), *(share_text(one[name]) for name in names)] for one in listed]
        found, held = self.halves
        about = f"Memories found on {found} prompts, set back on the other {held}, and on {self.never_parted} (others)"
        table = Table([">set back", *(f">{heading}" for heading in headings)], rows, [10, *[15] * len(headings)])
        return [f"{about} on which both agree:", table]


@opens
def diff_prompts(
    model: LanguageModel,
    prompts: Sequence[PromptRow],
    *,
    other: LanguageModel | str | None = None,
    other_adapter: str | Path | None = None,
    both: bool = False,
    patch: Patch = "contribution",
    top: int = 128,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
) -> PromptsDifference:
    """`diff` for each row of `read_prompts`; without another model each row has its `other_prompt`. Prompts that cannot
    be compared are counted. Raises PromptError if none can, and what `diff` raises.
    """
    second = model if check_second(prompts, other, other_adapter) else second_model(model, other, other_adapter)
    with Differ(model, second, patch=patch, seed=seed) as differ, report_to(progress) as report:

        def ask(row: PromptRow) -> tuple[Parting, RunDifference]:
            asked = row["prompt"], row.get("other_prompt"), row.get("for"), row.get("against")
            parting = differ.find_parting(*asked, source=row.get("source"))
            return parting, differ.explain(parting, both=True, top=_ALL)

        asked, refused = ask_each(prompts, ask, report, "comparing")
        every = [one for _, one in asked]
        held_out, halves = ((), (0, 0)) if second is model else _held_out(differ, asked, seed, report)
        weights = pl.DataFrame() if second is model else weight_changes(model, second)
    parted = [one for one in every if one.said is not None]
    memories = _memory_means(parted)
    memories = memories if both else memories.filter(pl.col("change") > 0)
    memories = memories.sort(pl.col("change").abs(), descending=True, maintain_order=True).head(top)
    memories = memories.sort("change", descending=True, maintain_order=True)
    return PromptsDifference(
        differ.names,
        len(parted),
        len(every) - len(parted),
        refused,
        _means([one.parts for one in parted], ["part", "layer"]).sort("part", "layer", nulls_last=True),
        memories if atlas is None else with_labels(memories, atlas),
        _medians(parted),
        sum(one.turns_at is not None for one in parted) / max(1, len(parted)),
        held_out,
        halves,
        origin_of(
            [model.fingerprint, second.fingerprint], atlas, seed, prompts=len(prompts), both=both, patch=patch, top=top
        ),
        weights,
    )


def _held_out(
    differ: Differ, asked: Sequence[tuple[Parting, RunDifference]], seed: int, progress: Progress
) -> tuple[tuple[Repaired, ...], tuple[int, int]]:
    """What the memories that one half of the prompts finds do on the other, and the sizes of the halves."""
    parted = [each for each in asked if each[0].pair is not None]
    order = np.random.default_rng((seed, 4)).permutation(len(parted))
    found, held = ([parted[at] for at in some] for some in np.split(order, [(len(parted) + 1) // 2]))
    best = _memory_means([one for _, one in found]).filter(pl.col("change") > 0)
    memories = best.sort("change", descending=True, maintain_order=True)["memory"].head(MOST).to_list()
    gone, as_first, changed = [], [], []
    runs = [*(parting for parting, _ in held), *(parting for parting, _ in asked if parting.pair is None)]
    for number, parting in enumerate(runs if memories and held else (), 1):
        tokens, begun = parting.tokens[1], len(parting.tokens[1]) - parting.generated
        if parting.pair is not None:
            says = differ.says(parting, tokens, memories, many=1)[..., 0]
            gone.append(says != parting.pair[0])
            as_first.append(says == parting.pair[1])
        elif parting.generated:
            many = min(_ANSWER, parting.generated)
            says = differ.says(parting, tokens[: begun + many - 1], memories, many=many)
            changed.append((says != np.array(tokens[begun : begun + many])).any(2))
        progress("held-out prompts", number, len(runs), "prompts")

    def share(each: Sequence[NDArray[np.bool_]], at: int, *, controls: bool = False) -> float | None:
        return float(np.mean(each, 0)[slice(1, None) if controls else 0, at].mean()) if each else None

    rows = [
        Repaired(
            k=k,
            gone=share(gone, at),
            as_first=share(as_first, at),
            changed=share(changed, at),
            control_gone=share(gone, at, controls=True),
            control_changed=share(changed, at, controls=True),
        )
        for at, k in enumerate(powers(len(memories), MOST) if gone else ())
    ]
    return tuple(rows), (len(found), len(held))


def _memory_means(parted: Sequence[RunDifference]) -> pl.DataFrame:
    return _means([one.memories.group_by("memory").agg(pl.col(one.sorted_by).sum()) for one in parted], ["memory"])


def _means(frames: Sequence[pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    """The mean over prompts of the last column by every key (0 where it is missing), with a bootstrap interval."""
    rows: list[dict[Any, float]] = [{row[:-1]: row[-1] for row in one.rows()} for one in frames]
    count, every = max(1, len(rows)), sorted({key for row in rows for key in row}, key=str)
    values = np.array([[row.get(key, 0.0) for key in every] for row in rows]).reshape(len(rows), len(every))
    draws = np.random.default_rng(8).integers(0, count, (DRAWS, len(rows)))
    times = np.stack([np.bincount(draw, minlength=len(rows)) for draw in draws])
    spread = [
        np.quantile(times @ values[:, begin : begin + _TOGETHER] / count, LEVELS, axis=0)
        for begin in range(0, len(every), _TOGETHER)
    ]
    low, high = np.concatenate([np.empty((2, 0)), *spread], axis=1)
    names = {
        name: pl.Series([key[at] for key in every], dtype=pl.Int64 if name == "layer" else pl.String)
        for at, name in enumerate(keys)
    }
    return pl.DataFrame({**names, "change": values.sum(0) / count, "low": low, "high": high})


def _medians(parted: Sequence[RunDifference]) -> tuple[MedianPatched, ...]:
    """By number of memories set back, over the prompts that have so many."""
    every: dict[int | str, list[tuple[RunDifference, Patched]]] = {}
    for one in parted:
        for point in one.patched:
            every.setdefault(point.k, []).append((one, point))
    sizes = sorted(k for k in every if isinstance(k, int) and k & (k - 1) == 0)
    rows: list[MedianPatched] = []
    for k in [*sizes, *(k for k in ("all", "everywhere") if k in every)]:
        points = every[k]
        recovered = [point.recovered for _, point in points if point.recovered is not None]
        beside = [
            (one.second - point.controls[1]) / (one.second - one.first)
            for one, point in points
            if point.controls is not None and point.recovered is not None
        ]
        rows.append(
            {
                "k": k,
                "prompts": len(points),
                "difference": median(point.difference for _, point in points),
                "recovered": median(recovered) if recovered else None,
                "control_recovered": median(beside) if beside else None,
            }
        )
    return tuple(rows)
