"""The labels of features, by rule: what the triggers share, and what the value promotes."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.patterns import write_patterns
from mnemoscope.patterns.labels import listed_labels, write_labels
from support.handbuilt_atlas import PROVENANCE, WORDS, build_atlas, manifest

Trigger = tuple[int, int, int, int, int]
"""Memory, sign, rank, token, prefix group."""
TRIGGERS = TABLES["triggers"].path(0)


def with_triggers(directory: Path, triggers: list[Trigger]) -> Atlas:
    """The hand-built atlas with these triggers in layer 0; its values promote a token for sign 1 of memory 0 alone."""
    names = ("memory", "sign", "rank", "token", "prefix_group")
    columns: dict[str, Any] = {name: [row[place] for row in triggers] for place, name in enumerate(names)}
    columns |= {name: [0] * len(triggers) for name in ("sentence", "position")}
    columns |= {"coefficient": [1.0 * row[1] for row in triggers], "next_token": [None] * len(triggers)}
    build_atlas(directory)
    write_table(directory / TRIGGERS, columns, name="triggers", provenance=PROVENANCE)
    seal(directory, manifest())
    return open_atlas(directory)


def alike(memory: int, sign: int, tokens: list[int], *, groups: list[int] | None = None) -> list[Trigger]:
    numbers = range(len(tokens)) if groups is None else groups
    return [(memory, sign, rank, token, group) for rank, (token, group) in enumerate(zip(tokens, numbers, strict=True))]


def labels(atlas: Atlas, patterns: dict[str, Any] | None = None) -> dict[tuple[int, int], tuple[str, bool | None]]:
    """The labels of layer 0, of an atlas with these patterns."""
    table = TABLES["patterns"]
    none: dict[str, Any] = {name: [] for name in table.columns.names}
    write_table(atlas.path / table.path(), patterns or none, name="patterns", provenance=PROVENANCE)
    write_labels(atlas)
    rows = atlas.table("labels").filter(pl.col("layer") == 0).select("memory", "sign", "label", "promotes")
    return {(memory, sign): (label, promotes) for memory, sign, label, promotes in rows.rows()}


@pytest.fixture
def patterned(tmp_path: Path) -> Path:
    write_patterns(open_atlas(build_atlas(tmp_path / "atlas")))
    return tmp_path / "atlas"


def test_the_label_is_the_shared_token_where_no_pattern_is(tmp_path: Path) -> None:
    five, four = [4, 4, 8, 4, 4, 8, 4], [4, 4, 8, 4, 4]
    rows = [*alike(0, 1, five), *alike(0, -1, [5] * 6), *alike(1, 1, four), *alike(2, -1, five)]
    found = labels(with_triggers(tmp_path / "atlas", rows))
    assert found == {
        (0, 1): (f'ends in "France"; promotes "{WORDS[6]}"', True),
        (0, -1): ('ends in "is"', False),
        (1, 1): ("no clear pattern", False),
        (2, -1): ('ends in "France"', None),  # never below zero: nothing is known of its value
    }


def test_a_prefix_counts_once_and_only_the_best_count(tmp_path: Path) -> None:
    same = alike(0, 1, [4] * 6, groups=[0, 0, 0, 3, 4, 5])
    late = alike(1, 1, [*range(21), 4, 4, 4, 4, 4])  # five of one token, the last of them of rank 25
    even = alike(2, 1, [5, 4, 4, 5, 4, 5, 4, 5, 4, 5])
    found = labels(with_triggers(tmp_path / "atlas", [*same, *late, *even]))
    assert found[0, 1][0].startswith("no clear pattern")  # four different prefixes
    assert found[1, 1][0].startswith('ends in "France"')  # 21 ... 24, and rank 4
    assert found[2, 1][0].startswith('ends in "is"')  # of equals the one that comes first


def test_a_pattern_comes_before_the_token(tmp_path: Path) -> None:
    atlas = with_triggers(tmp_path / "atlas", [*alike(0, 1, [4] * 6), *alike(0, -1, [4] * 6)])
    columns: dict[str, Any] = {"layer": [0, 0], "memory": [0, 0], "pattern": [0, 1], "kind": ["shallow", "semantic"]}
    columns |= {"description": ["ends in Rome", "about Rome"], "triggers": [[0, 1, 2]] * 2}
    columns |= {"lift": [2.0, 2.0], "log10_p": [-9.0, -8.0]}
    found = labels(atlas, columns)
    assert found[0, 1][0] == 'ends in Rome; promotes " Paris"'
    assert found[0, -1][0] == 'ends in "France"'


def test_lists_say_the_first_three_different_tokens_where_there_is_no_pattern(tmp_path: Path) -> None:
    """Of each sign its own; nothing of what has no triggers, or was not mined; a label with a pattern stays."""
    spaced = WORDS.index(" Paris")
    rows = [*alike(0, 1, [4, 4, spaced, 5, 8, 4]), *alike(0, -1, [8, 8]), *alike(1, 1, [5] * 6), *alike(2, -1, [4])]
    atlas = with_triggers(tmp_path / "atlas", rows)
    asked = [(MemoryId(0, memory), sign) for memory in range(4) for sign in (1, -1)] + [(MemoryId(9, 0), 1)]
    texts = [WORDS[token].strip(" ") for token in (4, spaced, 5)]
    first = f'fires at "{texts[0]}", "{texts[1]}", "{texts[2]}"'
    eighth, fourth = (f'fires at "{WORDS[token].strip(" ")}"' for token in (8, 4))
    places = [(0, 1), (0, -1), (1, 1), (2, -1)]

    def said() -> dict[tuple[int, int], str]:
        return {(memory.memory, sign): text for (memory, sign), text in listed_labels(atlas, asked).items()}

    assert said() == dict(zip(places, [first, eighth, f'fires at "{WORDS[5].strip(" ")}"', fourth], strict=True))
    stored = labels(atlas)
    assert [stored[place][0].partition(";")[0] for place in places] == [
        "no clear pattern",
        "no clear pattern",
        'ends in "is"',
        "no clear pattern",
    ]
    shown = [f'{first}; promotes "{WORDS[6]}"', eighth, 'ends in "is"', fourth]
    assert said() == dict(zip(places, shown, strict=True))
    assert listed_labels(atlas, []) == {}


def test_labels_are_made_and_hashed_with_patterns(patterned: Path) -> None:
    atlas = open_atlas(patterned)
    assert set(atlas["L0.M0"].labels()["sign"]) == {1, -1}
    covered = (patterned / "analyses" / "manifest.json").read_text()
    assert '"labels.parquet"' in covered
    assert '"patterns.parquet"' in covered
    before = (patterned / "labels.parquet").read_bytes()
    write_patterns(open_atlas(patterned))
    assert (patterned / "labels.parquet").read_bytes() == before
