"""Every rule of "shown here?" where there is nothing to show: at most 16 of 200 seeded draws say yes; and its power.

Each line of the comparison is reached as a report reaches it: a table drawn at random, the analysis, the verdict. Where
a claim has a threshold, the true number lies on it (or on the side that makes it false, next to it).
"""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from figures.drawn_answers import (
    DOCUMENTS,
    EACH,
    LAYERS,
    Tables,
    asked,
    attention,
    changes,
    findings,
    hits,
    kinds,
    predictions,
    read_nothing,
    rules,
    values,
    verdicts,
)

pytestmark = pytest.mark.full

SIMULATIONS, MOST = 200, 16
Rng = np.random.Generator
Draw = Callable[[Rng], dict[str, str]]
ONES = np.ones(LAYERS)


@pytest.fixture(autouse=True)
def _drawn() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        read_nothing(patch)
        yield


def where(*layers: int) -> np.ndarray:
    """1 in these layers, else 0."""
    return np.isin(np.arange(LAYERS), layers).astype(float)


def patterns(rng: Rng) -> Tables:
    return kinds(rng, with_pattern=0.95, covered=0.65, shallow=0.5 * ONES)


def activity(rng: Rng, share: np.ndarray) -> Tables:
    """Shares of 64 memories that fire, which move by document in all layers together, and by prefix in each."""
    count = DOCUMENTS * EACH
    moved = np.repeat(rng.normal(0, 0.02, DOCUMENTS), EACH)[:, None] + rng.normal(0, 0.03, (count, LAYERS))
    return predictions(rng, {"active": np.round(64 * np.clip(share + moved, 0, 1))})


def numbers_active(rng: Rng, count: float, dominated: float) -> dict[str, str]:
    """So many memories fire at each prefix, alike in a document, and one holds most as often as said."""
    moved = np.repeat(rng.normal(0, 20, DOCUMENTS), EACH)[:, None] + rng.normal(0, 30, (DOCUMENTS * EACH, LAYERS))
    tables = predictions(rng, {"active": count + moved, "top_share": hits(rng, dominated).astype(float)})
    return verdicts(asked("key_patterns", patterns(rng)), asked("layer_activity", tables))


def dip(rng: Rng, share: np.ndarray, shallow: np.ndarray) -> dict[str, str]:
    of_keys = kinds(rng, with_pattern=1, covered=0.7, shallow=shallow)
    return verdicts(asked("key_patterns", of_keys), asked("layer_activity", activity(rng, share)))


def composition(rng: Rng, zero: np.ndarray, more: float) -> Tables:
    """Votes; next tokens are stop words, and prefixes short, more often by `more` where votes agree in many layers."""
    agree = ~hits(rng, zero)
    lift = np.clip(0.4 + more * (agree.mean(1) - 0.2), 0, 1)
    count = DOCUMENTS * EACH
    return predictions(
        rng,
        {
            "votes_ffn": agree.astype(int),
            "next_token": (rng.random(count) > lift).astype(int),  # token 0 is a stop word
            "position": np.where(rng.random(count) < lift, 2, 9),
        },
    )


def match(rng: Rng, share: np.ndarray, documents: int = DOCUMENTS) -> Tables:
    top = hits(rng, share, documents=documents).astype(int)
    return predictions(rng, {"residual_top": top}, documents=documents)


def confidence(rng: Rng, mean: np.ndarray) -> Tables:
    count = DOCUMENTS * EACH
    moved = np.repeat(rng.normal(0, 0.05, DOCUMENTS), EACH)[:, None] + rng.normal(0, 0.1, (count, LAYERS))
    decided = np.ones((count, LAYERS))
    return predictions(rng, {"residual_final_probability": mean + moved, "residual_top": decided})


def events(rng: Rng, unchanged: float, composed: float) -> Tables:
    """The output o is 1; r is 1 where it stands; of the rest u is another token as often as `composed` says."""
    kept, other = hits(rng, unchanged), hits(rng, composed)
    one = np.ones_like(kept, dtype=int)
    return predictions(rng, {"output_top": one, "residual_top": np.where(kept, 1, 2), "ffn_top": np.where(other, 3, 1)})


