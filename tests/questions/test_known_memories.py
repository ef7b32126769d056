"""Keys and values of a model whose every number is known on paper: five answers, with the working beside each.

The model is `known_model.py`: all follows from the table of its memories. Shares are exact fractions, numbers that were
measured equal to 1e-6. The questions about layers are in `test_known_layers.py`.
"""

import hashlib
import math
import struct
from pathlib import Path

import polars as pl
import pytest

from questions.known_atlas import MINED, SEED, exactly, log_p, mined, nearly, of
from questions.known_model import MEMORIES


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mined(tmp_path_factory.mktemp("known"))


def test_key_patterns(atlas: Path) -> None:
    """Different prefixes by memory; s is for shallow, m for semantic, b for both, n for none.

    layer 0: M0 "the cat" s, "of cat" s, "cat" s; M1 "the cat" b, "the dog" s, "of cat" m, "cat" m, "bird dog" n;
    M2 five n; M3 "mat bird", "bird", "of bird", "cat bird" s.                          8 s, 2 m, 1 b, 6 n of 17
    layer 1: M0 "mat bird", "of bird", "cat bird" m, "bird", "the dog mat", "mat" n; M1 four n; M2 three m;
    M3 "the cat", "cat" s, "of cat", "mat bird", "bird" n.                              2 s, 6 m, 0 b, 10 n of 18
    layer 2: M0 "the cat", "of cat" m, "cat" n; M1 two n; M2 "mat bird", "of bird", "cat bird" b, "bird" m.
    """
    exactly(
        atlas, "key_patterns",
        shallow_only=[of(8, 17), of(2, 18), of(0, 9), of(10, 44)],
        semantic_only=[of(2, 17), of(6, 18), of(3, 9), of(11, 44)],
        both=[of(1, 17), of(0, 18), of(3, 9), of(4, 44)],
        none=[of(6, 17), of(10, 18), of(3, 9), of(19, 44)],
        covered=[of(11, 17), of(8, 18), of(6, 9), of(25, 44)],
        shallow=[of(9, 17), of(2, 18), of(3, 9), of(14, 44)],
        semantic=[of(3, 17), of(6, 18), of(6, 9), of(15, 44)],
        keys_with_pattern=[of(3, 4), of(3, 4), of(2, 3), of(8, 11)],  # L2.M3 has no trigger: no key to ask about
        patterns_per_key=[of(5, 4), of(3, 4), of(3, 3), of(11, 11)],
    )  # fmt: skip


# Every trigger of more than one word, once: its patterns' kind, and the change without the first and the last word.
REMOVALS: dict[tuple[int, int], dict[str, tuple[str, float, float]]] = {
    (0, 0): {"the cat": ("shallow", 0, -1), "of cat": ("shallow", 0, -1)},
    (0, 1): {
        "the cat": ("both", -0.5, -1),  # 2 falls to 1: "cat" without "the" before it
        "of cat": ("semantic", 0, -1),
        "the dog": ("shallow", -0.5, -1),
        "bird dog": ("none", 0, -1),
    },
    (0, 2): {
        "mat bird": ("none", 0, -1),
        "the dog": ("none", 0, -1),
        "bird dog": ("none", 0, -0.2),  # 2.5 falls to 2: "bird" is left
        "of bird": ("none", 0, -1),
        "cat bird": ("none", 0, -1),
    },
    (0, 3): {"mat bird": ("shallow", 0, -1), "of bird": ("shallow", 0, -1), "cat bird": ("shallow", 0, -1)},
    (1, 0): {
        "mat bird": ("semantic", 0, -0.5),  # 1 falls to 0.5: "mat" is left
        "the dog mat": ("none", 0, -1),
        "of bird": ("semantic", 0, -1),
        "cat bird": ("semantic", 0, -1),
    },
    (1, 1): {"mat bird": ("none", 0, -1), "of bird": ("none", 0, -1), "cat bird": ("none", 0, -1)},
    (1, 2): {"the cat": ("semantic", 0, -1), "of cat": ("semantic", 0, -1)},
    (1, 3): {
        "the cat": ("shallow", 0, -1),
        "of cat": ("none", 1, -1),  # 1 rises to 2: "of" held it back
        "mat bird": ("none", 0, -1),
    },
    (2, 0): {"the cat": ("semantic", -0.5, -1), "of cat": ("semantic", 0, -1)},
    (2, 1): {"the dog": ("none", -0.75, -1), "bird dog": ("none", -0.5, -1)},  # 4 and 2 fall to 1
    (2, 2): {"mat bird": ("both", -0.5, -1), "of bird": ("both", 0, -1), "cat bird": ("both", 0, -1)},
}


