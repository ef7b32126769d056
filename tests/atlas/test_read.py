"""Reading a hand-built atlas: memories by name, readable columns, and what is refused."""

import json
import os
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from mnemoscope import errors
from mnemoscope.atlas import Atlas, files, open_atlas, store
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.manifest import begin, read_sealed, seal
from mnemoscope.atlas.read import first_upper_layer
from mnemoscope.atlas.schema import TABLES, Provenance
from mnemoscope.atlas.store import write_table
from mnemoscope.cli.app import app
from mnemoscope.cli.runner import run
from mnemoscope.foundation.files import file_hash
from mnemoscope.foundation.memory_names import MemoryId
from support.handbuilt_atlas import (
    PROVENANCE,
    SENTENCES,
    build_atlas,
    manifest,
    trigger_columns,
    trigger_rows,
    value_columns,
    write_tables,
)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    return open_atlas(build_atlas(tmp_path_factory.mktemp("atlas")))


def test_triggers_of_either_sign_are_read_with_their_text(atlas: Atlas) -> None:
    rows = atlas["L0.M0"].triggers()
    assert rows["rank"].to_list() == [0, 1, 2, 3]
    assert rows["trigger_text"].to_list() == [" is", "The", "The", "é"]
    assert rows["next_text"].to_list() == [" Paris", " capital", " capital", " [b]x[/b]"]
    assert rows["prefix"].to_list() == ["The capital of France is", "The", "The", "The\né"]
    assert rows["text"][0] == "The capital of France is Paris."
    assert rows["prefix_group"].to_list() == [0, 1, 1, 3]
    memory = atlas["L0.M0"]
    assert memory.triggers(sign=-1)["prefix"].to_list() == ["The capital of Italy"]
    assert memory.triggers(sign=None)["sign"].to_list() == [1, 1, 1, 1, -1]
    assert atlas["L0.M1"].triggers()["next_text"].to_list() == [None]  # its sentence ends there
    dead = atlas["L0.M3"].triggers()
    assert dead.height == 0
    assert dead.schema == atlas["L0.M0"].triggers().schema


def test_layers_are_read_in_their_order_and_refusals_are_raised(tmp_path: Path) -> None:
    atlas = open_atlas(build_atlas(tmp_path / "atlas"))
    expected = [(layer, atlas.memories(layer)) for layer in atlas.layers]
    assert atlas.each_layer(lambda layer: (layer, atlas.memories(layer))) == expected
    (atlas.path / TABLES["values"].path(atlas.layers[-1])).unlink()
    with pytest.raises(errors.AtlasDamaged, match="is missing"):
        atlas.each_layer(lambda layer: atlas.table("values", layer=layer))


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


