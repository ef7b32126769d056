"""Layers of a model whose every number is known on paper: five answers, with the working beside each; and controls.

As `test_known_memories.py`. The ten prefixes are C four times ("cat"), D twice ("dog"), B twice (20 or 28 times "bird",
up to some place) and E twice ("of").
"""

import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from questions.known_atlas import MINED, B, C, D, E, exactly, log_p, mined, nearly, of
from questions.known_model import MEMORIES, WORDS, Known


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mined(tmp_path_factory.mktemp("known"))


def test_what_was_drawn(atlas: Path) -> None:
    prefixes = pl.read_parquet(atlas / "prefixes.parquet")
    assert prefixes["sentence"].to_list() == [len(MINED) + index for index in range(10)]
    positions = prefixes["position"].to_list()
    assert [positions[i] for i in (0, 1, 2, 3, 4, 5, 8, 9)] == [0] * 8
    assert min(positions[6], positions[7]) >= 4, "choose another SEED: B's prefixes are to be long"
    # C: 2 sat; then sat 4, ran 1.5; then sat 3, ran 5.5, mat 5; and "the" 1.25 more changes nothing: ran.
    # D: 3 ran; then ran 4.5, mat 3.75, far 2.5; nothing; then mat 3 more: mat 6.75.
    # B: 1 mat; then mat 4, far 4.5, cat 3; then sat 3, ran 5.5, of 3.25, k23 -2, k21 -2 more; k23 9, k22 8 more: k22.
    # E: 1 the, and no memory fires.
    assert [WORDS[token] for token in prefixes["final_top"]] == ["ran"] * C + ["mat"] * D + ["k22"] * B + ["the"] * E


# c = coefficient * norm of the value, of the memories that fire, by prefix and layer; on E none fires.
CONTRIBUTIONS: dict[str, tuple[tuple[float, ...], ...]] = {
    "C": ((2 * 1.0, 1 * 1.5), (math.hypot(5, 1), 2 * 2.0), (1.25,)),
    "D": ((1 * 1.5, 2.5 * math.hypot(1.5, 1)), (), (3.0,)),
    "B": (
        (2 * math.hypot(1.5, 1), math.hypot(3, 2.5)),
        (math.hypot(3, 2.5, 2), math.hypot(3.25, 2.5, 2), 0.25 * 2),
        (math.hypot(9, 8),),
    ),
    "E": ((), (), ()),
}
TIMES = {"C": C, "D": D, "B": B, "E": E}


def test_layer_activity(atlas: Path) -> None:
    """Of 4 memories fire: layer 0: C 2, D 2, B 2, E 0; layer 1: C 2, D 0, B 3, E 0; layer 2: C 1, D 1, B 1, E 0."""
    active = [of(2 * 8, 40), of(2 * 4 + 3 * 2, 40), of(8, 40)]
    exactly(
        atlas, "layer_activity",
        active=[*active, sum(active) / 3],
        # One c is more than half: not of B's in layer 1 (4.56 of 9.45), and none where nothing fires.
        dominated=[of(8, 10), of(4, 10), of(8, 10), of(20, 30)], active_least_layer=[of(8, 40)],
    )  # fmt: skip
    effective = []
    for layer in range(3):
        own = {name: c[layer] for name, c in CONTRIBUTIONS.items()}
        numbers = [TIMES[n] * (sum(c) ** 2 / sum(x * x for x in c) if c else 0.0) for n, c in own.items()]
        effective.append(sum(numbers) / 10)
    nearly(
        atlas, "layer_activity",
        effective=[*effective, sum(effective) / 3], effective_share=[e / 4 for e in (*effective, sum(effective) / 3)],
        # Over layers active is 16, 14, 8; shallow 9/17, 2/18, 3/9; semantic 3/17, 6/18, 6/9.
        correlation_shallow=[pearson((16, 14, 8), (9 / 17, 2 / 18, 3 / 9))],
        correlation_semantic=[pearson((16, 14, 8), (3 / 17, 6 / 18, 6 / 9))],
    )  # fmt: skip


def pearson(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    x, y = ([n - sum(numbers) / len(numbers) for n in numbers] for numbers in (a, b))
    return sum(p * q for p, q in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y))