def test_key_removals(atlas: Path) -> None:
    nearly(
        atlas, "key_removals",
        # Sorted, layer 2: -0.75, -0.5, -0.5, -0.5, 0, 0, 0. Layer 1: eleven 0, one 1. All: 6 of 33 are below 0.
        first_median=[0, 0, -0.5, 0], first_q25=[0, 0, -0.5, 0], first_q75=[0, 0, 0, 0],
        last_median=[-1, -1, -1, -1], last_q75=[-1, -1, -1, -1],
        # Layer 0: "the cat" -0.5. Layer 2: three of -0.5, 0, 0.
        first_median_both=[-0.5, None, 0, -0.25], first_q25_both=[-0.5, None, -0.25, -0.5],
        first_q25_shallow=[0, 0, None, 0], first_median_none=[0, 0, -0.625, 0],
        last_q75_none=[-1, -1, -1, -1],  # "bird dog" -0.2 is one of six
    )  # fmt: skip
    exactly(
        atlas, "key_removals",
        # "cat" of L0.M0, L0.M1, L1.M2, L1.M3, L2.M0; "bird" of L0.M3, L1.M0, L1.M1, L1.M3, L2.M2; "mat" of L1.M0.
        excluded_length_one=[11],
    )  # fmt: skip


def test_every_removal(atlas: Path) -> None:
    """The whole table, and the random token among 0..j that the hash of the place draws."""
    rows = pl.read_parquet(atlas / "removals.parquet").rows(named=True)
    texts = {
        (layer, row["memory"], row["rank"]): (row["sentence"], MINED[row["sentence"]].split()[: row["position"] + 1])
        for layer in range(3)
        for row in pl.read_parquet(atlas / f"triggers/layer-{layer:03d}.parquet").rows(named=True)
    }
    found: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    for row in rows:
        sentence, words = texts[row["layer"], row["memory"], row["trigger_rank"]]
        change = row["removed_coefficient"] / row["coefficient"] - 1
        found.setdefault((row["layer"], row["memory"]), {}).setdefault(" ".join(words), {})[row["removed"]] = change
        if row["removed"] == "random":
            place = struct.pack("<5q", SEED, row["layer"], row["memory"], sentence, row["position"])
            number = int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), "little")
            assert row["removed_position"] == number % len(words)
            other = {0: "first", len(words) - 1: "last"}.get(row["removed_position"])
            # The middle word of "the dog mat" changes nothing either: "the mat" is half as good, as before.
            expected = found[row["layer"], row["memory"]][" ".join(words)][other] if other else 0.0
            assert change == pytest.approx(expected, abs=1e-6)
    assert found.keys() == REMOVALS.keys()
    for memory, prefixes in REMOVALS.items():
        assert found[memory].keys() == prefixes.keys()
        for prefix, (_, first, last) in prefixes.items():
            assert found[memory][prefix]["first"] == pytest.approx(first, abs=1e-5), (memory, prefix)
            assert found[memory][prefix]["last"] == pytest.approx(last, abs=1e-5), (memory, prefix)


# What follows the triggers of each memory, best first (of equal ones the earlier sentence): the first is the target.
FOLLOWING = (
    (
        *(("sat", "ran", "the", "bird", "far"), ("sat", "mat", "far", "ran", "the", "of", "bird")),
        *(("mat", "of", "far", "mat"), ("far", "dog", "mat")),
    ),
    (
        *(("far", "dog", "mat", "sat"), ("far", "dog", "mat"), ("sat", "ran", "the", "bird", "far")),
        ("sat", "the", "bird", "far", "ran", "far", "dog"),
    ),
    (("sat", "far", "ran", "the", "bird"), ("mat", "of"), ("far", "dog", "mat"), ()),
)
# How often each word follows another in the text: 19 in all.
NEXT = {"sat": 4, "cat": 3, "bird": 3, "far": 2, "dog": 2, "mat": 2, "ran": 1, "the": 1, "of": 1}


