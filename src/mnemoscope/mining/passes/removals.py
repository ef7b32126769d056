"""How the coefficient of a trigger changes when its first, last or a random token is dropped. Makes `removals`.

Asked of the top positive triggers of a seeded sample of memories (paper, section 3 and Figure 3; definitions.md section
4). One run of a sentence without token k answers for every trigger in it that lost token k, of any memory and position;
read from left to right, the whole sentence answers for a dropped last token, one position earlier. There a run is a row
of a padded batch, as long as anything in it is asked, on one side of a boundary of the model (company.py). A model that
reads sentences whole is also asked with the trigger's own token masked (definitions.md 7.2), and one that reads sources
without the first, last or a random token of the source (7.3).
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
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
from mnemoscope.foundation.reading import Reading
from mnemoscope.mining.passes.prefix_pass import plan_rows
from mnemoscope.mining.steps import Answers, PlannedSteps, empty_answers
from mnemoscope.mining.text.batches import Ints
from mnemoscope.mining.text.trigger_table import NamedSentences, sentences_of
from mnemoscope.models import LanguageModel
from mnemoscope.models.forward.batches import pad, sides
from mnemoscope.models.forward.hooks import read_coefficients
from mnemoscope.runs.plan import TRIGGERS_ASKED, MiningPlan
from mnemoscope.runs.workers.worker import Worker

WHOLE = -1
"""In place of a removed token: the whole sentence. Numbers below it stand for a token that is masked (`mask_gap`)."""

OF_SOURCE = 1 << 40
"""The `gap` for the first own token of a sentence's source; higher numbers stand for those behind it."""

TOO_SHORT = {"length_one": 1, "length_two": 2}
"""Tokens of the triggers that are left out."""

See = Callable[[int, dict[str, Ints], Tensor], None]
"""Called with a layer, its requests, whose `run` counts through the batch, and its coefficients."""


def mask_gap(position: Any) -> Any:
    """The `gap` for a token that is masked at a position, and the reverse."""
    return -2 - position


