"""Figure 11: shares of the events residual, agreement, composition and ffn, by which a layer changes the prediction.

Lists compositions of the last layer, which people or language models judge as related or distant, and counts their
verdicts apart.
"""

from typing import Any

import numpy as np
import polars as pl

from mnemoscope.annotate.judgements.reading import judged_apart, majority_calls, name_judges, read_verdicts
from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import NOTHING
from mnemoscope.questions.answer_builder import AnswerBuilder
from mnemoscope.questions.question import Claim, Number, Paper
from mnemoscope.questions.sources import STREAMS_WHY, Predictions, model_layers, plan_seed, question_of_predictions
from mnemoscope.questions.verdicts import above, at_least

CASES = 100


def judgements(atlas: Atlas) -> pl.DataFrame | None:
    """None without verdicts."""
    rows = read_verdicts(atlas.path)
    return None if rows is None or rows.is_empty() else rows


def cases(atlas: Atlas) -> pl.DataFrame:
    """Compositions of the model's last layer, at most 100 (seeded), by prefix. Columns: prefix, layer, residual_top,
    ffn_top, output_top, next_token, residual_text, ffn_text, output_text, next_text, prefix_text.
    """
    rows = Predictions(atlas)
    composition = (rows["output_top"] != rows["residual_top"]) & (rows["output_top"] != rows["ffn_top"])
    places = np.flatnonzero(composition & (rows["layer"] == model_layers(atlas) - 1))
    drawn = np.sort(np.random.default_rng((plan_seed(atlas), 100)).permutation(places)[:CASES])
    tokens = {name: rows[name][drawn] for name in ("residual_top", "ffn_top", "output_top", "next_token")}
    columns: dict[str, Any] = {name: rows[name][drawn] for name in ("prefix", "layer")} | tokens
    for name, ids in tokens.items():
        text = name.removesuffix("_top").removesuffix("_token") + "_text"
        columns[text] = pl.Series(atlas.token_text(ids.tolist()), dtype=pl.String)
    ends = list(zip(rows["sentence"][drawn].tolist(), rows["position"][drawn].tolist(), strict=True))
    read = atlas.prefixes(ends)
    if not atlas.reading.causal:
        stored = atlas.sentences([sentence for sentence, _ in ends], columns=["sentence", "tokens"])
        whole = {sentence: np.array(tokens) for sentence, tokens in stored.iter_rows()}
        read = [atlas.reading.context(whole[sentence], position).tolist() for sentence, position in ends]
    texts = [atlas.vocabulary.text(tokens) for tokens in read]
    return pl.DataFrame(columns | {"prefix_text": pl.Series(texts, dtype=pl.String)})


QUESTION = question_of_predictions(
    "refinement_events",
    title="how a layer changes the prediction",
    paper=Paper(
        figure="Figure 11",
        section="5.2",
        question="How often does a layer's output keep the residual's top token, take the feed-forward's, or neither?",
        claims=(
            Claim(
                "the residual's prediction stands",
                "the vast majority",
                "unchanged",
                "share",
                "more than half",
                above(0.5),
            ),
            Claim(
                "a changed prediction is a composition",
                "far more often than ffn",
                "composition_of_changed",
                "share",
                "at least two thirds of the changes",
                at_least(2 / 3),
            ),
            Claim(
                "last-layer compositions judged distant (judge those in refinement_events.cases.parquet)",
                "66 of 100",
                "composition_distant",
                "share",
            ),
            Claim(
                "last-layer compositions judged distant by a language model",
                "66 of 100",
                "models_composition_distant",
                "share",
                optional=True,
            ),
        ),
    ),
    numbers=(
        Number("residual", "share"),
        Number("agreement", "share"),
        Number("composition", "share"),
        Number("ffn", "share", "feed-forward"),
        Number("changed", "share", "prediction changed"),
        Number("unchanged", "share", "the residual's prediction stands"),
        Number("composition_of_changed", "share", "composition, of the changed"),
        Number("composition_from_top10", "share", "composed token was in the residual's first 10"),
        Number("composition_demoted", "share", "residual's token in the layer's lower half"),
        Number("composition_distant", "share"),
        Number("models_composition_distant", "share", "composition distant (models)"),
    ),
    main="changed",
    headline=("residual", "agreement", "composition", "ffn", "changed", "composition_of_changed"),
    layer_page=("changed", "composition_of_changed"),
    projections=("streams",),
    judgements=judgements,
    cases=cases,
    literal=("residual", "agreement", "composition", "ffn", "changed", "unchanged", "composition_of_changed"),
    why=STREAMS_WHY,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """`composition_distant` is null without judgements of people, `models_...` without those of models. Raises
    AtlasUnfinished without predictions.
    """
    rows, builder = Predictions(atlas), AnswerBuilder(QUESTION, {"judged_by": pl.String})
    for adding, read in ((builder.literal(), rows.literal()), (builder, rows)):
        if read is not None:
            _add(adding, atlas, read)
    builder.add(None, "documents", rows.documents())
    judged = judged_apart(judgements(atlas))
    for model, name in ((False, "composition_distant"), (True, "models_composition_distant")):
        distant = majority_calls(judged[model])["distant"] if model in judged else NOTHING
        builder.add(None, name, distant, judged_by=name_judges(judged[model]) if model in judged else None)
    return builder.frame()


def _add(builder: AnswerBuilder, atlas: Atlas, rows: Predictions) -> None:
    residual, update, output = (rows[name] for name in ("residual_top", "ffn_top", "output_top"))
    kept, taken = output == residual, output == update
    composition = ~kept & ~taken
    for name, event in {
        "residual": kept & ~taken,
        "agreement": kept & taken,
        "composition": composition,
        "ffn": taken & ~kept,
        "changed": ~kept,
        "unchanged": kept,
    }.items():
        builder.add_layers(name, rows.share(event))
    builder.add_layers("composition_of_changed", rows.share(composition, ~kept))
    builder.add_layers("composition_from_top10", rows.share(rows["output_top_residual_rank"] < 10, composition))
    demoted = 2 * rows["residual_top_ffn_rank"].astype(np.int64) >= atlas.manifest.model.sizes.vocabulary
    builder.add_layers("composition_demoted", rows.share(demoted, composition))