def test_value_agreement(atlas: Path) -> None:
    """Memory by memory, the four of a layer together.

    Top tokens sat, ran, mat, cat | sat, of, mat, ran | the, mat, k23, the.
    Targets, the first of `FOLLOWING`: sat, sat, mat, far | far, far, sat, sat | sat, mat, far, none.
    """
    exactly(
        atlas, "value_agreement",
        agreement=[of(2, 4), of(0, 4), of(1, 3), of(3, 11)],
        shuffled_targets=[of(1 * 2 + 1 * 1, 16), of(1 * 2, 16), of(1, 9), of(2 * 5 + 3 * 2, 121)],
        most_frequent_token=[of(2, 4), of(2, 4), of(1, 3), of(5, 11)],  # sat
        chance=[of(1, 24)] * 4, without_target=[of(0, 4), of(0, 4), of(1, 4), of(1, 12)],
        agreement_lower=[of(2, 8)], agreement_best_layer=[of(2, 4)],
    )  # fmt: skip
    exactly(atlas, "value_agreement", agreement_upper=[of(1, 3)])  # layer 2 alone: ceil(10 * 3 / 16)
    gains = [
        [
            sum(log_p(known.value, word) - math.log(NEXT[word] / 19) for word in words) / len(words)
            for known, words in zip(MEMORIES[layer], FOLLOWING[layer], strict=True)
            if words
        ]
        for layer in range(3)
    ]
    whole = [gain for layer in gains for gain in layer]
    nearly(atlas, "value_agreement", log_probability_gain=[sum(g) / len(g) for g in (*gains, whole)])


def test_value_rank(atlas: Path) -> None:
    """Ranks of the targets; among words that score 0 the lower id comes first (sat is 7, mat 9, far 10).

    layer 0: sat of sat 1: 0. sat of ran 1.5: 1 + 7. mat of mat 1.5: 0. far of cat 3, far 2.5: 1.
    layer 1: far: two above it, and words 0-9 but sat and ran: 10; or but of and ran: 10. sat at -1 is last: 23.
    sat of ran 2: 1 + 7.
    layer 2: sat of the 1.25: 1 + words 0-6 but the: 7. mat of mat 3: 0. far below k23, k22: 2 + 10.
    """
    exactly(
        atlas, "value_rank",
        q00=[0, 8, 0, 0], q05=[0, 8, 0, 0], q25=[0, 8, 0, 0], q50=[0, 10, 7, 8],
        q75=[1, 10, 12, 10], q95=[8, 23, 12, 23], q100=[8, 23, 12, 23],
        within_10=[of(4, 4), of(1, 4), of(2, 3), of(7, 11)], within_100=[1, 1, 1, 1],
    )  # fmt: skip


def test_value_confidence(atlas: Path) -> None:
    """Row i of the eleven with a target goes to decile 10 i / 11, rounded down: the first two share one.

    Least sure first: L0.M0 (agrees), L2.M0, L0.M2 (agrees), L0.M1, L1.M3, L0.M3, L1.M0, L1.M1, L2.M1 (agrees), L2.M2,
    L1.M2.
    """
    deciles = [of(1, 2), of(1, 1), 0, 0, 0, 0, 0, of(1, 1), 0, 0]
    exactly(
        atlas, "value_confidence",
        **{f"decile_{number}": [share] for number, share in enumerate(deciles)},
        top100_upper_layers=[of(4, 12)],
        # After a trigger the top token comes: L0.M0 1 of 5, L0.M1 1 of 7, L0.M2 2 of 5 (one ends its sentence),
        # L1.M0 1 of 6 (two do), L1.M3 1 of 7, L2.M0 1 of 5, L2.M1 1 of 2; never: L0.M3, L1.M1, L1.M2, L2.M2.
        top100_with_trigger=[of(7, 12)],
        top100_trigger_share=[(3 * of(1, 5) + 2 * of(1, 7) + of(1, 5) + of(1, 6) + of(1, 2)) / 11],
        top100_agreement=[of(3, 11)],
    )  # fmt: skip
    sure = [[math.exp(log_p(k.value, max(k.value, key=k.value.__getitem__))) for k in own] for own in MEMORIES]
    norms = [[math.hypot(*known.value.values()) for known in own] for own in MEMORIES]
    nearly(
        atlas, "value_confidence",
        max_probability=[sum(own) / 4 for own in sure], max_probability_best=[max(own) for own in sure],
        value_norm=[sum(own) / 4 for own in norms],
        all_value_norm=[sum(map(sum, norms)) / 12], top100_value_norm=[sum(map(sum, norms)) / 12],
    )  # fmt: skip
