"""Which token of a trigger matters: the coefficient after the first, the last or a random token is dropped.

Asked of the top positive triggers of a seeded sample of memories (paper, section 3 and Figure 3; definitions.md
section 4). The models read from left to right, so one run of a sentence without its token k answers for every trigger
in that sentence whose prefix lost token k, whatever its memory and position, and the sentence as it stands answers for
the dropped last token, one position earlier. Makes the table `removals`; the statistics are the questions' business.
"""

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from mnemoscope.atlas.schema import TABLES
from mnemoscope.errors import NotFinite
from mnemoscope.mining.batch_loader import pad
from mnemoscope.mining.context import RunContext
from mnemoscope.mining.plan import MiningPlan
from mnemoscope.mining.steps import digest, pack, run_checkpointed
from mnemoscope.mining.trigger_table import NamedSentences
from mnemoscope.models import LanguageModel
from mnemoscope.models.hooks import read_coefficients

TRIGGERS_ASKED = 50
"""Positive triggers of a memory that are asked about."""
MOST_MEMORIES, LEAST_MEMORIES = 100, 10
"""Bounds of the default number of memories per layer."""
REMOVED = ("first", "last", "random")
_WHOLE = -1
"""In place of a removed token: the sentence as it stands."""
_DEPTH = 0.6
"""How far into the model a run goes, on average over the layers that ask, in proportion to the whole."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """The triggers asked about, one entry each.

    `left_out` counts those that are not: `length_one` has nothing but one token; `length_two`, in a model without a
    beginning token, has two, of which a removal leaves one alone at position 0, the attention sink.
    """

    layer: Ints
    memory: Ints
    trigger_rank: Ints
    sentence: Ints
    position: Ints
    coefficient: NDArray[np.float32]
    left_out: dict[str, int]


def default_removals(*, mined_tokens: int, mined_sentences: int, layers: int) -> int:
    """Memories per layer that keep the pass under half of the mining: 10 to 100, from the text's size alone."""
    each = removal_work(1, mean_length=mined_tokens / max(1, mined_sentences), layers=layers)
    return int(min(MOST_MEMORIES, max(LEAST_MEMORIES, (mined_tokens + mined_sentences) / 2 // each)))


def removal_work(memories: float, *, mean_length: float, layers: int) -> float:
    """Tokens through the whole model that so many memories per layer take, for sentences of that mean length, about."""
    return memories * TRIGGERS_ASKED * 3 * (mean_length / 2 + 1) * _DEPTH * max(1, layers)


def random_position(seed: int, layer: int, memory: int, sentence: int, position: int) -> int:
    """Which of the tokens 0..position is dropped: uniform, by a hash of the trigger's place."""
    digest = hashlib.blake2b(struct.pack("<5q", seed, layer, memory, sentence, position), digest_size=8).digest()
    return int.from_bytes(digest, "little") % (position + 1)


def chosen_rows(directory: Path, plan: MiningPlan, *, first: int) -> Rows:
    """The triggers asked about: of every mined layer `plan.removals` memories that fire, seeded.

    `first` is the first position at which a coefficient counts (1 where position 0 is an attention sink).
    """
    frames, shortest = [], Counter[int]()
    for layer in plan.layers:
        path = directory / TABLES["triggers"].path(layer)
        found = (
            pl.scan_parquet(path)
            .filter(pl.col("sign") == 1, pl.col("rank") < TRIGGERS_ASKED, pl.col("rank") == pl.col("prefix_group"))
            .select("memory", "rank", "coefficient", "sentence", "position")
            .collect()
        )
        firing = found["memory"].unique().sort().to_numpy()
        count = len(firing) if plan.removals == "all" else int(plan.removals or 0)
        sample = np.sort(np.random.default_rng((plan.seed, 5, layer)).permutation(firing)[:count])
        found = found.filter(pl.col("memory").is_in(sample.tolist())).with_columns(layer=pl.lit(layer))
        shortest.update(found.filter(pl.col("position") <= first)["position"].to_list())
        frames.append(found.filter(pl.col("position") > first))
    rows = pl.concat(frames).sort("layer", "memory", "rank")

    def column(name: str) -> Ints:
        return rows[name].cast(pl.Int64).to_numpy()

    return Rows(
        column("layer"), column("memory"), column("rank"), column("sentence"), column("position"),
        rows["coefficient"].to_numpy(), {"length_one": shortest[0], "length_two": shortest[1]},
    )  # fmt: skip


class RemovalPass:
    """The runs that answer for all rows, planned beforehand; `take` makes one."""

    def __init__(self, model: LanguageModel, plan: MiningPlan, rows: Rows, sentences: NamedSentences) -> None:
        self._model, self._sentences, self.rows = model, sentences, rows
        self._extra = model.beginning.length
        count = len(rows.layer)
        places = zip(*(c.tolist() for c in (rows.layer, rows.memory, rows.sentence, rows.position)), strict=True)
        chosen = np.fromiter((random_position(plan.seed, *place) for place in places), np.int64, count)
        self.removed_position = np.stack([np.zeros(count, np.int64), rows.position, chosen], axis=1)
        asked = self.removed_position.reshape(-1)
        position, layer = np.repeat(rows.position, 3), np.repeat(rows.layer, 3)
        # Dropping the last token leaves the beginning of the sentence as it stands.
        keys = np.stack([np.repeat(rows.sentence, 3), np.where(asked == position, _WHOLE, asked)], axis=1)
        variants, owner = np.unique(keys, axis=0, return_inverse=True)
        owner = owner.reshape(-1)
        lengths, deepest = np.zeros(len(variants), np.int64), np.zeros(len(variants), np.int64)
        np.maximum.at(lengths, owner, position)
        np.maximum.at(deepest, owner, layer)
        order = np.lexsort((variants[:, 1], variants[:, 0], lengths, deepest))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self._variants, self._lengths = variants[order], lengths[order]
        # Requests lie by the run that answers them.
        self._order = np.argsort(place[owner], kind="stable")
        self._owner = place[owner][self._order]
        self._layer, self._memory = layer[self._order], np.repeat(rows.memory, 3)[self._order]
        self._last = position[self._order] - 1
        self.answers = {"removed_coefficient": np.full(3 * count, np.nan, np.float32)}
        self._deepest = deepest[order]
        self.cuts = pack(
            self._lengths + self._extra, area=plan.batch_tokens, rows=plan.batch_tokens, apart=self._deepest
        )

    def take(self, variants: slice) -> None:
        """One run: reads every coefficient that these shortened sentences are asked for; raises NotFinite."""
        ids = pad([self._shorten(k) for k in range(variants.start, variants.stop)], self._model)
        wanted = slice(*np.searchsorted(self._owner, (variants.start, variants.stop)))
        answers = self.answers["removed_coefficient"]
        row = torch.from_numpy(self._owner[wanted] - variants.start)
        column = torch.from_numpy(self._last[wanted] + self._extra)
        layers = self._layer[wanted]

        def read(layer: int, coefficients: Tensor) -> None:
            here = np.flatnonzero(layers == layer)
            if len(here):
                memory = torch.from_numpy(self._memory[wanted][here])
                found = coefficients[row[here], column[here], memory.to(coefficients.device)].float().cpu().numpy()
                if not np.isfinite(found).all():
                    raise NotFinite(
                        f"layer {layer} has NaN or infinite coefficients where a token was removed; try --dtype float32"
                    )
                answers[self._order[wanted][here]] = found

        with torch.inference_mode(), read_coefficients(self._model, read, layers=np.unique(layers).tolist()):
            self._model.backbone(ids, stop_after=int(self._deepest[variants].max()))

    def _shorten(self, variant: int) -> NDArray[np.int32]:
        """The tokens of one run's sentence without the removed one, as far as they are asked about."""
        sentence, removed = self._variants[variant].tolist()
        tokens = self._sentences.of(sentence)[: int(self._lengths[variant]) + 1]
        return tokens[:-1] if removed == _WHOLE else np.delete(tokens, removed)

    def columns(self) -> dict[str, Any]:
        """The columns of `removals`, once every run was made."""
        rows, count = self.rows, len(self.rows.layer)
        return {
            "layer": np.repeat(rows.layer.astype(np.int16), 3),
            "memory": np.repeat(rows.memory.astype(np.int32), 3),
            "sign": np.ones(3 * count, np.int8),
            "trigger_rank": np.repeat(rows.trigger_rank.astype(np.int16), 3),
            "position": np.repeat(rows.position.astype(np.int32), 3),
            "removed": list(REMOVED) * count,
            "removed_position": self.removed_position.reshape(-1).astype(np.int32),
            "coefficient": np.repeat(rows.coefficient, 3),
            "removed_coefficient": self.answers["removed_coefficient"],
        }


def removal_table(
    context: RunContext,
    model: LanguageModel,
    plan: MiningPlan,
    sentences: NamedSentences,
) -> tuple[dict[str, Any], dict[str, int], list[int]]:
    """The columns of `removals`, sorted by layer, memory, rank; how many triggers were left out, by why (`Rows`); and
    the steps that were halved.

    The folder must hold the triggers and the sentences. Raises NotFinite, Interrupted, StoreFailed.
    """
    first = 1 - model.beginning.length  # position 0 is an attention sink where no beginning token stands before it
    work = RemovalPass(model, plan, chosen_rows(context.directory, plan, first=first), sentences)
    halved = run_checkpointed(
        work.take, work.cuts, work.answers,
        checkpoint=context.work / f"removals-{plan.hash()[:16]}.safetensors",
        checkpoint_every=context.checkpoint_every,
        inputs=digest(plan.hash(), *vars(work.rows).values(), work.removed_position, *sentences.arrays()),
        progress=lambda done, total: context.progress("removals", done, total, "sentences"),
    )  # fmt: skip
    return work.columns(), work.rows.left_out, halved
