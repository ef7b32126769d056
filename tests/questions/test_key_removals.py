"""Figure 3 on triggers whose changes are halves and quarters."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mnemoscope.foundation.reading import Reading
from mnemoscope.questions import answer
from mnemoscope.questions.answers import stored_answers, write_all
from mnemoscope.show.figures.sections import draw_figure
from support.handbuilt_answers import Trigger, build_answers, numbers

Removal = tuple[int, int, int, str, float, float]


def removals(layer: int, memory: int, rank: int, first: float, last: float, random: float) -> list[Removal]:
    """One trigger with coefficient 2, and what is left of it."""
    left = zip(("first", "last", "random"), (first, last, random), strict=True)
    return [(layer, memory, rank, removed, 2.0, after) for removed, after in left]


def one_each(count: int, memory: int = 0) -> list[Trigger]:
    return [(memory, 6) for _ in range(count)]


def test_medians_and_quartiles_by_layer_and_in_all(tmp_path: Path) -> None:
    # (m' - m) / m of layer 0: first 0, -0.5, -1; last -1, -1, -1.5; random 0, 1, 0.5. Layer 2: one trigger.
    rows = [
        *removals(0, 0, 0, 2.0, 0.0, 2.0),
        *removals(0, 0, 1, 1.0, 0.0, 4.0),
        *removals(0, 1, 0, 0.0, -1.0, 3.0),
        *removals(2, 0, 0, 1.0, 1.5, 1.0),
    ]
    triggers = {0: [*one_each(2), (1, 6)], 2: one_each(1)}
    found = answer(build_answers(tmp_path, triggers=triggers, removals=rows), "key_removals")
    assert numbers(found, "first_median") == {0: -0.5, 2: -0.5, None: -0.5}
    assert numbers(found, "last_median") == {0: -1.0, 2: -0.25, None: -1.0}
    assert numbers(found, "random_median") == {0: 0.5, 2: -0.5, None: 0.25}
    assert numbers(found, "first_q25") == {0: -0.75, 2: -0.5, None: -0.625}  # linear between values
    assert numbers(found, "last_q75") == {0: -1.0, 2: -0.25, None: -0.8125}
    assert numbers(found, "first_median", "count") == {0: 3, 2: 1, None: 4}
    assert numbers(found, "first_median", "removed") == {0: "first", 2: "first", None: "first"}
    assert numbers(found, "last_q75", "statistic") == {0: "q75", 2: "q75", None: "q75"}
    assert numbers(found, "last_q75", "kind") == {0: "all", 2: "all", None: "all"}
    # Memories are resampled: L0.M0 alone has last -1, -1, L0.M1 alone -1.5.
    assert (numbers(found, "last_median", "low")[0], numbers(found, "last_median", "high")[0]) == (-1.5, -1.0)
    assert numbers(found, "last_median", "low")[2] is None  # one memory
    # The model has 3 layers, so layer 2 is an upper one: ceil(30 / 16) = 2. The last token hurts most in layer 0.
    assert numbers(found, "last_hurts_most") == {None: 1 / 2}
    assert numbers(found, "last_median_upper_minus_lower") == {None: 0.75}


@pytest.mark.parametrize(
    ("memories", "margin", "total"), [(4, None, None), (5, None, 0.5), (9, None, 0.5), (10, 0.5, 0.5)]
)
def test_medians_are_compared_with_an_interval_from_ten_memories_on(
    memories: int, margin: float | None, total: float | None, tmp_path: Path
) -> None:
    """Without the first token nothing changes, without a random one a quarter goes, without the last three quarters.

    In layer 2, an upper one, the last token is a quarter; all memories say the same.
    """
    left = {0: (2.0, 0.5, 1.5), 2: (2.0, 1.5, 1.0)}
    places = [(layer, memory) for layer in left for memory in range(memories)]
    rows = [row for layer, memory in places for row in removals(layer, memory, 0, *left[layer])]
    triggers = {layer: [(memory, 6) for memory in range(memories)] for layer in left}
    found = answer(build_answers(tmp_path, memories=memories, triggers=triggers, removals=rows), "key_removals")
    # The least of the others: -0.25 minus -0.75; then -0.5 minus -0.25.
    assert numbers(found, "last_margin") == {0: 0.5, 2: -0.25, None: 0.125}
    assert numbers(found, "last_margin", "low")[0] == numbers(found, "last_margin", "high")[0] == margin
    assert numbers(found, "last_margin", "count") == {0: 3 * memories, 2: 3 * memories, None: 6 * memories}
    assert numbers(found, "last_hurts_most") == {None: 0.5}
    sure = [numbers(found, "last_hurts_most", end)[None] for end in ("low", "high")]
    assert sure == ([0.0, 1.0] if margin is None else [0.5, 0.5])
    assert numbers(found, "last_median_upper_minus_lower") == {None: 0.5}
    # A memory of one layer is not that of the same number in another: five of either are ten.
    for end in ("low", "high"):
        assert numbers(found, "last_median_upper_minus_lower", end) == {None: total}
    assert numbers(found, "last_median_upper_minus_lower", "count") == {None: 2 * memories}


def test_the_split_takes_the_kind_of_pattern_of_each_of_the_top_25(tmp_path: Path) -> None:
    """Ranks 0, 1 shallow; 1, 2 semantic; rank 3 none; rank 25 beyond what patterns look at."""
    rows = [
        *removals(0, 0, 0, 2.0, 2.0, 2.0),  # shallow: 0
        *removals(0, 0, 1, 2.0, 1.0, 2.0),  # both: -0.5
        *removals(0, 0, 2, 2.0, 0.0, 2.0),  # semantic: -1
        *removals(0, 0, 3, 2.0, 4.0, 2.0),  # none: 1
        *removals(0, 0, 25, 2.0, 6.0, 2.0),  # only in the whole
    ]
    patterns = [(0, 0, "shallow", [0, 1]), (0, 0, "semantic", [1, 2]), (0, 1, "shallow", [3]), (1, 0, "shallow", [3])]
    triggers = {0: one_each(30), 1: one_each(4)}
    atlas = build_answers(tmp_path, triggers=triggers, removals=rows, patterns=patterns)
    found = answer(atlas, "key_removals")
    values = {kind: numbers(found, f"last_median_{kind}") for kind in ("shallow", "semantic", "both", "none")}
    assert {kind: value[0] for kind, value in values.items()} == {"shallow": 0, "semantic": -1, "both": -0.5, "none": 1}
    assert all(value[1] is None and value[None] == value[0] for value in values.values())
    assert numbers(found, "last_median") == {0: 0.0, 1: None, None: 0.0}
    assert numbers(found, "last_median", "count") == {0: 5, 1: 0, None: 5}
    assert numbers(found, "last_median_both", "kind") == {0: "both", 1: "both", None: "both"}


def test_rows_without_a_coefficient_are_dropped(tmp_path: Path) -> None:
    rows: list[Removal] = [(0, 0, 0, "last", 0.0, 1.0), (0, 0, 2, "last", 2.0, 1.0)]
    found = answer(build_answers(tmp_path, triggers={0: one_each(3)}, removals=rows), "key_removals")
    assert numbers(found, "last_median") == {0: -0.5, None: -0.5}
    assert numbers(found, "last_median", "count") == {0: 1, None: 1}
    assert numbers(found, "first_median") == {0: None, None: None}
    assert numbers(found, "last_hurts_most") == {None: None}


@pytest.mark.parametrize(("token", "counted"), [(0, ["length_one"]), (None, ["length_one", "length_two"])])
def test_prefixes_that_were_not_asked_are_counted(tmp_path: Path, token: int | None, counted: list[str]) -> None:
    """Those of two tokens where the model has no beginning token."""
    left_out = {"length_one": 5, "length_two": 7}
    model = {"beginning": {"token": token, "kind": "x"}, "reading": asdict(Reading.of(token))}
    said = {"model": model, "questions": {"removals_excluded": left_out}}
    atlas = build_answers(tmp_path, triggers={0: one_each(2)}, **said)
    found = answer(atlas, "key_removals").filter(pl.col("name").str.starts_with("excluded"))
    assert found.select("name", "count").rows() == [(f"excluded_{name}", left_out[name]) for name in counted]


def test_sources_have_numbers_of_their_own(tmp_path: Path) -> None:
    """Of layer 0 the changes are first -0.5, last -1, random 0; of the source 0, -0.5 and 0.25. The trigger of layer 1
    has a source of one token, and nothing of it was removed.
    """
    left = zip(("source_first", "source_last", "source_random"), (2.0, 1.0, 2.5), strict=True)
    rows = [
        *removals(0, 0, 0, 1.0, 0.0, 2.0),
        *((0, 0, 0, removed, 2.0, after) for removed, after in left),
        *removals(1, 0, 0, 2.0, 1.0, 2.0),
    ]
    given: dict[str, Any] = {"triggers": {0: one_each(1), 1: one_each(1)}, "removals": rows}
    reading = asdict(Reading((0,), source=((), (1,))))
    sizes = {"layers": 2, "memories": [4, 4], "vocabulary": 20}
    atlas = build_answers(tmp_path / "pairs", **given, model={"reading": reading, "sizes": sizes})
    found = answer(atlas, "key_removals")
    medians = {name: numbers(found, f"source_{name}_median") for name in ("first", "last", "random")}
    assert medians["first"] == {0: 0.0, 1: None, None: 0.0}
    assert medians["last"] == {0: -0.5, 1: None, None: -0.5}
    assert medians["random"] == {0: 0.25, 1: None, None: 0.25}
    assert numbers(found, "source_last_q25_none", "removed")[None] == "source_last"
    assert numbers(found, "source_margin") == {0: 0.5, 1: None, None: 0.25}  # -0.5 minus -1; minus the median -0.75
    assert numbers(found, "source_margin", "count") == {0: 4, 1: 0, None: 5}
    # What is said of the text is what a decoder alone would say.
    alone = answer(build_answers(tmp_path / "alone", **given | {"removals": [*rows[:3], *rows[6:]]}), "key_removals")
    assert found.filter(~pl.col("name").str.starts_with("source")).equals(alone)
    write_all(atlas)
    drawn = draw_figure("key_removals", stored_answers(atlas))
    assert drawn.reading.endswith("without a random token of the source.")
    [lines] = [panel.rows["key_removals_source"] for panel in drawn.panels if "key_removals_source" in panel.rows]
    assert {row["series"]: row["value"] for row in lines if row["layer"] == 0}["last token of the source"] == -0.5
