"""Exports: what they hold is what `show --json` says, and a folder of something else stays as it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mnemoscope as ms
from mining.conftest import odd_text, tiny_model
from mnemoscope.atlas.memory_document import MemoryDocument, documents_of
from mnemoscope.cli import main
from mnemoscope.errors import AtlasDamaged, AtlasExists, AtlasUnfinished, MemoryIdError, ModelDiffers, OptionError
from mnemoscope.foundation.memory_names import save_list
from support.handbuilt_atlas import build_atlas
from support.mined import mined_text

Capture = pytest.CaptureFixture[str]


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the activation at every token of the best examples, and patterns and labels."""
    folder, options = tmp_path_factory.mktemp("coloured"), {"token_activations": True, "triggers": 12}
    return mined_text(tiny_model("gpt2"), folder, odd_text(), **options).path


@pytest.mark.parametrize("name", ["handbuilt", "coloured", "gated_atlas", "experts_atlas"])
def test_documents_that_are_read_together_are_those_of_each(name: str, request: pytest.FixtureRequest) -> None:
    """Of some memories, too, which are read with others between them."""
    atlas = ms.open_atlas(request.getfixturevalue(name))
    for layer in atlas.layers:
        count = atlas.memories(layer)
        for numbers in (range(count), [1, count - 1]):
            ids = [atlas.name(layer, number) for number in numbers]
            together = [document.to_dict() for document in documents_of(atlas, layer, numbers)]
            assert together == [MemoryDocument(atlas, id).to_dict() for id in ids]


def test_jsonl_says_what_show_says(coloured: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert (
        main(["export", str(coloured), "--to", "jsonl", "--out", str(out), "--memories", "L1.M3-5,L0", "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert {one["path"]: one["bytes"] for one in said["files"]} == {n: len(data) for n, data in files(out).items()}
    assert files(out).keys() == {"about.json", "layer-000.jsonl", "layer-001.jsonl", "manifest.json"}
    assert [one["memory"] for one in lines(out / "layer-001.jsonl")] == ["L1.M3", "L1.M4", "L1.M5"]
    every = [*lines(out / "layer-000.jsonl"), *lines(out / "layer-001.jsonl")]
    assert said["memories"] == len(every) == 3 + len(ms.open_atlas(coloured)[0])
    for document in (every[0], every[-1]):
        assert main(["show", str(coloured), document["memory"], "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {name: shown[name] for name in shown if name not in ("atlas", "part", "made_by")} == document
        assert {"triggers", "value", "token_activations", "neighbours"} <= document.keys()
    about = json.loads((out / "about.json").read_text())
    assert (about["memories"], about["made_by"]["atlas"]) == (len(every), ms.open_atlas(coloured).manifest_hash)
    assert str(coloured) not in "".join(data.decode() for data in files(out).values()), "no path of this machine"


def test_an_export_replaces_an_earlier_one_and_nothing_else(handbuilt: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = ms.export(handbuilt, out, to="jsonl", progress=False)
    assert (done.memories, {*done.files}) == (8, {*files(out)})
    (out / "notes.md").write_text("mine")
    ms.export(handbuilt, out, to="neuronpedia", memories="L1.M0", progress=False)
    assert files(out).keys() == {"notes.md", "about.json", "manifest.json", "neurons/layer-001/batch-0.json"}
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("mine")
    with pytest.raises(AtlasExists, match="thesis holds something other than an export"):
        ms.export(handbuilt, tmp_path / "thesis", to="jsonl", progress=False)
    for inside in (handbuilt, handbuilt / "browse", handbuilt.parent):
        with pytest.raises(OptionError, match=r"the atlas; choose another folder$"):
            ms.export(handbuilt, inside, to="jsonl", progress=False)
    with pytest.raises(AtlasExists, match="not a folder"):
        ms.export(handbuilt, tmp_path / "thesis/chapter.tex", to="jsonl", progress=False)
    assert files(tmp_path / "thesis") == {"chapter.tex": b"mine"}


def test_what_cannot_be_exported_is_said_in_one_line(handbuilt: Path, tmp_path: Path, capsys: Capture) -> None:
    other = {"model": "c" * 64, "atlas": None}
    save_list(tmp_path / "other.json", [("L0.M0", 1, None)], model="another", made_by=other)
    (tmp_path / "no.json").write_text("{}")
    for to, memories, kind, told in (
        ("csv", None, OptionError, "choose one of jsonl, neuronpedia"),
        ("jsonl", "L0.M5-2", MemoryIdError, "ends before it begins"),
        ("jsonl", "L0.M0-9", MemoryIdError, "L0.M9 is not in handbuilt"),
        ("jsonl", "everything", MemoryIdError, "'everything' does not name a memory"),
        ("jsonl", "L7", MemoryIdError, "layer 7 is not in"),
        ("jsonl", f"@{tmp_path}/no.json", OptionError, "is no list of memories"),
        ("neuronpedia", f"@{tmp_path}/other.json", ModelDiffers, "lists memories of another, another model"),
    ):
        words = ["--to", to, "--out", str(tmp_path / "out"), *([] if memories is None else ["--memories", memories])]
        assert main(["export", str(handbuilt), *words]) == 2
        assert told in capsys.readouterr().err.splitlines()[-1]
        with pytest.raises(kind):
            ms.export(handbuilt, tmp_path / "out", to=to, memories=memories, progress=False)
    assert not (tmp_path / "out").exists()


def test_a_saved_list_is_exported_and_its_place_is_not(handbuilt: Path, tmp_path: Path) -> None:
    atlas = ms.open_atlas(handbuilt)
    listed = [("L1.M2", 1, 0.5), ("L0.M3", -1, None), ("L1.M0", 1, None)]
    save_list(tmp_path / "mine.json", listed, model="handbuilt", made_by=atlas.made_by())
    ms.export(atlas, tmp_path / "out", to="jsonl", memories=f"@{tmp_path / 'mine.json'}", progress=False)
    found = {path.name: [one["memory"] for one in lines(path)] for path in sorted((tmp_path / "out").glob("*.jsonl"))}
    assert found == {"layer-000.jsonl": ["L0.M3"], "layer-001.jsonl": ["L1.M0", "L1.M2"]}
    assert json.loads((tmp_path / "out/about.json").read_text())["made_by"]["options"]["memories"] == "@mine.json"


def test_a_part_has_its_own_tables_and_no_batches(tmp_path: Path) -> None:
    part = build_atlas(tmp_path / "part", part=(1, 2))
    ms.export(part, tmp_path / "out", to="jsonl", memories="L0.M0", progress=False)
    assert lines(tmp_path / "out/layer-000.jsonl")[0].keys() == {"memory", "triggers", "activity"}
    assert json.loads((tmp_path / "out/about.json").read_text())["part"] == {"index": 1, "of": 2}
    with pytest.raises(AtlasUnfinished, match="part 1 of 2 and has no values yet"):
        ms.export(part, tmp_path / "batches", to="neuronpedia", progress=False)
    assert not (tmp_path / "batches").exists()


def test_damage_half_way_leaves_the_earlier_export(handbuilt: Path, copied: Callable[[Path], Path]) -> None:
    atlas = copied(handbuilt)
    out = atlas.parent / "out"
    ms.export(atlas, out, to="jsonl", progress=False)
    before = files(out)
    (atlas / "values/layer-001.parquet").write_bytes(b"no table")
    with pytest.raises(AtlasDamaged, match=r"layer-001\.parquet"):
        ms.export(atlas, out, to="jsonl", memories="L0,L1", progress=False)
    assert files(out) == before
