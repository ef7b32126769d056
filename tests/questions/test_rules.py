"""Every rule of "shown here?" at its edge, and what the findings say in words.

An edge is where the end of an interval touches the threshold that the rule states: a little further and the verdict is
another. So a rule turned round, or a threshold moved by a ten-thousandth, fails here.
"""

from dataclasses import replace

import pytest

from figures.drawn_answers import findings, rules, verdicts
from mnemoscope.questions import QUESTIONS, load_question
from mnemoscope.questions.question import Answer, Outcome
from mnemoscope.show.figures.sections import compare_with_paper
from questions.hand_answers import LAYERS, Line, answered, total

E = 0.0001
"""Less than any threshold may be moved by."""


def shown(*given: Answer) -> dict[str, str]:
    """What is printed under "shown here?" of these answers; what is found in Figure 7 is asked of Figure 2, too."""
    kinds = answered("key_patterns", [])
    needed = [kinds] if [one.question.id for one in given] == ["layer_activity"] else []
    return verdicts(*needed, *given)


def by_layer(name: str, others: tuple[float, float], one: tuple[float, float] | None = None) -> list[Line]:
    """The corrected interval of every layer, and of layer 3; each is written as narrow as it is before the correction.

    The number is in the middle, so the correction for 8 layers stretches both sides alike.
    """
    lines: list[Line] = []
    for layer in range(LAYERS):
        low, high = (one or others) if layer == 3 else others
        middle, half = (low + high) / 2, (high - low) / 2
        lines.append((layer, name, middle, middle - half / STRETCH, middle + half / STRETCH))
    return lines


STRETCH = 2.734368787 / 1.959963985
"""The normal quantile of 1 - 0.025 / 8 over that of 0.975, from a table."""


def edges(bound: float, *, equal: bool = True) -> list[tuple[float, float, str]]:
    """Intervals at a threshold from below: last yes, both sides of it, first no. `equal` belongs to the claim."""
    if equal:
        return [
            (bound, bound + 0.1, "yes"),
            (bound - E, bound + 0.1, "undecided"),
            (bound - 0.1, bound, "undecided"),
            (bound - 0.1, bound - E, "no"),
        ]
    return [
        (bound + E, bound + 0.1, "yes"),
        (bound, bound + 0.1, "undecided"),
        (bound - 0.1, bound + E, "undecided"),
        (bound - 0.1, bound, "no"),
    ]


def between(low: float, high: float) -> list[tuple[float, float, str]]:
    return [
        (low, high, "yes"),
        (low - E, high, "undecided"),
        (low, high + E, "undecided"),
        (low - 1, low, "undecided"),
        (low - 1, low - E, "no"),
        (high + E, high + 1, "no"),
        (high, high + 1, "undecided"),
    ]


ABOVE_0 = edges(0, equal=False)
# The claim's name and question, the number tested, and its intervals with their verdicts.
TOTALS = [
    ("covered", "key_patterns", "", edges(0.65)),
    ("shallow_leads_lower", "key_patterns", "", edges(1)),
    ("semantic_leads_upper", "key_patterns", "", edges(1)),
    ("last_margin", "key_removals", "", ABOVE_0),
    ("last_median_upper_minus_lower", "key_removals", "", ABOVE_0),
    ("own_margin", "key_removals", "", ABOVE_0),
    (
        "agreement_lower",
        "value_agreement",
        "agreement_lower_above_third",
        [(-0.1, 0, "yes"), (-0.1, E, "undecided"), (0, 0.1, "undecided"), (E, 0.1, "no")],
    ),
    ("agreement_best_layer", "value_agreement", "agreement_best_above_baseline", ABOVE_0),
    ("least_depth", "layer_activity", "", between(0.5, 0.75)),
    ("active_count", "layer_activity", "", edges(100)),
    ("dominated", "layer_activity", "", [(0.4, 0.5, "yes"), (0.4, 0.5 + E, "undecided"), (0.5 + E, 0.6, "no")]),
    ("rise_where_decided", "refinement_confidence", "", ABOVE_0),
    ("agreeing_stop_word", "layer_composition", "agreeing_stop_word_above_all", ABOVE_0),
    ("agreeing_short", "layer_composition", "agreeing_short_above_all", ABOVE_0),
    ("match_lower_third", "refinement_match", "", between(0.25, 0.42)),
    ("unchanged", "refinement_events", "", edges(0.5, equal=False)),
    ("composition_of_changed", "refinement_events", "", edges(2 / 3)),
    ("ffn_above_attention", "attention_share", "", ABOVE_0),
    ("attention_next_above_control", "attention_share", "", ABOVE_0),
    ("ffn_next_above_control", "attention_share", "", ABOVE_0),
    ("ffn_moves_above_attention", "attention_share", "", ABOVE_0),
    ("above_held_out", "memorised", "", ABOVE_0),
    ("random_above_least", "width", "", ABOVE_0),
]


