"""B1: what attention and the feed-forward layers contribute to the prediction.

Shares of the final token's logit are ratios of sums over prefixes, with every norm's scale frozen. Shares of the logit
above the mean logit ignore a constant added to all logits; their control is what the same vectors add to another
prefix's final token. In any model each part adds more to the final token, which has the greatest logit, than to
another one. So whether a part depends on the prefix is tested on the text's next token. The events are those of
Figure 11. Of an encoder-decoder cross-attention is a third part, where it is told from self-attention.
"""

import math
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.intervals import Estimate, Z
from mnemoscope.questions.answer_builder import AnswerBuilder
from mnemoscope.questions.question import Claim, Number, Paper, Question
from mnemoscope.questions.sources import (
    DOCUMENTS,
    NO_PREFIX,
    NUMBER_OF_DOCUMENTS,
    Predictions,
    ResampledValue,
    contrast,
)
from mnemoscope.questions.verdicts import UNTRAINED, above

Numbers = NDArray[np.float64]
EVENTS = ("residual", "agreement", "composition", "own")
"""Events of Figure 11; `own` is the event that the paper calls ffn."""
_BEYOND = "(not asked by the paper)"

_NUMBERS = (
    Number("attention_share", "share", "attention, of the logit above the mean logit"),
    Number("ffn_share", "share", "feed-forward, of the logit above the mean logit"),
    Number("embedding_share", "share", "embedding, of the logit above the mean logit"),
    Number("bias_share", "share", "biases of norms and head, of the logit above the mean logit"),
    Number("rest_share", "share", "other blocks and layers, of the logit above the mean logit"),
    Number("unaccounted", "share", "what the parts leave of the logit, size against size"),
    Number("attention_control", "share", "attention, given to another {prefix}'s final token"),
    Number("ffn_control", "share", "feed-forward, given to another {prefix}'s final token"),
    Number("embedding_control", "share", "embedding, given to another {prefix}'s final token"),
    Number("attention_next_above_control", "number", "attention: the {asked_token}'s logit minus another's"),
    Number("ffn_next_above_control", "number", "feed-forward: the {asked_token}'s logit minus another's"),
    Number("ffn_above_attention", "share", "share of feed-forward minus that of attention"),
    Number("attention_logit_share", "share", "attention, of the logit"),
    Number("ffn_logit_share", "share", "feed-forward, of the logit"),
    Number("embedding_logit_share", "share", "embedding, of the logit"),
    Number("bias_logit_share", "share", "biases, of the logit"),
    Number("rest_logit_share", "share", "other blocks and layers, of the logit"),
    Number("final_logit", "number", "the final token's logit, mean"),
    Number("final_logit_above_mean", "number", "the final token's logit above the mean logit, mean"),
    Number("attention_norm", "number", "length of what attention adds"),
    Number("ffn_norm", "number", "length of what the feed-forward layer adds"),
    Number("attention_residual", "share", "attention: residual"),
    Number("attention_agreement", "share", "attention: agreement"),
    Number("attention_composition", "share", "attention: composition"),
    Number("attention_own", "share", "attention: its own token"),
    Number("attention_changed", "share", "attention changes the prediction"),
    Number("ffn_residual", "share", "feed-forward: residual"),
    Number("ffn_agreement", "share", "feed-forward: agreement"),
    Number("ffn_composition", "share", "feed-forward: composition"),
    Number("ffn_own", "share", "feed-forward: its own token"),
    Number("ffn_changed", "share", "feed-forward changes the prediction"),
    Number("attention_moves", "share", "attention alone moves the top token to the final one"),
    Number("ffn_moves", "share", "feed-forward alone moves the top token to the final one"),
    Number("attention_moves_control", "share", "attention moves it to another {prefix}'s final token"),
    Number("ffn_moves_control", "share", "feed-forward moves it to another {prefix}'s final token"),
    Number("ffn_moves_above_attention", "share", "feed-forward moves it minus attention does"),
    Number("attended", "number", "effective number of attended positions"),
    Number("attended_of_positions", "share", "of the positions that could be attended"),
    Number("effective", "number", "effective number of memories"),
    Number("effective_of_memories", "share", "of the layer's memories"),
)
_OF_CROSS = (
    *(
        replace(one, name=f"cross_{one.name}", label=one.label.replace("attention", "cross-attention"), optional=True)
        for one in _NUMBERS
        if one.name.startswith("attention_")
    ),
    Number("cross_attention_told", "share", "layers that tell cross-attention from self-attention", optional=True),
)
"""Of encoder-decoders; where cross-attention is told apart, numbers of attention are self-attention's."""

