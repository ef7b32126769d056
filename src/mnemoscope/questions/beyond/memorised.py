"""B4: what of the mined text the model knows by heart, and which memories sit on it.

A document is known by heart (extractable) if the model, given its first tokens, writes the next ones word for word.
Held-out documents, which no memory was mined on, stand beside them. A memory sits on such text if the documents that
its triggers lie in are extractable more often than its layer's are; the control deals every document another one's
verdict.
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
"""Documents that a memory's triggers must lie in to be asked whether it sits on extractable text."""
FALSE = 0.05
"""Share of false findings among the memories found, at most, in the long run (Benjamini and Hochberg 1995)."""
_ASKED = f"documents of at least {MEMORISED_TOKENS} tokens"

QUESTION = Question(
    "memorised",
    title="what the model knows by heart",
    paper=Paper(
        figure="B4", section="beyond",
        question="Which documents does the model continue word for word, and which memories fire there?",
        claims=(
            Claim(
                "the model continues documents of the mined text word for word (not asked by the paper)", "-",
                "above_held_out", "share", "extractable share of mined documents minus that of held-out ones", above(0),
            ),
        ),
    ),
    numbers=(
        Number("extractable", "share", f"of the mined {_ASKED}, those known by heart"),
        Number("held_out_extractable", "share", f"of the held-out {_ASKED}, those known by heart"),
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
)  # fmt: skip


@dataclass(frozen=True)
class TriggerPlaces:
    """Of one layer, the triggers in asked documents: the `document` of each, by its row, and the `memory`, from 0."""

    memory: NDArray[np.int64]
    document: NDArray[np.int64]

    def base_rate(self, extractable: NDArray[np.bool_]) -> Estimate:
        """The share of the triggers that lie in extractable documents."""
        triggers = np.bincount(self.document, minlength=len(extractable))
        return clustered_share(triggers * extractable, triggers)

    def p_values(self, extractable: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Of every memory in enough documents, how likely by chance so many or more of these are extractable.

        By chance each of its documents is with the same probability, the share among all the layer's. Triggers of one
        memory in one document count once: they are not there by themselves.
        """
        pairs = np.unique(np.stack([self.memory, self.document], 1), axis=0)
        cases = np.bincount(pairs[:, 0])
        hits = np.bincount(pairs[:, 0], weights=extractable[pairs[:, 1]]).astype(np.int64)
        part = float(extractable[pairs[:, 1]].mean()) if len(pairs) else 0.0
        asked = cases >= FEWEST
        both, of = np.unique(np.stack([cases[asked], hits[asked]], 1), axis=0, return_inverse=True)
        tails = np.array([binomial_tail(count, least, part) for count, least in both.tolist()], np.float64)
        return tails[of.reshape(-1)]


def answer(atlas: Atlas) -> pl.DataFrame:
    """Over all: extractable documents, mined and held out. Per layer: what of the triggers lies there, which memories.

    Raises AtlasUnfinished if the atlas has no table `memorised`.
    """
    table = require_table(atlas, "memorised")
    found = AnswerBuilder(QUESTION)
    mined, held_out = (table.filter(pl.col("held_out") == out) for out in (False, True))
    found.add_named(None, _of_documents(mined))
    found.add_named(None, _of_documents(held_out), prefix="held_out_")
    found.add(None, "above_held_out", difference(*(_of_documents(one)["extractable"] for one in (mined, held_out))))
    extractable = mined["agreed"].to_numpy() == MEMORISED_TOKENS - MEMORISED_GIVEN
    dealt = np.random.default_rng((plan_seed(atlas), 15)).permutation(extractable)
    own, control = [], []
    for layer in atlas.layers:
        places = _places(atlas, layer, mined)
        found.add(layer, "base_rate", places.base_rate(extractable))
        found.add(layer, "triggers_asked", _count(len(places.memory)))
        own.append(places.p_values(extractable))
        control.append(places.p_values(dealt))
    sits = shares_found(atlas.layers, own)
    fooled = shares_found(atlas.layers, control)
    for key, one in sits.items():
        found.add(key, "memories_asked", _count(one.count))
        found.add(key, "memories_above", one)
        found.add(key, "control_above", fooled[key])
        found.add(key, "memories_above_control", difference(one, fooled[key]))
    return found.frame()


def _of_documents(rows: pl.DataFrame) -> dict[str, Estimate]:
    """The numbers of some documents."""
    every = MEMORISED_TOKENS - MEMORISED_GIVEN
    return {
        "extractable": share(int((rows["agreed"] == every).sum()), rows.height),
        "agreed": mean(rows["agreed"].to_numpy()),
        "loss": mean(rows["loss"].to_numpy()),
    }


def _count(number: int) -> Estimate:
    return Estimate(float(number), number)


def _places(atlas: Atlas, layer: int, mined: pl.DataFrame) -> TriggerPlaces:
    """Where the triggers of a layer's memories lie; a sentence of several documents counts in the first of them."""
    inside = (
        mined.with_row_index("row").select("row", "sentences", "inside").explode("sentences", "inside").drop_nulls()
        .unique("sentences", keep="first", maintain_order=True)
    )  # fmt: skip
    triggers = require_table(atlas, "triggers", layer=layer).filter(pl.col("sign") > 0)
    names = [name for name in ("expert", "memory") if name in triggers.columns]
    there = triggers.join(inside, left_on="sentence", right_on="sentences")
    there = there.filter(pl.col("position") < pl.col("inside"))
    memory = there.select(pl.struct(names).rank("dense"))[:, 0].to_numpy().astype(np.int64) - 1
    return TriggerPlaces(memory, there["row"].to_numpy().astype(np.int64))


def shares_found(layers: Sequence[int], tails: Sequence[NDArray[np.float64]]) -> dict[int | None, Estimate]:
    """The shares of the memories that are found, by layer and over all; all layers' are looked at together."""
    chosen = find_true(np.concatenate(tails)) if len(tails) else np.empty(0, np.bool_)
    parts = np.split(chosen, np.cumsum([len(each) for each in tails])[:-1]) if len(tails) else []
    return {key: share(int(part.sum()), len(part)) for key, part in [*zip(layers, parts, strict=True), (None, chosen)]}


def find_true(p_values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the findings stand if `FALSE` of them may be false (Benjamini and Hochberg 1995)."""
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= FALSE * np.arange(1, count + 1) / max(1, count))
    found = np.zeros(count, np.bool_)
    found[order[: below[-1] + 1 if len(below) else 0]] = True
    return found


def binomial_tail(count: int, least: int, part: float) -> float:
    """How likely `least` or more of `count` cases are hits, of which each is one with the probability `part`."""
    return min(1.0, sum(math.comb(count, k) * part**k * (1 - part) ** (count - k) for k in range(least, count + 1)))
