"""Reading a hand-built atlas: memories by name, readable columns, and what is refused."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from handbuilt_atlas import PROVENANCE, build_atlas, manifest, trigger_columns, write_tables
from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.manifest import begin, seal
from mnemoscope.atlas.schema import TABLES, Provenance
from mnemoscope.atlas.store import write_table
from mnemoscope.errors import (
    AtlasDamaged,
    AtlasNotFound,
    AtlasTooNew,
    AtlasUnfinished,
    MemoryIdError,
    OptionError,
)
from mnemoscope.memory import MemoryId


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    return open_atlas(build_atlas(tmp_path_factory.mktemp("atlas")))


def test_triggers_are_read_with_their_text(atlas: Atlas) -> None:
    rows = atlas["L0.M0"].triggers()
    assert rows["rank"].to_list() == [0, 1, 2, 3]
    assert rows["trigger_text"].to_list() == [" is", "The", "The", "é"]
    assert rows["next_text"].to_list() == [" Paris", " capital", " capital", " [b]x[/b]"]
    assert rows["prefix"].to_list() == ["The capital of France is", "The", "The", "The\né"]
    assert rows["text"][0] == "The capital of France is Paris."
    assert rows["prefix_group"].to_list() == [0, 1, 1, 3]


def test_the_other_sign_and_both(atlas: Atlas) -> None:
    memory = atlas["L0.M0"]
    assert memory.triggers(sign=-1)["prefix"].to_list() == ["The capital of Italy"]
    assert memory.triggers(sign=None)["sign"].to_list() == [1, 1, 1, 1, -1]
    with pytest.raises(OptionError, match="sign 0"):
        memory.triggers(sign=0)


def test_a_sentence_end_has_no_next_token(atlas: Atlas) -> None:
    assert atlas["L0.M1"].triggers()["next_text"].to_list() == [None]


def test_a_dead_memory_has_an_empty_table_of_the_same_columns(atlas: Atlas) -> None:
    dead = atlas["L0.M3"].triggers()
    assert dead.height == 0
    assert dead.schema == atlas["L0.M0"].triggers().schema


def test_value_activity_and_neighbours(atlas: Atlas) -> None:
    memory = atlas[MemoryId(0, 0)]
    value = memory.value()
    assert value.height == 1
    assert value["top_texts"][0].to_list()[:3] == [" Paris", " Rome", " France"]
    assert value["target_text"].to_list() == [" Paris"]
    activity = memory.activity()
    assert len(activity["edges"][0]) + 1 == len(activity["histogram"][0]) == 36
    assert memory.neighbours()["name"].to_list() == ["L1.M0", "L0.M1"]
    assert memory.neighbours()["top_text"].to_list() == [" Paris", " Paris"]


@pytest.mark.parametrize("name", ["L99.M1", "L0.M4", "L2.M0", "L0.E1.M0"])
def test_a_memory_that_is_not_there_names_the_range(atlas: Atlas, name: str) -> None:
    with pytest.raises(MemoryIdError, match=r"layers 0-1 with memories 0-3"):
        atlas[name]


def test_what_is_no_memory_at_all(atlas: Atlas) -> None:
    with pytest.raises(MemoryIdError, match="does not name a memory"):
        atlas["layer ten"]


def test_tables_as_frames(atlas: Atlas) -> None:
    assert atlas.table("triggers", layer=1).height == 1
    assert atlas.table("sentences")["sentence"].to_list() == [0, 1, 2, 3]
    assert atlas.scan("tokens").select(pl.col("count").sum()).collect().item() == 19
    with pytest.raises(OptionError, match="one file per layer"):
        atlas.table("triggers")
    with pytest.raises(OptionError, match="not a table"):
        atlas.table("trigger", layer=0)
    with pytest.raises(AtlasUnfinished, match="no table removals; make it with"):
        atlas.table("removals")


def test_sentences_and_tokens_by_id(atlas: Atlas) -> None:
    assert atlas.sentences([3, 0, 3])["sentence"].to_list() == [0, 3]
    with pytest.raises(AtlasDamaged, match="sentence 9 is named"):
        atlas.sentences([0, 9])
    assert atlas.token_text([6, None]) == [" Paris", None]
    with pytest.raises(OptionError, match=r"token 24 .* tokens 0-23"):
        atlas.token_text([24])


def test_the_best_triggers_are_the_first_25_positive(tmp_path: Path) -> None:
    write_tables(tmp_path)
    rows = [(memory, sign, rank, sign * (40.0 - rank), 0, 0, rank) for memory in (0, 2) for sign in (-1, 1)
            for rank in range(30)]  # fmt: skip
    write_table(tmp_path / "triggers/layer-000.parquet", trigger_columns(rows), name="triggers", provenance=PROVENANCE)
    seal(tmp_path, manifest())
    atlas = open_atlas(tmp_path)
    best = [(memory, 1, rank) for memory in (0, 2) for rank in range(25)]
    assert atlas.best_triggers(0).select("memory", "sign", "rank").rows() == best
    assert atlas.best_triggers(0, memories=[2])["memory"].to_list() == [2] * 25
    assert atlas.best_triggers(0, 1)["rank"].to_list() == [0, 0]
    assert atlas.best_triggers(0, None).height == 60
    few = atlas.best_triggers(0, 2, columns=["rank", "coefficient"])
    assert few.rows() == [(0, 40.0), (1, 39.0)] * 2
    assert atlas.best_triggers(0, memories=[2], columns=["memory"]).rows() == [(2,)] * 25


def test_what_is_there_and_prefixes_by_place(atlas: Atlas) -> None:
    assert atlas.has("triggers", layer=1)
    assert [atlas.has(table) for table in ("tokens", "patterns", "removals")] == [True, False, False]
    whole = atlas.table("sentences")["tokens"].to_list()
    assert atlas.prefixes([(3, 0), (0, 2), (3, 0)]) == [whole[3][:1], whole[0][:3], whole[3][:1]]
    assert atlas.prefixes([]) == []
    with pytest.raises(AtlasDamaged, match=f"position {len(whole[1])} of sentence 1, which has"):
        atlas.prefixes([(1, len(whole[1]))])
    with pytest.raises(AtlasDamaged, match="position -1 of sentence 1"):
        atlas.prefixes([(1, -1)])


def test_the_manifest_is_typed_and_a_mapping(atlas: Atlas) -> None:
    assert atlas.manifest.model.sizes.memories == atlas.manifest["model"]["sizes"]["memories"] == [4, 4]
    assert (atlas.manifest.model.head, atlas.manifest.part, "part" in atlas.manifest) == ("linear", None, False)
    assert atlas.manifest == json.loads((atlas.path / "manifest.json").read_text())


def test_a_part_opens_but_has_no_values(tmp_path: Path) -> None:
    part = open_atlas(build_atlas(tmp_path / "p", part=(2, 3)))
    assert part["L0.M0"].triggers().height == 4
    with pytest.raises(AtlasUnfinished, match="is part 2 of 3 and has no values yet"):
        part["L0.M0"].value()


def test_not_an_atlas(tmp_path: Path) -> None:
    with pytest.raises(AtlasNotFound, match="does not exist"):
        open_atlas(tmp_path / "nothing")
    with pytest.raises(AtlasNotFound, match="does not hold an atlas"):
        open_atlas(tmp_path)
    begin(tmp_path, plan={"plan": {}, "part": None})
    with pytest.raises(AtlasUnfinished, match="not finished"):
        open_atlas(tmp_path)


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    said = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**said, "schema": 3}))
    with pytest.raises(AtlasTooNew, match="schema 3, this package reads up to 2"):
        open_atlas(directory)


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace("handbuilt", "handBuilt"))
    with pytest.raises(AtlasDamaged, match="changed after mining"):
        open_atlas(directory)


@pytest.mark.parametrize("said", ["", "0" * 64, "0" * 64 + "\n\n", "G" * 64 + "\n", "0" * 64 + " \n"])
def test_the_seal_has_one_form(tmp_path: Path, said: str) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "manifest.sha256").write_text(said)
    with pytest.raises(AtlasDamaged):
        open_atlas(directory)


def test_a_missing_table_is_damage(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "triggers/layer-000.parquet").unlink()
    with pytest.raises(AtlasDamaged, match=r"layer-000.parquet is missing"):
        open_atlas(directory)["L0.M0"].triggers()


def test_a_table_of_another_atlas_is_refused(tmp_path: Path) -> None:
    """By its hash; and by its own account of itself, where a manifest was made to list it."""
    directory = build_atlas(tmp_path / "a")
    write_tables(tmp_path / "b", provenance=Provenance("d" * 64, PROVENANCE.corpus, PROVENANCE.plan))
    shutil.copy(tmp_path / "b/triggers/layer-000.parquet", directory / "triggers/layer-000.parquet")
    with pytest.raises(AtlasDamaged, match=r"layer-000\.parquet is not the file that was mined"):
        open_atlas(directory)["L0.M0"].triggers()
    seal(directory, manifest())
    with pytest.raises(AtlasDamaged, match=r"does not belong to this atlas: it says mnemoscope\.model"):
        open_atlas(directory)["L0.M0"].triggers()


@pytest.mark.parametrize("name", ["triggers/layer-000.parquet", "vocabulary.parquet"])
def test_a_flipped_byte_anywhere_in_a_table_is_refused(tmp_path: Path, name: str) -> None:
    directory = build_atlas(tmp_path / "a")
    path = directory / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(AtlasDamaged):
            open_atlas(directory)["L0.M0"].triggers()


def test_a_flipped_byte_in_the_sentences_is_never_read_as_text(tmp_path: Path) -> None:
    """Their parts are not hashed on opening; the pages' own checksums stand guard."""
    directory = build_atlas(tmp_path / "a")
    path = directory / "sentences/part-000.parquet"
    whole = path.read_bytes()
    honest = open_atlas(directory)["L0.M0"].triggers(sign=None)
    refused = 0
    for place in range(4, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            seen = open_atlas(directory)["L0.M0"].triggers(sign=None)
        except AtlasDamaged:
            refused += 1
            continue
        assert seen.equals(honest), place
    assert refused > 50


def test_many_memories_are_read_by_row_group(tmp_path: Path) -> None:
    """Two hundred memories of a hundred triggers: the rows of one come out whole wherever its groups end."""
    directory = tmp_path / "a"
    write_tables(directory)
    memories, each = 200, 100
    count = memories * each
    columns = {
        "memory": [index // each for index in range(count)],
        "sign": [1 if index % each < 50 else -1 for index in range(count)],
        "rank": [index % 50 for index in range(count)],
        "coefficient": [1.0] * count,
        "sentence": [0] * count,
        "position": [index % 7 for index in range(count)],
        "token": [0] * count,
        "next_token": [None] * count,
        "prefix_group": [0] * count,
    }
    write_table(directory / TABLES["triggers"].path(0), columns, name="triggers", provenance=PROVENANCE)
    sizes = {"layers": 2, "memories": [memories, 4], "vocabulary": 24}
    seal(directory, manifest(model={"fingerprint": PROVENANCE.model, "sizes": sizes}))
    atlas = open_atlas(directory)
    for memory in (0, 127, 128, 129, 199):
        rows = atlas[MemoryId(0, memory)].triggers(sign=None)
        assert rows["memory"].to_list() == [memory] * each
        assert rows["rank"].to_list() == [*range(50), *range(50)]