QUESTION = Question(
    "attention_share",
    title="attention beside the memories",
    paper=Paper(
        figure="B1",
        section="beyond",
        question="Who writes the final token's logit: the embedding, attention, or the feed-forward layers?",
        claims=(
            Claim(
                f"the feed-forward layers write more of the final token's logit than attention {_BEYOND}",
                "-",
                "ffn_above_attention",
                "share",
                f"of the logit above the mean logit; the difference of the two shares; {UNTRAINED}",
                above(0),
            ),
            Claim(
                f"attention writes {{what_follows_this}} {_BEYOND}",
                "-",
                "attention_next_above_control",
                "number",
                "it gives less to {another_target}; the difference",
                above(0),
            ),
            Claim(
                f"the feed-forward layers write {{what_follows_this}} {_BEYOND}",
                "-",
                "ffn_next_above_control",
                "number",
                "they give less to {another_target}; the difference",
                above(0),
            ),
            Claim(
                f"a feed-forward layer moves the top token to the final one more often than attention {_BEYOND}",
                "-",
                "ffn_moves_above_attention",
                "share",
                f"the difference over all {{cases}} and layers; {UNTRAINED}",
                above(0),
            ),
        ),
    ),
    numbers=(*_NUMBERS, *_OF_CROSS, NUMBER_OF_DOCUMENTS),
    main="ffn_share",
    headline=(
        *("attention_share", "cross_attention_share", "ffn_share", "attention_changed", "cross_attention_changed"),
        *("ffn_changed", "attended", "effective"),
    ),
    layer_page=("attention_share", "cross_attention_share", "ffn_share", "attention_changed", "attended"),
    may_lack=("predictions", "attention"),
    nothing=NO_PREFIX,
    interval=DOCUMENTS,
    projections=("streams",),
)


def answer(atlas: Atlas) -> pl.DataFrame:
    """Embedding, biases, the rest and the unaccounted part have totals only. A share over all layers is the sum of the
    layers'. Raises AtlasUnfinished if the atlas has no table `attention`.
    """
    rows = Predictions(atlas, beside="attention")
    builder = AnswerBuilder(QUESTION)
    _add_shares(builder, rows)
    for name in _writers(rows):
        norms = rows[f"{name}_norm"]
        builder.add_layers(f"{name}_norm", rows.share(norms, np.isfinite(norms)))
    _add_events(builder, rows)
    attended = np.isfinite(rows["attended"])
    builder.add_layers("attended", rows.share(rows["attended"], attended))
    positions = atlas.reading.columns(rows.read)
    builder.add_layers("attended_of_positions", rows.share(rows["attended"] / positions, attended))
    builder.add_layers("effective", rows.share(rows["effective"]))
    builder.add_layers("effective_of_memories", rows.share(rows["effective"].astype(np.float64) / rows.memories))
    if atlas.manifest.plan.get("source_field") is not None:
        told = np.unique(rows["layer"][_cross_rows(rows)])
        builder.add(None, "cross_attention_told", Estimate(len(told) / len(atlas.layers), len(atlas.layers)))
    builder.add(None, "documents", rows.documents())
    return builder.frame()


def _writers(rows: Predictions) -> list[str]:
    """What writes in a layer."""
    return [name for name in ("attention", "cross_attention", "ffn") if f"{name}_logit" in rows.columns]


def _cross_rows(rows: Predictions) -> NDArray[np.bool_]:
    """Where cross-attention is told from self-attention."""
    return np.isfinite(rows.columns.get("cross_input_top", np.full(len(rows.place), np.nan)))


