"""`diff` over many prompts: which changes recur, and what setting memories back does (definitions.md section 9)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.attribution.attribute import LISTED
from mnemoscope.attribution.attribution import with_labels
from mnemoscope.attribution.diff import Differ, second_model
from mnemoscope.attribution.patching import Patch
from mnemoscope.attribution.run_difference import RunDifference
from mnemoscope.errors import OptionError, PromptError
from mnemoscope.foundation.formatting import show_token
from mnemoscope.foundation.intervals import DRAWS, LEVELS
from mnemoscope.foundation.origin import Result, made_by
from mnemoscope.foundation.progress import Progress, ignore_progress
from mnemoscope.models import LanguageModel
from mnemoscope.tracing.rendering import Column, table


@dataclass(frozen=True, repr=False)
class PromptsDifference(Result):
    """Means over the `prompts` that part, with bootstrap intervals over them: `parts` and `memories` (of a memory its
    changes at all positions). `patched` are medians; `turned` is the share of prompts that at most 256 memories turn.
    """

    names: tuple[str, str]
    prompts: int
    never_parted: int
    refused: tuple[tuple[str, str], ...]
    parts: pl.DataFrame
    memories: pl.DataFrame
    patched: tuple[dict[str, Any], ...]
    turned: float
    made_by: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The document of contract.md."""
        return {
            "models": dict(zip(("first", "second"), self.names, strict=True)),
            "prompts": self.prompts,
            "never_parted": self.never_parted,
            "refused": [{"prompt": prompt, "reason": reason} for prompt, reason in self.refused],
            "parts": self.parts.to_dicts(),
            "memories": self.memories.to_dicts(),
            "patched": list(self.patched),
            "turned": self.turned,
            "made_by": self.made_by,
        }

    def __repr__(self) -> str:
        return f"<PromptsDifference of {self.prompts} prompts; print it to read it>"

    def __str__(self) -> str:
        lines = [f"{self.names[0]} and {self.names[1]}: {self.prompts} prompts part, {self.never_parted} never do, "
                 f"{len(self.refused)} refused; {self.turned:.0%} turn within 256 memories"]  # fmt: skip
        lines += [f"  {show_token(prompt)}: {reason}" for prompt, reason in self.refused]
        columns: list[Column] = [("memory", "left", 16), ("change", "right", 8), ("95 % interval", "left", 20)]
        rows = [[row["memory"], f"{row['change']:+.3f}", f"{row['low']:+.3f} to {row['high']:+.3f}"]
                for row in self.memories.head(20).to_dicts()]  # fmt: skip
        back: list[Column] = [
            ("set back", "right", 10),
            ("F", "right", 8),
            ("recovered", "right", 9),
            ("controls", "right", 8),
        ]
        steps = [
            [str(one["k"]), f"{one['difference']:+.2f}", *("-" if one[name] is None else f"{one[name]:.0%}"
                                                            for name in ("recovered", "control_recovered"))]
            for one in self.patched
        ]  # fmt: skip
        return "\n".join([*lines, "", *table(columns, rows), "", "Medians over prompts:", *table(back, steps)])


