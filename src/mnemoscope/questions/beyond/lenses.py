"""B3: Figures 4-6 and 9-11 under other projections.

Values and streams of lower layers may lie in another space than the head reads. A lens (`mnemoscope lens`) maps them
into it; baselines go through the same lens. `plain` is the projection of the paper's questions.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from mnemoscope.atlas import Atlas
from mnemoscope.errors import AtlasUnfinished
from mnemoscope.foundation.formatting import Form
from mnemoscope.foundation.intervals import NOTHING, Estimate, Resamples, ends, exact_share, mean_share, order_statistic
from mnemoscope.questions.answer_builder import AnswerBuilder, difference, estimate_keys, share_first
from mnemoscope.questions.question import Number, Paper, Question
from mnemoscope.questions.sources import by_layer, plan_seed, read_layers, refuse_part, require_table

RULERS = ("plain", "ridge", "tuned")
RULERS_OF_KEYS = RULERS[:2]
CONFIDENT = 0.1
"""The share of a layer's memories, by largest probability, whose agreement is reported separately."""
_VALUE_NUMBERS: dict[str, tuple[Form, str]] = {
    "agreement": ("share", "value's top token is the target"),
    "control": ("share", "another memory's target"),
    "above_control": ("share", "agreement minus the control"),
    "rank": ("rank", "median rank of the target"),
    "control_rank": ("rank", "median rank of another memory's target"),
    "probability": ("share", "largest probability of a value, mean"),
    "confident_agreement": ("share", "agreement of the tenth with the largest probability"),
}
_KEY_NUMBERS: dict[str, tuple[Form, str]] = {
    "key_agreement": ("share", "the key's first word is its best trigger's last"),
    "key_control": ("share", "another memory's trigger"),
    "key_on_text": ("share", "on a little text: the key ranks the word first that it points to most"),
    "key_shuffled": ("share", "the same of the key with its entries shuffled"),
    "key_above_control": ("share", "on that text: the key minus the shuffled key"),
    "key_rank": ("rank", "median rank of the trigger's {last_word} under the key"),
    "key_control_rank": ("rank", "median rank of another memory's"),
    "key_found": ("share", "of 25 triggers' {last_words}, those among the key's first 25"),
    "key_control_found": ("share", "of another memory's"),
}
_STREAM_NUMBERS: dict[str, tuple[Form, str]] = {
    "loss": ("nats", "cross-entropy of the residual's readout with the {asked_token}"),
    "match": ("share", "residual's top token is the final one"),
    "match_control": ("share", "another {prefix}'s final token"),
    "final_probability": ("share", "probability of the final token in the residual, mean"),
    "changed": ("share", "the layer changes the top token"),
    "composition_of_changed": ("share", "composition, of the changed"),
}