def _add_shares(builder: AnswerBuilder, rows: Predictions) -> None:
    def part(name: str, kind: str = "") -> Numbers:
        return np.asarray(rows[f"{name}_logit{kind}"], np.float64)

    once = rows.once()
    logit, lifted = part("final"), part("final") - part("final", "_mean")
    builder.add(None, "final_logit", rows.share(logit, once)[None])
    builder.add(None, "final_logit_above_mean", rows.share(lifted, once)[None])
    shares, writers = {}, _writers(rows)
    for name in (*writers, "embedding", "bias", "rest"):
        cases = np.isfinite(part(name)) if name in writers else once
        of_logit = rows.ratio(part(name), logit, cases)
        shares[name] = rows.ratio(part(name) - part(name, "_mean"), lifted, cases)
        control = rows.ratio(part(name, "_other") - part(name, "_mean"), lifted, cases)
        for key in shares[name] if name in writers else (None,):
            builder.add(key, f"{name}_share", shares[name][key])
            builder.add(key, f"{name}_logit_share", of_logit[key])
            if name in (*writers, "embedding"):
                builder.add(key, f"{name}_control", control[key])
    for key in shares["ffn"]:
        terms = [(1, shares["ffn"][key]), (-1, shares["attention"][key])]
        if "cross_attention" in shares and shares["cross_attention"][key].value is not None:
            terms.append((-1, shares["cross_attention"][key]))
        builder.add(key, "ffn_above_attention", contrast(*terms))
    for name in writers:
        builder.add_layers(f"{name}_next_above_control", _next_above_control(rows, name))
    blocks = np.sum([np.nan_to_num(part(name)) for name in writers], axis=0)
    of_blocks = np.bincount(rows["prefix"], weights=blocks)[rows["prefix"]]
    left = np.abs(logit - of_blocks - part("embedding") - part("bias") - part("rest"))
    builder.add(None, "unaccounted", rows.ratio(left, np.abs(logit), once)[None])


def _next_above_control(rows: Predictions, name: str) -> dict[int | None, Estimate]:
    """Logits per prefix that a part adds to the text's next token minus those to another prefix's.

    Every part has a bias for each token, which resampling documents does not vary. So the interval includes the spread
    between tokens: each one's sum as the next token minus its sum as another prefix's.
    """
    following, other = (np.asarray(rows[f"{name}_logit{kind}"], np.float64) for kind in ("_next", "_other_next"))
    cases = np.isfinite(following) & np.isfinite(other)
    estimates: dict[int | None, Estimate] = {}
    for key, one in rows.ratio(following - other, np.ones(len(cases)), cases).items():
        here = cases if key is None else cases & (rows["layer"] == key)
        tokens = np.concatenate([rows["next_token"][here], rows["other_next_token"][here]])
        sums = np.bincount(tokens.astype(np.int64), weights=np.concatenate([following[here], -other[here]]))
        spread = Z * float(np.sqrt(np.square(sums).sum())) / max(1, one.count)
        if one.value is not None and one.low is not None and one.high is not None:
            low, high = (math.hypot(one.value - end, spread) for end in (one.low, one.high))
            one = replace(one, low=one.value - low, high=one.value + high)
        estimates[key] = one
    return estimates


def _add_events(builder: AnswerBuilder, rows: Predictions) -> None:
    before, residual, output = (np.asarray(rows[name]) for name in ("input_top", "residual_top", "output_top"))
    separable = np.isfinite(rows["attention_top"])
    parallel = np.isfinite(rows["ffn_alone_top"])
    read, alone = np.where(parallel, before, residual), np.where(parallel, rows["ffn_alone_top"], output)
    told, always = _cross_rows(rows), np.ones(len(separable), bool)
    between = np.where(told, rows["cross_input_top"], residual) if told.any() else residual
    steps = {"attention": (before, rows["attention_top"], between, separable)}
    if told.any():
        steps["cross_attention"] = (between, rows["cross_attention_top"], residual, told)
    steps["ffn"] = (residual, rows["ffn_top"], output, always)
    for name, (start, added, end, cases) in steps.items():
        kept, taken = end == start, end == added
        events = (kept & ~taken, kept & taken, ~kept & ~taken, taken & ~kept)
        for event, hits in zip(EVENTS, events, strict=True):
            builder.add_layers(f"{name}_{event}", rows.share(hits, cases))
        builder.add_layers(f"{name}_changed", rows.share(~kept, cases))

    def moves(start: Numbers, end: Numbers, cases: NDArray[np.bool_], goal: str) -> dict[int | None, ResampledValue]:
        return rows.share((end == rows[goal]) & (start != rows[goal]), cases)

    steps["ffn"] = (read, rows["ffn_top"], alone, always)
    for name, (start, _, end, cases) in steps.items():
        for suffix, goal in (("", "final_top"), ("_control", "other_top")):
            builder.add_layers(f"{name}_moves{suffix}", moves(start, end, cases, goal))
    ffn, every = moves(read, alone, always, "final_top"), moves(before, residual, separable, "final_top")
    above = {key: contrast((1, ffn[key]), (-1, every[key])) for key in ffn}
    builder.add_layers("ffn_moves_above_attention", above)