@pytest.mark.parametrize(("name", "question", "by", "cases"), TOTALS, ids=[one[0] for one in TOTALS])
def test_a_total_at_the_edge(name: str, question: str, by: str, cases: list[tuple[float, float, str]]) -> None:
    assert {verdict for *_, verdict in cases} == {"yes", "no", "undecided"}
    for low, high, verdict in cases:
        tested = total(by or name, low, high)
        # What the claim states says the opposite where another number is tested.
        lines = [tested, total(name, 1 - low, 1 - high)] if by else [tested]
        assert shown(answered(question, lines))[name] == verdict, (low, high)
    unsure = answered(question, [total(by or name, None, None), total(name, None, None)])
    without = shown(answered(question, [])).get(name)  # a claim of some models alone is then left out
    assert (shown(unsure)[name], without) == ("undecided", None if name == "own_margin" else "—")


LAYER_RULES = [
    ("active", "layer_activity", "active", (0.2, 0.3), between(0.1, 0.5)),
    ("zero_agreement_least_layer", "layer_composition", "zero_agreement", (0.8, 0.9), edges(0.68)),
]


@pytest.mark.parametrize(("claim", "question", "name", "others", "cases"), LAYER_RULES, ids=[r[0] for r in LAYER_RULES])
def test_every_layer_at_the_edge_after_the_correction(
    claim: str, question: str, name: str, others: tuple[float, float], cases: list[tuple[float, float, str]]
) -> None:
    for low, high, verdict in cases:
        # A hair wider or narrower where the end is the threshold: the stretching rounds.
        hair = -1e-6 if verdict == "yes" else 1e-6 if verdict == "undecided" else 0.0
        lines = [*by_layer(name, others, (low - hair, high + hair)), total(claim, 0.2, 0.3)]
        assert shown(answered(question, lines))[claim] == verdict, (low, high)
    assert shown(answered(question, [total(claim, 0.2, 0.3)]))[claim] == "—"


@pytest.mark.parametrize(("low", "high", "verdict"), edges(3 / 8, equal=False))
def test_the_hundred_against_the_share_of_memories(low: float, high: float, verdict: str) -> None:
    """Three of eight layers of 100 memories are upper ones."""
    lines = [(layer, "max_probability", 0.5, None, None) for layer in range(LAYERS)]
    lines.append(total("top100_upper_layers", low, high))
    assert shown(answered("value_confidence", lines))["top100_upper_layers"] == verdict


@pytest.mark.parametrize(("layers", "verdict"), [((3, 4, 6), "no"), ((4, 6), "yes"), ((0, 1), "—"), ((5, 7), "—")])
def test_the_hundred_where_layers_differ_in_width_or_lack(layers: tuple[int, ...], verdict: str) -> None:
    """Layer l has 100 (l + 1) memories: of 3, 4 and 6 upper ones have 7 of 16 (44 %), of 4 and 6 they have 7 of 12."""
    lines: list[Line] = [(layer, "max_probability", 0.5, None, None, 100 * (layer + 1)) for layer in layers]
    share = (0.3, 0.4) if len(layers) == 3 else (0.6, 0.7)
    found = answered("value_confidence", [*lines, total("top100_upper_layers", *share)], layers=layers)
    assert shown(found)["top100_upper_layers"] == verdict