QUESTION = Question(
    "lenses",
    title="whether the ruler was wrong",
    paper=Paper(
        figure="B3",
        section="beyond",
        question="Do values and streams of lower layers predict more if read in the space that they are written in?",
    ),
    numbers=(
        *(
            Number(f"{name}_{ruler}", form, f"{ruler}: {label}")
            for names, rulers in ((_VALUE_NUMBERS | _STREAM_NUMBERS, RULERS), (_KEY_NUMBERS, RULERS_OF_KEYS))
            for name, (form, label) in names.items()
            for ruler in rulers
        ),
        *(Number(f"lower_agreement_above_control_{ruler}", "share") for ruler in RULERS),
    ),
    main="agreement_plain",
    headline=("agreement_plain", "agreement_ridge", "agreement_tuned", "loss_plain", "loss_ridge", "loss_tuned"),
    layer_page=("agreement_plain", "agreement_ridge", "agreement_tuned"),
    may_lack=("readings", "key_readings", "readouts"),
    nothing="no memory of this atlas has a target, and the validation text gave no {case}",
    interval="over memories (Wilson), of streams over documents (bootstrap, seed {seed})",
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Raises AtlasUnfinished without lenses, or if all mined sentences are of one document."""
    refuse_part(atlas)
    sentences = atlas.table("sentences", columns=["document", "held_out"])
    if sentences.filter(~pl.col("held_out"))["document"].n_unique() == 1:
        raise AtlasUnfinished(
            f"{atlas.path} stores mined sentences of one document only, which cannot both fit a lens and judge it;"
            " mine more documents"
        )
    builder = AnswerBuilder(QUESTION)
    readings, keys = (read_layers(atlas, name) for name in ("readings", "key_readings"))
    readouts = require_table(atlas, "readouts").join(
        require_table(atlas, "prefixes").select("prefix", "document"), on="prefix"
    )
    for ruler in RULERS:
        read, streams = readings.filter(pl.col("lens") == ruler), readouts.filter(pl.col("lens") == ruler)
        if read.is_empty() and streams.is_empty():
            continue
        for (layer, here), (_, there) in zip(by_layer(atlas, read), by_layer(atlas, streams), strict=True):
            for name, estimate in (estimate_values(here) | _estimate_streams(there, plan_seed(atlas))).items():
                builder.add(layer, f"{name}_{ruler}", estimate)
        lower = read.filter(~pl.col("layer").is_in(list(atlas.upper_layers)))
        builder.add(None, f"lower_agreement_above_control_{ruler}", estimate_values(lower)["above_control"])
    for ruler in RULERS_OF_KEYS:
        for layer, here in by_layer(atlas, keys.filter(pl.col("lens") == ruler)):
            for name, estimate in estimate_keys(here).items():
                builder.add(layer, f"key_{name}_{ruler}", estimate)
    return builder.frame()


def estimate_values(rows: pl.DataFrame) -> dict[str, Estimate]:
    with_target = rows.filter(pl.col("target_rank").is_not_null())
    ranks, control = with_target["target_rank"].sort(), rows["control_rank"].drop_nulls().sort()
    agreement, chance = share_first(ranks), share_first(control)
    most = with_target.sort("max_probability", descending=True, maintain_order=True)
    best = most.head(max(1, round(CONFIDENT * most.height)))["target_rank"]
    return {
        "agreement": agreement,
        "control": chance,
        "above_control": difference(agreement, chance),
        "rank": order_statistic(ranks.to_numpy(), 0.5),
        "control_rank": order_statistic(control.to_numpy(), 0.5),
        "probability": mean_share(rows["max_probability"]),
        "confident_agreement": exact_share(int((best == 0).sum()), len(best)) if len(best) else NOTHING,
    }


def _estimate_streams(rows: pl.DataFrame, seed: int) -> dict[str, Estimate]:
    if rows.is_empty():
        return dict.fromkeys(_STREAM_NUMBERS, NOTHING)
    changed = (rows["output_top"] != rows["residual_top"]).to_numpy()
    composed = changed & (rows["output_top"] != rows["ffn_top"]).to_numpy()
    every = np.ones(rows.height)
    cases: Mapping[str, tuple[np.ndarray, np.ndarray]] = {
        "loss": (rows["residual_loss"].to_numpy(), every),
        "match": ((rows["residual_final_rank"] == 0).to_numpy(), every),
        "match_control": ((rows["residual_control_rank"] == 0).to_numpy(), every),
        "final_probability": (rows["residual_final_probability"].to_numpy(), every),
        "changed": (changed, every),
        "composition_of_changed": (composed, changed),
    }
    documents, codes = np.unique(rows["document"].to_numpy(), return_inverse=True)
    above, below = (
        np.stack([np.bincount(codes, np.asarray(pair[at], float), len(documents)) for pair in cases.values()], 1)
        for at in (0, 1)
    )
    draws = Resamples(len(documents), seed).ratio_draws(above, below)
    return {
        name: Estimate(float(top / count), int(count), *ends(resampled)) if count else NOTHING
        for name, top, count, resampled in zip(cases, above.sum(0), below.sum(0), draws.T, strict=True)
    }