def of(question: str, tables: Tables) -> dict[str, str]:
    return verdicts(asked(question, tables))


SHARES = ("ffn_above_attention", "attention_next_above_control", "ffn_next_above_control", "ffn_moves_above_attention")

NULLS: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "thresholds of keys, and kinds that are alike in all layers": (
        lambda rng: of("key_patterns", patterns(rng)),
        ("keys_with_pattern", "covered", "shallow_leads_lower", "semantic_leads_upper"),
    ),
    "tokens that are alike, memories dealt to layers": (
        lambda rng: of("key_removals", changes(rng, 0 * ONES)),
        ("last_margin", "last_median_upper_minus_lower"),
    ),
    "tokens that are alike, read whole": (
        lambda rng: of("key_removals", changes(rng, 0 * ONES, token="own")),
        ("own_margin",),
    ),
    "a hundred memories active, and one that dominates half of the time": (
        lambda rng: numbers_active(rng, 100, 0.5),
        ("active_count", "dominated"),
    ),
    "agreement by chance": (  # about one hit in two layers
        lambda rng: of("value_agreement", values(rng, agreement=0 * ONES, memories=200)),
        ("agreement_best_layer", "agreement_lower"),
    ),
    "agreement in the lower layers a third of the best": (
        lambda rng: of("value_agreement", values(rng, agreement=0.04 + 0.08 * where(6), tokens=10**6, memories=200)),
        ("agreement_lower",),
    ),
    "ranks dealt to layers": (lambda rng: of("value_rank", values(rng, agreement=0 * ONES)), ("value_rank",)),
    "confidence dealt to layers": (
        lambda rng: of("value_confidence", values(rng, agreement=0.1 * ONES)),
        ("top100_upper_layers", "value_confidence"),
    ),
    "one layer with a tenth of its memories active": (
        lambda rng: dip(rng, 0.1 + 0.2 * (1 - where(4)), 0.5 * ONES),
        ("active",),
    ),
    "one layer with half of its memories active": (lambda rng: dip(rng, 0.3 + 0.2 * where(4), 0.5 * ONES), ("active",)),
    "all layers alike": (lambda rng: dip(rng, 0.3 * ONES, 0.5 * ONES), ("least_depth", "layer_activity")),
    "two layers with the fewest, one of them outside": (
        lambda rng: dip(rng, 0.3 - 0.1 * where(1, 5), 0.9 - 0.8 * where(5, 6, 7)),
        ("least_depth", "layer_activity"),
    ),
    "one layer at 68 %, stop words and short prefixes anywhere": (
        lambda rng: of("layer_composition", composition(rng, 0.9 - 0.22 * where(3), 0)),
        ("zero_agreement_least_layer", "agreeing_stop_word", "agreeing_short"),
    ),
    "42 % at a third, and a straight line": (
        lambda rng: of("refinement_match", match(rng, np.linspace(0.32, 0.67, LAYERS))),
        ("match_lower_third", "refinement_match"),
    ),
    "25 % at a third": (
        lambda rng: of("refinement_match", match(rng, np.linspace(0.15, 0.50, LAYERS))),
        ("match_lower_third", "refinement_match"),
    ),
    "confidence that never grows": (
        lambda rng: of("refinement_confidence", confidence(rng, 0.3 * ONES)),
        ("refinement_confidence", "rise_where_decided"),
    ),
    "confidence that grows in five steps of seven": (
        lambda rng: of("refinement_confidence", confidence(rng, 0.2 + 0.1 * np.array([0, 1, 2, 2, 3, 3, 4, 5]))),
        ("refinement_confidence",),
    ),
    "half of them stand, two thirds of the changes are compositions": (
        lambda rng: of("refinement_events", events(rng, 0.5, 2 / 3)),
        ("unchanged", "composition_of_changed"),
    ),
    "attention and memories alike, for this prefix and for others": (
        lambda rng: of("attention_share", attention(rng, memories=0, specific=0, moves=0)),
        SHARES,
    ),
}

