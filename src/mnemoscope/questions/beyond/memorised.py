"""B4: which mined documents the model continues word for word, and which memories fire on them.

A document is extractable if the model continues its first tokens word for word; held-out documents are the baseline. A
memory fires on such text if the documents of its triggers are extractable more often than those of its layer. The
control permutes extractability among the documents.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, clustered_share, mean, share
from mnemoscope.foundation.memory_names import MEMORISED_GIVEN, MEMORISED_TOKENS
from mnemoscope.questions.answer_builder import AnswerBuilder, difference
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import plan_seed, require_table
from mnemoscope.questions.verdicts import above

FEWEST = 3
"""The fewest documents of a memory's triggers for its test."""
FALSE = 0.05
"""The false discovery rate among the memories found (Benjamini and Hochberg 1995)."""
_LONG_DOCUMENTS = f"documents of at least {MEMORISED_TOKENS} tokens"

QUESTION = Question(
    "memorised",
    title="what the model knows by heart",
    paper=Paper(
        figure="B4",
        section="beyond",
        question="Which documents does the model continue word for word, and which memories fire there?",
        claims=(
            Claim(
                "the model continues documents of the mined text word for word (not asked by the paper)",
                "-",
                "above_held_out",
                "share",
                "extractable share of mined documents minus that of held-out ones",
                above(0),
            ),
        ),
    ),
    numbers=(
        Number("extractable", "share", f"of the mined {_LONG_DOCUMENTS}, those known by heart"),
        Number("held_out_extractable", "share", f"of the held-out {_LONG_DOCUMENTS}, those known by heart"),
        Number("above_held_out", "share", "mined minus held-out"),
        Number("agreed", "number", f"of {MEMORISED_TOKENS - MEMORISED_GIVEN} tokens, those before the first wrong one"),
        Number("held_out_agreed", "number", "those, of held-out documents"),
        Number("loss", "number", "nats a token of the continuation"),
        Number("held_out_loss", "number", "nats a token, of held-out documents"),
        Number("base_rate", "share", "of triggers in the documents asked, those in text known by heart"),
        Number("triggers_asked", "count", "triggers in the documents asked"),
        Number("memories_asked", "count", f"memories with triggers in {FEWEST} or more of them"),
        Number("memories_above", "share", "of these, memories that sit on text known by heart"),
        Number("control_above", "share", "the same, every document with another one's verdict"),
        Number("memories_above_control", "share", "memories that sit on it minus the control"),
    ),
    main="base_rate",
    headline=("base_rate", "triggers_asked", "memories_asked", "memories_above", "control_above"),
    layer_page=("base_rate", "memories_above", "control_above"),
    may_lack=("memorised",),
    nothing=f"no document has {MEMORISED_TOKENS} tokens, or the model's context is shorter, so none was asked about",
    interval="over documents (Wilson); over memories (Wilson)",
    causal=True,
)


@dataclass(frozen=True)
class TriggerPlaces:
    """The triggers of one layer in tested documents: each one's memory and row of the document, from 0."""

    memory: NDArray[np.int64]
    document: NDArray[np.int64]

    def base_rate(self, extractable: NDArray[np.bool_]) -> Estimate:
        triggers = np.bincount(self.document, minlength=len(extractable))
        return clustered_share(triggers * extractable, triggers)

    def p_values(self, extractable: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Binomial p-values at the layer's rate, of memories in enough documents. A pair of memory and document counts
        once.
        """
        pairs = np.unique(np.stack([self.memory, self.document], 1), axis=0)
        cases = np.bincount(pairs[:, 0])
        hits = np.bincount(pairs[:, 0], weights=extractable[pairs[:, 1]]).astype(np.int64)
        part = float(extractable[pairs[:, 1]].mean()) if len(pairs) else 0.0
        tested = cases >= FEWEST
        both, of = np.unique(np.stack([cases[tested], hits[tested]], 1), axis=0, return_inverse=True)
        tails = np.array([binomial_tail(count, least, part) for count, least in both.tolist()], np.float64)
        return tails[of.reshape(-1)]


def answer(atlas: Atlas) -> pl.DataFrame:
    table = require_table(atlas, "memorised")
    builder = AnswerBuilder(QUESTION)
    mined, held_out = (table.filter(pl.col("held_out") == out) for out in (False, True))
    continued = MEMORISED_TOKENS - MEMORISED_GIVEN
    shares = []
    for prefix, rows in (("", mined), ("held_out_", held_out)):
        shares.append(share(int((rows["agreed"] == continued).sum()), rows.height))
        means = {name: mean(rows[name].to_numpy()) for name in ("agreed", "loss")}
        builder.add_named(None, {"extractable": shares[-1], **means}, prefix=prefix)
    builder.add(None, "above_held_out", difference(*shares))
    extractable = mined["agreed"].to_numpy() == continued
    permuted = np.random.default_rng((plan_seed(atlas), 15)).permutation(extractable)
    p_values, control = [], []
    for layer in atlas.layers:
        places = _locate_triggers(atlas, layer, mined)
        builder.add(layer, "base_rate", places.base_rate(extractable))
        builder.add(layer, "triggers_asked", Estimate(float(len(places.memory)), len(places.memory)))
        p_values.append(places.p_values(extractable))
        control.append(places.p_values(permuted))
    above_rate = shares_found(atlas.layers, p_values)
    above_in_control = shares_found(atlas.layers, control)
    for key, one in above_rate.items():
        builder.add(key, "memories_asked", Estimate(float(one.count), one.count))
        builder.add(key, "memories_above", one)
        builder.add(key, "control_above", above_in_control[key])
        builder.add(key, "memories_above_control", difference(one, above_in_control[key]))
    return builder.frame()


def _locate_triggers(atlas: Atlas, layer: int, mined: pl.DataFrame) -> TriggerPlaces:
    """The triggers of a layer in mined documents; a sentence of several documents counts in the first."""
    inside = (
        mined.with_row_index("row")
        .select("row", "sentences", "inside")
        .explode("sentences", "inside")
        .drop_nulls()
        .unique("sentences", keep="first", maintain_order=True)
    )
    triggers = require_table(atlas, "triggers", layer=layer).filter(pl.col("sign") > 0)
    names = [name for name in ("expert", "memory") if name in triggers.columns]
    there = triggers.join(inside, left_on="sentence", right_on="sentences")
    there = there.filter(pl.col("position") < pl.col("inside"))
    memory = there.select(pl.struct(names).rank("dense"))[:, 0].to_numpy().astype(np.int64) - 1
    return TriggerPlaces(memory, there["row"].to_numpy().astype(np.int64))


def shares_found(layers: Sequence[int], tails: Sequence[NDArray[np.float64]]) -> dict[int | None, Estimate]:
    """The shares of significant memories by layer and over all; all layers are tested together."""
    significant = find_true(np.concatenate(tails)) if len(tails) else np.empty(0, np.bool_)
    parts = np.split(significant, np.cumsum([len(each) for each in tails])[:-1]) if len(tails) else []
    return {
        key: share(int(part.sum()), len(part)) for key, part in [*zip(layers, parts, strict=True), (None, significant)]
    }


def find_true(p_values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each is significant at the false discovery rate `FALSE` (Benjamini and Hochberg 1995)."""
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= FALSE * np.arange(1, count + 1) / max(1, count))
    significant = np.zeros(count, np.bool_)
    significant[order[: below[-1] + 1 if len(below) else 0]] = True
    return significant


def binomial_tail(count: int, least: int, part: float) -> float:
    return min(1.0, sum(math.comb(count, k) * part**k * (1 - part) ** (count - k) for k in range(least, count + 1)))
