"""B2: whether a key detects the last token of its memory's triggers: Figure 4 at the layer's input.

The key is compared with the embedding of every token (centred cosine), which gives the rank of the best trigger's last
token. The control uses another memory's trigger. Keys agree with their own triggers in any model, so the effect of
training is measured against the key with shuffled entries, each on the token of a short text that activates it most.
"""

import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, mean
from mnemoscope.questions.answer_builder import MEMORIES, AnswerBuilder, estimate_keys
from mnemoscope.questions.question import Number, Paper, Question
from mnemoscope.questions.sources import by_layer, read_layers

NOTHING = "no memory of this atlas has a trigger and a key that can be compared with embeddings"

QUESTION = Question(
    "key_agreement",
    title="whether keys look for words",
    paper=Paper(
        figure="B2",
        section="beyond",
        question="How often is the word that a key is closest to the {last_one} the memory's best trigger?",
    ),
    numbers=(
        Number("agreement", "share", "the key ranks the {last_token} first"),
        Number("control", "share", "the same with another memory's triggers"),
        Number("chance", "share", "chance, 1 / vocabulary"),
        Number("on_text", "share", "on a little text: the key ranks the token first that it points to most"),
        Number("shuffled", "share", "the same of the key with its entries shuffled"),
        Number("above_control", "share", "on a little text: the key minus the shuffled key"),
        Number("rank", "rank", "median rank of the {last_token}"),
        Number("control_rank", "rank", "median rank of another memory's"),
        Number("found", "share", "of the 25 best triggers' {last_tokens}, those among the key's first 25"),
        Number("control_found", "share", "of another memory's"),
        Number("cosine", "number", "centred cosine of the key with the {last_token}, mean"),
        Number("control_cosine", "number", "with another memory's"),
        Number("agreement_lower_above_control", "share", "lower layers: the key minus the shuffled key"),
        Number("agreement_upper_above_control", "share", "upper layers: the key minus the shuffled key"),
    ),
    main="agreement",
    headline=("agreement", "control", "rank", "control_rank", "found", "control_found"),
    layer_page=("agreement", "control", "found"),
    may_lack=("roles",),
    nothing=NOTHING,
    interval=MEMORIES,
)


def answer(atlas: Atlas) -> pl.DataFrame:
    rows = read_layers(atlas, "roles").filter(pl.col("trigger_rank").is_not_null())
    builder, chance = AnswerBuilder(QUESTION), 1 / atlas.manifest.model.sizes.vocabulary
    for layer, here in by_layer(atlas, rows):
        other = here.filter(pl.col("control_rank").is_not_null())
        builder.add_named(layer, estimate_keys(here))
        builder.add(layer, "chance", Estimate(chance, here.height))
        builder.add(layer, "cosine", mean(here["trigger_cosine"]))
        builder.add(layer, "control_cosine", mean(other["control_cosine"]))
    upper = pl.col("layer").is_in(list(atlas.upper_layers))
    builder.add(None, "agreement_lower_above_control", estimate_keys(rows.filter(~upper))["above_control"])
    builder.add(None, "agreement_upper_above_control", estimate_keys(rows.filter(upper))["above_control"])
    return builder.frame()