EFFECTS: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "shallow below, semantic above": (
        lambda rng: of("key_patterns", kinds(rng, with_pattern=1, covered=0.8, shallow=0.8 - 0.6 * where(5, 6, 7))),
        ("keys_with_pattern", "covered", "shallow_leads_lower", "semantic_leads_upper"),
    ),
    "the last token matters, less above": (
        lambda rng: of("key_removals", changes(rng, -1.2 + 0.5 * where(5, 6, 7))),
        ("last_margin", "last_median_upper_minus_lower"),
    ),
    "the token itself matters": (lambda rng: of("key_removals", changes(rng, -1 * ONES, token="own")), ("own_margin",)),
    "hundreds of memories active, and one that seldom dominates": (
        lambda rng: numbers_active(rng, 200, 0.2),
        ("active_count", "dominated"),
    ),
    "agreement above": (
        lambda rng: of("value_agreement", values(rng, agreement=0.3 * where(5, 6, 7), memories=200)),
        ("agreement_best_layer", "agreement_lower"),
    ),
    "ranks and confidence better above": (
        lambda rng: of("value_rank", values(rng, agreement=0 * ONES, better=2.0)),
        ("value_rank",),
    ),
    "a dip at layer 5, where semantic overtakes": (
        lambda rng: dip(rng, 0.3 - 0.1 * where(5), 0.9 - 0.8 * where(5, 6, 7)),
        ("active", "least_depth", "layer_activity"),
    ),
    "votes go with stop words": (
        lambda rng: of("layer_composition", composition(rng, 0.85 * ONES, 2)),
        ("zero_agreement_least_layer", "agreeing_stop_word", "agreeing_short"),
    ),
    "matches that grow fast above": (
        lambda rng: of("refinement_match", match(rng, np.array([0.31, 0.32, 0.33, 0.34, 0.35, 0.36, 0.65, 0.95]), 400)),
        ("match_lower_third", "refinement_match"),
    ),
    "confidence that grows": (
        lambda rng: of("refinement_confidence", confidence(rng, np.linspace(0.1, 0.9, LAYERS))),
        ("refinement_confidence", "rise_where_decided"),
    ),
    "predictions that stand, and compositions": (
        lambda rng: of("refinement_events", events(rng, 0.85, 0.85)),
        ("unchanged", "composition_of_changed"),
    ),
    "memories that write more than attention, both for this prefix": (
        lambda rng: of("attention_share", attention(rng, memories=1, specific=1, moves=0.3)),
        SHARES,
    ),
    "confident values above, and right": (
        lambda rng: of("value_confidence", _confident_and_right(rng)),
        ("top100_upper_layers", "value_confidence"),
    ),
}


def _confident_and_right(rng: Rng) -> Tables:
    """Upper layers' values are three times as confident, and nearly half of them agree."""
    return values(rng, agreement=0.5 * where(5, 6, 7), better=2.0)


@pytest.mark.parametrize("what", NULLS)
def test_without_an_effect_a_rule_says_yes_at_most_16_times_in_200(what: str) -> None:
    draw, names = NULLS[what]
    yes: Counter[str] = Counter()
    for simulation in range(SIMULATIONS):
        found = draw(np.random.default_rng((11, simulation)))
        yes.update(name for name in names if found[name] == "yes")
    assert {name: yes[name] for name in names if yes[name] > MOST} == {}


@pytest.mark.parametrize("what", EFFECTS)
def test_with_a_clear_effect_a_rule_says_yes(what: str) -> None:
    draw, names = EFFECTS[what]
    for simulation in range(5):
        found = draw(np.random.default_rng((12, simulation)))
        assert {name: found[name] for name in names} == dict.fromkeys(names, "yes")


@pytest.mark.parametrize("cases", [NULLS, EFFECTS], ids=["null", "effect"])
def test_no_rule_is_left_out(cases: dict[str, tuple[Draw, tuple[str, ...]]]) -> None:
    own_test = {"random_above_least", "above_held_out"}  # in tests/questions: test_width.py, test_memorised.py
    assert {name for _, names in cases.values() for name in names} == (rules() | findings()) - own_test