def test_layer_composition(atlas: Path) -> None:
    """What the layer says, and who votes for it.

    layer 0: C sat (M0); D mat (M2); B far, of mat 3, cat 3, far 4.5 (nobody); E nothing, so <s> (nobody).
    layer 1: C mat (M2); D <s> (nobody); B ran, of sat 3, of 3.25, ran 5.5 (M3, which is minor: 0.5 of 9.4); E nobody.
    layer 2: C the (M0); D mat (M1); B k23 (M2); E nobody.
    """
    exactly(
        atlas, "layer_composition",
        zero_agreement=[of(B + E, 10), of(D + E, 10), of(E, 10), of(10, 30)],
        zero_agreement_major=[of(B + E, 10), of(D + B + E, 10), of(E, 10), of(12, 30)],
        # The output says sat, ran, far | ran, ran, ran | ran, mat, k22 for C, D, B; there votes M0, M1, nobody |
        # M3, nobody, M3 | nobody, M1, nobody.
        zero_agreement_output=[of(B + E, 10), of(D + E, 10), of(C + B + E, 10), of(16, 30)],
        # A stop word follows one of four C ("of"), one of two D and of two E ("the").
        agreeing_stop_word=[of(2, 6), of(1, 6), of(2, 8), of(5, 20)],
        agreeing_stop_word_top=[of(0, 6), of(0, 6), of(C, 8), of(4, 20)],
        agreeing_short=[of(6, 6), of(4, 6), of(6, 8), of(16, 20)],
        zero_agreement_least_layer=[of(E, 10)], all_stop_word=[of(3, 10)], all_short=[of(8, 10)],
    )  # fmt: skip


# The scores of the residual, by layer; B's before the last layer adds up three guesses.
RESIDUALS: dict[str, tuple[dict[str, float], ...]] = {
    "C": ({"sat": 2}, {"sat": 4, "ran": 1.5}, {"sat": 3, "ran": 5.5, "mat": 5}),
    "D": ({"ran": 3}, {"ran": 4.5, "mat": 3.75, "far": 2.5}, {"ran": 4.5, "mat": 3.75, "far": 2.5}),
    "B": (
        {"mat": 1},
        {"mat": 4, "far": 4.5, "cat": 3},
        {"mat": 4, "far": 4.5, "cat": 3, "sat": 3, "of": 3.25, "ran": 5.5, "k23": -2, "k21": -2},
    ),
    "E": ({"the": 1},) * 3,
}
FINAL = {"C": "ran", "D": "mat", "B": "k22", "E": "the"}


def test_refinement_match(atlas: Path) -> None:
    """E has it from the beginning, C from layer 2 on."""
    exactly(
        atlas, "refinement_match",
        match=[of(E, 10), of(E, 10), of(C + E, 10)], match_lower_third=[of(E, 10)], match_last=[of(C + E, 10)],
    )  # fmt: skip


def test_refinement_confidence(atlas: Path) -> None:
    p = [{n: math.exp(log_p(r[layer], FINAL[n])) for n, r in RESIDUALS.items()} for layer in range(3)]
    ordered = [sorted(own[name] for name, times in TIMES.items() for _ in range(times)) for own in p]
    nearly(
        atlas, "refinement_confidence",
        probability=[sum(own) / 10 for own in ordered],
        probability_matching=[p[0]["E"], p[1]["E"], (C * p[2]["C"] + E * p[2]["E"]) / (C + E)],
        # Ten values: the quartiles lie a quarter of the way from the third to the fourth, halfway from the fifth to
        # the sixth, and three quarters of the way from the seventh to the eighth.
        probability_q25=[0.75 * own[2] + 0.25 * own[3] for own in ordered],
        probability_q50=[0.5 * own[4] + 0.5 * own[5] for own in ordered],
        probability_q75=[0.25 * own[6] + 0.75 * own[7] for own in ordered],
    )  # fmt: skip