BEYOND, NO_NAMES = ("L99.M1", "L0.M4", "L2.M0", "L0.E1.M0"), ((0, 1, 2), None, 1.5, b"L0.M0")
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    **{
        name: (lambda atlas, name=name: atlas[name], errors.MemoryIdError, "layers 0-1 with memories 0-3")
        for name in BEYOND
    },
    "a text": (lambda atlas: atlas["layer ten"], errors.MemoryIdError, "layer ten"),
    **{str(odd): (lambda atlas, odd=odd: atlas[odd], errors.MemoryIdError, r"atlas\['L0\.M0'\]") for odd in NO_NAMES},
    "a sign": (lambda atlas: atlas["L0.M0"].triggers(sign=0), errors.OptionError, "sign 0"),
    "a layer too many": (lambda atlas: atlas.table("tokens", layer=0), errors.OptionError, "tokens .*layer"),
    "no layer": (lambda atlas: atlas.paths("triggers"), errors.OptionError, "layer=0"),
    "no table": (lambda atlas: atlas.has("trigger"), errors.OptionError, "'trigger'.* activity, att"),
    "a table that was not made": (lambda atlas: atlas.table("removals"), errors.AtlasUnfinished, "removals"),
    "a sentence": (lambda atlas: atlas.sentences([0, 9]), errors.AtlasDamaged, "sentence 9"),
    "a token": (lambda atlas: atlas.token_text([24]), errors.OptionError, r"token 24 .* tokens 0-23"),
    "a position": (lambda atlas: atlas.prefixes([(1, 99)]), errors.AtlasDamaged, "position 99 of sentence 1"),
    "a position before": (lambda atlas: atlas.prefixes([(1, -1)]), errors.AtlasDamaged, "position -1 of sentence 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_atlas_does_not_have_is_refused_by_name(atlas: Atlas, what: str) -> None:
    ask, error, said = REFUSED[what]
    with pytest.raises(error, match=said):
        ask(atlas)


@pytest.mark.parametrize(("depth", "first"), [(16, 10), (1, 1), (2, 2), (3, 2), (6, 4), (8, 5), (12, 8), (48, 30)])
def test_upper_layers_begin_where_the_paper_s_eleventh_of_16_is(depth: int, first: int) -> None:
    """Ten sixteenths of the depth, rounded up."""
    assert first_upper_layer(depth) == first


def test_an_atlas_of_some_layers(tmp_path: Path) -> None:
    write_tables(tmp_path)
    for layer in (2, 4, 5):
        path, rows = tmp_path / TABLES["triggers"].path(layer), trigger_columns(trigger_rows()[1])
        write_table(path, rows, name="triggers", provenance=PROVENANCE)
    sizes = {"memories": [4, 4, 4, 7, 3, 3], "vocabulary": 24}
    seal(tmp_path, manifest(layers=[0, 1, 2, 4, 5], model={"fingerprint": PROVENANCE.model, "sizes": sizes}))
    atlas = open_atlas(tmp_path)
    assert atlas.range_text() == "layers 0-2,4-5 with memories 0-2 or 0-3"
    assert [atlas.memories(layer) for layer in atlas.layers] == [4, 4, 4, 3, 3]
    assert atlas.upper_layers == (4, 5)
    with pytest.raises(
        errors.MemoryIdError, match=r"^layer 3 is not in .*, which has layers 0-2,4-5 with memories 0-2 or"
    ):
        atlas.memories(3)
    assert atlas["L4.M2"].triggers().height == 0
    with pytest.raises(errors.MemoryIdError):
        atlas["L4.M3"]


@pytest.mark.parametrize("rows", [0, 2])
def test_a_memory_has_one_value(tmp_path: Path, rows: int) -> None:
    write_tables(tmp_path)
    columns = {name: [*column[:3], *[column[3]] * rows] for name, column in value_columns().items()}
    write_table(tmp_path / "values/layer-001.parquet", columns, name="values", provenance=PROVENANCE)
    seal(tmp_path, manifest())
    atlas = open_atlas(tmp_path)
    assert atlas["L1.M2"].value()["value_norm"].to_list() == [1.0]
    with pytest.raises(errors.AtlasDamaged, match=rf"table values has {rows} rows for L1\.M3, not one$"):
        atlas["L1.M3"].value()


def test_sentences_are_found_in_whatever_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SENTENCES_PER_PART", 1)
    atlas = open_atlas(build_atlas(tmp_path / "a"))
    assert atlas.paths("sentences") == [f"sentences/part-00{n}.parquet" for n in range(4)]
    for ids in ([0, 1, 2, 3], [0, 3], [3], [2, 1]):
        assert atlas.sentences(ids)["sentence"].to_list() == sorted(ids)
    assert atlas.sentences([]).columns == atlas.table("sentences").columns
    with pytest.raises(errors.AtlasDamaged, match="sentence 5"):
        atlas.sentences([9, 0, 5])
    assert atlas.prefixes([(2, 1)]) == [SENTENCES[2][:2]]


def test_a_table_without_statistics_is_read_whole(tmp_path: Path) -> None:
    """Another writer may leave out what tells in which row group a memory lies."""
    write_tables(tmp_path)
    path = tmp_path / "triggers/layer-000.parquet"
    pq.write_table(pq.read_table(path), path, write_statistics=False, row_group_size=2)
    seal(tmp_path, manifest())
    assert open_atlas(tmp_path)["L0.M2"].triggers()["coefficient"].to_list() == [0.25]


def test_patterns_and_readings_of_one_memory(tmp_path: Path) -> None:
    """Made later: patterns lie beside the mined tables, readings where the manifest of the extensions lists them."""
    directory = build_atlas(tmp_path / "a")
    patterns = {"layer": [0, 1, 1], "memory": [2, 0, 2], "pattern": [0] * 3, "kind": ["shallow"] * 3}
    patterns |= {"description": ["a", "b", "c"], "triggers": [[0, 1]] * 3}
    patterns |= dict.fromkeys(("lift", "log10_p"), [None] * 3)
    write_table(directory / "patterns.parquet", patterns, name="patterns", provenance=PROVENANCE)
    readings = {"memory": [1, 1, 2], "lens": ["plain", "ridge", "plain"], "top_tokens": [[6, 9], [], [4]]}
    readings |= {"target_rank": [0, None, 3], "control_rank": [None] * 3, "max_probability": [0.5] * 3}
    write_table(directory / "readings/layer-001.parquet", readings, name="readings", provenance=PROVENANCE)
    keys = {"memory": [1, 2], "lens": ["plain", "plain"], "key_top_tokens": [[1], [10]], "trigger_rank": [0, 1]}
    unknown = ("triggers_found", "control_rank", "controls_found", "text_rank", "shuffled_rank")
    keys |= dict.fromkeys(unknown, [None] * 2)
    write_table(directory / "key_readings/layer-001.parquet", keys, name="key_readings", provenance=PROVENANCE)
    assert not open_atlas(directory).has("readings", layer=1)
    made = [f"{kind}/layer-001.parquet" for kind in ("readings", "key_readings")]
    record_hashes(open_atlas(directory), "extensions", made)
    atlas = open_atlas(directory)
    for name, said in (("L0.M2", ["a"]), ("L1.M0", ["b"]), ("L1.M2", ["c"]), ("L0.M0", [])):
        assert atlas[name].patterns()["description"].to_list() == said
    rows = atlas["L1.M1"].readings()
    assert rows.select("lens", "target_rank").rows() == [("plain", 0), ("ridge", None)]
    assert rows["top_texts"].to_list() == [[" Paris", "\n"], []]
    assert atlas["L1.M2"].key_readings()["key_top_texts"].to_list() == [["é"]]
    assert atlas["L1.M0"].top_token() == 6
    with pytest.raises(errors.AtlasUnfinished, match=r"readings; .*`mnemoscope lens "):
        atlas["L0.M1"].readings()


def cells(html: str) -> list[list[str]]:
    """The texts of a table in HTML, row by row."""
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.splitlines() if row.startswith("<tr>")]


