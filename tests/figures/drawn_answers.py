"""Answers to tables drawn at random, without a folder: our own code from arrays to verdicts. Not a test itself.

What reads an atlas is replaced by what was drawn; everything after it is the real thing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from mnemoscope.atlas.form import Manifest
from mnemoscope.atlas.read import first_upper_layer
from mnemoscope.atlas.schema import QUESTIONS, TABLES
from mnemoscope.foundation.intervals import NOTHING
from mnemoscope.foundation.reading import Reading
from mnemoscope.questions import registry as known
from mnemoscope.questions import sources
from mnemoscope.questions.question import Answer
from mnemoscope.show.figures.sections import compare_with_paper
from support.handbuilt_atlas import manifest

LAYERS = 8
"""Of a model of 8 layers 0-4 are the lower ones, 5-7 the upper."""
WIDTH = 64
"""Memories of each layer, unless a test says otherwise."""
DOCUMENTS, EACH = 60, 4
DRAWS = 200
"""Resamples of a bootstrap here; ten times fewer than elsewhere, and as unbiased."""

ATTENTION = TABLES["attention"].columns
UNKNOWN = dict.fromkeys(("shallow", "semantic"), NOTHING)
NO_ACTIVITY = pl.DataFrame(
    schema={"min": pl.Float32, "max": pl.Float32, "sampled": pl.Int64, "histogram": pl.List(pl.Int64)}
)
NO_PATTERNS = pl.DataFrame(schema={"layer": pl.Int16, "memory": pl.Int64})
NO_KINDS = pl.DataFrame(schema={"memory": pl.Int64, "group": pl.Int16, "kind": pl.String})

Array = NDArray[Any]


class Tables:
    """What the questions read of an atlas, from memory."""

    path = Path("drawn")
    manifest: Manifest
    reading = Reading()

    def __init__(self, tables: Mapping[str, pl.DataFrame], *, layers: int = LAYERS, memories: int = WIDTH) -> None:
        self.layers = tuple(range(layers))
        self.tables, self._memories = tables, memories
        sizes = {"memories": [memories] * layers, "vocabulary": 1000}
        self.manifest = Manifest.of(manifest(plan={"seed": 3}, model={"sizes": sizes}, layers=[*self.layers]))

    @property
    def upper_layers(self) -> tuple[int, ...]:
        return self.layers[first_upper_layer(len(self.layers)) :]

    def memories(self, layer: int) -> int:
        return self._memories

    def table(self, name: str, *, layer: int | None = None) -> pl.DataFrame:
        return self.tables[name]


def asked(question: str, tables: Tables) -> Answer:
    """The answer as the report reads it."""
    found = known.question_module(question).answer(tables)
    return Answer(known.load_question(question), found, "", "", tables.layers, len(tables.layers))


def rules(questions: Sequence[str] = QUESTIONS) -> set[str]:
    """The names behind every claim with a rule."""
    claims = [claim for question in questions for claim in known.load_question(question).paper.claims]
    return {claim.name for claim in claims if claim.rule}


def findings() -> set[str]:
    """The questions with a finding."""
    return {question for question in QUESTIONS if known.load_question(question).finding is not None}


def verdicts(*answers: Answer) -> dict[str, str]:
    """What is printed under "shown here?", by the name behind the claim; of a finding, by its question."""
    by_question = {answer.question.id: answer for answer in answers}
    names = {claim.text: claim.name for answer in answers for claim in answer.question.paper.claims}
    return {names.get(line.text, line.question): line.shown for line in compare_with_paper(by_question)}


def read_nothing(patch: pytest.MonkeyPatch) -> None:
    """Bootstraps of fewer draws; patterns and values are what `Tables` holds under these names."""
    from mnemoscope.foundation import intervals
    from mnemoscope.questions.paper import (
        key_patterns,
        key_removals,
        layer_activity,
        refinement_events,
        value_agreement,
        value_confidence,
        value_rank,
    )

    patch.setattr(intervals, "DRAWS", DRAWS)
    in_layer = lambda tables, layer: tables.table("kinds").filter(layer=layer)  # noqa: E731
    patch.setattr(key_patterns.coverage, "top_prefixes", in_layer)
    patch.setattr(key_patterns.coverage, "count_per_memory", lambda prefixes, patterns: prefixes.drop("layer"))
    patch.setattr(key_patterns.coverage, "count_folds", lambda *asked: asked[2].drop("layer"))
    patch.setattr(key_patterns, "judgements", lambda tables: None)
    patch.setattr(refinement_events, "judgements", lambda tables: None)
    unexplained = SimpleNamespace(top_prefixes=lambda tables, layer: NO_KINDS, kinds=lambda prefixes, own: NO_KINDS)
    patch.setattr(key_removals, "coverage", unexplained)
    patch.setattr(key_removals, "TRIGGER_KINDS", {})  # no quantiles, of which no claim speaks
    patch.setattr(layer_activity, "coverage", SimpleNamespace(layer_shares=lambda *asked: UNKNOWN))
    for module in (value_agreement, value_confidence, value_rank):
        patch.setattr(module, "values", lambda tables: tables.table("values"))
    patch.setattr(sources, "literal_values", lambda rows: rows)
    follows = pl.DataFrame(schema={"memory": pl.Int32, "token": pl.Int32})
    for module in (value_agreement, value_confidence):
        patch.setattr(module, "tokens_spoken_of", lambda tables, layer, best=None: follows)


def kinds(rng: np.random.Generator, *, with_pattern: float, covered: float, shallow: Array) -> Tables:
    """Memories of ten prefixes: how many have a pattern, are covered, and by layer how many of the covered are shallow.

    Memories differ: one covers more than another, and most of what one covers is of one kind.
    """
    shape = LAYERS, WIDTH
    found = rng.binomial(10, rng.beta(6 * covered, 6 * (1 - covered), shape))
    one = rng.binomial(found, rng.beta(4 * shallow, 4 * (1 - shallow), (WIDTH, LAYERS)).T)
    columns = {
        "layer": np.repeat(np.arange(LAYERS), WIDTH),
        "memory": np.tile(np.arange(WIDTH), LAYERS),
        "shallow_only": one.ravel(),
        "semantic_only": (found - one).ravel(),
        "both": np.zeros(LAYERS * WIDTH, np.int64),
        "none": (10 - found).ravel(),
        "groups": np.full(LAYERS * WIDTH, 10),
        "patterns": rng.binomial(1, with_pattern, LAYERS * WIDTH),
    }
    return Tables({"kinds": pl.DataFrame(columns), "patterns": NO_PATTERNS})


def changes(rng: np.random.Generator, added: Array, *, token: str = "last") -> Tables:
    """Of 12 memories a layer the changes of 4 triggers without each token; `added` is that of one more. With `own` they
    are those of a model that reads sentences whole.

    Memories differ from one another as much as their triggers do.
    """
    shape = LAYERS, 12, 4
    rows = []
    for removed in ("first", "last", "random", *(["own"] if token == "own" else [])):
        change = rng.normal(0, 0.2, shape) + rng.normal(0, 0.2, shape[:2])[:, :, None]
        change += added[:, None, None] if removed == token else 0.0
        layer, memory, group = (axis.ravel() for axis in np.indices(shape))
        columns = {"layer": layer.astype(np.int16), "memory": memory, "trigger_rank": group}
        columns["removed_coefficient"] = 1.0 + change.ravel()
        rows.append(pl.DataFrame(columns).with_columns(removed=pl.lit(removed)))
    removals = pl.concat(rows).with_columns(coefficient=pl.lit(1.0), sign=pl.lit(1), position=pl.lit(2))
    tables = Tables({"removals": removals, "patterns": NO_PATTERNS})
    tables.reading = Reading() if token == "last" else Reading(predicts="same", mask=0)
    return tables


def values(
    rng: np.random.Generator, *, agreement: Array, tokens: int = 400, memories: int = WIDTH, better: float = 0.0
) -> Tables:
    """Values whose top token and target are drawn from so many tokens, and agree besides as often as said by layer.

    Confidence is drawn anew for all; ranks too, in upper layers divided by `1 + better`, and probabilities times that.
    """
    count = LAYERS * memories
    layer = np.repeat(np.arange(LAYERS), memories)
    target = rng.integers(0, tokens, count)
    top = np.where(rng.random(count) < agreement[layer], target, rng.integers(0, tokens, count))
    lift = np.where(layer >= 5, 1 + better, 1.0)
    rank = np.floor(rng.exponential(50, count) / lift).astype(np.int64)
    frame = pl.DataFrame(
        {
            "layer": layer.astype(np.int16),
            "memory": np.tile(np.arange(memories, dtype=np.int32), LAYERS),
            "top": top,
            "target": target,
            "target_rank": rank,
            "max_probability": rng.random(count) * lift,
            "working_probability": rng.random(count) * lift / 2,
            "value_norm": np.ones(count),
            "log_probability": np.zeros(count),
            "agrees": top == target,
        }
    )
    tokens_table = pl.DataFrame({"token": [0], "next_count": [1]})
    return Tables({"values": frame, "tokens": tokens_table}, memories=memories)


def predictions(rng: np.random.Generator, columns: Mapping[str, Array], *, documents: int = DOCUMENTS) -> Tables:
    """Predictions on `EACH` prefixes of every document; a column is `[prefix, layer]`, or `[prefix]` of a prefix.

    The documents' own share of what is drawn is in the columns: see `hits`.
    """
    count = documents * EACH
    own = {"next_token": np.ones(count, np.int64), "position": np.zeros(count, np.int64), "final_top": np.ones(count)}
    own |= {name: column for name, column in columns.items() if column.ndim == 1}
    own["literal_final_top"] = own["final_top"]
    prefixes = {"prefix": np.arange(count), "document": np.arange(count) // EACH, **own}
    tops = ("residual_top", "ffn_top", "output_top", "ffn_vote_top")
    numbers = ("output_top_residual_rank", "residual_top_ffn_rank", "active", "effective", "top_share", "votes_ffn")
    numbers = (*numbers, "votes_ffn_major", "votes_output", "residual_final_probability")
    by_layer = {name: np.zeros((count, LAYERS)) for name in (*tops, *numbers)}
    by_layer |= {name: column for name, column in columns.items() if column.ndim == 2}
    formula = {name: name for name in (*tops[:3], "residual_final_probability")} | {"votes": "votes_ffn"}
    by_layer |= {f"literal_{name}": by_layer[ours] for name, ours in formula.items()}
    by_layer["literal_residual_bare_probability"] = by_layer["residual_final_probability"]
    prefix, layer = (axis.ravel() for axis in np.indices((count, LAYERS)))
    drawn = {name: column.ravel() for name, column in by_layer.items()}
    for name in (*tops, *(f"literal_{name}" for name in tops[:3])):
        drawn[name] = drawn[name].astype(np.int64)
    tables = {
        "prefixes": pl.DataFrame(prefixes),
        "predictions": pl.DataFrame({"prefix": prefix, "layer": layer.astype(np.int16), **drawn}),
        "patterns": NO_PATTERNS,
        "activity": NO_ACTIVITY,
        "vocabulary": pl.DataFrame({"text": [" the", " cat"]}),
    }
    return Tables(tables)


def attention(rng: np.random.Generator, *, memories: float, specific: float, moves: float) -> Tables:
    """Parts of a logit of 50 by attention and by feed-forward layers, drawn alike, 1 for each layer.

    `memories` is added to the latter, `specific` to what the own token is given more than another prefix's; `moves` to
    how often a feed-forward layer has the final token, which is 1, on top where it was not before: half of cases.
    """
    count = DOCUMENTS * EACH

    def drawn(mean: float) -> Array:
        moved = np.repeat(rng.normal(0, 0.5, (DOCUMENTS, 1)), EACH, axis=0)
        return mean + moved + rng.normal(0, 1, (count, LAYERS))

    by_layer = {"input_top": np.full((count, LAYERS), 2), "other_top": np.full((count, LAYERS), 9)}
    for part, more in (("attention", 0.0), ("ffn", memories)):
        by_layer |= {f"{part}_logit": drawn(1 + specific + more), f"{part}_logit_other": drawn(1)}
    for part in ("attention", "ffn"):
        by_layer |= {f"{part}_logit_next": drawn(1 + specific), f"{part}_logit_other_next": drawn(1)}
    by_attention = hits(rng, 0.5)
    by_memories = hits(rng, 0.5 + moves)
    # Attention moves to the final token in one half of the layers, a feed-forward layer in the other.
    first = np.arange(LAYERS) % 2 == 0
    residual = np.where(first & by_attention, 1, 2)
    output = np.where(first, residual, np.where(by_memories, 1, 2))
    following = rng.integers(0, 1000, count)
    found = predictions(rng, {"residual_top": residual, "output_top": output, "next_token": following})
    by_layer["other_next_token"] = np.repeat(rng.permutation(following)[:, None], LAYERS, 1)
    prefix, layer = (axis.ravel() for axis in np.indices((count, LAYERS)))
    others = [name for name in ATTENTION.names if name not in by_layer and name not in ("prefix", "layer")]
    columns: dict[str, Any] = {name: np.zeros(len(prefix)) for name in others}
    columns |= {name: column.ravel() for name, column in by_layer.items()}
    columns |= {"final_logit": np.full(len(prefix), 50.0), "ffn_alone_top": [None] * len(prefix)}
    place = {"prefix": prefix, "layer": layer.astype(np.int16)}
    return Tables({**found.tables, "attention": pl.DataFrame(place | columns).cast({"ffn_alone_top": pl.Int32})})


def hits(rng: np.random.Generator, share: Array | float, *, layers: int = LAYERS, documents: int = DOCUMENTS) -> Array:
    """True or False by prefix and layer, as often as the share says; prefixes of one document are alike."""
    part = np.broadcast_to(np.asarray(share, np.float64), (layers,))
    own = rng.beta(8 * part, 8 * (1 - part), (documents, layers))
    return rng.random((documents * EACH, layers)) < np.repeat(own, EACH, axis=0)