class ShortenedRuns:
    """The runs that answer requests, each a row of a batch, by deepest layer and length. A request is about the first
    `position` tokens of the `sentence` without token `gap`, and the coefficients there of a `memory` of a `layer`.
    """

    def __init__(self, requests: pl.DataFrame, model: LanguageModel, sentences: NamedSentences) -> None:
        self._model, self._sentences = model, sentences
        whole = pl.Series(sentences.lengths_of(requests["sentence"].to_numpy()), dtype=pl.Int64)
        given = sentences.source_lengths_of(requests["sentence"].to_numpy())
        read = pl.col("position") if model.reading.causal else whole - (pl.col("gap") >= 0)
        source = pl.Series(given, dtype=pl.Int64) - (pl.col("gap") >= OF_SOURCE)
        requests = requests.with_columns(length=read.cast(pl.Int64), source=source.cast(pl.Int64))
        side = sides(model, model.reading.columns(requests["length"].to_numpy()))
        asked, one = requests.with_columns(side=side).with_row_index("number"), ("sentence", "gap", "side")
        runs = asked.group_by(one).agg(pl.col("layer", "length", "source").max())
        self._runs = runs.sort("layer", "length", "source", *one)
        numbered = self._runs.select(one).with_row_index("run")
        self._asked = asked.join(numbered, on=one).sort("run", "number").cast(pl.Int64)
        self._lengths = model.reading.columns(self._runs["length"].to_numpy())
        sources = self._runs["source"].to_numpy()
        self._parts = self._runs["layer"].to_numpy() * (1 + sources.max(initial=0)) + sources

    def steps(self, worker: Worker, see: See, answers: Answers, *, stage: str) -> PlannedSteps:
        """The steps in which `see` finds these answers."""
        return plan_rows(
            worker,
            lambda items: self.take(items, see),
            self._lengths,
            answers,
            stage=stage,
            unit="sentences",
            parts=self._parts,
        )

    def take(self, items: slice, see: See) -> None:
        rows, reading = [], self._model.reading
        sources = self._sentences.sources(self._runs["sentence"][items].to_list())
        for row, (sentence, gap, length) in enumerate(
            self._runs[items].select("sentence", "gap", "length").iter_rows()
        ):
            tokens = self._sentences.of(sentence)
            if gap < WHOLE:
                tokens = reading.context(tokens, mask_gap(gap))
            if gap >= OF_SOURCE and sources is not None and reading.source is not None:
                sources[row] = np.delete(sources[row], gap - OF_SOURCE + len(reading.source[0]))
            rows.append((np.delete(tokens, gap) if 0 <= gap < OF_SOURCE else tokens)[:length])
        ids = pad(rows, self._model, sources)
        begin, end = np.searchsorted(self._asked["run"].to_numpy(), (items.start, items.stop))
        asked = self._asked[begin:end].with_columns(pl.col("run") - items.start)

        def read(layer: int, coefficients: Tensor) -> None:
            requests = asked.filter(pl.col("layer") == layer)
            see(layer, {column.name: column.to_numpy(writable=True) for column in requests}, coefficients)

        layers = asked["layer"].unique().sort().to_list()
        with torch.inference_mode(), read_coefficients(self._model, read, layers=layers, own_thread=True):
            self._model.backbone(ids, stop_after=layers[-1])

    def fill(self, answers: NDArray[np.float32], where: str) -> See:
        """What puts the coefficient at the last of each request's positions into `answers [request]`; it raises
        NotFinite, which says `where`.
        """

        def see(layer: int, asked: dict[str, Ints], coefficients: Tensor) -> None:
            places = (asked["run"], self._model.reading.column(asked["position"] - 1), asked["memory"])
            found = coefficients[tuple(map(torch.from_numpy, places))].float().cpu().numpy()
            if not np.isfinite(found).all():
                raise NotFinite(f"layer {layer} has NaN or infinite coefficients {where}; try --dtype float32")
            answers[asked["number"]] = found

        return see


def random_position(seed: int, layer: int, memory: int, sentence: int, position: int, tokens: int) -> int:
    """Which of so many tokens is dropped: uniform, by a hash."""
    digest = hashlib.blake2b(struct.pack("<5q", seed, layer, memory, sentence, position), digest_size=8).digest()
    return int.from_bytes(digest, "little") % tokens