def test_a_layer_without_memories_has_no_part_of_them() -> None:
    """Of layers 3, 5 and 6 the last has none: one of two memories is an upper one."""
    lines: list[Line] = [(layer, "max_probability", 0.5, None, None, 1) for layer in (3, 5)]
    for low, verdict in ((0.5, "undecided"), (0.5 + E, "yes")):
        found = answered("value_confidence", [*lines, total("top100_upper_layers", low, 0.9)], layers=(3, 5, 6))
        assert shown(found)["top100_upper_layers"] == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), edges(0.5, equal=False))
def test_pairs_of_ranks(low: float, high: float, verdict: str) -> None:
    lines = [(layer, "q50", 9.0 - layer, None, None) for layer in range(LAYERS)]
    lines.append(total("upper_ranks_higher", low, high))
    assert shown(answered("value_rank", lines))["value_rank"] == verdict


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        # The difference of two shares, each 3 and 4 off: the ends are 5 off (Newcombe).
        ((0.10, 0.07, 0.13), (0.151, 0.111, 0.191), "yes"),
        ((0.10, 0.07, 0.13), (0.150, 0.110, 0.190), "undecided"),
        ((0.150, 0.110, 0.190), (0.101, 0.071, 0.131), "undecided"),
        ((0.151, 0.111, 0.191), (0.100, 0.070, 0.130), "no"),
        ((0.1, None, None), (0.9, None, None), "undecided"),
    ],
)
def test_the_most_and_the_least_confident_tenth(
    first: tuple[float, float, float], last: tuple[float, float, float], verdict: str
) -> None:
    lines = [(None, "decile_0", *first), (None, "decile_9", *last)]
    assert shown(answered("value_confidence", lines))["value_confidence"] == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), ABOVE_0)
def test_growth_of_matches(low: float, high: float, verdict: str) -> None:
    lines = [*by_layer("match", (0.2, 0.3)), total("match_growth_upper_minus_lower", low, high)]
    assert shown(answered("refinement_match", lines))["refinement_match"] == verdict


@pytest.mark.parametrize(
    ("rise", "steps", "verdict"),
    [
        ((E, 0.1), (0.75, 1.0), "yes"),
        ((0, 0.1), (0.75, 1.0), "undecided"),
        ((E, 0.1), (0.75 - E, 1.0), "undecided"),
        ((E, 0.1), (0.0, 0.75), "undecided"),
        ((E, 0.1), (0.0, 0.75 - E), "no"),
        ((-0.1, 0), (0.75, 1.0), "no"),
    ],
)
def test_rising_confidence(rise: tuple[float, float], steps: tuple[float, float], verdict: str) -> None:
    lines = [*by_layer("probability", (0.2, 0.3)), total("rise", *rise), total("rising_steps", *steps)]
    assert shown(answered("refinement_confidence", lines))["refinement_confidence"] == verdict


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "yes"), (0.995, "no")])
def test_all_means_all_of_a_census(value: float, verdict: str) -> None:
    found = answered("key_patterns", [(None, "keys_with_pattern", value, value - 0.01, 1.0, 200)])
    assert shown(found)["keys_with_pattern"] == verdict
    [line] = [line for line in compare_with_paper({"key_patterns": found}) if line.text.startswith("keys with")]
    assert f"({round(200 * value)} of 200)" in line.ours


def test_a_gated_layer_cannot_answer_how_many_fire() -> None:
    found = replace(answered("layer_activity", [total("active", 0.49, 0.51), total("dominated", 0.1, 0.2)]), gated=True)
    assert (shown(found)["active"], shown(found)["dominated"]) == ("not of a gated layer", "yes")


