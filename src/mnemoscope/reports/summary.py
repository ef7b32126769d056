"""The first screen: what was mined, what keys detect, what values predict, and where the prediction is made.

Plain sentences for somebody who has not read the paper. Every number is the atlas's own, and what a sentence concludes
depends on the numbers: where ours differ from the paper's, it says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mnemoscope.atlas import Atlas
from mnemoscope.reports.answered import Answered, Row
from mnemoscope.reports.figures_of_values import top_hundred
from mnemoscope.reports.readings import said
from mnemoscope.reports.words import counted, layers_spoken, percent, spoken


@dataclass(frozen=True)
class Card:
    """One of the questions of the first screen, its answer in sentences, and the section with the figures."""

    title: str
    sentences: tuple[str, ...]
    link: str


def cards(atlas: Atlas, answers: Mapping[str, Answered]) -> list[Card]:
    """The cards after the first one, which shows a memory."""
    return [
        Card("What was mined", tuple(mined(atlas)), "methods"),
        Card("What keys detect", tuple(_keys(answers)), "key_patterns"),
        Card("What values predict", tuple(_values(answers)), "value_agreement"),
        Card("Where the prediction is made", tuple(_refinement(answers)), "refinement_match"),
    ]


def mined(atlas: Atlas) -> list[str]:
    """How many memories of which model, on which text."""
    manifest = atlas.manifest
    model, corpus = manifest["model"], manifest["corpus"]
    counts, sizes = corpus.get("counts", {}), model["sizes"]
    total, depth = sum(atlas.memories(layer) for layer in atlas.layers), len(sizes["memories"])
    where = f"all {depth} layers" if len(atlas.layers) == depth else f"{layers_spoken(atlas.layers)} of {depth}"
    share = ""
    if sizes.get("ffn_parameters") and sizes.get("parameters"):
        part = percent(sizes["ffn_parameters"] / sizes["parameters"])
        share = f" Feed-forward layers hold {part} of its {sizes['parameters']:,} parameters."
    sentences = [f"{total:,} memories in {where} of the model {model.get('spec')}.{share}"]
    if "mined_tokens" in counts:
        text = counted(counts["mined_sentences"], "sentence") if "mined_sentences" in counts else "the sentences"
        kept = manifest["plan"].get("triggers", 50)
        sentences.append(
            f"The model read {counted(counts['mined_tokens'], 'token')} in {text} of {corpus.get('spec')}; of each"
            f" memory, the {kept} beginnings of sentences on which it fires most strongly were kept: its triggers."
        )
    dead = sum(int((atlas.table("activity", layer=layer)["positive"] == 0).sum()) for layer in atlas.layers)
    sentences.append(
        f"{dead:,} of them never fired ({percent(dead / total)})." if dead else "Every one of them fired at least once."
    )
    return sentences


def _missing(answer: Answered) -> list[str]:
    return [f"Not answered for this atlas: {answer.missing}."]


def _keys(answers: Mapping[str, Answered]) -> list[str]:
    answer = answers["key_patterns"]
    if answer.missing:
        return _missing(answer)
    sentences = []
    keys, covered = answer.total("keys_with_pattern"), answer.total("covered")
    if keys is not None and covered is not None:
        sentences.append(
            f"The 25 best triggers of {said(keys)} of the keys have something in common that chance would not give;"
            f" such patterns explain {said(covered)} of these triggers."
        )
    sentences += _kinds(answer)
    removals = answers["key_removals"]
    medians = {one: removals.total(f"{one}_median") for one in ("first", "last", "random")}
    if not removals.missing and all(medians.values()):
        found: dict[str, Row] = {name: row for name, row in medians.items() if row is not None}
        most = min(found, key=lambda name: found[name].value)
        changes = ", ".join(f"{said(row)} without the {name}" for name, row in found.items())
        lead = {
            "last": "What fires a memory is above all the last token",
            "first": "What fires a memory is above all the first token",
            "random": "No end of the prefix matters more than its middle",
        }[most]
        sentences.append(f"{lead}: the median coefficient changes by {changes} token.")
    return sentences


def _kinds(answer: Answered) -> list[str]:
    """Shallow against semantic, below and above."""
    parts, leads = [], []
    for where, layers in (("lower", answer.lower), ("upper", answer.upper)):
        shallow, semantic = answer.mean("shallow", layers), answer.mean("semantic", layers)
        if shallow is None or semantic is None:
            continue
        leads.append(shallow > semantic)
        parts.append(
            f"in the {where} ones ({layers_spoken(layers)}) {percent(shallow)} share a surface form, such as the last"
            f" word, and {percent(semantic)} a topic"
        )
    if not parts:
        return []
    text = "; ".join(parts).replace("in the", "Of the triggers, in the", 1).replace("ones", "layers", 1)
    end = ""
    if len(leads) == 2:
        end = {
            (True, False): " Surface forms lead below and topics above, as in the paper.",
            (True, True): " Surface forms lead throughout; in the paper topics lead above.",
            (False, False): " Topics lead throughout; in the paper surface forms lead below.",
            (False, True): " Topics lead below and surface forms above, the reverse of the paper.",
        }[leads[0], leads[1]]
    return [f"{text}.{end}"]


def _values(answers: Mapping[str, Answered]) -> list[str]:
    answer = answers["value_agreement"]
    if answer.missing:
        return _missing(answer)
    sentences = []
    overall, shuffled = answer.total("agreement"), answer.total("shuffled_targets")
    upper, lower = answer.total("agreement_upper"), answer.total("agreement_lower")
    if overall is not None:
        against = ""
        if shuffled is not None:
            clear = overall.low is not None and overall.low > (shuffled.high or shuffled.value)
            how = "more than" if clear else "not clearly more than"
            against = f", {how} the {said(shuffled)} of shuffled targets"
        sentences.append(
            f"The token that a value ranks first is the one that follows its memory's best trigger for {said(overall)}"
            f" of the memories{against}."
        )
    if upper is not None and lower is not None:
        sentences.append(_upwards(upper, lower))
    if hundred := top_hundred(answers["value_confidence"]):
        sentences.append(hundred)
    return sentences


def _upwards(upper: Row, lower: Row) -> str:
    """Whether values agree more often in the upper layers, as far as the intervals can tell."""
    if upper.low is not None and lower.high is not None and upper.low > lower.high:
        return f"It is so more often in the upper layers ({said(upper)}) than in the lower ({said(lower)})."
    if upper.high is not None and lower.low is not None and upper.high < lower.low:
        return f"It is so less often in the upper layers ({said(upper)}) than in the lower ({said(lower)})."
    return f"Upper layers ({said(upper)}) and lower ones ({said(lower)}) do not clearly differ."


def _refinement(answers: Mapping[str, Answered]) -> list[str]:
    answer = answers["refinement_match"]
    sentences = [] if not answer.missing else _missing(answer)
    rows = answer.rows("match")
    if rows:
        first, last = rows[0], rows[-1]
        half = next((row for row in rows if row.value >= 0.5), None)
        passing = "" if half is None else f" It is so for at least half from layer {half.layer} on."
        if half is not None and any(row.value < 0.5 for row in rows[rows.index(half) :]):
            passing = ""
        ends = f"in layer {first.layer} for {said(first)} of the prefixes, in layer {last.layer} for {said(last)}"
        sentences.append(f"What flows into a feed-forward layer already says the model's final token {ends}.{passing}")
    events = answers["refinement_events"]
    changed, composed = events.total("changed"), events.total("composition_of_changed")
    if changed is not None and composed is not None:
        sentences.append(
            f"A feed-forward layer changes the prediction in {said(changed)} of cases; in {said(composed)} of these the"
            " new token is one that neither the stream before it nor the layer's own sum ranked first: a compromise."
        )
    composition = answers["layer_composition"]
    zero = composition.total("zero_agreement")
    if zero is not None:
        sentences.append(
            f"In {said(zero)} of cases the layer says a token that none of its firing memories says on its own."
        )
    return sentences


def warnings(atlas: Atlas) -> list[str]:
    """What a reader has to know before believing the numbers; usually nothing."""
    manifest = atlas.manifest
    found = []
    overlap = manifest["corpus"].get("overlap") or {}
    if overlap.get("sentences"):
        found.append(
            f"{overlap['sentences']:,} of the {overlap['of']:,} validation sentences ({percent(overlap['share'])}) are"
            " also in the mined text, so Figures 7 to 11 are not about unseen text only."
        )
    asked = manifest.get("questions") or {}
    if asked.get("prefixes", 0) < asked.get("prefixes_asked", 0):
        found.append(
            f"The validation text gave {counted(asked['prefixes'], 'prefix', 'prefixes')} of the"
            f" {spoken(asked['prefixes_asked'], 'count')} asked for: intervals of Figures 7 to 11 are wider for it."
        )
    depth = len(manifest["model"]["sizes"]["memories"])
    if len(atlas.layers) < depth:
        found.append(f"Only {layers_spoken(atlas.layers)} of the model's {depth} layers were mined.")
    return found
