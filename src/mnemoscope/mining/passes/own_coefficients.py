"""How strongly a memory still fires on its best trigger where the trigger's own token is masked.

A model that reads sentences whole sees the token that it predicts, so a value may agree with it by copying
(definitions.md 7.2). Makes the column `own_coefficient` of `triggers`, of the trigger that gives the target.
"""

import numpy as np
import polars as pl
from safetensors.numpy import save

from mnemoscope.mining.passes.removals import ShortenedRuns, mask_gap
from mnemoscope.mining.passes.vectors.values import target_rows
from mnemoscope.mining.steps import empty_answers, read_saved
from mnemoscope.mining.text.trigger_table import layer_triggers, sentences_of
from mnemoscope.mining.text_pass import layer_state
from mnemoscope.runs.workers.worker import Worker

_FOUND = "own.safetensors"
_PLACE = ("layer", "memory", "rank")


class OwnPass:
    """Reads sentences with one token masked; needs the triggers of the whole text, and `sentences`."""

    def __init__(self, worker: Worker) -> None:
        self._worker, wanted, targets = worker, worker.plan.own, []
        for layer in worker.plan.layers:
            rows = layer_triggers(layer_state(worker, layer), layer, sentences_of(worker), worker.model.reading)
            found = target_rows(rows, "token").select(pl.lit(layer).alias("layer"), *_PLACE[1:], "sentence", "position")
            targets.append(found.cast(pl.Int64).sort("memory"))
        asked = pl.concat(targets)
        if wanted != "all" and len(asked) > int(wanted or 0):
            drawn = np.random.default_rng((worker.plan.seed, 18)).permutation(len(asked))[: int(wanted or 0)]
            asked = asked[np.sort(drawn).tolist()]
        self._asked = asked
        end, gap = pl.col("position") + 1, mask_gap(pl.col("position"))
        requests = asked.select("layer", "memory", "sentence", gap=gap, position=end)
        runs = ShortenedRuns(requests, worker.model, sentences_of(worker))
        self._own = empty_answers(len(asked), np.float32)
        see = runs.fill(self._own, "at masks")
        self.steps = runs.steps(worker, see, {"own": self._own}, stage="own coefficients")

    def write(self) -> None:
        """Saves what was found in the work folder, from where the column is written."""
        columns = {name: self._asked[name].to_numpy() for name in _PLACE}
        self._worker.save(_FOUND, save({**columns, "own": np.asarray(self._own)}))


def with_own(worker: Worker, triggers: pl.DataFrame, layer: int) -> pl.DataFrame:
    """A layer's triggers with the column `own_coefficient`: null where it was not asked, as in a part of a run."""
    if worker.run.part is not None or not worker.plan.own:
        return triggers.with_columns(own_coefficient=pl.lit(None, pl.Float32))
    found = pl.DataFrame(read_saved(worker.run.work / _FOUND, "the coefficients at masks"))
    own = found.filter(pl.col("layer") == layer).select(
        pl.col("memory").cast(triggers.schema["memory"]),
        pl.col("rank").cast(triggers.schema["rank"]),
        pl.lit(1).cast(triggers.schema["sign"]).alias("sign"),
        own_coefficient="own",
    )
    return triggers.join(own, on=["memory", "sign", "rank"], how="left", maintain_order="left")