def texts(html: str) -> list[str]:
    """Of what a notebook shows of a memory the head, and each example, as they are read."""
    marked = re.sub(r"</?mark[^>]*>", lambda tag: "»" if "/" in tag[0] else "«", html.partition("</style>")[2])
    parts = [re.search(r"<p>(.*?)</p>", marked, re.DOTALL), *re.finditer(r"<li>(.*?)</li>", marked, re.DOTALL)]
    return [" ".join(unescape(re.sub(r"<[^>]*>", "", part[1])).split()) for part in parts if part]


def test_what_a_notebook_shows(tmp_path: Path) -> None:
    """Of a memory each prefix once, the trigger token marked and what came next; of an atlas what was mined."""
    said = {"fingerprint": PROVENANCE.corpus, "spec": "a < b", "counts": {"mined_tokens": 4321}}
    directory = build_atlas(tmp_path / "a", corpus=said)
    atlas = open_atlas(directory)
    html = atlas["L0.M0"]._repr_html_()
    promoted = ["Paris", "Rome", "France", *(f"w{number}" for number in range(23, 16, -1))]
    head, *examples = texts(html)
    tokens = " ".join(f"·{token}" for token in promoted)
    assert head == f'L0.M0 of handbuilt: fires at "is", "The", "é". Its value promotes {tokens}'
    assert examples == [
        "3.00 The capital of France«·is»·Paris. ✓ followed by the value\N{RIGHT SINGLE QUOTATION MARK}s first token",
        "2.00 «The»·capital of France is Paris. 2 times",
        "1.50 The⏎«é»·[b]x[/b]",
        "-0.50 The capital of«·Italy»·is Rome.",
    ]
    assert texts(atlas["L0.M1"]._repr_html_())[1:] == ["1.00 «·Paris» (end of the sentence)"]
    assert texts(atlas["L0.M3"]._repr_html_())[1:] == []
    shown = atlas._repr_html_()
    assert "<code>atlas[&quot;L0.M0&quot;]</code>" in shown
    assert dict(cells(shown)) == {
        "model": "handbuilt, tiny, pre-norm, relu",
        "text": "a &lt; b, 4,321 tokens",
        "memories": "8 in layers 0-1 with memories 0-3",
        "folder": str(directory),
    }
    part = open_atlas(build_atlas(tmp_path / "p", part=(1, 2)))
    assert dict(cells(part._repr_html_()))["text"] == "four sentences, 19 tokens"
    assert texts(part["L0.M0"]._repr_html_())[1].startswith("3.00 The capital of France«·is»")
    assert "promotes" not in part["L0.M0"]._repr_html_()
    with pytest.raises(errors.AtlasUnfinished, match=r"part 1 of 2.* values"):
        part["L0.M0"].value()


