"""Figure 2: shares of a memory's best prefixes that shallow or semantic patterns explain.

From patterns.parquet and, with names that begin with `people_` or `models_`, from judgements of people or of language
models, with who judged; with names that begin with `folded_`, of the first trigger of each fold of near-duplicates.
"""

from collections.abc import Mapping

import polars as pl

from mnemoscope.annotate.judgements.reading import judged_apart, name_judges, read_judgements
from mnemoscope.atlas import Atlas
from mnemoscope.atlas.read import ELEVENTH, TENTH, first_layer_from
from mnemoscope.foundation.intervals import Estimate, clustered_share
from mnemoscope.patterns import coverage
from mnemoscope.questions.answer_builder import MEMORIES, AnswerBuilder, complement, share_above
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import model_layers, require_table
from mnemoscope.questions.verdicts import all_counted, at_least

_KINDS = (
    Number("shallow_only", "share", "shallow"),
    Number("semantic_only", "share", "semantic"),
    Number("both", "share", "shallow and semantic"),
    Number("none", "share", "no pattern"),
    Number("covered", "share", "any pattern"),
    Number("shallow", "share", "shallow, alone or with semantic"),
    Number("semantic", "share", "semantic, alone or with shallow"),
    Number("keys_with_pattern", "share", "keys with a pattern"),
    Number("patterns_per_key", "number", "patterns per key"),
)
_ONCE = "near-duplicates once"
ONE_KIND = "shallow_of_one_kind"
_LEADS_RULE = (
    "in all of these layers more {{prefixes}} are under {} patterns alone than under {} ones alone; each layer's"
    " interval corrected for their number"
)


def judgements(atlas: Atlas) -> pl.DataFrame | None:
    """Of memories that a campaign or a sheet names, without controls; None without any."""
    rows = read_judgements(atlas.path)
    rows = None if rows is None else rows.filter(~pl.col("control") & pl.col("sampled"))
    return None if rows is None or rows.is_empty() else rows


QUESTION = Question(
    "key_patterns",
    title="what keys detect",
    paper=Paper(
        figure="Figure 2",
        section="3.2",
        question="Which patterns, shallow or semantic, do the keys of each layer detect in the {prefixes} that trigger"
        " them?",
        claims=(
            Claim(
                "keys with at least one pattern",
                "all of 160 keys",
                "keys_with_pattern",
                "share",
                "all keys",
                all_counted,
                counted=True,
            ),
            Claim("patterns per key", "3.6", "patterns_per_key", "number"),
            Claim(
                "the top 25 {prefixes} that patterns cover",
                "65-80 %",
                "covered",
                "share",
                "at least 65 %",
                at_least(0.65),
            ),
            Claim(
                "lower layers where shallow patterns lead",
                "layers 1-9: all",
                "shallow_leads_lower",
                "share",
                _LEADS_RULE.format("shallow", "semantic"),
                at_least(1),
                counted=True,
            ),
            Claim(
                "upper layers where semantic patterns lead",
                "layers 10-16: all",
                "semantic_leads_upper",
                "share",
                _LEADS_RULE.format("semantic", "shallow"),
                at_least(1),
                counted=True,
            ),
        ),
    ),
    numbers=(
        *_KINDS,
        *(
            Number(f"{who}_{one.name}", one.form, f"{one.label} ({who})", table=f"by layer, patterns named by {who}")
            for who in ("people", "models")
            for one in _KINDS
        ),
        *(
            Number(f"folded_{one.name}", one.form, one.label, f"{one.label}, {_ONCE}", table=f"by layer, {_ONCE}")
            for one in _KINDS
            if one.name in coverage.SHARES
        ),
        Number(ONE_KIND, "share", "shallow, of {prefixes} that one kind alone explains"),
        Number(f"{ONE_KIND}_lower", "share", "shallow, of {prefixes} that one kind alone explains, lower layers"),
        Number(f"{ONE_KIND}_upper", "share", "shallow, of {prefixes} that one kind alone explains, upper layers"),
        Number("shallow_leads_lower", "share", "lower layers where shallow patterns lead"),
        Number("semantic_leads_upper", "share", "upper layers where semantic patterns lead"),
    ),
    main="none",
    headline=("shallow_only", "semantic_only", "both", "none", "keys_with_pattern", "patterns_per_key"),
    layer_page=("covered", "shallow", "semantic"),
    nothing="no memory of this atlas has the triggers that this question is about; mine more text",
    interval=MEMORIES,
    needs_patterns=True,
    judgements=judgements,
    literal=("shallow_leads_lower", "semantic_leads_upper"),
    why="The paper divides its 16 layers at the tenth for patterns; ours at the eleventh, as for values",
    keys=True,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Raises AtlasUnfinished if triggers or patterns are missing."""
    patterns = require_table(atlas, "patterns")
    builder, depth = AnswerBuilder(QUESTION, {"judged_by": pl.String}), model_layers(atlas)
    rows: dict[int, pl.DataFrame] = {}
    folded: dict[int, pl.DataFrame] = {}
    for layer in atlas.layers:
        here, prefixes = patterns.filter(pl.col("layer") == layer), coverage.top_prefixes(atlas, layer)
        rows[layer] = coverage.count_per_memory(prefixes, here)
        folded[layer] = coverage.count_folds(atlas, layer, prefixes, here)
        builder.add_named(layer, coverage.shares(folded[layer]), prefix="folded_")
        builder.add_named(layer, coverage.key_estimates(rows[layer]))
        builder.add(layer, ONE_KIND, _shallow_share(rows[layer]))
    halves = {number: _halves(rows, first_layer_from(number, depth)) for number in (TENTH, ELEVENTH)}
    below, above = halves[ELEVENTH]
    builder.add_named(None, coverage.key_estimates(pl.concat(rows.values())))
    builder.add_named(None, coverage.shares(pl.concat(folded.values())), prefix="folded_")
    for name, part in (("", list(rows.values())), ("_lower", below), ("_upper", above)):
        builder.add(None, ONE_KIND + name, _shallow_share(pl.concat([rows[atlas.layers[0]].clear(), *part])))
    for adding, number in ((builder.literal(), TENTH), (builder, ELEVENTH)):
        leads = [[_shallow_share(one) for one in half if one.height] for half in halves[number]]
        adding.add(None, "shallow_leads_lower", share_above(leads[0], 0.5))
        adding.add(None, "semantic_leads_upper", share_above([complement(one) for one in leads[1]], 0.5))
    _add_judged(builder, atlas)
    return builder.frame()


def _halves(rows: Mapping[int, pl.DataFrame], first: int) -> list[list[pl.DataFrame]]:
    """The rows of the layers below `first`, and of the others."""
    return [[one for layer, one in rows.items() if (layer >= first) == upper] for upper in (False, True)]


def _add_judged(builder: AnswerBuilder, atlas: Atlas) -> None:
    for model, judged in judged_apart(judgements(atlas)).items():
        rows, named = [], {"prefix": "models_" if model else "people_", "judged_by": name_judges(judged)}
        for layer in atlas.layers:
            here = judged.filter(pl.col("layer") == layer)
            rows.append(coverage.count_by_author(coverage.top_prefixes(atlas, layer), here))
            builder.add_named(layer, coverage.mean_over_authors(rows[-1]), **named)
        builder.add_named(None, coverage.mean_over_authors(pl.concat(rows)), **named)


def _shallow_share(rows: pl.DataFrame) -> Estimate:
    """The share of the shallow ones among prefixes that a single kind of pattern explains; a memory is a cluster."""
    return clustered_share(rows["shallow_only"], rows["shallow_only"] + rows["semantic_only"])
