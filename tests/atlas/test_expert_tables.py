"""Memories of experts: counted through their layer by who reads, by expert and memory where they are stored.

The hand-built atlas with other first layer: two routed experts of two memories and a shared one of three, numbers 0-6.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from mnemoscope.atlas import Atlas, open_atlas, verify
from mnemoscope.atlas.experts import as_stored, counted_through, with_experts
from mnemoscope.atlas.manifest import read_manifest, seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_table
from mnemoscope.atlas.tables import rebuild_command
from mnemoscope.errors import MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId, Numbering
from support.handbuilt_atlas import (
    PROVENANCE,
    activity_columns,
    manifest,
    neighbour_columns,
    trigger_columns,
    value_columns,
    write_tables,
)

MIXED = {"routed": 2, "memories": 2, "shared": [3]}
NUMBERINGS = {0: Numbering((2, 2, 3), 2), 1: Numbering((4,))}
EXPERT, WITHIN = [0, 0, 1, 1, 2, 2, 2], [0, 1, 0, 1, 0, 1, 2]
NAMES = ["L0.E0.M0", "L0.E0.M1", "L0.E1.M0", "L0.E1.M1", "L0.S0.M0", "L0.S0.M1", "L0.S0.M2"]


def build(
    directory: Path, *, triggers: dict[str, Any] | None = None, first: dict[str, Any] = MIXED, **more: Any
) -> Path:
    """The atlas, sealed; `triggers` are those of the first layer, counted through, else one of every memory."""
    write_tables(directory)
    one_each = trigger_columns([(memory, 1, 0, 1.0 + memory, memory % 3, 0, 0) for memory in range(7)])
    found = triggers or one_each
    seven = {name: [*column, *column][:7] for name, column in value_columns().items() if name[-6:] != "scores"}
    scores = {f"{end}_scores": np.zeros((7, 20), np.float32) for end in ("top", "bottom")}
    tables: dict[tuple[str, int | None], dict[str, Any]] = {
        ("triggers", 0): found | {"router_weight": [0.5] * len(found["memory"])},
        ("activity", 0): activity_columns(7) | {"all_prefixes": [38] * 7},
        ("values", 0): seven | scores | {"memory": range(7)},
        ("neighbours", 0): {
            **{"memory": range(7), "rank": [0] * 7, "cosine": [0.5] * 7},
            **{"other_layer": [0] * 6 + [1], "other_memory": [*range(1, 7), 3]},
        },
        ("neighbours", 1): neighbour_columns(1),
        ("patterns", None): {
            **{"layer": [0, 0, 1], "memory": [3, 4, 3], "pattern": [0, 0, 0], "kind": ["shallow"] * 3},
            **{"description": ["of E1.M1", "of S0.M0", "of L1.M3"], "triggers": [[0]] * 3},
            **dict.fromkeys(("lift", "log10_p"), [None] * 3),
        },
    }
    memories, experts = memories_and_experts(first)
    numberings = {layer: Numbering.of(experts[layer], count) for layer, count in enumerate(memories)}
    for (name, layer), columns in tables.items():
        path = directory / TABLES[name].path(layer)
        write_table(path, with_experts(columns, numberings, layer), name=name, provenance=PROVENANCE)
    sizes = {"layers": 2, "memories": memories, "vocabulary": 24, "experts": experts}
    seal(directory, manifest(model={"fingerprint": PROVENANCE.model, "sizes": sizes}, **more))
    return directory


def memories_and_experts(first: dict[str, Any]) -> tuple[list[int], list[Any]]:
    return [first["routed"] * first["memories"] + sum(first["shared"]), 4], [first, None]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    return open_atlas(build(tmp_path_factory.mktemp("experts")))


def test_rows_counted_through_and_back() -> None:
    stored = pl.DataFrame({"expert": EXPERT, "memory": WITHIN}, schema={"expert": pl.Int16, "memory": pl.Int32})
    counted = counted_through(stored, NUMBERINGS, 0)
    assert (counted["memory"].to_list(), counted["memory"].dtype) == (list(range(7)), pl.Int32)
    assert as_stored(counted, NUMBERINGS, 0).equals(stored)
    of_layers = pl.DataFrame({"layer": [0, 1, 0], "expert": [2, None, 1], "memory": [2, 3, 0]})
    assert counted_through(of_layers, NUMBERINGS, None)["memory"].to_list() == [6, 3, 2]
    assert counted_through(of_layers, {}, None).equals(of_layers)
    others = pl.DataFrame({"memory": [1], "other_layer": [0], "other_expert": [1], "other_memory": [1]})
    assert counted_through(others, NUMBERINGS, 1).row(0) == (1, 0, 1, 3)
    assert counted_through(others.lazy(), NUMBERINGS, 1).collect().row(0) == (1, 0, 1, 3)


def test_as_many_experts_as_a_manifest_may_have() -> None:
    most = Numbering((1,) * 2**15, 2**15)
    rows = pl.DataFrame({"layer": [0, 0, 1, 1], "expert": [2**14, 2**15 - 1, 0, 1], "memory": [0] * 4})
    assert counted_through(rows, {0: most, 1: most}, None)["memory"].to_list() == [2**14, 2**15 - 1, 0, 1]


def test_an_atlas_of_experts_is_whole_and_stores_their_names(atlas: Atlas) -> None:
    assert verify(atlas.path) == ["patterns.parquet: a table that no manifest lists"]
    table = pq.read_table(atlas.path / "triggers/layer-000.parquet")
    assert table.column_names[:2] == ["expert", "memory"]
    assert (table["expert"].to_pylist(), table["memory"].to_pylist()) == (EXPERT, WITHIN)


def test_memories_by_name_and_number(atlas: Atlas) -> None:
    assert [str(atlas.name(0, number)) for number in range(7)] == NAMES
    assert [atlas.number(MemoryId.parse(name)) for name in NAMES] == list(range(7))
    assert (str(atlas.name(1, 3)), atlas.number(MemoryId(1, 3))) == ("L1.M3", 3)
    said = "layers 0 with experts E0-E1 with memories 0-1 and S0 with 0-2; layers 1 with memories 0-3"
    assert atlas.range_text() == said
    for name in ("L0.M0", "L0.E2.M0", "L0.E1.M2", "L0.S1.M0", "L0.S0.M3", "L1.E0.M0", "L1.M4"):
        meant = "; in a layer of experts write L0.E0.M0" if name == "L0.M0" else ""
        with pytest.raises(MemoryIdError, match=f"^{name} is not in .*, which has {said}{meant}$"):
            atlas[name]


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)))
def test_what_is_read_of_one_memory(atlas: Atlas, number: int, name: str) -> None:
    """As it is stored: by expert and memory."""
    memory = atlas[name]
    triggers = memory.triggers()
    assert triggers.select("expert", "memory", "coefficient").rows() == [(EXPERT[number], WITHIN[number], 1.0 + number)]
    assert memory.value().height == memory.activity().height == 1
    assert memory.neighbours()["name"].to_list() == [[*NAMES[1:], "L1.M3"][number]]


def test_patterns_are_those_of_the_memory(atlas: Atlas) -> None:
    for name, said in (("L0.E1.M1", "of E1.M1"), ("L0.S0.M0", "of S0.M0"), ("L1.M3", "of L1.M3")):
        rows = atlas[name].patterns()
        assert rows["description"].to_list() == [said]
        assert rows["memory"].to_list() == [MemoryId.parse(name).memory]
    assert atlas["L0.E0.M0"].patterns().height == 0


def test_tables_count_memories_through(atlas: Atlas) -> None:
    assert atlas.table("activity", layer=0)["memory"].to_list() == list(range(7))
    assert atlas.table("activity", layer=0, columns=["memory"]).columns == ["memory"]
    assert atlas.table("activity", layer=0, columns=["memory"])["memory"].to_list() == list(range(7))
    assert atlas.scan("activity", layer=0).select("memory").collect()["memory"].to_list() == list(range(7))
    assert atlas.table("neighbours", layer=0)["other_memory"].to_list() == [*range(1, 7), 3]
    rows = atlas.rows_where("values", 0, column="memory", ids=[5, 2], columns=["memory", "value_norm"])
    assert rows["memory"].to_list() == [2, 5]


def test_one_memory_s_rows_are_found_in_whatever_row_group(tmp_path: Path) -> None:
    """Two experts of a hundred memories of a hundred triggers: a row group ends within the second."""
    count = 200 * 100
    numbers = np.arange(count)
    zeros = np.zeros(count, np.int64)
    triggers = {"memory": numbers // 100, "sign": zeros + 1, "rank": numbers % 100}
    triggers |= dict.fromkeys(("coefficient", "sentence", "position", "token", "next_token", "prefix_group"), zeros)
    atlas = open_atlas(build(tmp_path / "a", triggers=triggers, first={"routed": 2, "memories": 100, "shared": []}))
    for number in (0, 99, 100, 127, 128, 199):
        rows = atlas.rows_where("triggers", 0, column="memory", ids=[number], columns=["memory", "rank"])
        assert rows.rows() == [(number, rank) for rank in range(100)]


def test_the_usual_number_of_triggers_is_another(atlas: Atlas, tmp_path: Path) -> None:
    """25 of a memory of an expert, fifty of another."""
    plan = {"model": "m", "corpus": "c", "triggers": 25}
    for triggers, said in ((25, ""), (50, " --triggers 50")):
        other = read_manifest(build(tmp_path / str(triggers), plan=plan | {"triggers": triggers}))
        found = rebuild_command(Path("a"), "removals", other)
        assert found == f"`mnemoscope mine m c --out a{said} --force`"