def test_without_a_layer_a_table_of_each_layer_is_one_of_all(atlas: Atlas) -> None:
    for name in ("triggers", "activity"):
        rows = atlas.table(name)
        assert rows.schema == {"layer": pl.Int16, **atlas.table(name, layer=0).schema}
        for layer in (0, 1):
            assert rows.filter(layer=layer).drop("layer").equals(atlas.table(name, layer=layer))
        assert rows.equals(atlas.scan(name).collect())
    some = atlas.table("triggers", columns=["layer", "memory"])
    assert some.equals(atlas.table("triggers", columns=["memory"]))
    assert some.columns == ["layer", "memory"]


def test_tables_sentences_and_tokens_as_frames(atlas: Atlas) -> None:
    assert atlas.table("triggers", layer=1).height == 1
    assert atlas.table("sentences")["sentence"].to_list() == [0, 1, 2, 3]
    assert atlas.scan("tokens").select(pl.col("count").sum()).collect().item() == 19
    assert atlas.sentences([3, 0, 3])["sentence"].to_list() == [0, 3]
    assert atlas.token_text([6, None]) == [" Paris", None]


def test_the_best_triggers_are_the_first_25_positive(tmp_path: Path) -> None:
    write_tables(tmp_path)
    rows = [
        (memory, sign, rank, sign * (40.0 - rank), 0, 0, rank)
        for memory in (0, 2)
        for sign in (-1, 1)
        for rank in range(30)
    ]
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


def test_the_manifest_is_typed_and_a_mapping(atlas: Atlas) -> None:
    assert atlas.manifest.model.sizes.memories == atlas.manifest["model"]["sizes"]["memories"] == [4, 4]
    assert (atlas.manifest.model.head, atlas.manifest.part, "part" in atlas.manifest) == ("linear", None, False)
    assert atlas.manifest.model.gated is False
    assert atlas.manifest == json.loads((atlas.path / "manifest.json").read_text())