def choose_triggers(
    directory: Path, plan: MiningPlan, sentences: NamedSentences, *, reading: Reading, numberings: Numberings
) -> tuple[pl.DataFrame, dict[str, int]]:
    """The triggers asked about, by layer, memory and rank: of every mined layer `plan.removals` memories that fire,
    drawn by the plan's seed, with the number of `tokens` that may be dropped.

    Also the numbers left out: `length_one` triggers have one token; `length_two`, in a model without a beginning token,
    have two, of which a removal leaves one at position 0, the attention sink, and in one that reads sentences whole
    leaves nothing else to drop.
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
    triggers = pl.concat(layers).sort("layer", "memory", "trigger_rank")
    lengths = sentences.lengths_of(triggers["sentence"].to_numpy())
    read = reading.context_length(triggers["position"].to_numpy(), lengths)
    triggers = triggers.with_columns(tokens=pl.Series(read, dtype=pl.Int64))
    shortest = (reading.first if reading.causal else 1) + 1
    left_out = {name: int((read[read <= shortest] == size).sum()) for name, size in TOO_SHORT.items()}
    return triggers.filter(pl.col("tokens") > shortest), left_out


def places_dropped(
    triggers: pl.DataFrame, drawn: Sequence[int], reading: Reading
) -> dict[str, tuple[pl.Expr, pl.Expr]]:
    """By kind of removal the position of the token that is removed, and the `gap` that it leaves; `drawn` are those of
    the random ones, among the tokens that may be dropped.
    """
    position, tokens = pl.col("position"), pl.col("tokens")
    chance = pl.lit(pl.Series(drawn, dtype=pl.Int64))
    if reading.causal:  # dropping the last token leaves the beginning of the sentence as it stands
        dropped = {"first": pl.lit(0), "last": position, "random": chance}
        return {name: (at, pl.when(at < position).then(at).otherwise(WHOLE)) for name, at in dropped.items()}
    others = {
        "first": pl.when(position == 0).then(1).otherwise(0),
        "last": tokens - 1 - (position == tokens - 1).cast(pl.Int64),
        "random": chance + (chance >= position).cast(pl.Int64),
    }
    masked = {} if reading.mask is None else {"own": (position, mask_gap(position))}
    return masked | {name: (at, at) for name, at in others.items()}


def source_places(
    triggers: pl.DataFrame, sentences: NamedSentences, reading: Reading, seed: int
) -> dict[str, tuple[pl.Expr, pl.Expr]]:
    """The same for the own tokens of the sources, of which a random one is drawn by the same hash."""
    if reading.source is None:
        return {}
    own = sentences.source_lengths_of(triggers["sentence"].to_numpy()) - sum(map(len, reading.source))
    fired = triggers.select("layer", "memory", "sentence", "position", pl.Series("own", np.maximum(own, 1))).iter_rows()
    drawn = [random_position(seed, *place) for place in fired]
    places = {"source_first": np.zeros_like(own), "source_last": own - 1, "source_random": np.array(drawn, np.int64)}
    # A source of one token is left out: without it nothing is read.
    found = {name: np.where(own > 1, at, -1) for name, at in places.items()}
    return {
        name: (pl.lit(pl.Series(at, dtype=pl.Int64)), pl.lit(pl.Series(np.where(at < 0, at, at + OF_SOURCE))))
        for name, at in found.items()
    }


class RemovalPass:
    """The runs that answer for all triggers; needs `triggers` and `sentences`."""

    def __init__(self, worker: Worker) -> None:
        self._worker, model, plan = worker, worker.model, worker.plan
        reading, sentences = model.reading, sentences_of(worker)
        triggers, self._left_out = choose_triggers(
            worker.directory, plan, sentences, reading=reading, numberings=model.numberings
        )
        others = pl.col("tokens") - (not reading.causal)  # the own one is masked, not dropped
        fired = triggers.select("layer", "memory", "sentence", "position", others).iter_rows()
        drawn = [random_position(plan.seed, *place) for place in fired]
        kinds = places_dropped(triggers, drawn, reading)
        asked = [
            triggers.with_columns(removed=pl.lit(name), removed_position=at.cast(pl.Int64), gap=gap.cast(pl.Int64))
            for name, (at, gap) in (kinds | source_places(triggers, sentences, reading, plan.seed)).items()
        ]
        requests = pl.concat(asked).filter(pl.col("removed_position") >= 0)
        requests = requests.sort("layer", "memory", "trigger_rank", maintain_order=True)
        self.requests = requests.drop("gap", "tokens")
        # The token is read where it stands behind the gap; without it, where the one before it does.
        moved = pl.col("gap").is_between(0, pl.col("position")) | (pl.col("gap") == WHOLE)
        end = pl.col("position") + 1 - moved.cast(pl.Int64)
        places = requests.select("layer", "memory", "sentence", "gap", position=end)
        self._runs = ShortenedRuns(places, model, sentences)
        self._answers = {"removed_coefficient": empty_answers(len(self.requests), np.float32)}
        see = self._runs.fill(self._answers["removed_coefficient"], "where a token was removed")
        self.steps = self._runs.steps(worker, see, self._answers, stage="removals")

    def write(self) -> Mapping[str, Any]:
        """Writes `removals`, sorted by layer, memory, rank."""
        table = self.requests.drop("sentence").with_columns(sign=pl.lit(1))
        self._worker.write("removals", {column.name: column.to_numpy() for column in table} | self._answers)
        return {"removals_per_layer": self._worker.plan.removals, "removals_excluded": self._left_out}
