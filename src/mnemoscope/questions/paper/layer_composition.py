"""Figure 8: how often a layer predicts a token that none of its memories votes for.

Counted over all memories, over the major ones, which hold 90 % of the contribution, and for the layer's output.
"""

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.patterns.word_lists import is_stop_word
from mnemoscope.questions.answer_builder import AnswerBuilder, least_layer
from mnemoscope.questions.question import Claim, Number, Paper
from mnemoscope.questions.sources import Predictions, contrast, question_of_predictions
from mnemoscope.questions.verdicts import above, each_layer_between

QUESTION = question_of_predictions(
    "layer_composition",
    title="whether a layer's top token is that of one of its memories",
    paper=Paper(
        figure="Figure 8",
        section="5.1",
        question="How often is a layer's prediction different from that of every one of its memories?",
        claims=(
            Claim(
                "no memory's top token is the layer's top token, in the layer where this is rarest",
                "68 % or more",
                "zero_agreement_least_layer",
                "share",
                "at least 68 % in every layer, each interval corrected for their number",
                each_layer_between("zero_agreement", 0.68, 1),
            ),
            Claim(
                "where one does, the target is a stop word",
                "60 %",
                "agreeing_stop_word",
                "share",
                "more often than over all {cases}; the difference",
                above(0),
                by="agreeing_stop_word_above_all",
            ),
            Claim(
                "where one does, the {prefix} has fewer than 5 tokens",
                "43 %",
                "agreeing_short",
                "share",
                "more often than over all {cases}; the difference",
                above(0),
                by="agreeing_short_above_all",
            ),
        ),
    ),
    numbers=(
        Number("zero_agreement", "share", "no memory's top token is the layer's"),
        Number("zero_agreement_major", "share", "no major memory's top token is the layer's"),
        Number("zero_agreement_output", "share", "no memory's top token is the block output's"),
        Number("agreeing_stop_word", "share", "target is a stop word"),
        Number("agreeing_stop_word_top", "share", "the layer's own top token is a stop word"),
        Number("agreeing_short", "share", "{prefix} under 5 tokens"),
        Number("zero_agreement_least_layer", "share", "no memory's top token is the layer's, where this is rarest"),
        Number("all_stop_word", "share", "target is a stop word, over all {cases}"),
        Number("all_short", "share", "{prefix} under 5 tokens, over all {cases}"),
        Number("agreeing_stop_word_above_all", "share", "target is a stop word, where a memory agrees minus over all"),
        Number("agreeing_short_above_all", "share", "{prefix} under 5 tokens, where a memory agrees minus over all"),
    ),
    main="zero_agreement",
    headline=(
        "literal_zero_agreement",
        "zero_agreement",
        "zero_agreement_major",
        "zero_agreement_output",
        "agreeing_stop_word",
        "agreeing_short",
    ),
    layer_page=("literal_zero_agreement", "zero_agreement"),
    projections=("votes", "streams"),
    literal=(
        *("zero_agreement", "agreeing_stop_word", "agreeing_short", "zero_agreement_least_layer"),
        *("agreeing_stop_word_above_all", "agreeing_short_above_all"),
    ),
    why="The paper asks every memory, also those that do not fire, and reads y E^T; ours asks those that fire, each"
    " with the sign of its coefficient, through the norm before the head, which is what the layer adds up",
)

SHORT = 5
"""A prefix with fewer tokens, or a sentence that is read whole, is short."""


def answer(atlas: Atlas) -> pl.DataFrame:
    """Own column: `at_layer`. The base rates `all_stop_word` and `all_short` count every prefix once. Raises
    AtlasUnfinished if predictions or prefixes are missing.
    """
    rows, builder = Predictions(atlas), AnswerBuilder(QUESTION, {"at_layer": pl.Int16})
    for adding, read in ((builder.literal(), rows.literal()), (builder, rows)):
        if read is not None:
            _add(adding, atlas, read)
    return builder.frame()


def _add(builder: AnswerBuilder, atlas: Atlas, rows: Predictions) -> None:
    silent = rows.share(rows["votes_ffn"] == 0)
    builder.add_layers("zero_agreement", silent)
    builder.add_layers("zero_agreement_major", rows.share(rows["votes_ffn_major"] == 0))
    builder.add_layers("zero_agreement_output", rows.share(rows["votes_output"] == 0))
    agreeing = rows["votes_ffn"] > 0
    stop_words = np.array([is_stop_word(text) for text in atlas.table("vocabulary")["text"]], bool)
    cases = {"stop_word": stop_words[rows["next_token"]], "short": rows.read < SHORT}
    shares = {name: rows.share(hits, agreeing) for name, hits in cases.items()}
    builder.add_layers("agreeing_stop_word", shares["stop_word"])
    builder.add_layers("agreeing_stop_word_top", rows.share(stop_words[rows["ffn_vote_top"]], agreeing))
    builder.add_layers("agreeing_short", shares["short"])
    layer, fewest = least_layer(silent)
    builder.add(None, "zero_agreement_least_layer", fewest, at_layer=layer)
    once = rows.once()
    for name, hits in cases.items():
        every = rows.share(hits, once)[None]
        builder.add(None, f"all_{name}", every)
        builder.add(None, f"agreeing_{name}_above_all", contrast((1, shares[name][None]), (-1, every)))
    builder.add(None, "documents", rows.documents())