def test_not_an_atlas(tmp_path: Path) -> None:
    with pytest.raises(errors.AtlasNotFound, match="does not exist"):
        open_atlas(tmp_path / "nothing")
    with pytest.raises(errors.AtlasNotFound, match="does not hold an atlas"):
        open_atlas(tmp_path)
    begin(tmp_path, plan={"plan": {}, "part": None})
    with pytest.raises(errors.AtlasUnfinished, match="not finished"):
        open_atlas(tmp_path)


@pytest.mark.parametrize("number", ["schema", "rules"])
@pytest.mark.parametrize("step", [-1, 1])
def test_another_schema_or_other_rules_are_refused_in_one_line(
    tmp_path: Path, number: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = build_atlas(tmp_path / "a")
    said = json.loads((directory / "manifest.json").read_text())
    (said if number == "schema" else said["plan"])[number] += step
    (directory / "manifest.json").write_text(json.dumps(said))
    with pytest.raises(errors.AtlasTooNew, match="unreleased version"):
        open_atlas(directory)
    for words in (["show", str(directory), "L0.M0"], ["verify", str(directory)]):
        assert run(app, words) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace("handbuilt", "handBuilt"))
    with pytest.raises(errors.AtlasDamaged, match="changed after mining"):
        open_atlas(directory)


@pytest.mark.parametrize("said", ["", "0" * 64, "0" * 64 + "\n\n", "G" * 64 + "\n", "0" * 64 + " \n"])
def test_the_seal_has_one_form(tmp_path: Path, said: str) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "manifest.sha256").write_text(said)
    with pytest.raises(errors.AtlasDamaged):
        open_atlas(directory)


