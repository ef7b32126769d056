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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from polars import selectors
from torch import Tensor

from mnemoscope.atlas.experts import Numberings, counted_through
from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import NotFinite
from mnemoscope.mining.mining_run import MiningRun
from mnemoscope.mining.plan.mining_plan import MiningPlan
from mnemoscope.mining.plan.removal_cost import TRIGGERS_ASKED
from mnemoscope.mining.steps import PlannedSteps, digest, empty_answers
from mnemoscope.mining.text.batches import pack, pad
from mnemoscope.mining.text.thread_team import ThreadTeam
from mnemoscope.mining.text.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.hooks import read_coefficients
from mnemoscope.models.proof.company import sides

Ints = NDArray[np.int64]

WHOLE = -1
"""In place of a removed token: the whole sentence."""

Answer = Callable[[int, Ints, Tensor], None]
"""Called with a layer, the numbers of requests and their coefficients."""


@dataclass(frozen=True)
class Requests:
    """For each request a layer and memory: the coefficient at `position - 1` of its sentence without token `gap`."""

    layer: Ints
    memory: Ints
    sentence: Ints
    gap: Ints
    position: Ints

    def at(self, places: Ints | slice) -> "Requests":
        return Requests(*(each[places] for each in vars(self).values()))


class ShortenedRuns:
    """The runs, each a row of a batch, by deepest layer and length; `cuts` are the batches of `area` tokens."""

    def __init__(self, requests: Requests, model: LanguageModel, sentences: NamedSentences, *, area: int) -> None:
        self._model, self._sentences = model, sentences
        asked = pl.DataFrame({name: getattr(requests, name) for name in ("sentence", "gap", "layer", "position")})
        asked = asked.with_columns(side=sides(model, model.reading.columns(requests.position)))
        one = ("sentence", "gap", "side")
        runs = asked.group_by(one).agg(pl.col("layer").max(), pl.col("position").max())
        self._runs = runs.sort("layer", "position", "sentence", "gap", "side")
        found = asked.join(self._runs.select(one).with_row_index("run"), on=one, maintain_order="left")["run"]
        run = found.to_numpy().astype(np.int64)
        self._order = np.argsort(run, kind="stable")
        self._run, self._requests = run[self._order], requests.at(self._order)
        lengths = model.reading.columns(self._runs["position"].to_numpy())
        apart = self._runs["layer"].to_numpy() * (1 + len(model.boundaries)) + self._runs["side"].to_numpy()
        self.cuts = pack(lengths, area=area, rows=area, apart=apart)

    def take(self, items: slice, answer: Answer) -> None:
        ids = pad([self._shorten(*run) for run in self._runs[items].select("sentence", "gap", "position").iter_rows()],
                  self._model)  # fmt: skip
        begin, end = np.searchsorted(self._run, (items.start, items.stop))
        asked, numbers, run = self._requests.at(slice(begin, end)), self._order[begin:end], self._run[begin:end]

        def read(layer: int, coefficients: Tensor) -> None:
            here = np.flatnonzero(asked.layer == layer)
            last = self._model.reading.columns(asked.position[here] - 1)
            places = (run[here] - items.start, last, asked.memory[here])
            answer(layer, numbers[here], coefficients[tuple(map(torch.from_numpy, places))])

        layers = np.unique(asked.layer).tolist()
        with torch.inference_mode(), read_coefficients(self._model, read, layers=layers, own_thread=True):
            self._model.backbone(ids, stop_after=layers[-1])

    def _shorten(self, sentence: int, gap: int, position: int) -> NDArray[np.int32]:
        """The tokens of a run: its sentence without the removed one, up to the last position asked."""
        tokens = self._model.reading.context(self._sentences.of(sentence), position)
        return tokens[:-1] if gap == WHOLE else np.delete(tokens, gap)


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
        found = (
            counted_through(stored, numberings, layer)
            .filter(pl.col("sign") == 1, pl.col("rank") < TRIGGERS_ASKED, pl.col("rank") == pl.col("prefix_group"))
            .select(pl.lit(layer).alias("layer"), "memory", "sentence", "position", "coefficient", trigger_rank="rank")
            .cast({selectors.integer(): pl.Int64})
            .collect()
        )
        firing = found["memory"].unique().sort().to_numpy()
        count = len(firing) if plan.removals == "all" else int(plan.removals or 0)
        sample = np.random.default_rng((plan.seed, 5, layer)).permutation(firing)[:count]
        layers.append(found.filter(pl.col("memory").is_in(sample.tolist())))
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
        places = triggers.select("layer", "memory", "sentence", "position").iter_rows()
        drawn = [random_position(plan.seed, *place) for place in places]
        dropped = {"first": pl.lit(0), "last": pl.col("position"), "random": pl.lit(pl.Series(drawn, dtype=pl.Int64))}
        asked = [
            triggers.with_columns(removed=pl.lit(name), removed_position=place.cast(pl.Int64))
            for name, place in dropped.items()
        ]
        self.requests = pl.concat(asked).sort("layer", "memory", "trigger_rank", maintain_order=True)
        columns = {name: self.requests[name].to_numpy() for name in ("layer", "memory", "sentence", "position")}
        removed = self.requests["removed_position"].to_numpy()
        # Dropping the last token leaves the beginning of the sentence as it stands.
        gaps = np.where(removed < columns["position"], removed, WHOLE)
        self._runs = ShortenedRuns(Requests(**columns, gap=gaps), model, run.sentences, area=plan.batch_tokens)
        self._answers = {"removed_coefficient": empty_answers(len(self.requests), np.float32)}
        self.steps = PlannedSteps(
            lambda items: self._runs.take(items, self._answer), self._runs.cuts, self._answers, stage="removals",
            unit="sentences", team=ThreadTeam.of(model),
            inputs=digest(plan.hash(), *self.requests.drop("removed"), *run.sentences.arrays()),
        )  # fmt: skip

    def _answer(self, layer: int, requests: NDArray[np.int64], coefficients: Tensor) -> None:
        found = coefficients.float().cpu().numpy()
        if not np.isfinite(found).all():
            raise NotFinite(
                f"layer {layer} has NaN or infinite coefficients where a token was removed; try --dtype float32"
            )
        self._answers["removed_coefficient"][requests] = found

    def write(self) -> Mapping[str, Any]:
        """Writes `removals`, sorted by layer, memory, rank."""
        table = self.requests.drop("sentence").with_columns(sign=pl.lit(1))
        self._run.write("removals", {column.name: column.to_numpy() for column in table} | self._answers)
        return {"removals_per_layer": self._run.plan.removals, "removals_excluded": self._left_out}
