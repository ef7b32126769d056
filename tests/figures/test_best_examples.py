"""The most striking memories of an atlas whose every score is worked out on this page."""

from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.show.figures.examples import best_examples
from support.handbuilt_atlas import PROVENANCE, build_atlas, manifest, trigger_columns, value_columns, write_tables

# Where a token follows, in the four sentences of the hand-built atlas: (sentence, position) -> next token.
# (0, 0) -> 2   (0, 1) -> 3   (0, 3) -> 5   (0, 4) -> 6   (0, 5) -> 7   (0, 6) ends
# (1, 0) -> 2   (1, 1) -> 3   (1, 2) -> 12  (1, 3) -> 5   (1, 5) -> 7
# (2, 0) -> 9   (2, 1) -> 10  (2, 2) -> 11  (2, 3) ends
Place = tuple[int, int]
TRIGGERS: dict[int, dict[int, list[Place]]] = {
    0: {
        0: [(0, 5), (1, 5), (0, 4), (0, 3), (1, 3)],  # 7 follows twice of five times: 0.5 x 2/5 = 0.2
        1: [(0, 5), (1, 5), (0, 0), (1, 1), (2, 0)],  # the same, 0.9 x 2/5 = 0.36: takes token 7 from L0.M0
        2: [(0, 0), (1, 0), (0, 1), (2, 1), (2, 2)],  # only four different prefixes: `The` occurs twice
        3: [(0, 3), (1, 3), (0, 6), (2, 3), (2, 0)],  # 5 follows twice of five, ends included: 0.75 x 2/5 = 0.3
    },
    1: {
        0: [(0, 5), (1, 5), (0, 0), (1, 1), (2, 0)],  # as good as L0.M1, which comes first
        2: [(0, 0), (0, 1), (0, 3), (0, 4), (0, 5), *[(2, 2)] * 20, (2, 0)],  # 9 follows rank 25, which is too late
        3: [(1, 2), (0, 0), (0, 1), (0, 3), (0, 4)],  # 12 follows once of five times: 1 x 1/5 = 0.2
    },
}
VALUES: dict[int, list[tuple[int, float]]] = {
    0: [(7, 0.5), (7, 0.9), (2, 0.25), (5, 0.75)],
    1: [(7, 0.9), (3, 1.0), (9, 1.0), (12, 1.0)],
}


def rows_of(memories: dict[int, list[Place]], sign: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for memory, places in memories.items():
        # Sentences 0 and 1 begin alike, with three tokens.
        prefixes = [(0, j) if s == 1 and j < 3 else (s, j) for s, j in places]
        for rank, (place, prefix) in enumerate(zip(places, prefixes, strict=True)):
            rows.append((memory, sign, rank, sign * (50.0 - rank), *place, prefixes.index(prefix)))
    return rows


@pytest.fixture
def atlas(tmp_path: Path) -> Atlas:
    return atlas_of(tmp_path, {})


def atlas_of(tmp_path: Path, at_work: dict[int, list[float | None]], top_z: float = 4.5) -> Atlas:
    """The atlas of these triggers and values; typical ones are given by layer. Above 4 a token is clear."""
    write_tables(tmp_path)
    for layer in (0, 1):
        rows = rows_of(TRIGGERS[layer], 1)
        if layer == 1:
            rows += rows_of({1: [(0, 1), (2, 0), (2, 1), (2, 2), (0, 4)]}, -1)  # the lowest are not triggers
        values = value_columns()
        values["top_tokens"] = [[token, *[t for t in range(24) if t != token][:19]] for token, _ in VALUES[layer]]
        values["max_probability"] = [probability for _, probability in VALUES[layer]]
        values["working_probability"] = at_work.get(layer, [None] * 4)
        values["working_logit"] = [None if one is None else 1.0 for one in values["working_probability"]]
        values["top_z"] = [top_z] * 4
        for name, columns in (("triggers", trigger_columns(sorted(rows))), ("values", values)):
            write_table(tmp_path / TABLES[name].path(layer), columns, name=name, provenance=PROVENANCE)
    seal(tmp_path, manifest())
    return open_atlas(tmp_path)


def test_confident_values_that_come_true_are_first(atlas: Atlas) -> None:
    found = best_examples(atlas)
    assert found.select("layer", "memory", "top_token", "prefixes").rows() == [
        (0, 1, 7, 5),
        (0, 3, 5, 5),
        (1, 3, 12, 5),
    ]
    assert found["score"].to_list() == pytest.approx([0.36, 0.3, 0.2])
    assert found["max_probability"].to_list() == pytest.approx([0.9, 0.75, 1.0])
    assert found["agreement"].to_list() == pytest.approx([0.4, 0.4, 0.2])


def test_the_value_at_work_counts_where_it_is_known(tmp_path: Path) -> None:
    """Of a layer whose values are twice as long and coefficients half as large coefficient 1 would win everything."""
    found = best_examples(atlas_of(tmp_path, {0: [0.8, 0.1, 0.5, 0.02], 1: [0.02, 0.5, 0.5, 0.3]}))
    assert found.select("layer", "memory", "top_token").rows() == [(0, 0, 7), (1, 3, 12), (0, 3, 5)]
    assert found["score"].to_list() == pytest.approx([0.8 * 0.4, 0.3 * 0.2, 0.02 * 0.4])
    assert found["working_probability"].to_list() == pytest.approx([0.8, 0.3, 0.02])
    assert found["max_probability"].to_list() == pytest.approx([0.5, 1.0, 0.75])


def test_fewer_are_the_first_ones(atlas: Atlas) -> None:
    assert best_examples(atlas, 2).rows() == best_examples(atlas).head(2).rows()


def test_an_atlas_without_enough_triggers_has_none(tmp_path: Path) -> None:
    found = best_examples(open_atlas(build_atlas(tmp_path)))
    assert found.height == 0
    own = ["score", "max_probability", "working_probability", "agreement", "prefixes", "top_token"]
    assert found.columns == ["layer", "memory", *own]


def test_a_memory_without_a_clear_token_is_none(tmp_path: Path) -> None:
    at_work: dict[int, list[float | None]] = {0: [0.5, None, 0.5, 0.5]}
    found = best_examples(atlas_of(tmp_path, at_work, top_z=3.5))
    # Of those without a typical activation nobody knows whether they have one.
    assert [tuple(row) for row in found.select("layer", "memory").rows()] == [(0, 1), (1, 3)]