def test_an_atlas_that_was_mined_anew_after_it_was_opened_says_so(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    opened, unread = open_atlas(directory), open_atlas(directory)
    for name in ("values", "triggers"):
        opened.table(name, layer=0)
    for path in sorted(directory.glob("*/layer-000.parquet")):  # the same rows, in another order and other bytes
        rows = pq.read_table(path)
        pq.write_table(rows.take(list(range(rows.num_rows))[::-1]), path, compression="none", row_group_size=1)
    seal(directory, manifest())
    for stale in (opened, unread):
        for name in ("values", "triggers", "activity"):
            with pytest.raises(errors.AtlasBusy, match="open it again"):
                stale.table(name, layer=0)
            with pytest.raises(errors.AtlasBusy, match="open it again"):
                stale.rows_where(name, 0, column="memory", ids=[0])
    shutil.rmtree(directory)
    with pytest.raises(errors.AtlasBusy, match="open it again"):
        opened.table("values", layer=1)


def test_a_file_that_was_put_there_again_is_checked_again(tmp_path: Path) -> None:
    """By its bytes: whole it is read, though it has another time; another one is not read by the old footer."""
    opened = open_atlas(build_atlas(tmp_path))
    path, before = tmp_path / "values/layer-000.parquet", opened.table("values", layer=0)
    shutil.copy(path, tmp_path / "copy")
    shutil.move(tmp_path / "copy", path)
    assert opened.table("values", layer=0).equals(before)
    pq.write_table(pq.read_table(path), path, compression="none")
    with pytest.raises(errors.AtlasDamaged, match="its sha256 differs"):
        opened.table("values", layer=0)


def test_a_table_of_another_atlas_is_refused(tmp_path: Path) -> None:
    """By its hash; and by its own account of itself, where a manifest was made to list it."""
    directory = build_atlas(tmp_path / "a")
    write_tables(tmp_path / "b", provenance=Provenance("d" * 64, PROVENANCE.corpus, PROVENANCE.plan))
    shutil.copy(tmp_path / "b/triggers/layer-000.parquet", directory / "triggers/layer-000.parquet")
    with pytest.raises(errors.AtlasDamaged, match=r"layer-000\.parquet is not the file"):
        open_atlas(directory)["L0.M0"].triggers()
    seal(directory, manifest())
    with pytest.raises(errors.AtlasDamaged, match=r"mnemoscope\.model"):
        open_atlas(directory)["L0.M0"].triggers()


@pytest.mark.parametrize("name", ["triggers/layer-000.parquet", "vocabulary.parquet"])
def test_a_flipped_byte_anywhere_in_a_table_is_refused(tmp_path: Path, name: str) -> None:
    directory = build_atlas(tmp_path / "a")
    path = directory / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(errors.AtlasDamaged):
            open_atlas(directory)["L0.M0"].triggers()


@pytest.mark.full
def test_a_flipped_byte_in_the_sentences_is_never_read_as_text(tmp_path: Path) -> None:
    """Their parts are not hashed on opening; the pages' own checksums stand guard."""
    directory = build_atlas(tmp_path / "a")
    path = directory / "sentences/part-000.parquet"
    whole = path.read_bytes()
    honest = open_atlas(directory)["L0.M0"].triggers(sign=None)
    refused = 0
    for place in range(4, len(whole), 9):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            seen = open_atlas(directory)["L0.M0"].triggers(sign=None)
        except errors.AtlasDamaged:
            refused += 1
            continue
        assert seen.equals(honest), place
    assert refused > 20


@pytest.mark.parametrize("name", ["sentences/part-000.parquet", "patterns.parquet", "vocabulary.parquet"])
def test_of_an_atlas_from_elsewhere_every_file_is_held_against_its_manifest(tmp_path: Path, name: str) -> None:
    """Also the sentences, and what can be made again; here those are read as they are."""
    directory = build_atlas(tmp_path / "a")
    rows: dict[str, Any] = {"layer": [0], "memory": [2], "pattern": [0], "kind": ["shallow"], "description": ["a"]}
    rows |= {"triggers": [[0]], "lift": [None], "log10_p": [None]}
    write_table(directory / "patterns.parquet", rows, name="patterns", provenance=PROVENANCE)

    def foreign() -> Atlas:
        return Atlas(directory, *read_sealed(directory), foreign=True)

    assert open_atlas(directory).has("patterns")
    assert not foreign().has("patterns"), "no manifest lists it"
    record_hashes(open_atlas(directory), "analyses", ["patterns.parquet"])
    kind = name.partition("/")[0].removesuffix(".parquet")
    assert foreign().table(kind).equals(open_atlas(directory).table(kind))
    table = pq.read_table(directory / name)
    pq.write_table(table, directory / name, compression="none")
    with pytest.raises(errors.AtlasDamaged, match="its sha256 differs"):
        foreign().table(kind)
    if kind != "vocabulary":
        assert open_atlas(directory).table(kind).height == table.num_rows


def test_a_file_is_hashed_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever object it is read, until it changes."""
    directory, seen = build_atlas(tmp_path / "a"), []
    monkeypatch.setattr(files, "file_hash", lambda path: seen.append(path.name) or file_hash(path))
    for _ in range(3):
        open_atlas(directory).table("values", layer=0)
    assert seen == ["layer-000.parquet"]
    path = directory / "values/layer-000.parquet"
    os.utime(path, (1, 1))
    open_atlas(directory).table("values", layer=0)
    assert seen == ["layer-000.parquet"] * 2


def test_a_right_hash_excuses_no_form(tmp_path: Path) -> None:
    """Also at the second read of a file that was read in part."""
    write_tables(tmp_path)
    columns = value_columns() | {"target": [6, 24, None, None]}
    write_table(tmp_path / "values/layer-001.parquet", columns, name="values", provenance=PROVENANCE)
    seal(tmp_path, manifest())
    for _ in range(2):
        atlas = open_atlas(tmp_path)
        assert atlas.table("values", layer=1, columns=["memory", "value_norm"]).height == 4
        with pytest.raises(errors.AtlasDamaged, match="target names token 24"):
            atlas.table("values", layer=1)