def diff_prompts(
    model: LanguageModel,
    prompts: Sequence[dict[str, str]],
    *,
    other: LanguageModel | str | None = None,
    other_adapter: str | Path | None = None,
    both: bool = False,
    patch: Patch = "contribution",
    top: int = LISTED,
    atlas: Atlas | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> PromptsDifference:
    """`diff` for each row of `read_prompts`; without another model each row has its `other_prompt`. Prompts that cannot
    be compared are counted. Raises PromptError if none can, and what `diff` raises.
    """
    if other is not None and other_adapter is not None:
        raise OptionError("give one of --other and --other-adapter")
    alone = other is None and other_adapter is None
    if any(("other_prompt" in row) != alone for row in prompts):
        raise OptionError("every prompt has an other_prompt, or --other or --other-adapter is given: one of the two")
    second = model if alone else second_model(model, other, other_adapter)
    options = {"prompts": len(prompts), "both": both, "patch": patch, "top": top}
    origin = made_by(
        model=[model.fingerprint, second.fingerprint], atlas=None if atlas is None else atlas.manifest_hash,
        options=options, seed=seed,
    )  # fmt: skip
    with Differ(model, second, patch=patch, seed=seed) as differ:
        found = _compare_all(differ, prompts, both=both, top=top, origin=origin, progress=progress)
    return found if atlas is None else replace(found, memories=with_labels(found.memories, atlas))


def _compare_all(
    differ: Differ, prompts: Sequence[dict[str, str]], *, top: int, both: bool, origin: dict[str, Any],
    progress: Progress,
) -> PromptsDifference:  # fmt: skip
    found: list[RunDifference] = []
    refused: list[tuple[str, str]] = []
    never = 0
    for number, row in enumerate(prompts, 1):
        try:
            one = differ.compare(
                row["prompt"], row.get("other_prompt"), row.get("for"), row.get("against"), both=True, top=1 << 62
            )
        except PromptError as error:
            refused.append((row["prompt"], str(error)))
            continue
        never += one.said is None
        found += [] if one.said is None else [one]
        progress("comparing", number, len(prompts), "prompts")
    if not found and not never:
        raise PromptError(f"no prompt can be compared; the first says: {refused[0][1]}")
    changes = [
        one.memories.group_by("memory").agg(pl.col("effect" if "effect" in one.memories.columns else "change").sum())
        for one in found if one.memories is not None
    ]  # fmt: skip
    memories = _means([dict(frame.rows()) for frame in changes], ["memory"])
    memories = memories if both else memories.filter(pl.col("change") > 0)
    largest = memories.sort(pl.col("change").abs(), descending=True, maintain_order=True).head(top)
    parts = _means([{row[:2]: row[2] for row in one.parts.rows()} for one in found if one.parts is not None],
                   ["part", "layer"])  # fmt: skip
    return PromptsDifference(
        differ.names, len(found), never, tuple(refused), parts.sort("part", "layer", nulls_last=True),
        largest.sort("change", descending=True, maintain_order=True), _medians(found),
        sum(one.turns_at is not None for one in found) / max(1, len(found)), origin,
    )  # fmt: skip


def _means(rows: Sequence[dict[Any, float]], keys: list[str]) -> pl.DataFrame:
    """The mean over prompts of every key's number (0 where it is missing), with a bootstrap interval."""
    every = sorted({key for row in rows for key in row}, key=str)
    values = np.array([[row.get(key, 0.0) for key in every] for row in rows]).reshape(len(rows), len(every))
    draws = np.random.default_rng(8).integers(0, max(1, len(rows)), (DRAWS, len(rows)))
    counts = np.stack([np.bincount(draw, minlength=len(rows)) for draw in draws]) if len(rows) else draws
    means, spread = values.sum(0) / max(1, len(rows)), []
    for begin in range(0, len(every), 4096):
        spread.append(np.quantile(counts @ values[:, begin : begin + 4096] / max(1, len(rows)), LEVELS, axis=0))
    low, high = np.concatenate(spread, axis=1) if spread else (means, means)
    names = {name: [key if len(keys) == 1 else key[at] for key in every] for at, name in enumerate(keys)}
    return pl.DataFrame({**names, "change": means, "low": low, "high": high})


def _medians(found: Sequence[RunDifference]) -> tuple[dict[str, Any], ...]:
    every: dict[int | str, list[Any]] = {}
    for one in found:
        for point in one.patched:
            every.setdefault(point.k, []).append((one, point))
    sizes = sorted(k for k in every if isinstance(k, int) and k & (k - 1) == 0)
    rows = []
    for k in [*sizes, *(k for k in ("all", "everywhere") if k in every)]:
        points = every[k]
        recovered = [point.recovered for _, point in points if point.recovered is not None]
        beside = [
            (one.second - point.controls[1]) / (one.second - one.first)
            for one, point in points if point.controls is not None and point.recovered is not None
        ]  # fmt: skip
        rows.append({
            "k": k, "prompts": len(points), "difference": median(point.difference for _, point in points),
            "recovered": median(recovered) if recovered else None,
            "control_recovered": median(beside) if beside else None,
        })  # fmt: skip
    return tuple(rows)