def test_a_claim_by_the_papers_formula_is_judged_beside_ours() -> None:
    lines = [total("agreement_best_layer", 0.03, 0.04), total("literal_agreement_best_layer", 0.1, 0.2)]
    lines += [total("agreement_best_above_baseline", -1, 1), total("literal_agreement_best_above_baseline", 0.1, 0.2)]
    found = compare_with_paper({"value_agreement": answered("value_agreement", lines)})
    [line] = [line for line in found if line.text == "agreement in the best layer"]
    assert (line.literal_interval.replace("\N{NO-BREAK SPACE}", ""), line.literal_shown) == ("[10.0%, 20.0%]", "yes")
    assert (line.interval.replace("\N{NO-BREAK SPACE}", ""), line.shown) == ("[3.0%, 4.0%]", "undecided")
    assert "softmax(v E^T)" in line.why


def test_no_rule_is_left_out() -> None:
    names = {one[0] for one in (*TOTALS, *LAYER_RULES)} | {"top100_upper_layers", "keys_with_pattern"}
    assert names == rules()
    claims = {claim.name for question in QUESTIONS for claim in load_question(question).paper.claims}
    assert names <= claims
    assert len(findings()) == 5  # each has a test above


def finding(*given: Answer) -> Outcome:
    """What the question of the first of these answers says in words, its interval and the verdict."""
    stated = given[0].question.finding
    ours, interval, verdict = stated.test({answer.question.id: answer for answer in given}, "")
    return ours.replace("\xa0", " "), interval.replace("\xa0", " "), verdict


NOTHING_SAID = ("—", "", None)


def test_what_is_said_of_growing_matches() -> None:
    """Up to layer 5, the first upper one, 20 points in 4 layers; from there 50 in 2."""
    shares = ((1, 0.1), (3, 0.9), (5, 0.3), (7, 0.8))
    lines: list[Line] = [(layer, "match", value, None, None) for layer, value in shares]
    more = "match_growth_upper_minus_lower"
    ours = "+5.0 points a layer up to layer 5, +25.0 from there"

    def said(*own: Line, layers: tuple[int, ...] = (1, 3, 5, 7)) -> Outcome:
        return finding(answered("refinement_match", own, layers=layers))

    assert said(*lines, (None, more, 0.2, 0.1, 0.3)) == (ours, "difference [+10.0, +30.0]", "yes")
    assert said(*lines, (None, more, 0.2, -0.1, 0.3)) == (ours, "difference [-10.0, +30.0]", "undecided")
    assert (said(*lines, (None, more, 0.2, None, None)), said(*lines)) == ((ours, "", "undecided"), NOTHING_SAID)
    assert said(*lines[:2], (None, more, 0.2, 0.1, 0.3), layers=(1, 3)) == NOTHING_SAID  # no upper layer
    assert said(*lines[:2], (None, more, 0.2, 0.1, 0.3)) == NOTHING_SAID  # no number in the first upper one


def test_what_is_said_of_rising_confidence() -> None:
    lines: list[Line] = [(layer, "probability", 0.2 + layer / 20, None, None) for layer in range(LAYERS)]
    steps: Line = (None, "rising_steps", 6 / 7, 3 / 7, 1.0, 7)
    rise: Line = (None, "rise", 0.35, 0.02, 0.4)
    ours = "20.0 % to 55.0 %, up in 6 of 7 steps"

    def said(*own: Line) -> Outcome:
        return finding(answered("refinement_confidence", own))

    assert said(*lines, steps, rise) == (ours, "[2.0 %, 40.0 %], 3 to 7 steps", "undecided")
    assert said(*lines, (None, "rising_steps", 6 / 7, None, None, 7), rise) == (ours, "[2.0 %, 40.0 %]", "undecided")
    assert said(*lines, steps) == said(*lines, rise) == NOTHING_SAID


def test_what_is_said_of_ranks() -> None:
    """Lower layers have 1,000 and 2,000, upper ones 5, 10 and 30."""
    medians = ((1, 1000.0), (4, 2000.0), (5, 5.0), (6, 10.0), (7, 30.0))
    lines: list[Line] = [(layer, "q50", value, None, None) for layer, value in medians]
    pairs: Line = (None, "upper_ranks_higher", 0.6, 0.55, 0.65)
    layers = tuple(layer for layer, _ in medians)

    def said(*own: Line) -> Outcome:
        return finding(answered("value_rank", own, layers=layers))

    ours = "higher in 60.0 % of pairs; median rank 1,500 below, 15 above"
    assert said(*lines, pairs) == (ours, "[55.0 %, 65.0 %]", "yes")
    assert said(*lines) == said(*lines[:2], pairs) == said(*lines[2:], pairs) == NOTHING_SAID


