"""Figure 2: which prefixes patterns explain, on memories whose triggers can be ticked off."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mnemoscope.annotate.judgements.reading import ANNOTATIONS
from mnemoscope.errors import AtlasDamaged
from mnemoscope.foundation.intervals import wilson
from mnemoscope.questions import answer
from support.handbuilt_answers import Trigger, build_answers, numbers
from support.handwritten_judgements import SCHEMA

KINDS = ("shallow_only", "semantic_only", "both", "none")


def one_each(memory: int, count: int) -> list[Trigger]:
    return [(memory, 6) for _ in range(count)]


def test_shares_of_prefixes_by_kind(tmp_path: Path) -> None:
    # L0.M0 has 4 prefixes: 0, 1 and 2 shallow, 2 and 3 semantic. L0.M1 has 2 prefixes and no pattern.
    # L1.M2 has 4 triggers of 3 prefixes (ranks 1 and 3 are the same one); its patterns name ranks 3 and 2.
    triggers = {0: one_each(0, 4) + one_each(1, 2), 1: [(2, 6, 0), (2, 6, 1), (2, 6, 2), (2, 6, 1)]}
    patterns = [(0, 0, "shallow", [0, 1]), (0, 0, "shallow", [1, 2]), (0, 0, "semantic", [2, 3])]
    patterns += [(1, 2, "shallow", [3]), (1, 2, "semantic", [2])]
    found = answer(build_answers(tmp_path, triggers=triggers, patterns=patterns), "key_patterns")
    shares = [numbers(found, name) for name in (*KINDS, "covered", "shallow", "semantic")]
    assert [share[0] for share in shares] == pytest.approx([2 / 6, 1 / 6, 1 / 6, 2 / 6, 4 / 6, 3 / 6, 2 / 6])
    assert [share[1] for share in shares] == pytest.approx([1 / 3, 1 / 3, 0.0, 1 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert shares[KINDS.index("none")][None] == 3 / 9
    # Of those that one kind alone explains; of two layers both are lower ones.
    assert numbers(found, "shallow_of_one_kind") == {0: 2 / 3, 1: 1 / 2, None: 3 / 5}
    assert numbers(found, "shallow_of_one_kind", "count") == {0: 3, 1: 2, None: 5}
    assert numbers(found, "shallow_of_one_kind_lower") == {None: 3 / 5}
    assert numbers(found, "shallow_of_one_kind_upper") == {None: None}
    assert numbers(found, "none", "count") == {0: 6, 1: 3, None: 9}
    assert numbers(found, "keys_with_pattern") == {0: 1 / 2, 1: 1.0, None: 2 / 3}
    assert numbers(found, "patterns_per_key") == {0: 1.5, 1: 2.0, None: pytest.approx(5 / 3)}
    assert numbers(found, "patterns_per_key", "count") == {0: 2, 1: 1, None: 3}


def test_only_the_top_25_positive_triggers_count(tmp_path: Path) -> None:
    patterns = [(0, 0, "shallow", list(range(25)))]
    atlas = build_answers(tmp_path, triggers={0: one_each(0, 40)}, lowest={0: one_each(1, 5)}, patterns=patterns)
    found = answer(atlas, "key_patterns")
    assert numbers(found, "covered") == {0: 1.0, None: 1.0}
    assert numbers(found, "covered", "count") == {0: 25, None: 25}
    assert numbers(found, "keys_with_pattern", "count") == {0: 1, None: 1}


def test_near_duplicates_count_once_in_shares_of_their_own(tmp_path: Path) -> None:
    """Of the 25 triggers ranks 21 to 24 have the two tokens of ranks 1 to 4 (sentences begin with rank modulo 20), so
    there are 21 folds. Shallow are ranks 1 to 5 and 21 to 24; semantic 5, 6 and 24, which is not the first of its fold.
    """
    patterns = [(0, 0, "shallow", [1, 2, 3, 4, 5, 21, 22, 23, 24]), (0, 0, "semantic", [5, 6, 24])]
    found = answer(build_answers(tmp_path, triggers={0: one_each(0, 25)}, patterns=patterns), "key_patterns")
    each = {"shallow_only": (7, 4), "semantic_only": (1, 1), "both": (2, 1), "none": (15, 15)}
    each |= {"covered": (10, 6), "shallow": (9, 5), "semantic": (3, 2)}
    for name, (all_triggers, folds) in each.items():
        assert numbers(found, name) == pytest.approx({0: all_triggers / 25, None: all_triggers / 25}), name
        assert numbers(found, f"folded_{name}") == pytest.approx({0: folds / 21, None: folds / 21}), name
        assert numbers(found, f"folded_{name}", "count") == {0: 21, None: 21}


def test_a_memory_s_prefixes_are_one_cluster(tmp_path: Path) -> None:
    """Ten memories of five prefixes, half of them covered whole: as good as nine cases, not fifty."""
    triggers = {0: [trigger for memory in range(10) for trigger in one_each(memory, 5)]}
    patterns = [(0, memory, "shallow", [0, 1, 2, 3, 4]) for memory in range(5)]
    found = answer(build_answers(tmp_path, memories=10, triggers=triggers, patterns=patterns), "key_patterns")
    assert numbers(found, "shallow")[0] == 0.5
    ends = (numbers(found, "shallow", "low")[0], numbers(found, "shallow", "high")[0])
    assert ends == pytest.approx(wilson(0.5, 9))


def test_which_kind_leads_in_lower_and_upper_layers(tmp_path: Path) -> None:
    """Four layers: the upper one is layer 3 (ceil(40 / 16)). Shallow leads in 0, semantic in 1 and 3, none in 2."""
    triggers = {layer: one_each(0, 2) for layer in range(4)}
    patterns = [(0, 0, "shallow", [0, 1]), (1, 0, "semantic", [0]), (3, 0, "semantic", [1])]
    found = answer(build_answers(tmp_path, triggers=triggers, patterns=patterns), "key_patterns")
    assert numbers(found, "shallow_leads_lower") == {None: 1 / 3}
    assert numbers(found, "shallow_leads_lower", "count") == {None: 3}
    assert numbers(found, "semantic_leads_upper") == {None: 1.0}
    assert numbers(found, "shallow_of_one_kind_lower") == {None: 2 / 3}
    assert numbers(found, "shallow_of_one_kind_upper") == {None: 0.0}


def test_layers_lead_surely_where_many_memories_say_so(tmp_path: Path) -> None:
    """Six layers, 4 and 5 the upper ones, of 40 memories of one prefix; layer 1 has none, and does not count.

    Layer 0 is all shallow; of layers 2, 3 and 4 the two kinds have a half each; layer 5 is all semantic.
    """
    every = [trigger for memory in range(40) for trigger in one_each(memory, 1)]
    triggers = {layer: [] if layer == 1 else every for layer in range(6)}
    shallow = {0: 40, 2: 20, 3: 20, 4: 20, 5: 0}
    patterns = [
        (layer, memory, "shallow" if memory < some else "semantic", [0])
        for layer, some in shallow.items()
        for memory in range(40)
    ]
    found = answer(build_answers(tmp_path, memories=40, triggers=triggers, patterns=patterns), "key_patterns")
    # Exactly a half leads in neither way, and may be either.
    expected = {"shallow_leads_lower": (1 / 3, 3, 1 / 3, 1.0), "semantic_leads_upper": (1 / 2, 2, 1 / 2, 1.0)}
    for name, row in expected.items():
        assert tuple(numbers(found, name, column)[None] for column in ("value", "count", "low", "high")) == row


@pytest.mark.parametrize("patterns", [[], [(0, 3, "shallow", [0, 1, 2])]], ids=["no pattern", "of a dead memory"])
def test_no_memory_firing_gives_nulls(tmp_path: Path, patterns: list[tuple[int, int, str, list[int]]]) -> None:
    found = answer(build_answers(tmp_path, triggers={0: []}, patterns=patterns), "key_patterns")
    assert (found["value"].null_count(), found["count"].sum()) == (found.height, 0)


Judgement = tuple[str, int, int, int, int, str, Sequence[int]]


def annotate(directory: Path, judgements: Sequence[Judgement]) -> None:
    """Writes people's judgements: (author, layer, memory, control, pattern, kind, ranks)."""
    with closing(sqlite3.connect(directory / ANNOTATIONS)) as database, database:
        database.executescript(SCHEMA)
        columns = "author, made_at, layer, memory, control, pattern, kind, description, triggers"
        for author, layer, memory, control, pattern, kind, ranks in judgements:
            row = (author, "2026-01-01T00:00:00", layer, memory, control, pattern, kind, "", json.dumps(ranks))
            database.execute(f"INSERT INTO judgements ({columns}) VALUES ({', '.join('?' * 9)})", row)


