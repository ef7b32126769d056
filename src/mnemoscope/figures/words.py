"""Numbers and names in plain words: how a report says a share, a count, an interval, a layer.

Knows how to say things, not what is true. The names of the answers (`atlas/FORMAT.md`) get a readable label here, once.
"""

import math
from collections.abc import Sequence
from typing import Literal

DASH = "\N{EM DASH}"
"""What stands where there is no number."""

Form = Literal["share", "number", "count", "rank", "nats"]

_SPACE = "\N{NO-BREAK SPACE}"

_LABELS = {
    "shallow_only": "shallow",
    "semantic_only": "semantic",
    "both": "shallow and semantic",
    "none": "no pattern",
    "covered": "any pattern",
    "shallow": "shallow, alone or with semantic",
    "semantic": "semantic, alone or with shallow",
    "keys_with_pattern": "keys with a pattern",
    "patterns_per_key": "patterns per key",
    "agreement": "agreement",
    "shuffled_targets": "shuffled targets",
    "most_frequent_token": "always the most frequent next token",
    "chance": "chance, 1 / vocabulary",
    "log_probability_gain": "mean log probability of its triggers' next tokens, minus the unigram's",
    "without_target": "memories without a target",
    "within_10": "target among the first 10",
    "within_100": "target among the first 100",
    "max_probability": "largest probability, mean",
    "max_probability_best": "largest probability, best memory",
    "value_norm": "norm of the value, mean",
    "shallow_of_one_kind": "shallow, of prefixes that one kind alone explains",
    "last_margin": "least median without another token, minus that without the last",
    "agreement_above_baseline": "agreement above shuffled targets and chance",
    "rise": "rise of the mean probability since the layer before; in all, since the first",
    "active": "memories that fire",
    "effective": "effective number of memories",
    "effective_share": "effective number, share of the layer",
    "dominated": "prefixes where one memory holds more than half",
    "zero_agreement": "no memory says it",
    "zero_agreement_major": "no major memory says it",
    "zero_agreement_output": "no memory says what the block puts out",
    "agreeing_stop_word": "target is a stop word",
    "agreeing_stop_word_top": "the layer's own top token is a stop word",
    "agreeing_short": "prefix under 5 tokens",
    "match": "residual already says the final token",
    "probability": "probability of the final token",
    "probability_matching": "the same, where the residual already says it",
    "residual": "residual",
    "ffn": "feed-forward",
    "composition": "composition",
    "changed": "prediction changed",
    "composition_of_changed": "composition, of the changed",
    "composition_from_top10": "composed token was in the residual's first 10",
    "composition_demoted": "residual's token in the layer's lower half",
    **{
        f"{removed}_{statistic}": f"{removed} token removed, {said}"
        for removed in ("first", "last", "random")
        for statistic, said in (("median", "median"), ("q25", "lower quartile"), ("q75", "upper quartile"))
    },
    "shallow_of_one_kind_lower": "shallow, of prefixes that one kind alone explains, lower layers",
    "shallow_of_one_kind_upper": "shallow, of prefixes that one kind alone explains, upper layers",
    "shallow_leads_lower": "lower layers where shallow patterns lead",
    "semantic_leads_upper": "upper layers where semantic patterns lead",
    "last_hurts_most": "layers where removing the last token hurts most",
    "last_median_upper_minus_lower": "median change without the last token, upper minus lower layers",
    "excluded_length_one": "triggers of one token, left out",
    "excluded_length_two": "triggers of two tokens, left out: the model has no beginning token",
    "agreement_lower": "agreement in the lower layers",
    "agreement_upper": "agreement in the upper layers",
    "agreement_best_layer": "agreement in the best layer",
    "agreement_best_above_baseline": "agreement above shuffled targets and chance, where it is most",
    "agreement_lower_above_third": "agreement in the lower layers, minus a third of the best layer's",
    "upper_ranks_higher": "pairs of an upper and a lower memory in which the upper one ranks its target higher",
    "top100_upper_layers": "of the 100 most confident values, in the upper layers",
    "top100_with_trigger": "of the 100, right after at least one trigger",
    "top100_trigger_share": "of the 100, share of triggers they are right after, mean",
    "top100_agreement": "of the 100, agreement",
    "top100_value_norm": "of the 100, norm of the value, mean",
    "all_value_norm": "norm of all values, mean",
    "active_least_layer": "memories that fire, in the layer where fewest do",
    "least_depth": "that layer, as a part of the depth",
    "correlation_semantic": "correlation with semantic patterns over layers",
    "correlation_shallow": "correlation with shallow patterns over layers",
    "zero_agreement_least_layer": "no memory says it, in the layer where this is rarest",
    "all_stop_word": "target is a stop word, over all prefixes",
    "all_short": "prefix under 5 tokens, over all prefixes",
    "agreeing_stop_word_above_all": "target is a stop word, where a memory agrees minus over all",
    "agreeing_short_above_all": "prefix under 5 tokens, where a memory agrees minus over all",
    "documents": "documents that the prefixes are from",
    "match_lower_third": "match at the end of the lower third",
    "match_last": "match in the last layer",
    "match_growth_upper_minus_lower": "growth of matches a layer, from the first upper layer on minus up to it",
    "rising_steps": "layers where that probability rises",
    "unchanged": "the residual's prediction stands",
}
_RANKS = ("q00", "q05", "q25", "q50", "q75", "q95", "q100")
_COUNTS = ("patterns_per_key", "effective")
_NATS = ("log_probability_gain",)
_NUMBERS = ("value_norm", "correlation", "all_value_norm", "top100_value_norm", "least_depth")


