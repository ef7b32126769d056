"""The first screen in sentences: what was mined, what keys detect, what values predict, where predictions are made.

Every number is the atlas's own, and the conclusions depend on the numbers; a difference from the paper is stated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnemoscope.atlas import Atlas
from mnemoscope.foundation.formatting import format_layers, join_words, percent, pluralise
from mnemoscope.foundation.options.mining_options import MiningOptions
from mnemoscope.questions.question import Answer, Row
from mnemoscope.questions.verdicts import correct_intervals, is_above


@dataclass(frozen=True)
class Card:
    title: str
    sentences: tuple[str, ...]
    link: str


def cards(mined: Sequence[str], answers: Mapping[str, Answer]) -> list[Card]:
    return [
        Card("What was mined", tuple(mined), "methods"),
        Card("What keys detect", tuple(_keys(answers)), "key_patterns"),
        Card("What values predict", tuple(_values(answers)), "value_agreement"),
        Card("Where the prediction is made", tuple(_refinement(answers)), "refinement_match"),
    ]


def describe_mining(atlas: Atlas) -> list[str]:
    model, corpus = atlas.manifest.model, atlas.manifest.corpus
    counts, sizes = corpus.counts, model.sizes
    total, depth = sum(atlas.memories(layer) for layer in atlas.layers), len(sizes.memories)
    where = f"all {depth} layers" if len(atlas.layers) == depth else f"{format_layers(atlas.layers)} of {depth}"
    text = pluralise(counts["mined_sentences"], "sentence")
    sentences = [
        f"{total:,} memories in {where} of the model {model.spec}. Feed-forward layers hold"
        f" {percent(sizes.ffn_parameters / max(1, sizes.parameters))} of its {sizes.parameters:,} parameters.",
        f"The model read {pluralise(counts['mined_tokens'], 'token')} in {text} of {corpus.spec}; of each memory, the"
        f" {atlas.manifest.plan['triggers']} beginnings of sentences on which it fires most strongly were kept: its"
        " triggers.",
    ]
    dead = sum(int((atlas.table("activity", layer=layer)["positive"] == 0).sum()) for layer in atlas.layers)
    sentences.append(
        f"{dead:,} of them never fired ({percent(dead / total)})." if dead else "Every one of them fired at least once."
    )
    questions = atlas.manifest.questions
    if (gave := questions.prefixes) and gave < questions.prefixes_asked:
        sentences.append(
            f"Figures 7 to 11 are asked of {pluralise(gave, 'prefix', 'prefixes')}, all that the validation text gives."
        )
    return sentences


def _missing(answer: Answer) -> list[str]:
    return [f"Not answered for this atlas: {answer.missing}."]


def _keys(answers: Mapping[str, Answer]) -> list[str]:
    answer = answers["key_patterns"]
    if answer.missing:
        return _missing(answer)
    sentences = []
    keys, covered = answer.total("keys_with_pattern"), answer.total("covered")
    if keys is not None and covered is not None:
        sentences.append(
            f"Of the keys with at least one positive trigger {keys.text} detect something that chance would not give;"
            f" such patterns explain {covered.text} of their 25 best triggers."
        )
    sentences += _kinds(answer)
    removals = answers["key_removals"]
    removed = ("last", "first", "random")
    medians = {one: row for one in removed if (row := removals.total(f"{one}_median")) is not None}
    if len(medians) == len(removed):
        # The lowest leads if its whole interval lies below all others.
        lowest, *others = sorted(medians, key=lambda name: medians[name].value)
        high = medians[lowest].high
        decided = high is not None and all((low := medians[name].low) is not None and high < low for name in others)
        lead = {
            "last": "Above all the last token fires a memory",
            "first": "Above all the first token fires a memory",
            "random": "Neither end of a prefix matters as much as its middle",
            "": "Which token of a prefix matters most is not clear",
        }[lowest if decided else ""]
        changes = [
            f"{row.text} without {'a' if name == 'random' else 'the'} {name} one" for name, row in medians.items()
        ]
        sentences.append(f"{lead}: the median change of the activation (coefficient) is {join_words(changes)}.")
    return sentences


def _kinds(answer: Answer) -> list[str]:
    """Shallow against semantic patterns in lower and upper layers, and which one leads, if decided."""
    halves = []
    for where, layers in (("lower", answer.lower), ("upper", answer.upper)):
        shallow, semantic = answer.mean("shallow", layers), answer.mean("semantic", layers)
        if shallow is not None and semantic is not None:
            halves.append((where, layers, shallow, semantic))
    if not halves:
        return []
    where, layers, shallow, semantic = halves[0]
    text = (
        f"In the {where} layers ({format_layers(layers, bare=True)}) {percent(shallow)} of the triggers share a surface"
        f" form, such as the last word, and {percent(semantic)} a topic"
    )
    end = ""
    if len(halves) == 2:
        where, layers, shallow, semantic = halves[1]
        text += f"; in the {where} ({format_layers(layers, bare=True)}) {percent(shallow)} and {percent(semantic)}"
        leads = (answer.total(f"shallow_of_one_kind_{half}") for half in ("lower", "upper"))
        below, above = ("" if row is None else is_above(row, 0.5) for row in leads)
        end = {
            ("yes", "no"): " Surface forms lead below and topics above, as in the paper.",
            ("yes", "yes"): " Surface forms lead throughout; in the paper topics lead above.",
            ("no", "no"): " Topics lead throughout; in the paper surface forms lead below.",
            ("no", "yes"): " Topics lead below and surface forms above, the reverse of the paper.",
        }.get((below, above), " Which of them leads is not clear in both.")
    return [f"{text}.{end}"]


def _values(answers: Mapping[str, Answer]) -> list[str]:
    answer = answers["value_agreement"]
    if answer.missing:
        return _missing(answer)
    sentences = []
    overall, shuffled = answer.total("agreement"), answer.total("shuffled_targets")
    upper, lower = answer.total("agreement_upper"), answer.total("agreement_lower")
    if overall is not None:
        baselines = (shuffled, "shuffled targets"), (answer.total("most_frequent_token"), "always guessing one token")
        clearly = {"more": "more than", "less": "less than", "": "not clearly apart from"}
        against = [f"{clearly[_side(overall, row)]} {words} ({row.text})" for row, words in baselines if row]
        sentences.append(
            f"A value's top token is what follows its memory's best trigger for {overall.text} of the"
            f" memories: {join_words(against)}."
        )
    if upper is not None and lower is not None:
        sentences.append(
            f"It is so {side} often in the upper layers ({upper.text}) than in the lower ({lower.text})."
            if (side := _side(upper, lower))
            else f"Upper layers ({upper.text}) and lower ones ({lower.text}) do not clearly differ."
        )
    return sentences + _most_confident(answers["value_confidence"])


def _most_confident(answer: Answer) -> list[str]:
    upper, agreeing, share = (
        answer.total(f"top100_{name}") for name in ("upper_layers", "with_trigger", "trigger_share")
    )
    if upper is None or agreeing is None:
        return []
    rest = "" if share is None else f" (on average {share.text} of their triggers)"
    return [
        f"Of the {upper.count:,} most confident values {upper.value * upper.count:,.0f} lie in the upper layers, and"
        f" {agreeing.value * agreeing.count:,.0f} have a trigger that is followed by what they rank first{rest}."
    ]


def _side(row: Row, other: Row) -> str:
    """`more` or `less` than the other number; empty if the intervals overlap."""
    low, high, least, most = (one.value if end is None else end for one in (row, other) for end in (one.low, one.high))
    return "more" if low > most else "less" if high < least else ""


def _refinement(answers: Mapping[str, Answer]) -> list[str]:
    answer = answers["refinement_match"]
    sentences = _missing(answer) if answer.missing else []
    rows = answer.rows("match")
    if rows:
        first, last = rows[0], rows[-1]
        # From this layer on at least half; each layer's interval is corrected for their number.
        below = [row.low is None or row.low < 0.5 for row in correct_intervals(rows)]
        half = len(below) - below[::-1].index(True) if True in below else 0
        passing = "" if half == len(rows) else f" From layer {rows[half].layer} on it is at least half."
        ends = f"in {first.text} of cases in layer {first.layer} and in {last.text} in layer {last.layer}"
        sentences.append(
            "Each layer adds to a running sum, the residual stream. Decoded where it enters the"
            f" feed-forward layer, it already predicts the model's final token {ends}.{passing}"
        )
    events = answers["refinement_events"]
    changed, composed = events.total("changed"), events.total("composition_of_changed")
    if changed is not None and composed is not None:
        sentences.append(
            f"A layer changes the prediction in {changed.text} of cases; {composed.text} of these changes are to a"
            " token that neither the stream nor the layer ranked first: a composition."
        )
    if (zero := answers["layer_composition"].total("zero_agreement")) is not None:
        sentences.append(f"In {zero.text} of cases a layer's top token is that of none of its firing memories.")
    return sentences


def warnings(atlas: Atlas) -> list[str]:
    texts = []
    overlap, questions = atlas.manifest.corpus.overlap, atlas.manifest.questions
    if overlap.sentences:
        texts.append(
            f"{overlap.sentences:,} of the {overlap.of:,} validation sentences ({percent(overlap.share)}) are"
            " also in the mined text, so Figures 7 to 11 are not about unseen text only."
        )
    target = questions.prefixes_asked
    if (gave := questions.prefixes) < target != MiningOptions.prefixes:  # the default number is no user's request
        texts.append(
            f"The validation text gave {pluralise(gave, 'prefix', 'prefixes')} of the"
            f" {target:,.0f} asked for: intervals of Figures 7 to 11 are wider for it."
        )
    depth = len(atlas.manifest.model.sizes.memories)
    if len(atlas.layers) < depth:
        texts.append(f"Only {format_layers(atlas.layers)} of the model's {depth} layers were mined.")
    return texts