def test_people_s_judgements_stand_beside(tmp_path: Path) -> None:
    """Ann judged L0.M0 and L0.M1, Bob only L0.M0; nobody judged L0.M2 or layer 1. Each memory has 4 prefixes."""
    triggers = {0: [trigger for memory in range(3) for trigger in one_each(memory, 4)], 1: one_each(0, 4)}
    atlas = build_answers(tmp_path, triggers=triggers, patterns=[(0, 2, "shallow", [0, 1, 2, 3])])
    annotate(
        tmp_path,
        [
            ("ann", 0, 0, 0, 0, "shallow", [0, 1]),
            ("ann", 0, 0, 0, 1, "both", [2]),
            ("ann", 0, 1, 0, 0, "none", []),  # she looked, and found nothing
            ("bob", 0, 0, 0, 0, "semantic", [0, 1, 2, 3]),
            ("bob", 0, 1, 1, 0, "shallow", [0, 1, 2, 3]),  # a control: random prefixes, not L0.M1's
        ],
    )
    found = answer(atlas, "key_patterns")
    # Ann: of 8 prefixes 2 shallow, 1 both, 5 none; 2 patterns on 2 keys. Bob: 4 of 4 semantic, 1 pattern on 1 key.
    expected = {
        "shallow_only": (0.25 + 0) / 2,
        "semantic_only": (0 + 1) / 2,
        "both": (0.125 + 0) / 2,
        "none": (0.625 + 0) / 2,
        "covered": (0.375 + 1) / 2,
        "shallow": (0.375 + 0) / 2,
        "semantic": (0.125 + 1) / 2,
        "keys_with_pattern": (0.5 + 1) / 2,
        "patterns_per_key": (1 + 1) / 2,
    }
    for name, value in expected.items():
        assert numbers(found, f"people_{name}") == {0: pytest.approx(value), 1: None, None: pytest.approx(value)}, name
    assert numbers(found, "people_none", "count") == {0: 12, 1: 0, None: 12}
    assert numbers(found, "people_keys_with_pattern", "count") == {0: 3, 1: 0, None: 3}
    low, high = (numbers(found, "people_none", end)[0] for end in ("low", "high"))
    assert 0 <= low < 0.3125 < high <= 1
    # The automatic patterns are counted as if nobody had judged.
    assert numbers(found, "shallow_only") == {0: 4 / 12, 1: 0.0, None: 4 / 16}


def test_only_controls_are_no_judgements(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: one_each(0, 4)})
    annotate(tmp_path, [("ann", 0, 0, 1, 0, "shallow", [0, 1, 2])])
    assert not answer(atlas, "key_patterns")["name"].str.starts_with("people_").any()


def test_damaged_judgements_are_named(tmp_path: Path) -> None:
    atlas = build_answers(tmp_path, triggers={0: one_each(0, 4)})
    (tmp_path / ANNOTATIONS).write_text("no database")
    with pytest.raises(AtlasDamaged, match=ANNOTATIONS):
        answer(atlas, "key_patterns")
