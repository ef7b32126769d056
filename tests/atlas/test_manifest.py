"""The seal: when a folder is an atlas, and what it takes to stop being one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.atlas import verify
from mnemoscope.atlas.folder import occupancy
from mnemoscope.atlas.manifest import begin, read_manifest, seal, shared_run_of, unfinished_plan
from mnemoscope.atlas.schema import SCHEMA_VERSION
from mnemoscope.errors import AtlasDamaged, AtlasNotFound, AtlasUnfinished
from support.handbuilt_atlas import build_atlas, manifest, seal_as_is, write_tables


def test_a_folder_s_life(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    assert occupancy(directory) == "free"
    directory.mkdir()
    assert occupancy(directory) == "free"
    begin(directory, plan={"plan": {"triggers": 50}, "part": None})
    assert occupancy(directory) == "unfinished"
    assert unfinished_plan(directory) == {"plan": {"triggers": 50}, "part": None}
    write_tables(directory)
    with pytest.raises(AtlasUnfinished):
        read_manifest(directory)
    seal(directory, manifest())
    assert occupancy(directory) == "finished"
    assert unfinished_plan(directory) is None
    assert sorted(path.name for path in directory.iterdir() if path.is_file()) == [
        *("background.parquet", "manifest.json", "manifest.sha256", "tokens.parquet", "vocabulary.parquet"),
    ]


def test_stopped_between_the_hash_and_the_manifest_it_is_unfinished(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "manifest.json").unlink()
    with pytest.raises(AtlasDamaged, match="is missing"):
        read_manifest(directory)
    begin(directory, plan={"plan": {}, "part": None})
    with pytest.raises(AtlasUnfinished):
        read_manifest(directory)


def test_the_manifest_lists_every_mined_table_and_a_part_s_state(tmp_path: Path) -> None:
    whole = read_manifest(build_atlas(tmp_path / "a"))
    assert (whole["schema"], len(whole["files"])) == (SCHEMA_VERSION, 12)
    assert not any(path.startswith(("run", "state", "manifest")) for path in whole["files"])
    part = read_manifest(build_atlas(tmp_path / "p", part=(1, 2)))
    assert part["part"] == {"index": 1, "of": 2}
    assert part["files"]["state/accumulators.npz"]["bytes"] == 6


def test_sealing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = build_atlas(tmp_path / "one"), build_atlas(tmp_path / "two")
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()


def test_numbers_must_be_finite_and_the_essentials_there(tmp_path: Path) -> None:
    write_tables(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        seal(tmp_path, manifest(proof={"residual": float("inf")}))
    short = manifest()
    del short["plan_hash"]
    with pytest.raises(AtlasDamaged, match="plan_hash"):
        seal(tmp_path, short)
    with pytest.raises(AtlasNotFound):
        read_manifest(tmp_path)


def test_a_package_that_is_not_installed_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_manifest(build_atlas(tmp_path / "a")).package != "unknown"
    monkeypatch.setattr(sys, "path", [])
    assert read_manifest(build_atlas(tmp_path / "b")).package == "unknown"


@pytest.mark.parametrize("begun", [{}, {"work": None}, {"work": {}}, {"work": 1}, {"work": {"leases": 3}}, None])
def test_what_workers_share_of_a_run(tmp_path: Path, begun: dict[str, Any] | None) -> None:
    if begun is not None:
        begin(tmp_path, plan={"plan": {}, "part": None, **begun})
    if begun == {"work": {"leases": 3}}:
        assert shared_run_of(tmp_path)["work"] == {"leases": 3}
    else:
        with pytest.raises(AtlasNotFound, match="holds no run for workers"):
            shared_run_of(tmp_path)


def test_a_manifest_of_another_form_is_damage_though_it_is_sealed(tmp_path: Path) -> None:
    directory = build_atlas(tmp_path / "a")
    said = json.loads((directory / "manifest.json").read_bytes())
    seal_as_is(directory, said | {"layers": []})
    with pytest.raises(AtlasDamaged, match=r"manifest\.json: the manifest's layers: ") as refused:
        read_manifest(directory)
    assert verify(directory) == [str(refused.value)]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null"])
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    directory = build_atlas(tmp_path / "a")
    (directory / "manifest.json").write_bytes(content)
    with pytest.raises(AtlasDamaged):
        read_manifest(directory)
