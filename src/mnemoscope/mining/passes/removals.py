"""How the coefficient of a trigger changes when its first, last or a random token is dropped. Makes `removals`.

Asked of the top positive triggers of a seeded sample of memories (paper, section 3 and Figure 3; definitions.md section
4). The models read from left to right, so one run of a sentence without token k answers for every trigger in it whose
prefix lost token k, of any memory and position; the whole sentence answers for a dropped last token, one position
earlier. A run is a row of a padded batch, as long as anything in it is asked, on one side of a boundary of the model
(company.py).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from polars import selectors
from torch import Tensor

from mnemoscope.atlas.experts import Numberings, counted_through
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import NotFinite
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.passes.prefix_pass import plan_rows
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.plan.removal_cost import TRIGGERS_ASKED
from mnemoscope.mining.steps import empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pad, sides
from mnemoscope.models.forward.hooks import read_coefficients

WHOLE = -1
"""In place of a removed token: the whole sentence."""

See = Callable[[int, dict[str, Ints], Tensor], None]
"""Called with a layer, its requests, whose `run` counts through the batch, and its coefficients."""


class ShortenedRuns:
    """The runs that answer requests, each a row of a batch, by deepest layer and length. A request is about the first
    `position` tokens of the `sentence` without token `gap`, and the coefficients there of a `memory` of a `layer`.
    """

    def __init__(self, requests: pl.DataFrame, model: LanguageModel, sentences: NamedSentences) -> None:
        self._model, self._sentences = model, sentences
        side = sides(model, model.reading.columns(requests["position"].to_numpy()))
        asked, one = requests.with_columns(side=side).with_row_index("number"), ("sentence", "gap", "side")
        runs = asked.group_by(one).agg(pl.col("layer").max(), pl.col("position").max())
        self._runs = runs.sort("layer", "position", *one)
        numbered = self._runs.select(one).with_row_index("run")
        self._asked = asked.join(numbered, on=one).sort("run", "number").cast(pl.Int64)
        self.lengths = model.reading.columns(self._runs["position"].to_numpy())
        self.deepest = self._runs["layer"].to_numpy()

    def take(self, items: slice, see: See) -> None:
        rows = []
        for sentence, gap, position in self._runs[items].select("sentence", "gap", "position").iter_rows():
            tokens = self._model.reading.context(self._sentences.of(sentence), position)
            rows.append((tokens if gap == WHOLE else np.delete(tokens, gap))[:position])
        ids = pad(rows, self._model)
        begin, end = np.searchsorted(self._asked["run"].to_numpy(), (items.start, items.stop))
        asked = self._asked[begin:end].with_columns(pl.col("run") - items.start)

        def read(layer: int, coefficients: Tensor) -> None:
            requests = asked.filter(pl.col("layer") == layer)
            see(layer, {column.name: column.to_numpy(writable=True) for column in requests}, coefficients)

        layers = asked["layer"].unique().sort().to_list()
        with torch.inference_mode(), read_coefficients(self._model, read, layers=layers, own_thread=True):
            self._model.backbone(ids, stop_after=layers[-1])


def random_position(seed: int, layer: int, memory: int, sentence: int, position: int) -> int:
    """Which of the tokens 0..position is dropped: uniform, by a hash."""
    digest = hashlib.blake2b(struct.pack("<5q", seed, layer, memory, sentence, position), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (position + 1)


def choose_triggers(
    directory: Path, plan: MiningPlan, *, first: int, numberings: Numberings
) -> tuple[pl.DataFrame, dict[str, int]]:
    """The triggers asked about, by layer, memory and rank: of every mined layer `plan.removals` memories that fire,
    drawn by the plan's seed.

    Also the numbers left out: `length_one` triggers have one token; `length_two`, in a model without a beginning token,
    have two, of which a removal leaves one at position 0, the attention sink. `first` is the first position that
    counts.
    """
    layers = []
    for layer in plan.layers:
        stored = pl.scan_parquet(directory / TABLES["triggers"].path(layer), glob=False)
        best = (
            counted_through(stored, numberings, layer)
            .filter(pl.col("sign") == 1, pl.col("rank") < TRIGGERS_ASKED, pl.col("rank") == pl.col("prefix_group"))
            .select(pl.lit(layer).alias("layer"), "memory", "sentence", "position", "coefficient", trigger_rank="rank")
            .cast({selectors.integer(): pl.Int64})
            .collect()
        )
        firing = best["memory"].unique().sort().to_numpy()
        count = len(firing) if plan.removals == "all" else int(plan.removals or 0)
        sample = np.random.default_rng((plan.seed, 5, layer)).permutation(firing)[:count]
        layers.append(best.filter(pl.col("memory").is_in(sample.tolist())))
    position = pl.col("position")
    triggers = pl.concat(layers).sort("layer", "memory", "trigger_rank")
    shortest = triggers.filter(position <= first)["position"]
    left_out = {"length_one": int((shortest == 0).sum()), "length_two": int((shortest == 1).sum())}
    return triggers.filter(position > first), left_out


class RemovalPass:
    """The runs that answer for all triggers; needs `triggers` and `sentences`."""

    def __init__(self, run: MiningRun) -> None:
        self._run, model, plan = run, run.model, run.plan
        first = model.reading.first
        triggers, self._left_out = choose_triggers(run.directory, plan, first=first, numberings=model.numberings)
        fired = triggers.select("layer", "memory", "sentence", "position").iter_rows()
        drawn = [random_position(plan.seed, *place) for place in fired]
        dropped = {"first": pl.lit(0), "last": pl.col("position"), "random": pl.lit(pl.Series(drawn, dtype=pl.Int64))}
        asked = [
            triggers.with_columns(removed=pl.lit(name), removed_position=place.cast(pl.Int64))
            for name, place in dropped.items()
        ]
        self.requests = pl.concat(asked).sort("layer", "memory", "trigger_rank", maintain_order=True)
        # Dropping the last token leaves the beginning of the sentence as it stands.
        gap = pl.when(pl.col("removed_position") < pl.col("position")).then("removed_position").otherwise(WHOLE)
        places = self.requests.select("layer", "memory", "sentence", "position", gap=gap)
        self._runs = ShortenedRuns(places, model, run.sentences)
        self._answers = {"removed_coefficient": empty_answers(len(self.requests), np.float32)}
        self.steps = plan_rows(
            run,
            lambda items: self._runs.take(items, self._answer),
            self._runs.lengths,
            self._answers,
            stage="removals",
            unit="sentences",
            parts=self._runs.deepest,
        )

    def _answer(self, layer: int, asked: dict[str, Ints], coefficients: Tensor) -> None:
        places = (asked["run"], self._run.model.reading.columns(asked["position"] - 1), asked["memory"])
        removed = coefficients[tuple(map(torch.from_numpy, places))].float().cpu().numpy()
        if not np.isfinite(removed).all():
            raise NotFinite(
                f"layer {layer} has NaN or infinite coefficients where a token was removed; try --dtype float32"
            )
        self._answers["removed_coefficient"][asked["number"]] = removed

    def write(self) -> Mapping[str, Any]:
        """Writes `removals`, sorted by layer, memory, rank."""
        table = self.requests.drop("sentence").with_columns(sign=pl.lit(1))
        self._run.write("removals", {column.name: column.to_numpy() for column in table} | self._answers)
        return {"removals_per_layer": self._run.plan.removals, "removals_excluded": self._left_out}