def test_refinement_events(atlas: Path) -> None:
    """What r, u and o say of each prefix.

    layer 0: C sat sat sat; D ran mat ran; B mat far far; E the <s> the.
    layer 1: C sat mat ran: composition of ran, second in r, while u ranks sat last; D ran <s> ran; B far ran ran.
    layer 2: C ran the ran; D ran mat mat; B ran k23 k22: composition of k22, of rank 21 in r, while u ranks ran
    eleventh, in the upper half.
    """
    exactly(
        atlas, "refinement_events",
        agreement=[of(C, 10), 0, 0, of(4, 30)], residual=[of(D + E, 10), of(D + E, 10), of(C + E, 10), of(14, 30)],
        ffn=[of(B, 10), of(B, 10), of(D, 10), of(6, 30)], composition=[0, of(C, 10), of(B, 10), of(6, 30)],
        changed=[of(2, 10), of(6, 10), of(4, 10), of(12, 30)],
        composition_of_changed=[0, of(4, 6), of(2, 4), of(6, 12)],
        composition_from_top10=[None, 1, 0, of(4, 6)], composition_demoted=[None, 1, 0, of(4, 6)],
    )  # fmt: skip


def test_one_value_changed_changes_the_answers_that_it_must(tmp_path: Path) -> None:
    """The control: L2.M1 says "of" where it said "mat", so D keeps "ran" and the memory misses its target."""
    other = (*MEMORIES[:2], (MEMORIES[2][0], replace(MEMORIES[2][1], value={"of": 3.0}), *MEMORIES[2][2:]))
    atlas = mined(tmp_path, other)
    exactly(atlas, "value_agreement", agreement=[of(2, 4), 0, 0, of(2, 11)])
    exactly(
        atlas, "value_rank", q00=[0, 8, 7, 0], q25=[0, 8, 7, 1], q50=[0, 10, 9, 8]
    )  # mat: "of", and 8 words of score 0
    exactly(atlas, "value_confidence", decile_7=[0], top100_agreement=[of(2, 11)])
    exactly(atlas, "refinement_match", match=[of(D + E, 10), of(D + E, 10), of(C + D + E, 10)])
    exactly(
        atlas, "refinement_events", residual=[of(4, 10), of(4, 10), of(C + D + E, 10)], ffn=[of(2, 10), of(2, 10), 0]
    )
    exactly(atlas, "layer_composition", agreeing_stop_word_top=[0, 0, of(C + D, 8)], zero_agreement=[0.4, 0.4, 0.2])
    exactly(atlas, "layer_activity", active=[of(16, 40), of(14, 40), of(8, 40)])  # the same


def test_coefficients_below_zero(tmp_path: Path) -> None:
    """f(x) = x: a coefficient may change its sign, votes turn round with it, and zero agreement counts both signs.

    M0 is 2 at "cat", else -1, and says sat 3, mat -1. M1 is 1 at "dog", else -2, and says the 1, far -4.
    """
    atlas = mined(
        tmp_path, ((Known({"cat": 2.0}, {"sat": 3.0, "mat": -1.0}, rest=-1.0),
                    Known({"dog": 1.0}, {"the": 1.0, "far": -4.0}, rest=-2.0)),), activation="linear",
    )  # fmt: skip
    changes = pl.read_parquet(atlas / "removals.parquet").filter(removed="last", memory=0)
    # Without "cat" 2 falls to -1: by one and a half times itself.
    assert (changes["removed_coefficient"] / changes["coefficient"] - 1).to_list() == pytest.approx(
        [-1.5] * 2, abs=1e-6
    )
    # And M1, 1 at "dog", falls to -2, by three times itself; both have two such triggers.
    nearly(atlas, "key_removals", last_median=[-2.25], first_median=[0])
    lowest = pl.read_parquet(atlas / "triggers/layer-000.parquet").filter(sign=-1, memory=1)
    assert lowest["coefficient"].to_list() == pytest.approx([-2.0] * 12, abs=1e-5)
    # C: M0 2 votes sat, M1 -2 votes far: u = sat 6, mat -2, the -2, far 8; says far, as M1.
    # D: M0 -1 votes mat, M1 1 votes the: u = sat -3, mat 1, the 1, far -4; says the, of equal ones the lower, as M1.
    # B, E: M0 -1, M1 -2: u = sat -3, mat 1, the -2, far 8: far, as M1.
    exactly(atlas, "layer_composition", zero_agreement=[0], agreeing_stop_word_top=[of(D, 10)])
    exactly(atlas, "layer_activity", active=[of(C + D, 20)])