def test_what_is_said_of_confident_values() -> None:
    """Newcombe: 3 and 4 points off are 5 off together."""
    last: Line = (None, "decile_9", 0.25, 0.21, 0.29)

    def said(*own: Line) -> Outcome:
        return finding(answered("value_confidence", own))

    first: Line = (None, "decile_0", 0.1, 0.07, 0.13)
    ours = "10.0 % to 25.0 %: 15.0 % more"
    assert said(first, last) == (ours, "[10.0 %, 20.0 %]", "yes")
    assert said((None, "decile_0", 0.1, None, None), last) == (ours, "", "undecided")
    assert said(last) == said(first) == NOTHING_SAID


@pytest.mark.parametrize(
    ("fewest", "shallow", "over", "interval", "verdict"),
    [
        # Layers (from, to) that may have the fewest active, the first of them seen; then who leads in each layer.
        ((4, 6), "SSSSSmmm", 5, "4-6, ahead from one of 5-5", "yes"),
        ((4, 4), "SSSuummm", 3, "4-4, ahead from one of 3-5", "yes"),
        ((4, 5), "SSShhumm", 5, "4-5, ahead from one of 3-6", "undecided"),
        ((5, 5), "SSSuummm", 3, "5-5, ahead from one of 3-5", "undecided"),
        ((3, 4), "SSSSSmmm", 5, "3-4, ahead from one of 5-5", "undecided"),
        ((6, 7), "SSSSSSmm", 6, "6-7, ahead from one of 6-6", "undecided"),  # 7 is an end
        ((7, 7), "SSSSSSmm", 6, "7-7, ahead from one of 6-6", "no"),
        ((1, 3), "SSSSSmmm", 5, "1-3, ahead from one of 5-5", "no"),
        ((3, 3), "SSSuuuuu", 3, "3-3, ahead from one of 3-?", "undecided"),
        ((1, 1), "SSSuuuuu", 3, "1-1, ahead from one of 3-?", "no"),
    ],
)
def test_what_is_said_of_the_dip(fewest: tuple[int, int], shallow: str, over: int, interval: str, verdict: str) -> None:
    """Shallow leads (S), semantic leads (m), or it is open: shallow is seen just below a half (u), or at it (h)."""
    share = {"S": 0.8, "m": 0.2, "u": 0.49, "h": 0.5}
    shares = [(layer, "shallow_of_one_kind", share[kind]) for layer, kind in enumerate(shallow)]
    kinds = answered("key_patterns", [(*row, row[2] - 0.1, row[2] + 0.1) for row in shares])
    low, high = ((layer + 1) / LAYERS for layer in fewest)
    ours = f"fewest in layer {fewest[0]}; semantic ahead from layer {over}"
    said = finding(answered("layer_activity", [(None, "least_depth", low, low, high)]), kinds)
    assert said == (ours, f"fewest in one of {interval}", verdict)
    unsure = answered("layer_activity", [(None, "least_depth", low, None, None)])
    assert finding(unsure, kinds) == (ours, "", "undecided")
    assert finding(answered("layer_activity", []), kinds) == NOTHING_SAID
    assert finding(unsure, answered("key_patterns", [])) == NOTHING_SAID


def test_where_semantic_patterns_never_lead_there_is_no_dip_to_place() -> None:
    kinds = answered("key_patterns", [(layer, "shallow_of_one_kind", 0.5, 0.4, 0.6) for layer in range(LAYERS)])
    said = finding(answered("layer_activity", [(None, "least_depth", 0.5, 0.5, 0.5)]), kinds)
    assert said == ("fewest in layer 3; semantic patterns never overtake", "", None)