def label(name: str) -> str:
    """The readable label of an answer's name; the name itself, with spaces, where there is none."""
    people = name.removeprefix("people_")
    if people != name:
        return f"{label(people)} (people)"
    base, _, kind = name.rpartition("_")
    if base.endswith(("_median", "_q25", "_q75")) and base in _LABELS:
        return f"{_LABELS[base]} ({kind})"
    return _LABELS.get(name, name.replace("_", " "))


def form_of(name: str) -> Form:
    """How the value of this name is to be said; a share unless it is known to be something else."""
    name = name.removeprefix("people_")
    if name in _RANKS:
        return "rank"
    if name in _NATS:
        return "nats"
    if name.startswith("excluded_length_") or name == "documents":
        return "count"
    if name in _COUNTS or name.startswith(_NUMBERS):
        return "number"
    return "share"


def spoken(value: float | None, form: Form) -> str:
    """The value as one reads it; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return DASH
    if form == "share":
        return percent(value)
    if form in ("count", "rank"):
        return f"{value:,.0f}"
    return number(value)


def percent(share: float) -> str:
    """A share as a percentage: `34.5 %`, `3.1 %`, `0.35 %`, `0.00040 %`; `0 %` and `100 %` only where it is exact.

    The space does not break.
    """
    value = 100 * share
    size = abs(value)
    if value in (0, 100, -100):
        return f"{value:.0f}{_SPACE}%"
    if size >= 0.995:
        # 99.96 % is not all.
        return f"{math.copysign(min(size, 99.9) if size < 100 else size, value):.1f}{_SPACE}%"
    digits = 1 - math.floor(math.log10(size))
    return f"{value:.{min(digits, 8)}f}{_SPACE}%"


def number(value: float) -> str:
    """A number with three figures, or whole where it is large."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.01 or size == 0:
        return f"{value:.2f}"
    return f"{value:.2g}"


def interval(low: float | None, high: float | None, form: Form) -> str:
    """`[3.1 %, 3.9 %]`, or nothing where there is no interval."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{spoken(low, form)}, {spoken(high, form)}]"


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def layers_spoken(layers: Sequence[int], *, bare: bool = False) -> str:
    """`layer 3`, `layers 3-7`, `layers 3, 5`, and without the word if `bare`: for sorted layers, at least one."""
    word = "" if bare else "layer " if len(layers) == 1 else "layers "
    if len(layers) > 1 and list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f"{word}{layers[0]}-{layers[-1]}"
    return word + ", ".join(str(layer) for layer in layers)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 layer`, `3,000 layers`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
